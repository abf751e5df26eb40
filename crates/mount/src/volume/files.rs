//! Contents of files of a mounted volume: open, read, write, truncate, sync and close.
//!
//! A close or sync is answered when the server has the data. A write is answered when this device
//! has it. An open asks the server for the current version: if the kernel has the pages of that
//! version, they stay.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use fuse::{
    CopyFileRange, Create, Errno, Fallocate, FileHandle, INodeNo, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty,
    ReplyLseek, ReplyOpen, ReplyWrite, Request, SetAttr, TimeOrNow, Write, open_flag,
};
use stream::{Allocation, Done, ErrorKind, FileInfo, FileRef, Handle, OpenHow, Opened, Owner, SetAttributes};

use super::acls::{self, Maker, Wanted};
use super::attributes::nanoseconds;
use super::locking;
use super::names::{NAME_BYTES_MAX, path_or_reply};
use super::state::{GENERATION, State, reply_empty};
use crate::errno;

/// Flags of open(2) that matter here, the same on all architectures we build for.
const O_ACCMODE: i32 = 0o3;
const O_RDONLY: i32 = 0o0;
const O_WRONLY: i32 = 0o1;
const O_EXCL: i32 = 0o200;
const O_TRUNC: i32 = 0o1000;
const O_APPEND: i32 = 0o2000;

/// The access that flags of open(2) ask for.
fn how(flags: i32, create: Option<u16>) -> OpenHow {
    let mode = flags & O_ACCMODE;
    OpenHow {
        read: mode != O_WRONLY,
        write: mode != O_RDONLY,
        // A handle for reading appends nothing.
        append: flags & O_APPEND != 0 && mode != O_RDONLY,
        create,
        owner: None,
        exclusive: create.is_some() && flags & O_EXCL != 0,
        truncate: flags & O_TRUNC != 0,
    }
}

/// The flags of an open file for the kernel.
fn open_flags(state: &State, how: OpenHow, unchanged: bool) -> u32 {
    let mut flags = 0;
    if state.settings.direct {
        flags |= open_flag::DIRECT_IO;
    }
    if unchanged {
        flags |= open_flag::KEEP_CACHE;
    }
    if !how.changes() && !state.settings.writable {
        // Closing it waits for nothing, and releases no locks.
        flags |= open_flag::NOFLUSH;
    }
    flags
}

pub(super) fn open(state: &Arc<State>, request: &Request, number: INodeNo, flags: i32, reply: ReplyOpen) {
    let path = path_or_reply!(state.path(number), reply);
    let (how, opening) = (how(flags, None), state.clone());
    // Another file may be there by now: truncate it only once it is known to be this one.
    let cuts = how.truncate && (how.write || how.append);
    let done: Done<Opened> = Box::new(move |opened| {
        let opened = match opened {
            Ok(opened) => opened,
            // The kernel believed the name for longer than it existed. It looks it up again, and
            // may make the file.
            Err(error) if error.kind() == ErrorKind::NotFound => return reply.error(errno::STALE),
            Err(error) => return reply.error(errno::of_stream(&error)),
        };
        let mut kept = opening.kept();
        let inodes = &mut kept.inodes;
        let (same, differs) = (inodes.is_same(number, &opened.info), inodes.differs(number, &opened.info));
        let is_doubtful = inodes.is_doubtful(number);
        if same {
            inodes.opened(number, opened.handle, how.changes());
        }
        drop(kept);
        if !same {
            // Another device put another file there: the kernel looks the name up again, and opens
            // that one.
            opening.volume.close(opened.handle, Box::new(drop));
            return reply.error(errno::STALE);
        }
        if differs {
            // Without this the kernel would read up to the size that it was told before.
            opening.forget_attributes(number);
        }
        let unchanged = opened.unchanged && !is_doubtful && !opening.locks.drops_pages(number);
        let (volume, handle) = (opening.volume.clone(), opened.handle);
        let finish: Done<()> = Box::new(move |cut| {
            let answered = match cut {
                Ok(()) => reply.opened(FileHandle(handle.0), open_flags(&opening, how, unchanged)),
                Err(error) => {
                    reply.error(errno::of_stream(&error));
                    false
                }
            };
            if answered && is_doubtful {
                opening.kept().inodes.dropped(number);
            }
            if !answered {
                // The program was killed while it waited, or gets an error: nobody will release
                // this handle.
                opening.closed(number, handle, Box::new(drop));
            }
        });
        match cuts {
            true => volume.set_size(handle, 0, finish),
            false => finish(Ok(())),
        }
    });
    let volume = state.volume_for(request.unique());
    volume.open_file(&path, OpenHow { truncate: how.truncate && !cuts, ..how }, state.token(request), done);
}

pub(super) fn create(
    state: &Arc<State>,
    request: &Request,
    folder: INodeNo,
    name: &OsStr,
    create: Create,
    reply: ReplyCreate,
) {
    let name = name.as_bytes().to_vec();
    if name.len() > NAME_BYTES_MAX {
        return reply.error(errno::NAME_TOO_LONG);
    }
    let path = path_or_reply!(state.path_in(folder, &name), reply);
    let Maker { owner, token } = Maker::new(state, request);
    let how = OpenHow { owner, ..how(create.flags, Some((create.mode & 0o7777) as u16)) };
    let (making, opening, unique) = (state.clone(), state.clone(), request.unique());
    let finish = move |opened: Result<Opened, Errno>| match opened {
        Ok(opened) => {
            let mut kept = making.kept();
            let number = kept.inodes.found(folder.0, &name, &opened.info);
            kept.inodes.opened(number, opened.handle, how.changes());
            let is_doubtful = kept.inodes.is_doubtful(number);
            drop(kept);
            let flags = open_flags(&making, how, opened.unchanged && !is_doubtful);
            let attributes = making.attributes(number, &opened.info);
            let handle = FileHandle(opened.handle.0);
            if !reply.created(&making.settings.ttl, &attributes, GENERATION, handle, flags) {
                // The program was killed while it waited. The file stays; the kernel has neither
                // its inode nor its handle.
                making.kept().inodes.forget(number, 1);
                making.closed(number, opened.handle, Box::new(drop));
            }
        }
        Err(error) => reply.error(error),
    };
    acls::made_in(state, folder, Wanted::opened(create), move |given| match given {
        Ok(given) => {
            let done: Done<Opened> = Box::new(move |opened| finish(opened.map_err(|error| errno::of_stream(&error))));
            acls::open_file(&opening, unique, &path, how, (given, token), done);
        }
        Err(error) => finish(Err(error)),
    });
}

pub(super) fn read(state: &Arc<State>, request: &Request, read: fuse::Read, reply: ReplyData) {
    // If the volume drops this closure unused, dropping the reply sends EIO.
    let done: Done<Bytes> = Box::new(move |read| match read {
        Ok(bytes) => reply.data(&bytes),
        Err(error) => reply.error(errno::of_stream(&error)),
    });
    state.volume.read(Handle(read.handle.0), state.token(request), read.offset, read.size, done);
}

pub(super) fn write(state: &Arc<State>, write: &Write<'_>, reply: ReplyWrite) {
    let (count, volume) = (write.data.len() as u32, state.volume_for(reply.unique()));
    let done: Done<()> = Box::new(move |written| match written {
        Ok(()) => reply.written(count),
        Err(error) => reply.error(errno::of_stream(&error)),
    });
    let (handle, bytes) = (Handle(write.handle.0), Bytes::copy_from_slice(write.data));
    match write.is_writeback {
        true => volume.write_pages(handle, write.offset, bytes, done),
        false => volume.write(handle, write.offset, bytes, done),
    }
}

/// Closes a descriptor: its writes are sent to the server now, and the close returns the result.
/// Then all locks of the process on the file are released.
pub(super) fn flush(state: &Arc<State>, number: INodeNo, handle: FileHandle, owner: u64, reply: ReplyEmpty) {
    let handle = Handle(handle.0);
    let writes = state.kept().inodes.writes(number, handle);
    if !writes && !locking::has(state, number, owner) {
        return reply.ok();
    }
    let unlocking = state.clone();
    let done: Done<()> = Box::new(move |synced| {
        locking::closing(&unlocking, number, handle, owner);
        match synced {
            Err(error) if writes => reply.error(errno::of_stream(&error)),
            _ => reply.ok(),
        }
    });
    state.volume.sync(handle, done);
}

pub(super) fn fsync(state: &Arc<State>, handle: FileHandle, reply: ReplyEmpty) {
    state.volume.sync(Handle(handle.0), reply_empty(reply));
}

/// The last descriptor and the last mapping are gone. Nobody gets the result; lost changes are in
/// the status.
pub(super) fn release(state: &Arc<State>, number: INodeNo, handle: FileHandle, reply: ReplyEmpty) {
    let handle = Handle(handle.0);
    if !locking::is_used(state, number, handle) {
        return state.closed(number, handle, reply_empty(reply));
    }
    let closing = state.clone();
    let done: Done<()> = Box::new(move |_| {
        locking::released(&closing, number, handle);
        closing.closed(number, handle, reply_empty(reply));
    });
    state.volume.sync(handle, done);
}

/// The changes of attributes in a call of the kernel, except the size.
fn attributes(wanted: &SetAttr, keeps_owners: bool) -> SetAttributes {
    let time = |time| match time {
        TimeOrNow::SpecificTime(time) => nanoseconds(time),
        TimeOrNow::Now => nanoseconds(SystemTime::now()),
    };
    SetAttributes {
        mode: wanted.mode.map(|mode| (mode & 0o7777) as u16),
        uid: wanted.uid.filter(|_| keeps_owners),
        gid: wanted.gid.filter(|_| keeps_owners),
        atime_ns: wanted.atime.map(time),
        mtime_ns: wanted.mtime.map(time),
    }
}

pub(super) fn setattr(state: &Arc<State>, number: INodeNo, wanted: SetAttr, reply: ReplyAttr) {
    let (owner, handle) = (state.settings.owner, wanted.handle);
    if let Some(Owner { uid, gid }) = owner
        && (wanted.uid.is_some_and(|wanted| wanted != uid) || wanted.gid.is_some_and(|wanted| wanted != gid))
    {
        return reply.error(errno::NOT_ALLOWED);
    }
    if number == INodeNo::ROOT {
        return setattr_of_top(state, &wanted, reply);
    }
    let of = match state.file_to_change(number, handle) {
        Ok(of) => of,
        Err(error) => return reply.error(error),
    };
    let (finishing, volume) = (state.clone(), state.volume.clone());
    let then: Done<()> = Box::new(move |outcome| match outcome {
        Ok(()) => finishing.reply_attributes(number, handle, reply),
        Err(error) => reply.error(errno::of_stream(&error)),
    });
    let attributes = attributes(&wanted, owner.is_none());
    let Some(size) = wanted.size else { return volume.set_attributes(of, attributes, then) };
    // The times come after the size, whose change would set them.
    let (next, again) = (volume.clone(), of.clone());
    let cut: Done<()> = Box::new(move |outcome| match outcome {
        Ok(()) if attributes != SetAttributes::default() => next.set_attributes(again, attributes, then),
        outcome => then(outcome),
    });
    volume.set_size(of, size, cut);
}

/// Attributes of the top folder cannot change. Archivers set its owner, mode and time, and must not
/// fail if these are the same; the time is ignored.
fn setattr_of_top(state: &Arc<State>, wanted: &SetAttr, reply: ReplyAttr) {
    let keeps_owners = state.settings.owner.is_none();
    let SetAttributes { mode, uid, gid, .. } = attributes(wanted, keeps_owners);
    let finishing = state.clone();
    let done: Done<FileInfo> = Box::new(move |found| match found {
        Ok(info) => {
            let is_there = mode.is_none_or(|mode| mode == info.mode)
                && uid.is_none_or(|uid| uid == info.owner.uid)
                && gid.is_none_or(|gid| gid == info.owner.gid);
            match is_there {
                true => finishing.reply_attributes(INodeNo::ROOT, None, reply),
                false => reply.error(errno::NOT_ALLOWED),
            }
        }
        Err(error) => reply.error(errno::of_stream(&error)),
    });
    state.volume.stat(FileRef::Path(Vec::new()), done);
}

/// The change of a range for a mode of fallocate(2), if a volume has that mode.
fn allocation(mode: i32) -> Option<Allocation> {
    const KEEP_SIZE: i32 = 1;
    const PUNCH_HOLE: i32 = 2;
    const ZERO_RANGE: i32 = 16;
    let extend = mode & KEEP_SIZE == 0;
    match mode & !KEEP_SIZE {
        0 => Some(Allocation { zero: false, reserve: true, extend }),
        PUNCH_HOLE if !extend => Some(Allocation { zero: true, reserve: false, extend }),
        ZERO_RANGE => Some(Allocation { zero: true, reserve: true, extend }),
        _ => None,
    }
}

pub(super) fn fallocate(state: &Arc<State>, wanted: Fallocate, reply: ReplyEmpty) {
    let Some(allocation) = allocation(wanted.mode) else {
        return reply.error(errno::NOT_SUPPORTED);
    };
    let range = (wanted.offset, wanted.length);
    state.volume.allocate(Handle(wanted.handle.0), range, allocation, reply_empty(reply));
}

/// The server copies its own data, so both files are sent to it first. If it cannot copy, the
/// kernel reads and writes instead.
pub(super) fn copy_file_range(state: &Arc<State>, copy: CopyFileRange, reply: ReplyWrite) {
    let (from, to) = (Handle(copy.handle.0), Handle(copy.to_handle.0));
    let volume = state.volume.clone();
    let copied: Done<u64> = Box::new(move |copied| match copied {
        // One change copies at most so much.
        Ok(copied) => reply.written(copied as u32),
        Err(error) => reply.error(errno::of_stream(&error)),
    });
    let synced: Done<()> = Box::new(move |synced| match synced {
        Ok(()) => volume.copy((from, copy.offset), (to, copy.to_offset), copy.length, copied),
        Err(error) => copied(Err(error)),
    });
    state.volume.sync(from, synced);
}

/// Finds data and holes, as far as this device knows. Changes whose outcome is unknown are
/// settled first.
pub(super) fn lseek(state: &Arc<State>, handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
    const SEEK_DATA: i32 = 3;
    const SEEK_HOLE: i32 = 4;
    let (Ok(offset), SEEK_DATA | SEEK_HOLE) = (u64::try_from(offset), whence) else {
        return reply.error(if offset < 0 { errno::NO_SUCH_PLACE } else { errno::INVALID });
    };
    let (handle, volume) = (Handle(handle.0), state.volume.clone());
    let found: Done<Option<u64>> = Box::new(move |found| match found {
        Ok(Some(found)) => reply.offset(found),
        Ok(None) => reply.error(errno::NO_SUCH_PLACE),
        Err(error) => reply.error(errno::of_stream(&error)),
    });
    let settled: Done<FileInfo> = Box::new(move |info| match info {
        Ok(_) => volume.seek(handle, offset, whence == SEEK_HOLE, found),
        Err(error) => found(Err(error)),
    });
    state.volume.stat(handle, settled);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_fallocate_are_understood() {
        let is = |zero, reserve, extend| Some(Allocation { zero, reserve, extend });
        assert_eq!([0, 1].map(allocation), [is(false, true, true), is(false, true, false)]);
        assert_eq!([2, 3].map(allocation), [None, is(true, false, false)]);
        assert_eq!([16, 17].map(allocation), [is(true, true, true), is(true, true, false)]);
        assert_eq!([8, 32, 64, 19].map(allocation), [None; 4]);
    }

    #[test]
    fn flags_of_open_are_understood() {
        assert_eq!(how(0, None), OpenHow::READ);
        assert_eq!(how(O_APPEND, None), OpenHow::READ);
        let emptied = how(O_TRUNC, None);
        assert!(emptied.truncate && emptied.changes() && !emptied.write);
        let write = how(0o1 | O_TRUNC, None);
        assert!(write.write && !write.read && write.truncate && !write.append && write.create.is_none());
        let both = how(0o2 | O_APPEND | O_EXCL, Some(0o600));
        assert!(both.read && both.write && both.append && both.exclusive && !both.truncate);
        assert_eq!(both.create, Some(0o600));
        assert!(!how(O_EXCL, None).exclusive, "only what is made can be there already");
    }
}
