//! Tests over ELF files built here, an in-memory root directory, and the programs of the machine
//! the tests run on.

mod build;
mod closure;
mod fuzz;
mod program;
mod reference;
mod text;
