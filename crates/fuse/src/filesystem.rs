//! The trait of a file system: one method per operation of the kernel.
//!
//! A method may answer after it returns: the reply may move to another thread. An operation that is
//! not implemented fails with ENOSYS, and the kernel may remember that. Opening and releasing
//! succeed by default.

use std::ffi::OsStr;
use std::io;

use crate::attributes::Statfs;
use crate::request::{CopyFileRange, Create, Fallocate, Lock, Make, Read, Rename, Request, SetAttr, Write};
use crate::{
    Errno, FileHandle, INodeNo, KernelConfig, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};

/// A file system; called by several serving threads at once.
pub trait Filesystem: Send + Sync + 'static {
    /// The mount begins: agrees with the kernel on what both can do.
    ///
    /// # Errors
    /// The file system cannot serve such a kernel; the mount fails.
    fn init(&mut self, _config: &mut KernelConfig) -> io::Result<()> {
        Ok(())
    }

    /// The mount is gone, and no serving thread is left.
    fn destroy(&self) {}

    /// Looks up a name in a directory. Each answer that arrives counts as one look-up of the
    /// inode.
    fn lookup(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::NOSYS);
    }

    /// The kernel forgets so many look-ups of an inode.
    fn forget(&self, _request: &Request, _inode: INodeNo, _lookups: u64) {}

    /// Attributes of an inode, or of an open file.
    fn getattr(&self, _request: &Request, _inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.error(Errno::NOSYS);
    }

    /// Changes attributes.
    fn setattr(&self, _request: &Request, _inode: INodeNo, _wanted: SetAttr, reply: ReplyAttr) {
        reply.error(Errno::NOSYS);
    }

    /// Where a symbolic link leads to.
    fn readlink(&self, _request: &Request, _inode: INodeNo, reply: ReplyData) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a file that is not opened, or a device, pipe or socket.
    fn mknod(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, _make: Make, reply: ReplyEntry) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a directory.
    fn mkdir(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, _make: Make, reply: ReplyEntry) {
        reply.error(Errno::NOSYS);
    }

    /// Removes the name of a file.
    fn unlink(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Removes a directory.
    fn rmdir(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a symbolic link.
    fn symlink(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, _target: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::NOSYS);
    }

    /// Gives an inode one more name.
    fn link(&self, _request: &Request, _inode: INodeNo, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::NOSYS);
    }

    /// Gives what has one name another.
    fn rename(&self, _request: &Request, _rename: Rename<'_>, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Opens a file with the flags of open(2).
    fn open(&self, _request: &Request, _inode: INodeNo, _flags: i32, reply: ReplyOpen) {
        let _ = reply.opened(FileHandle(0), 0);
    }

    /// Makes a file and opens it.
    fn create(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, _create: Create, reply: ReplyCreate) {
        reply.error(Errno::NOSYS);
    }

    /// Reads from an open file. Fewer bytes than asked for are its end.
    fn read(&self, _request: &Request, _inode: INodeNo, _read: Read, reply: ReplyData) {
        reply.error(Errno::NOSYS);
    }

    /// Writes to an open file.
    fn write(&self, _request: &Request, _inode: INodeNo, _write: Write<'_>, reply: ReplyWrite) {
        reply.error(Errno::NOSYS);
    }

    /// A descriptor of an open file is closed; there may be others. What `owner` has locked of the
    /// file by fcntl(2) is unlocked.
    fn flush(&self, _request: &Request, _inode: INodeNo, _handle: FileHandle, _owner: u64, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// The last descriptor and mapping of an open file are gone. What `flocks` has locked of it by
    /// flock(2) is unlocked.
    fn release(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _flocks: Option<u64>,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    /// The lock that would keep a lock from being made.
    fn getlk(&self, _request: &Request, _inode: INodeNo, _lock: Lock, reply: ReplyLock) {
        reply.error(Errno::NOSYS);
    }

    /// Locks or unlocks a range; with `wait` once that is possible. A wait ends by any signal.
    fn setlk(&self, _request: &Request, _inode: INodeNo, _lock: Lock, _wait: bool, reply: ReplyLock) {
        reply.error(Errno::NOSYS);
    }

    /// Brings what was written to stable storage; with `data_only`, attributes that reading does
    /// not need may wait.
    fn fsync(&self, _request: &Request, _inode: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Opens a directory.
    fn opendir(&self, _request: &Request, _inode: INodeNo, _flags: i32, reply: ReplyOpen) {
        let _ = reply.opened(FileHandle(0), 0);
    }

    /// Entries of a directory, from the one at an offset that was given out with an entry, or 0.
    fn readdir(&self, _request: &Request, _inode: INodeNo, _handle: FileHandle, _offset: u64, reply: ReplyDirectory) {
        reply.error(Errno::NOSYS);
    }

    /// The same with attributes.
    fn readdirplus(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// The last descriptor of an open directory is gone.
    fn releasedir(&self, _request: &Request, _inode: INodeNo, _handle: FileHandle, reply: ReplyEmpty) {
        reply.ok();
    }

    /// As [`Filesystem::fsync`], of a directory.
    fn fsyncdir(&self, _request: &Request, _inode: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Sizes of the file system.
    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        reply.statfs(&Statfs { bsize: 512, namelen: 255, frsize: 512, ..Statfs::default() });
    }

    /// Sets an extended attribute, with the flags of setxattr(2).
    fn setxattr(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _name: &OsStr,
        _value: &[u8],
        _flags: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// The value of an extended attribute, if it has at most `size` bytes; its size if that is 0.
    fn getxattr(&self, _request: &Request, _inode: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::NOSYS);
    }

    /// Names of the extended attributes, as [`Filesystem::getxattr`].
    fn listxattr(&self, _request: &Request, _inode: INodeNo, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::NOSYS);
    }

    /// Removes an extended attribute.
    fn removexattr(&self, _request: &Request, _inode: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Whether who asks may do what the mask of access(2) says.
    fn access(&self, _request: &Request, _inode: INodeNo, _mask: u32, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Reserves room for a part of an open file.
    fn fallocate(&self, _request: &Request, _inode: INodeNo, _wanted: Fallocate, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Copies a range of an open file into another one, or into the same one; fewer bytes than
    /// asked for may be copied, and none behind the end.
    fn copy_file_range(&self, _request: &Request, _inode: INodeNo, _copy: CopyFileRange, reply: ReplyWrite) {
        reply.error(Errno::NOSYS);
    }

    /// Where the next data or hole is, as lseek(2) with SEEK_DATA and SEEK_HOLE.
    fn lseek(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _offset: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        reply.error(Errno::NOSYS);
    }
}
