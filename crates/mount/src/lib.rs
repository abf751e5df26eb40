//! Images and volumes as file systems: the FUSE adapter, and what is built on a mount
//! (`runnel run`, `enter`, `redirect`, `status`).
//!
//! The kernel's caches do the work. All metadata is answered from memory and may be cached for
//! ever. Pages that the server pushes are stored into the page cache ahead of the program. A warm
//! program sends the daemon no request. Other reads go to a [`client::Session`], which answers from
//! any thread.
//!
//! Modules, bottom up: `mountpoint` (the mount table), `runtime` (the directory of sockets),
//! `connection` and `sink` (the page cache), `filesystem` (FUSE operations), `process` (thread ids
//! to tokens), `record` (observing reads), `device` (making a mount), `fuse_mount`, `keeper` and
//! `backend` (mounting in this process or beside it), `served` (a mount and its end, bounded in
//! every wait), `hint`, `control` (the control socket) and `hinter` (sending hints), `mounted` (a
//! live mount of an image), `gone` (one whose image is nowhere any more), `volume` (a live mount of
//! a volume), `erofs_mount` (an image file mounted by the kernel's EROFS), `enter` (a program
//! inside an image without root), `run` (mount and enter), `redirect` (image files over local
//! paths), `umount`. The crate `fuse` speaks the protocol.
#![cfg(target_os = "linux")]

mod backend;
mod connection;
pub mod control;
mod counters;
mod device;
pub mod enter;
mod erofs_mount;
mod errno;
mod error;
mod filesystem;
mod fuse_mount;
mod gone;
mod hint;
mod hinter;
pub mod keeper;
mod mounted;
pub mod mountpoint;
mod namespace;
mod overlay;
mod process;
pub mod record;
pub mod redirect;
mod repeated;
mod report;
pub mod run;
mod runtime;
mod served;
mod sink;
mod source;
mod sparse;
mod stop;
mod umount;
mod volume;

pub use control::{MountStatus, mounts};
pub use counters::FuseCounters;
pub use erofs_mount::{FileCheck, KernelMount, Sealing, SignedFile};
pub use error::MountError;
pub use fuse_mount::MountPoint;
pub use gone::serve_gone;
pub use hinter::{Hinter, hint_files};
pub use keeper::Keeper;
pub use mounted::{Mounted, Options};
pub use report::UnmountReport;
pub use stop::Stop;
pub use umount::umount;
pub use volume::{Data, Owners, VolumeMount, VolumeOptions};
