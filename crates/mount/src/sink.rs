//! The sink of pushed pages: the kernel's page cache, through the mount's FUSE connection.
//!
//! The kernel takes pages only for inodes it has looked up. [`Sink::look_up`] makes it do so by a
//! stat of the file's path on the mount, as any program would. The serving threads answer that, so
//! none of them may call it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use client::{PageSink, StoreOutcome};
use image::{Kind, Metadata};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use units::{InodeId, PAGE_BYTES};

use crate::connection::{Connection, Stored};

/// The page sink of one mount.
pub(crate) struct Sink {
    connection: Arc<Connection>,
    metadata: Arc<Metadata>,
    /// Absolute path of the mount point.
    root: PathBuf,
    /// Device number of the mount, `(major, minor)`: proof that a path led into it and not
    /// somewhere else.
    device: (u32, u32),
    open: AtomicBool,
}

impl Sink {
    pub(crate) fn new(connection: Arc<Connection>, metadata: Arc<Metadata>, root: PathBuf, device: (u32, u32)) -> Sink {
        Sink { connection, metadata, root, device, open: AtomicBool::new(true) }
    }

    /// From now on nothing is stored and nothing looked up.
    pub(crate) fn close(&self) {
        self.open.store(false, Ordering::Release);
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }
}

impl PageSink for Sink {
    fn store(&self, inode: InodeId, first_page: u32, bytes: &[u8]) -> StoreOutcome {
        let Some(record) = self.metadata.inode(inode).filter(|record| record.kind() == Kind::File && self.is_open())
        else {
            return StoreOutcome::Failed;
        };
        // Bytes behind the end would make the file grow in the kernel's eyes, and a page short of
        // its end would not count as present, so both are refused.
        let offset = u64::from(first_page) * PAGE_BYTES as u64;
        let end = offset + bytes.len() as u64;
        let whole = end == record.size() || (end < record.size() && bytes.len().is_multiple_of(PAGE_BYTES));
        if bytes.is_empty() || !whole {
            return StoreOutcome::Failed;
        }
        match self.connection.store(u64::from(inode.0), offset, bytes) {
            Stored::Yes => StoreOutcome::Stored,
            Stored::UnknownInode => StoreOutcome::UnknownInode,
            Stored::Failed => StoreOutcome::Failed,
        }
    }

    fn look_up(&self, inode: InodeId) -> bool {
        if !self.is_open() {
            return false;
        }
        let Some(path) = self.metadata.path(inode) else { return false };
        let relative = path.strip_prefix(b"/").unwrap_or(&path);
        let full = if relative.is_empty() { self.root.clone() } else { self.root.join(OsStr::from_bytes(relative)) };
        // By path and without a descriptor kept open, so that the mount never looks busy because of
        // us.
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        match rustix::fs::statx(CWD, &full, flags, StatxFlags::INO) {
            Ok(status) => {
                (status.stx_dev_major, status.stx_dev_minor) == self.device && status.stx_ino == u64::from(inode.0)
            }
            Err(_) => false,
        }
    }
}
