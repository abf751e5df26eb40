//! The machine that our programs run on: blocking, forwarding and waiting for signals
//! ([`signals`]), ending as another program did ([`exit`]), copies of a process ([`fork`]), opening
//! files ([`file`]) and sealing them ([`verity`]), private mounts ([`mounts`]), returning memory to
//! the system ([`memory`]), and work that nobody waits for ([`priority`]).
#![cfg(target_os = "linux")]

pub mod exit;
pub mod file;
pub mod fork;
pub mod memory;
pub mod mounts;
pub mod priority;
pub mod signals;
pub mod verity;

pub use exit::Exit;
