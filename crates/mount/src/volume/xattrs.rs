//! Extended attributes of a mounted volume: those of users, on files and directories.
//!
//! Access control lists come as such too, where owners are kept (`acls`). All others are refused,
//! as by a file system that does not have them: they give rights (`security.capability`), or belong
//! to the system that sets them. `user.runnel.lease` is a lease. Other names of ours are refused.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fuse::{Errno, INodeNo, ReplyEmpty, ReplyXattr, xattr_flag};
use stream::{ACL_ACCESS, ACL_DEFAULT, Done, ErrorKind, FileInfo, FileKind, XattrChange, XattrHow, Xattrs};

use super::lease;
use super::names::path_or_reply;
use super::state::{State, reply_empty};
use crate::errno;

/// Names that a volume keeps begin with it.
const PREFIX: &[u8] = b"user.";

/// Names of ours begin with it.
const OWN_PREFIX: &[u8] = b"user.runnel.";

/// The set-group-id bit.
const SET_GROUP_ID: u16 = 0o2000;

/// Whether a volume keeps attributes of this name.
fn is_kept(name: &[u8]) -> bool {
    name.starts_with(PREFIX) && name.len() > PREFIX.len() && !name.starts_with(OWN_PREFIX)
}

/// Whether it is an access control list, and there are some here.
fn is_acl(state: &State, name: &[u8]) -> bool {
    state.has_acls() && (name == ACL_ACCESS || name == ACL_DEFAULT)
}

/// Whether a file can have attributes of users, as on other file systems of Linux.
fn can_have(state: &State, number: INodeNo) -> bool {
    matches!(state.kept().inodes.kind(number), None | Some(FileKind::File | FileKind::Folder))
}

/// Whether it can have access control lists.
fn can_have_acls(state: &State, number: INodeNo) -> bool {
    state.has_acls() && state.kept().inodes.kind(number) != Some(FileKind::Symlink)
}

/// Checks the name and the file of an attribute that is to be changed.
fn check(state: &State, number: INodeNo, name: &[u8]) -> Result<(), Errno> {
    match name {
        _ if is_acl(state, name) => match number == INodeNo::ROOT {
            true => Err(errno::NOT_ALLOWED),
            false if can_have_acls(state, number) => Ok(()),
            false => Err(errno::NOT_SUPPORTED),
        },
        _ if name == PREFIX => Err(errno::INVALID),
        _ if !is_kept(name) => Err(errno::NOT_SUPPORTED),
        // The top folder stays as the server has it.
        _ if number == INodeNo::ROOT || !can_have(state, number) => Err(errno::NOT_ALLOWED),
        _ => Ok(()),
    }
}

pub(super) fn set(state: &Arc<State>, number: INodeNo, name: &OsStr, value: &[u8], flags: i32, reply: ReplyEmpty) {
    if name == lease::NAME {
        return set_lease(state, number, value, reply);
    }
    let how = match flags & !xattr_flag::KILL_SET_GROUP_ID {
        0 => XattrHow::Any,
        xattr_flag::CREATE => XattrHow::Create,
        xattr_flag::REPLACE => XattrHow::Replace,
        _ => return reply.error(errno::INVALID),
    };
    let set = XattrChange::Set(Bytes::copy_from_slice(value), how);
    match flags & xattr_flag::KILL_SET_GROUP_ID {
        0 => change(state, number, name.as_bytes(), set, reply),
        _ => kill_set_group_id(state, number, name.as_bytes().to_vec(), set, reply),
    }
}

/// Clears the set-group-id bit of a file before a caller outside its group sets its list.
fn kill_set_group_id(state: &Arc<State>, number: INodeNo, name: Vec<u8>, set: XattrChange, reply: ReplyEmpty) {
    let of = path_or_reply!(state.file_to_change(number, None), reply);
    let (killing, file) = (state.clone(), of.clone());
    let then: Done<FileInfo> = Box::new(move |found| match found {
        Ok(info) if info.mode & SET_GROUP_ID != 0 => {
            let volume = killing.volume.clone();
            let killed: Done<()> = Box::new(move |killed| match killed {
                Ok(()) => change(&killing, number, &name, set, reply),
                Err(error) => reply.error(errno::of_stream(&error)),
            });
            volume.set_mode(file, info.mode & !SET_GROUP_ID, killed);
        }
        Ok(_) => change(&killing, number, &name, set, reply),
        Err(error) => reply.error(errno::of_stream(&error)),
    });
    state.volume.stat(of, then);
}

pub(super) fn remove(state: &Arc<State>, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
    if name == lease::NAME {
        return set_lease(state, number, b"none", reply);
    }
    change(state, number, name.as_bytes(), XattrChange::Remove, reply);
}

fn change(state: &Arc<State>, number: INodeNo, name: &[u8], change: XattrChange, reply: ReplyEmpty) {
    if let Err(error) = check(state, number, name) {
        return reply.error(error);
    }
    let of = path_or_reply!(state.file_to_change(number, None), reply);
    let removes_acl = is_acl(state, name) && change == XattrChange::Remove;
    let volume = state.volume_for(reply.unique());
    let done: Done<()> = Box::new(move |done| match done {
        // No list is the requested result.
        Err(error) if removes_acl && error.kind() == ErrorKind::NoAttribute => reply.ok(),
        other => reply_empty(reply)(other),
    });
    volume.change_xattr(of, name, change, done);
}

pub(super) fn get(state: &Arc<State>, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
    if name == lease::NAME {
        let value = state.kept().leases.value(number.0, Instant::now());
        return answer(reply, size, value.as_bytes());
    }
    let can = match name.as_bytes() {
        name if is_acl(state, name) => can_have_acls(state, number),
        name if is_kept(name) => can_have(state, number),
        _ => return reply.error(errno::NOT_SUPPORTED),
    };
    if !can {
        return reply.error(errno::NO_ATTRIBUTE);
    }
    let of = path_or_reply!(state.file(number, None), reply);
    let name = name.as_bytes().to_vec();
    let done: Done<Xattrs> = Box::new(move |found| match found {
        Ok(xattrs) => match xattrs.iter().find(|xattr| xattr.name == name) {
            Some(xattr) => answer(reply, size, &xattr.value),
            None => reply.error(errno::NO_ATTRIBUTE),
        },
        Err(error) => reply.error(errno::of_stream(&error)),
    });
    state.volume.xattrs(of, done);
}

pub(super) fn list(state: &Arc<State>, number: INodeNo, size: u32, reply: ReplyXattr) {
    if !can_have(state, number) && !can_have_acls(state, number) {
        return answer(reply, size, &[]);
    }
    let listing = state.clone();
    let of = path_or_reply!(state.file(number, None), reply);
    let done: Done<Xattrs> = Box::new(move |found| match found {
        Ok(xattrs) => {
            let names = xattrs.iter().map(|xattr| &xattr.name).filter(|name| is_kept(name) || is_acl(&listing, name));
            let names = names.filter(|name| !name.contains(&0));
            let names: Vec<u8> = names.flat_map(|name| name.iter().copied().chain([0])).collect();
            answer(reply, size, &names);
        }
        Err(error) => reply.error(errno::of_stream(&error)),
    });
    state.volume.xattrs(of, done);
}

/// The bytes, if there is room for them, or how many there are for a caller that offers none.
fn answer(reply: ReplyXattr, size: u32, bytes: &[u8]) {
    match size as usize {
        0 => reply.size(bytes.len() as u32),
        size if bytes.len() <= size => reply.data(bytes),
        _ => reply.error(errno::BUFFER_TOO_SMALL),
    }
}

/// Takes, renews or releases the lease, as the attribute says.
fn set_lease(state: &Arc<State>, number: INodeNo, value: &[u8], reply: ReplyEmpty) {
    let Some(wanted) = lease::parse(value) else { return reply.error(errno::INVALID) };
    let of = match state.file(number, None) {
        Ok(of) => of,
        Err(error) => return reply.error(error),
    };
    let (kind, duration) = wanted.map_or((None, Duration::ZERO), |(kind, duration)| (Some(kind), duration));
    let (holding, asked) = (state.clone(), Instant::now());
    let done: Done<Duration> = Box::new(move |leased| match leased {
        Ok(duration) => {
            // Counted from before it was asked for, so that it is never thought to hold when it
            // does not.
            holding.kept().leases.put(number.0, kind, asked + duration, Instant::now());
            reply.ok();
        }
        Err(error) => reply.error(errno::of_stream(&error)),
    });
    state.volume.lease(of, kind, duration, done);
}
