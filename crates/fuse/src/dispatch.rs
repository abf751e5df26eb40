//! Requests into calls of the file system.

use std::sync::Arc;

use crate::connection::Connection;
use crate::handover::Left;
use crate::reply::Pending;
use crate::request::{Operation, Parsed, Request, parse};
use crate::{
    Errno, Filesystem, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};

/// Whether serving continues after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    GoesOn,
    /// DESTROY: it was the last one.
    Ends,
}

/// Has a request answered that was read from descriptor `device`, into an area that has an index if
/// the next daemon sees it.
pub(crate) fn dispatch<F: Filesystem>(
    filesystem: &F,
    connection: &Arc<Connection>,
    (device, area): (usize, Option<usize>),
    bytes: &[u8],
) -> After {
    // A request without a number cannot be answered. No kernel sends one.
    let Some(parsed) = parse(bytes) else { return After::GoesOn };
    let (request, unique) = (&parsed.request, parsed.request.unique());
    if !parsed.is_answered() {
        connection.settle(area);
        match parsed.operation {
            Ok(Operation::Forget(lookups)) => filesystem.forget(request, request.node(), lookups),
            Ok(Operation::BatchForget(forgets)) => {
                for (inode, lookups) in forgets {
                    filesystem.forget(request, inode, lookups);
                }
            }
            Ok(Operation::Interrupt(of)) => connection.interrupt(unique, of),
            _ => {}
        }
        return After::GoesOn;
    }
    connection.register(&parsed, bytes, device, area);
    answered(filesystem, connection, parsed)
}

/// Has a request answered that the last daemon has left, or gives it up.
pub(crate) fn dispatch_left<F: Filesystem>(
    filesystem: &F,
    connection: &Arc<Connection>,
    left: &Left,
    gives_up: bool,
) -> After {
    match parse(&left.bytes) {
        Some(parsed) if parsed.is_answered() && left.answer.is_none() => {
            connection.register_left(&parsed, left);
            if gives_up {
                Pending::new(connection, parsed.request.unique()).error(Errno::IO);
                return After::GoesOn;
            }
            answered(filesystem, connection, parsed)
        }
        Some(parsed) => {
            connection.settle_left(left, parsed.request.unique());
            if parsed.is_answered() {
                return After::GoesOn;
            }
            dispatch(filesystem, connection, (left.device, None), &left.bytes)
        }
        None => After::GoesOn,
    }
}

/// A request that is registered.
fn answered<F: Filesystem>(filesystem: &F, connection: &Arc<Connection>, parsed: Parsed<'_>) -> After {
    let request = &parsed.request;
    let pending = Pending::new(connection, request.unique());
    match parsed.operation {
        Ok(Operation::Destroy) => {
            ReplyEmpty(pending).ok();
            return After::Ends;
        }
        // The first request was one, and there is no second.
        Ok(Operation::Init(_)) => pending.error(Errno::IO),
        Ok(operation) => names(filesystem, request, operation, pending),
        Err(error) => pending.error(error),
    }
    After::GoesOn
}

/// Operations on names and attributes.
fn names<F: Filesystem>(filesystem: &F, request: &Request, operation: Operation<'_>, pending: Pending) {
    let node = request.node();
    match operation {
        Operation::Lookup(name) => filesystem.lookup(request, node, name, ReplyEntry(pending)),
        Operation::GetAttr(handle) => filesystem.getattr(request, node, handle, ReplyAttr(pending)),
        Operation::SetAttr(wanted) => filesystem.setattr(request, node, wanted, ReplyAttr(pending)),
        Operation::Readlink => filesystem.readlink(request, node, ReplyData(pending)),
        Operation::Symlink { name, target } => {
            filesystem.symlink(request, node, name, target, ReplyEntry(pending));
        }
        Operation::Mknod(name, make) => filesystem.mknod(request, node, name, make, ReplyEntry(pending)),
        Operation::Mkdir(name, make) => filesystem.mkdir(request, node, name, make, ReplyEntry(pending)),
        Operation::Unlink(name) => filesystem.unlink(request, node, name, ReplyEmpty(pending)),
        Operation::Rmdir(name) => filesystem.rmdir(request, node, name, ReplyEmpty(pending)),
        Operation::Rename(rename) => filesystem.rename(request, rename, ReplyEmpty(pending)),
        Operation::Link(inode, name) => filesystem.link(request, inode, node, name, ReplyEntry(pending)),
        Operation::Statfs => filesystem.statfs(request, node, ReplyStatfs(pending)),
        Operation::SetXattr { name, value, flags } => {
            filesystem.setxattr(request, node, name, value, flags, ReplyEmpty(pending));
        }
        Operation::GetXattr(name, size) => filesystem.getxattr(request, node, name, size, ReplyXattr(pending)),
        Operation::ListXattr(size) => filesystem.listxattr(request, node, size, ReplyXattr(pending)),
        Operation::RemoveXattr(name) => filesystem.removexattr(request, node, name, ReplyEmpty(pending)),
        Operation::Access(mask) => filesystem.access(request, node, mask, ReplyEmpty(pending)),
        _ => files(filesystem, request, operation, pending),
    }
}

/// Operations on open files and directories.
fn files<F: Filesystem>(filesystem: &F, request: &Request, operation: Operation<'_>, pending: Pending) {
    let node = request.node();
    match operation {
        Operation::Open(flags) => filesystem.open(request, node, flags, ReplyOpen(pending)),
        Operation::Create(name, create) => filesystem.create(request, node, name, create, ReplyCreate(pending)),
        Operation::Read { read, .. } => filesystem.read(request, node, read, ReplyData(pending)),
        Operation::Write(write) => filesystem.write(request, node, write, ReplyWrite(pending)),
        Operation::Flush(handle, owner) => filesystem.flush(request, node, handle, owner, ReplyEmpty(pending)),
        Operation::Release(handle, flocks) => {
            filesystem.release(request, node, handle, flocks, ReplyEmpty(pending));
        }
        Operation::GetLk(lock) => filesystem.getlk(request, node, lock, ReplyLock(pending)),
        Operation::SetLk(lock, wait) => filesystem.setlk(request, node, lock, wait, ReplyLock(pending)),
        Operation::Fsync(handle, data_only) => {
            filesystem.fsync(request, node, handle, data_only, ReplyEmpty(pending));
        }
        Operation::Opendir(flags) => filesystem.opendir(request, node, flags, ReplyOpen(pending)),
        Operation::Readdir(read) => {
            let reply = ReplyDirectory::new(pending, read.size);
            filesystem.readdir(request, node, read.handle, read.offset, reply);
        }
        Operation::ReaddirPlus(read) => {
            let reply = ReplyDirectoryPlus::new(pending, read.size);
            filesystem.readdirplus(request, node, read.handle, read.offset, reply);
        }
        Operation::Releasedir(handle) => filesystem.releasedir(request, node, handle, ReplyEmpty(pending)),
        Operation::Fsyncdir(handle, data_only) => {
            filesystem.fsyncdir(request, node, handle, data_only, ReplyEmpty(pending));
        }
        Operation::Fallocate(wanted) => filesystem.fallocate(request, node, wanted, ReplyEmpty(pending)),
        Operation::CopyFileRange(copy) => filesystem.copy_file_range(request, node, copy, ReplyWrite(pending)),
        Operation::Lseek(handle, offset, whence) => {
            filesystem.lseek(request, node, handle, offset, whence, ReplyLseek(pending));
        }
        // All others are handled before.
        _ => pending.error(Errno::NOSYS),
    }
}
