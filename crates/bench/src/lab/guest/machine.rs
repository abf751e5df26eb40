//! The guest as a whole: what is mounted and loaded before the first row, and what is cleared away
//! after each.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::capture::CAPTURE_GROUP;
use super::execution::PROGRAM_GROUP;
use super::net::{self, SERVER_GROUP};
use super::system::{APP, CONTENT, WORK};
use super::{group, kernel};
use crate::process::try_tool;

/// The disk with the content image.
pub const CONTENT_DEVICE: &str = "pmem0";

/// Most mounts that may lie on each other on [`APP`] after a failed row.
const STACK_MAX: usize = 16;

/// Mounts the content, loads drivers, makes the control groups and the network.
pub fn prepare() -> anyhow::Result<()> {
    for name in [SERVER_GROUP, PROGRAM_GROUP, CAPTURE_GROUP] {
        group::create(name)?;
    }
    fs::create_dir_all(WORK).with_context(|| format!("cannot make {WORK}"))?;
    let device = format!("/dev/{CONTENT_DEVICE}");
    // Reading must not write times of access.
    mount(device.as_str(), CONTENT, "ext4", MountFlags::NOATIME, None)
        .with_context(|| format!("cannot mount {device} on {CONTENT}"))?;
    // Off by default for disks of this kind, whose requests would not be counted.
    let counting = format!("/sys/block/{CONTENT_DEVICE}/queue/iostats");
    fs::write(&counting, "1").with_context(|| format!("cannot write {counting}"))?;
    // Built into most kernels; where it is neither, the systems that need it say so.
    try_tool(Command::new("modprobe").arg("fuse"));
    net::up().context("cannot make the network")
}

/// Takes away what a failed row left mounted; the processes were killed with their guards.
pub fn clear() {
    for folder in ["tmp", "dev", "proc", ""] {
        let path = Path::new(APP).join(folder);
        for _ in 0..STACK_MAX {
            if !kernel::is_mounted(path.components().as_path()) || unmount(&path, UnmountFlags::DETACH).is_err() {
                break;
            }
        }
    }
}
