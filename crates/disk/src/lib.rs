//! Emulated disks: a block device over an image in memory whose reads take as long as a model of a
//! disk says.
//!
//! The image is one file of a small FUSE file system ([`Server`], private to this process). A loop
//! device with direct I/O uses it, and an ext4 on that device is mounted read-only ([`Disk`]).
//! Every READ waits for the moment that the model names. The models ([`MODELS`]) and the queue in
//! front of them ([`Timeline`]) are pure: requests and moments go in, moments come out. Unmounting
//! a file system of its own makes it cold, so nobody else on the machine loses cached data. No
//! figure depends on the hardware below as long as the image stays in memory.
//!
//! This needs root, `/dev/fuse` and loop devices; [`missing`] says what is not there. Units:
//! nanoseconds and bytes.

mod device;
mod error;
mod ext4;
mod model;
mod server;
mod timeline;

pub use device::{Disk, missing, private_mounts};
pub use error::DiskError;
pub use ext4::format;
pub use model::{INSTANT, Kind, MODELS, Model};
pub use server::{Lateness, Server};
pub use timeline::{Counters, Moment, Request, Timeline};
