//! The system calls of whole images.
//!
//! [`analyse`] takes executables and a tree of files. It finds what each executable loads, follows
//! control through all of that from the entry points, and looks at every instruction that enters
//! the kernel for the number in the register of the call. The answer is conservative. A place that
//! cannot be resolved is listed, and means that any call may be made, unless a [`Policy`] vouches
//! for it.
//!
//! Two things are not seen: code that a program makes, or loads from outside the image, while it
//! runs; and memory of a structure that changes between a call and its use in the callee.

mod error;
mod files;
mod object;
mod policy;
mod reach;
mod report;
mod resolve;
mod run;

pub use error::AnalysisError;
pub use policy::{Policy, SiteRule};
pub use report::{CallReport, ObjectReport, ProgramReport, Report, Site, Source};
pub use resolve::Why;
pub use run::{Options, Subject, analyse};

/// Files of one image that are analysed.
pub const FILES_MAX: usize = 65_536;

/// Bytes of one file; the largest libraries have 200 MiB.
pub const FILE_BYTES_MAX: u64 = 1 << 30;

/// Bytes of all files of an image, which lie in memory together.
pub const ALL_BYTES_MAX: u64 = 8 << 30;

#[cfg(test)]
mod tests;
