//! A FUSE connection beside the serving loops: storing pages into the page cache, invalidating, and
//! aborting.
//!
//! A notification is two small structs, written to a duplicate of the device. The result tells
//! whether the kernel knows the inode. The duplicate keeps the connection alive, so it is closed as
//! soon as the serving loops end.

use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{PoisonError, RwLock};

use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::mountpoint;
use crate::runtime::{PrivateDirectory, Purpose};

/// `FUSE_NOTIFY_STORE` of the FUSE protocol.
const NOTIFY_STORE: i32 = 4;

/// `FUSE_NOTIFY_INVAL_INODE` of the FUSE protocol.
const NOTIFY_INVALIDATE: i32 = 2;

/// Bytes of `fuse_out_header` and `fuse_notify_store_out`; `fuse_notify_inval_inode_out` is as
/// long.
const HEADER_BYTES: usize = 16 + 24;

/// The result of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// The pages are in the page cache (they may be evicted at any time).
    Yes,
    /// The kernel has no such inode in its cache now.
    UnknownInode,
    /// Anything else: out of memory, or the connection is gone.
    Failed,
}

/// The device of one mount.
pub(crate) struct Connection {
    device: RwLock<Option<OwnedFd>>,
    /// Minor device number of the mount, which names the connection in sysfs.
    minor: u32,
}

impl Connection {
    /// `device` is a duplicate of the mount's /dev/fuse descriptor.
    pub(crate) fn new(device: OwnedFd, minor: u32) -> Connection {
        Connection { device: RwLock::new(Some(device)), minor }
    }

    /// Copies `bytes` into the page cache of inode `inode` at `offset`. May wait for a READ in
    /// flight on these pages.
    pub(crate) fn store(&self, inode: u64, offset: u64, bytes: &[u8]) -> Stored {
        let device = self.device.read().unwrap_or_else(PoisonError::into_inner);
        let Some(device) = device.as_ref() else { return Stored::Failed };
        let Some(header) = store_header(inode, offset, bytes.len()) else { return Stored::Failed };
        match rustix::io::writev(device, &[IoSlice::new(&header), IoSlice::new(bytes)]) {
            Ok(_) => Stored::Yes,
            Err(Errno::NOENT) => Stored::UnknownInode,
            Err(_) => Stored::Failed,
        }
    }

    /// Makes the kernel ask for the attributes of an inode when they are needed next. Its pages
    /// stay. Does not wait.
    pub(crate) fn forget_attributes(&self, inode: u64) {
        self.invalidate(inode, -1);
    }

    /// Makes the kernel drop the pages of an inode, and its attributes. Waits for READs of these
    /// pages that are in flight, and for WRITEs of what mappings changed: no thread may call it
    /// that has to answer those.
    pub(crate) fn drop_pages(&self, inode: u64) {
        self.invalidate(inode, 0);
    }

    fn invalidate(&self, inode: u64, offset: i64) {
        let device = self.device.read().unwrap_or_else(PoisonError::into_inner);
        let Some(device) = device.as_ref() else { return };
        // Fails for an inode that the kernel does not have in its cache, which is as good.
        let _ = rustix::io::write(device, &invalidate_header(inode, offset));
    }

    /// Ends the connection by force: every request in flight fails with ECONNABORTED, every later
    /// one with ENOTCONN. For daemons that cannot answer any more; the mount itself stays and must
    /// still be unmounted.
    pub(crate) fn abort(&self) -> io::Result<()> {
        abort(self.minor)
    }

    /// Lets the device go. Waits for stores in flight, so call it after the serving loops have
    /// ended or after `abort`.
    pub(crate) fn close(&self) {
        drop(self.device.write().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// See [`Connection::abort`]. `minor` is the minor device number of the mount.
pub(crate) fn abort(minor: u32) -> io::Result<()> {
    let abort = |control: &Path| fs::write(control.join(minor.to_string()).join("abort"), "1");
    let Err(error) = abort(Path::new("/sys/fs/fuse/connections")) else { return Ok(()) };
    // The control file system of FUSE is not mounted everywhere; root can do so for a moment,
    // anyone else has to end the process.
    let Ok(private) = PrivateDirectory::new(Purpose::Control) else { return Err(error) };
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if rustix::mount::mount("fusectl", private.path(), "fusectl", flags, None).is_err() {
        return Err(error);
    }
    let aborted = abort(private.path());
    let _ = mountpoint::detach(private.path());
    aborted
}

/// `fuse_out_header { len: u32, error: i32, unique: u64 }`,
/// `fuse_notify_store_out { nodeid: u64, offset: u64, size: u32, padding: u32 }`, both in the
/// machine's own byte order: this is a kernel interface, not a file format.
#[allow(clippy::host_endian_bytes)]
fn store_header(inode: u64, offset: u64, bytes: usize) -> Option<[u8; HEADER_BYTES]> {
    let size = u32::try_from(bytes).ok()?;
    let total = u32::try_from(HEADER_BYTES + bytes).ok()?;
    let mut header = [0u8; HEADER_BYTES];
    header[0..4].copy_from_slice(&total.to_ne_bytes());
    header[4..8].copy_from_slice(&NOTIFY_STORE.to_ne_bytes());
    // Bytes 8..16: a notification answers no request, so its id is 0.
    header[16..24].copy_from_slice(&inode.to_ne_bytes());
    header[24..32].copy_from_slice(&offset.to_ne_bytes());
    header[32..36].copy_from_slice(&size.to_ne_bytes());
    Some(header)
}

/// `fuse_out_header`, `fuse_notify_inval_inode_out { nodeid: u64, offset: i64, length: i64 }`; a
/// negative offset leaves the pages alone, and a length of 0 is all from there. In the machine's
/// own byte order.
#[allow(clippy::host_endian_bytes)]
fn invalidate_header(inode: u64, offset: i64) -> [u8; HEADER_BYTES] {
    let mut header = [0u8; HEADER_BYTES];
    header[0..4].copy_from_slice(&(HEADER_BYTES as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&NOTIFY_INVALIDATE.to_ne_bytes());
    header[16..24].copy_from_slice(&inode.to_ne_bytes());
    header[24..32].copy_from_slice(&offset.to_ne_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// A pipe in place of the device: what the kernel would get is the two structs and the bytes.
    #[test]
    fn a_store_is_one_message_with_its_length() {
        let (mut reader, writer) = io::pipe().expect("pipe");
        let connection = Connection::new(writer.into(), 0);
        assert_eq!(connection.store(7, 4096, b"page"), Stored::Yes);
        connection.close();
        assert_eq!(connection.store(7, 4096, b"page"), Stored::Failed);
        let mut sent = Vec::new();
        reader.read_to_end(&mut sent).expect("read");
        assert_eq!(sent.len(), 44);
        assert_eq!(sent[0], 44);
        assert_eq!(sent[4], 4);
        assert_eq!(sent[16], 7);
        assert_eq!(sent[25], 16);
        assert_eq!(sent[32], 4);
        assert_eq!(&sent[40..], b"page");
    }

    #[test]
    fn a_broken_device_is_reported() {
        let file = fs::File::open("/dev/null").expect("open");
        assert_eq!(Connection::new(file.into(), 0).store(1, 0, b"x"), Stored::Failed);
    }
}
