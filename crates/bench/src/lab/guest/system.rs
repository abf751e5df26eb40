//! Who delivers a tree to the device: a disk, kernel NFS, Runnel, and other systems, all behind
//! [`System`].
//!
//! A system has two ends: its server runs in the server's name space and control group
//! ([`super::net::server_command`]), its client in the root name space, where it mounts the tree on
//! [`APP`]. The driver creates the system of a row by [`make`], calls `serve` once, then for each
//! run `mount`, the measured work and `unmount`, and `stop` at the end.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context;

use super::super::plan::Row;
use super::super::program::Program;
use super::card::Kind;
use super::{disk, nfs, peer, product};

/// Where the content image is mounted: what servers publish.
pub const CONTENT: &str = "/mnt/content";

/// Where every system mounts the tree for the device.
pub const APP: &str = "/mnt/app";

/// Folder for logs, ready files and everything else that a system writes; in memory.
pub const WORK: &str = "/run/lab";

/// Someone who delivers a tree to the device.
pub trait System {
    /// Starts whatever the server needs for `tree`; called once per row before anything is timed,
    /// and again after `stop` where a run needs a new server.
    fn serve(&mut self, tree: &str) -> anyhow::Result<()>;

    /// Mounts the tree on [`APP`]; returns when it is usable. The caller takes the time.
    fn mount(&mut self, tree: &str) -> anyhow::Result<()>;

    /// Counters of the present mount by the names of records (`requests`, `disk_bytes`, ...), as
    /// far as the system can tell. The driver takes the difference between two calls.
    fn counters(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        Ok(BTreeMap::new())
    }

    /// Files of the server that `program` needs. The driver reads them after it has dropped all
    /// page caches: a server that has been up for a while has them in memory. Empty for a disk,
    /// which is cold.
    fn server_files(&self, program: &Program) -> Vec<PathBuf> {
        let _ = program;
        Vec::new()
    }

    /// Programs of the client, read back likewise: only what comes through the mount is cold.
    fn client_files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// True if the tree comes over the link.
    fn is_remote(&self) -> bool {
        true
    }

    /// Fetches all of `tree` onto the device, where it is kept; what was kept before is gone.
    fn fetch_all(&mut self, tree: &str) -> anyhow::Result<()> {
        anyhow::bail!("this system cannot fetch all of {tree}")
    }

    /// Block device below the mount, for reads that go around the file system.
    fn device(&self) -> Option<PathBuf> {
        None
    }

    /// Takes the mount away; the client's caches are gone afterwards.
    fn unmount(&mut self) -> anyhow::Result<()>;

    /// Ends the server too.
    fn stop(&mut self) -> anyhow::Result<()>;
}

/// The system of `row`. Nothing is started or changed yet: the host makes it too, to see whether a
/// plan is possible.
pub fn make(row: &Row) -> anyhow::Result<Box<dyn System>> {
    match (row.system.as_str(), row.mode.as_str()) {
        ("local", "") => Ok(Box::new(disk::Local)),
        ("sd", mode) => Ok(Box::new(disk::Card::named(mode)?)),
        ("squashfs", mode) if Kind::named(mode).is_ok() => Ok(Box::new(disk::Card::of_squashfs(mode)?)),
        ("nfs", "") => Ok(Box::new(nfs::Nfs::default())),
        ("runnel", mode) => Ok(Box::new(product::Runnel::new(mode, &row.program)?)),
        ("local" | "nfs", mode) => anyhow::bail!("{} has no modes, so none called '{mode}'", row.system),
        (other, mode) => peer::make(other, mode).with_context(|| {
            let mode = if mode.is_empty() { String::new() } else { format!(" with a mode '{mode}'") };
            format!("the lab has no system '{other}'{mode}")
        }),
    }
}
