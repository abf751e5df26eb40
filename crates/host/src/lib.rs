//! What several of our programs ask of the machine they run on: signals that are held back, passed on or taken as "stop"
//! ([`signals`]), an end like that of another program ([`exit`]), and files that are files ([`file`]).
//!
//! Called by `mount`, `record`, `launch` and `cli`, which run programs for a user and must not be noticed, and by whoever
//! opens a file that a user named.
#![cfg(target_os = "linux")]

pub mod exit;
pub mod file;
pub mod signals;

pub use exit::Exit;
