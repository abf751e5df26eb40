//! The system calls that programs make, and filters that allow no others.
//!
//! [`Profile`] is a seccomp profile as container runtimes read it (OCI runtime specification,
//! "Linux seccomp"). [`Filter`] is the program for the kernel that a profile means on one
//! architecture. [`name`] and [`number`] translate.
//!
//! With the feature `analysis`, [`analysis::analyse`] finds the calls of executables and all that
//! they may load, from their machine code.
//!
//! The crate is pure: files come in as bytes or as an `elf::Root`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

#[cfg(feature = "analysis")]
pub mod analysis;

mod error;
mod filter;
mod profile;
mod table;

pub use error::{PolicyError, ProfileError};
pub use filter::{Filter, Instruction};
pub use profile::{Action, Argument, Operator, Profile, Rule};
pub use table::{Arch, name, names, number};
