//! ELF files: how a file is started, and which other files it needs.
//!
//! [`Program`] holds the few facts of one file: class, machine, interpreter, needed libraries and
//! search paths. It is read with a handful of bounded reads, however large the file. [`Finder`]
//! follows these facts through a tree of files with the rules of `ld.so` and collects a
//! [`Closure`]: every file, symlink and directory that must be present for a program to start.
//! [`Shebang`] does the same for scripts.
//!
//! With the feature `code`, the module `code` reads machine code: functions, blocks, jump tables,
//! constants.
//!
//! The crate is pure: the caller hands in the tree as a [`Root`] (the `pack` crate reads a real
//! one), bytes as [`Bytes`]. All input is hostile until parsed. Every count and length has a limit,
//! and nothing here panics on bytes.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod build_id;
mod closure;
#[cfg(feature = "code")]
pub mod code;
mod error;
mod ldconf;
mod machine;
mod parts;
mod program;
mod resolve;
mod root;
mod search;
mod shebang;
mod symbol;

#[cfg(test)]
mod tests;

pub use build_id::{BUILD_ID_BYTES_MAX, build_id};
pub use closure::{Closure, Finder, Missing};
pub use error::{ClosureError, ElfError};
pub use machine::{Class, Endian, Machine};
pub use parts::{Part, PartKind, Parts};
pub use program::{Bytes, Program};
pub use resolve::{Resolved, Resolver};
pub use root::{Node, Root};
pub use shebang::Shebang;
pub use symbol::{Symbol, symbol_at};

/// Program headers we accept. Linkers write about 15; the field could say 65,535.
pub const PROGRAM_HEADERS_MAX: usize = 1024;

/// Bytes of a dynamic section we accept: 65,536 entries of 16 bytes. The largest seen on a desktop
/// has 150 entries.
pub const DYNAMIC_BYTES_MAX: u64 = 1 << 20;

/// Needed libraries of one file that we accept; a large office suite has about 200.
pub const NEEDED_MAX: usize = 4096;

/// Bytes of one string (library name, interpreter, search path) that we accept; PATH_MAX of Linux.
pub const STRING_BYTES_MAX: usize = 4096;

/// Files one closure may load; a full desktop has a few thousand libraries in all.
pub const OBJECTS_MAX: usize = 65_536;

/// Symlinks followed in one path, as in Linux.
pub const SYMLINKS_MAX: usize = 40;

/// Scripts whose interpreter is a script, as in Linux (which stops at 5 rewrites of the command
/// line).
pub const SCRIPT_DEPTH_MAX: usize = 5;
