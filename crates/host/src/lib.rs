//! What several of our programs ask of the machine they run on: signals that are held back, passed
//! on or taken as "stop" ([`signals`]), an end like that of another program ([`exit`]), files that
//! are files ([`file`]), mounts that others do not see ([`mounts`]), and memory given back
//! ([`memory`]).
//!
//! Called by `mount`, `record`, `launch` and `cli`, which run programs for a user and must not be
//! noticed, by whoever opens a file that a user named, by `disk`, and by `server`.
#![cfg(target_os = "linux")]

pub mod exit;
pub mod file;
pub mod memory;
pub mod mounts;
pub mod signals;

pub use exit::Exit;
