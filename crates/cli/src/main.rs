//! The `runnel` command.
fn main() {}
