//! What several of our programs ask of the machine they run on: signals that are held back, passed
//! on or taken as "stop" ([`signals`]), an end like that of another program ([`exit`]), files that
//! are files ([`file`]), and mounts that others do not see ([`mounts`]).
//!
//! Called by `mount`, `record`, `launch` and `cli`, which run programs for a user and must not be
//! noticed, by whoever opens a file that a user named, and by `disk`.
#![cfg(target_os = "linux")]

pub mod exit;
pub mod file;
pub mod mounts;
pub mod signals;

pub use exit::Exit;
