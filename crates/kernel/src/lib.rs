//! Builds a kernel for one device from its source: configure and build once, rewrite the object,
//! link as the kernel does.
//!
//! [`Source`] is a kernel tree, which is only read. [`Build`] is one build of it with a section for
//! each function. [`Link`] runs the kernel's own final link (names, sorted tables, relocations,
//! boot image) on any object that was made of the build's, in a folder of its own, so that a build
//! serves many images. The crate `specialise` does the rewriting.

mod block_map;
mod build;
mod calls;
mod clang;
mod config;
mod error;
mod frozen;
mod initramfs;
mod job;
mod link;
mod machine;
mod policy;
mod processor;
mod recorder;
pub mod reference;
mod sizes;
mod source;
mod tool;

pub use block_map::block_map;
pub use build::Build;
pub use calls::{CallUse, Calls, Constants};
pub use clang::{CLANG_PACKAGES, has_clang, thin_lto};
pub use error::KernelError;
pub use frozen::{Codec, Frozen};
pub use initramfs::Initramfs;
pub use job::{Asked, Job, JobReport, Linked, SizeRow};
pub use link::{Layout, Link, Output};
pub use machine::{Boot, Machine, console_lines};
pub use policy::{Policy, read_syscalls};
pub use processor::Processor;
pub use recorder::{End, Recorded, Recorder};
pub use sizes::KernelSizes;
pub use source::Source;
