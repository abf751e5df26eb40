//! Images as file systems: the FUSE adapter, and what is built on a mount (`runnel run`, `enter`, `redirect`, `status`).
//!
//! Idea: the kernel's caches do the work. All metadata is answered from memory and given out for ever, pages the server
//! pushes are stored into the page cache ahead of the program, and a warm program asks the daemon for nothing. Reads
//! that do reach the daemon go to a [`client::Session`], which answers from any thread.
//!
//! The parts, bottom up: `filesystem` (FUSE operations), `process` (thread ids to tokens), `record`
//! (who is told what is read), `connection` and `sink` (the page cache), `mountpoint` (the mount
//! table), `device` (making a mount), `place` and `mounter` (who mounts and unmounts), `served` (a
//! mount and its end, bounded in every wait), `mounted` (one live mount of an image), `control`
//! (the socket `runnel status` asks), `hint` and `hinter` (what will be needed soon, and who says
//! so), `enter` (a program inside an image without root), `run` (mount and enter), `redirect`
//! (image files over local paths). Beside them, `kernel` mounts an image file by the kernel's
//! EROFS. Called by `cli` and `bench`. The protocol is spoken by the crate `fuse`.
#![cfg(target_os = "linux")]

mod connection;
pub mod control;
mod counters;
mod device;
pub mod enter;
mod errno;
mod error;
mod filesystem;
mod hint;
mod hinter;
mod kernel;
mod mounted;
pub mod mounter;
pub mod mountpoint;
mod namespace;
mod overlay;
mod place;
mod process;
pub mod record;
pub mod redirect;
mod repeated;
pub mod run;
mod runtime;
mod served;
mod sink;
mod source;
mod sparse;
mod volume;

pub use control::{MountStatus, mounts};
pub use counters::FuseCounters;
pub use error::MountError;
pub use hinter::Hinter;
pub use kernel::KernelMount;
pub use mounted::{Mounted, Options};
pub use mounter::Mounter;
pub use mountpoint::umount;
pub use place::MountPoint;
pub use served::Stop;
pub use volume::{Data, Owners, UnmountReport, VolumeMount, VolumeOptions};
