//! The FUSE file system over a volume: it counts each operation and calls `names`, `files`,
//! `locking` or `xattrs`.
//!
//! Nothing here waits: the reply moves into the call on the volume, which answers it from any
//! thread. The kernel keeps names and attributes for a short time. It keeps pages of a file as long
//! as each open finds their version. Written data goes through the page cache to this process at
//! once. Locks are the server's if the volume takes changes, else the kernel's.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use fuse::{
    CopyFileRange, Create, Fallocate, FileHandle, Filesystem, INodeNo, KernelConfig, Lock, Make, Rename, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, SetAttr, Statfs, Write, capability,
};
use units::PAGE_BYTES;

use super::names::NAME_BYTES_MAX;
use super::state::State;
use super::{files, locking, names, xattrs};
use crate::counters::count;
use crate::errno;

/// Largest READ and WRITE that the kernel may send. It bounds the memory of one request.
const REQUEST_BYTES_MAX: u32 = 128 << 10;

/// Requests that the kernel may have in flight without somebody waiting (readahead, pages of
/// mappings).
const BACKGROUND_MAX: u16 = 64;

/// The file system of one mounted volume.
pub(super) struct VolumeFilesystem {
    state: Arc<State>,
}

impl VolumeFilesystem {
    pub fn new(state: Arc<State>) -> VolumeFilesystem {
        VolumeFilesystem { state }
    }
}

impl Filesystem for VolumeFilesystem {
    fn init(&mut self, config: &mut KernelConfig) -> io::Result<()> {
        // Not among them: the writeback cache (a write would be answered before this process has
        // it), and EXPLICIT_INVAL_DATA (without it the kernel drops pages when the size changes,
        // whose last page would end in zeros).
        let mut wanted = capability::ASYNC_READ
            | capability::PARALLEL_DIROPS
            | capability::CACHE_SYMLINKS
            | capability::ATOMIC_O_TRUNC
            | capability::DO_READDIRPLUS
            | capability::READDIRPLUS_AUTO;
        if self.state.settings.writable {
            wanted |= capability::POSIX_LOCKS | capability::FLOCK_LOCKS;
        }
        if self.state.settings.direct {
            wanted |= capability::DIRECT_IO_ALLOW_MMAP;
        }
        let acls = capability::POSIX_ACL | capability::DONT_MASK;
        let has_acls = self.state.settings.owner.is_none() && config.capabilities() & acls == acls;
        if has_acls {
            wanted |= acls | capability::SETXATTR_EXT;
        }
        self.state.set_acls(has_acls);
        // Each is an improvement only; a kernel that lacks one works without.
        config.add_capabilities(wanted);
        config.set_max_readahead(self.state.settings.readahead_bytes);
        config.set_max_write(REQUEST_BYTES_MAX);
        config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        count(&self.state.operations.lookup);
        names::lookup(&self.state, parent, name, reply);
    }

    fn forget(&self, _request: &Request, number: INodeNo, lookups: u64) {
        count(&self.state.operations.forget);
        self.state.kept().inodes.forget(number, lookups);
    }

    fn getattr(&self, _request: &Request, number: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        count(&self.state.operations.getattr);
        self.state.reply_attributes(number, handle, reply);
    }

    fn setattr(&self, _request: &Request, number: INodeNo, wanted: SetAttr, reply: ReplyAttr) {
        count(&self.state.operations.setattr);
        files::setattr(&self.state, number, wanted, reply);
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        count(&self.state.operations.readlink);
        names::readlink(&self.state, number, reply);
    }

    fn mknod(&self, request: &Request, parent: INodeNo, name: &OsStr, make: Make, reply: ReplyEntry) {
        count(&self.state.operations.create);
        names::mknod(&self.state, request, parent, name, make, reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, make: Make, reply: ReplyEntry) {
        count(&self.state.operations.rename);
        names::mkdir(&self.state, request, parent, name, make, reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        count(&self.state.operations.rename);
        names::unlink(&self.state, parent, name, reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        count(&self.state.operations.rename);
        names::rmdir(&self.state, parent, name, reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &OsStr, reply: ReplyEntry) {
        count(&self.state.operations.create);
        names::symlink(&self.state, request, parent, name, target, reply);
    }

    fn link(&self, _: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        count(&self.state.operations.rename);
        names::link(&self.state, number, parent, name, reply);
    }

    fn rename(&self, _request: &Request, rename: Rename<'_>, reply: ReplyEmpty) {
        count(&self.state.operations.rename);
        names::rename(&self.state, &rename, reply);
    }

    fn open(&self, request: &Request, number: INodeNo, flags: i32, reply: ReplyOpen) {
        count(&self.state.operations.open);
        files::open(&self.state, request, number, flags, reply);
    }

    fn create(&self, request: &Request, parent: INodeNo, name: &OsStr, create: Create, reply: ReplyCreate) {
        count(&self.state.operations.create);
        files::create(&self.state, request, parent, name, create, reply);
    }

    fn read(&self, request: &Request, _number: INodeNo, read: fuse::Read, reply: ReplyData) {
        count(&self.state.operations.read);
        files::read(&self.state, request, read, reply);
    }

    fn write(&self, _request: &Request, _number: INodeNo, write: Write<'_>, reply: ReplyWrite) {
        count(&self.state.operations.write);
        files::write(&self.state, &write, reply);
    }

    fn flush(&self, _: &Request, number: INodeNo, handle: FileHandle, owner: u64, reply: ReplyEmpty) {
        count(&self.state.operations.sync);
        files::flush(&self.state, number, handle, owner, reply);
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        count(&self.state.operations.sync);
        files::fsync(&self.state, handle, reply);
    }

    fn release(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        _flocks: Option<u64>,
        reply: ReplyEmpty,
    ) {
        count(&self.state.operations.release);
        files::release(&self.state, number, handle, reply);
    }

    fn getlk(&self, _request: &Request, _number: INodeNo, lock: Lock, reply: ReplyLock) {
        count(&self.state.operations.lock);
        locking::getlk(&self.state, &lock, reply);
    }

    fn setlk(&self, _request: &Request, number: INodeNo, lock: Lock, wait: bool, reply: ReplyLock) {
        count(&self.state.operations.lock);
        locking::setlk(&self.state, number, &lock, wait, reply);
    }

    fn opendir(&self, request: &Request, _number: INodeNo, _flags: i32, reply: ReplyOpen) {
        count(&self.state.operations.opendir);
        // No other request has this number.
        let handle = request.unique();
        self.state.kept().put_folder(handle, None);
        if !reply.opened(FileHandle(handle), 0) {
            self.state.kept().remove_folder(handle);
        }
    }

    fn readdir(&self, _: &Request, number: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectory) {
        count(&self.state.operations.readdir);
        names::readdir(&self.state, number, handle, offset, reply);
    }

    fn readdirplus(&self, _: &Request, number: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectoryPlus) {
        count(&self.state.operations.readdir);
        names::readdirplus(&self.state, number, handle, offset, reply);
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, reply: ReplyEmpty) {
        count(&self.state.operations.release);
        self.state.kept().remove_folder(handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // Names are on the server's stable storage when the calls that change them return.
        count(&self.state.operations.other);
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        count(&self.state.operations.statfs);
        let state = self.state.clone();
        self.state.volume.space(Box::new(move |space| {
            let space = space.map_or_else(|_| state.last_space(), |space| state.note_space(space));
            let page = PAGE_BYTES as u32;
            let writable = state.volume.info().writable;
            let free = |count: u64| if writable { count } else { 0 };
            let blocks = free(space.free_bytes / PAGE_BYTES as u64);
            // Where files have no limit there is none to tell.
            let files = |count: u64| if space.files == u64::MAX { 0 } else { count };
            reply.statfs(&Statfs {
                blocks: space.bytes / PAGE_BYTES as u64,
                bfree: blocks,
                bavail: blocks,
                files: files(space.files),
                ffree: files(free(space.free_files)),
                bsize: page,
                namelen: NAME_BYTES_MAX as u32,
                frsize: page,
            });
        }));
    }

    fn setxattr(&self, _request: &Request, number: INodeNo, name: &OsStr, value: &[u8], flags: i32, reply: ReplyEmpty) {
        count(&self.state.operations.xattr);
        xattrs::set(&self.state, number, name, value, flags, reply);
    }

    fn getxattr(&self, _request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        count(&self.state.operations.xattr);
        xattrs::get(&self.state, number, name, size, reply);
    }

    fn listxattr(&self, _request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        count(&self.state.operations.xattr);
        xattrs::list(&self.state, number, size, reply);
    }

    fn removexattr(&self, _request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        count(&self.state.operations.xattr);
        xattrs::remove(&self.state, number, name, reply);
    }

    fn access(&self, _request: &Request, _number: INodeNo, _mask: u32, reply: ReplyEmpty) {
        // Asked only of mounts without default_permissions, which ours never are.
        count(&self.state.operations.other);
        reply.error(errno::KERNEL_DOES_IT);
    }

    fn fallocate(&self, _request: &Request, _number: INodeNo, wanted: Fallocate, reply: ReplyEmpty) {
        count(&self.state.operations.setattr);
        files::fallocate(&self.state, wanted, reply);
    }

    fn copy_file_range(&self, _: &Request, _: INodeNo, copy: CopyFileRange, reply: ReplyWrite) {
        count(&self.state.operations.write);
        files::copy_file_range(&self.state, copy, reply);
    }

    fn lseek(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        count(&self.state.operations.other);
        files::lseek(&self.state, handle, offset, whence, reply);
    }
}
