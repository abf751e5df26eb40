//! Names of a mounted volume: look-up, listing, creation, change and removal.
//!
//! Each change goes to the server at once and is answered when the server has it. Changes of other
//! devices are seen when the time for which names are believed is over, except that opening a file
//! always asks.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use bytes::Bytes;
use fuse::{
    FileHandle, FileType, INodeNo, Make, Rename, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    Request, rename_flag,
};
use stream::{Done, ErrorKind, FileInfo, FileKind, OpenHow, Opened};

use super::acls::{self, Made, Maker, Wanted};
use super::attributes::file_type;
use super::state::{GENERATION, State, reply_empty};
use crate::errno;

/// Longest name of a directory entry in Linux, and in a volume.
pub(super) const NAME_BYTES_MAX: usize = 255;

/// The bits of a mode that hold the type of the file.
const KIND_BITS: u32 = 0o170_000;

/// Gets a path from the table, or answers with the error.
macro_rules! path_or_reply {
    ($path:expr, $reply:ident) => {
        match $path {
            Ok(path) => path,
            Err(error) => return $reply.error(error),
        }
    };
}
pub(super) use path_or_reply;

pub(super) fn lookup(state: &Arc<State>, folder: INodeNo, name: &OsStr, reply: ReplyEntry) {
    let name = name.as_bytes();
    if name.len() > NAME_BYTES_MAX {
        return reply.error(errno::NAME_TOO_LONG);
    }
    let path = path_or_reply!(state.path_in(folder, name), reply);
    let (looking, name) = (state.clone(), name.to_vec());
    let done: Done<FileInfo> = Box::new(move |found| match found {
        Ok(info) => looking.reply_entry(folder, &name, &info, reply),
        Err(error) => {
            if error.kind() == ErrorKind::NotFound {
                looking.kept().inodes.removed(folder.0, &name);
            }
            reply.error(errno::of_stream(&error));
        }
    });
    state.volume.stat(&path[..], done);
}

pub(super) fn readlink(state: &Arc<State>, number: INodeNo, reply: ReplyData) {
    let path = path_or_reply!(state.path(number), reply);
    let done: Done<bytes::Bytes> = Box::new(move |target| match target {
        Ok(target) => reply.data(&target),
        Err(error) => reply.error(errno::of_stream(&error)),
    });
    state.volume.read_link(&path, done);
}

pub(super) fn mkdir(
    state: &Arc<State>,
    request: &Request,
    folder: INodeNo,
    name: &OsStr,
    make: Make,
    reply: ReplyEntry,
) {
    let name = name.as_bytes().to_vec();
    let path = path_or_reply!(state.path_in(folder, &name), reply);
    let (making, owner) = (state.clone(), state.maker(request));
    acls::made_in(state, folder, Wanted::folder(make), move |given| match given {
        Ok(Made { mode, xattrs }) => {
            let volume = making.volume_for(reply.unique());
            let done = made(&making, folder, name, path.clone(), reply);
            volume.make_folder_with(&path, (mode, owner), &xattrs, done);
        }
        Err(error) => reply.error(error),
    });
}

pub(super) fn symlink(
    state: &Arc<State>,
    request: &Request,
    folder: INodeNo,
    name: &OsStr,
    target: &OsStr,
    reply: ReplyEntry,
) {
    let name = name.as_bytes().to_vec();
    let path = path_or_reply!(state.path_in(folder, &name), reply);
    let volume = state.volume_for(reply.unique());
    let done = made(state, folder, name, path.clone(), reply);
    volume.make_link(&path, Bytes::copy_from_slice(target.as_bytes()), state.maker(request), done);
}

/// Answers with the new file.
fn made(state: &Arc<State>, folder: INodeNo, name: Vec<u8>, path: Vec<u8>, reply: ReplyEntry) -> Done<()> {
    let making = state.clone();
    Box::new(move |done| match done {
        Ok(()) => making.look(folder, name, path, reply),
        Err(error) => reply.error(errno::of_stream(&error)),
    })
}

/// Special files only where owners are kept: the owner decides who may make a device node.
pub(super) fn mknod(
    state: &Arc<State>,
    request: &Request,
    folder: INodeNo,
    name: &OsStr,
    make: Make,
    reply: ReplyEntry,
) {
    let (maker, rdev) = (Maker::new(state, request), make.rdev);
    let owner = maker.owner;
    let special = match make.mode & KIND_BITS {
        0 | 0o100_000 => None,
        0o010_000 => Some(FileKind::Fifo),
        0o020_000 => Some(FileKind::CharDevice),
        0o060_000 => Some(FileKind::BlockDevice),
        0o140_000 => Some(FileKind::Socket),
        _ => return reply.error(errno::INVALID),
    };
    if special.is_some() && owner.is_none() {
        return reply.error(errno::NOT_ALLOWED);
    }
    let name = name.as_bytes().to_vec();
    let path = path_or_reply!(state.path_in(folder, &name), reply);
    let making = state.clone();
    acls::made_in(state, folder, Wanted::file(make), move |given| match (given, special) {
        (Ok(Made { mode, xattrs }), Some(kind)) => {
            let volume = making.volume_for(reply.unique());
            let done = made(&making, folder, name, path.clone(), reply);
            volume.make_node_with(&path, (kind, mode, rdev), owner, &xattrs, done);
        }
        (Ok(given), None) => make_file(&making, folder, name, path, maker, given, reply),
        (Err(error), _) => reply.error(error),
    });
}

/// Makes a file that is not opened.
fn make_file(
    state: &Arc<State>,
    folder: INodeNo,
    name: Vec<u8>,
    path: Vec<u8>,
    Maker { owner, token }: Maker,
    given: Made,
    reply: ReplyEntry,
) {
    let how = OpenHow { write: true, owner, exclusive: true, ..OpenHow::default() };
    let (making, asked, unique) = (state.clone(), path.clone(), reply.unique());
    let done: Done<Opened> = Box::new(move |made| match made {
        Ok(opened) => {
            let volume = making.volume.clone();
            let closed: Done<()> = Box::new(move |closed| match closed {
                Ok(()) => making.look(folder, name, path, reply),
                Err(error) => reply.error(errno::of_stream(&error)),
            });
            volume.close(opened.handle, closed);
        }
        Err(error) => reply.error(errno::of_stream(&error)),
    });
    acls::open_file(state, unique, &asked, how, (given, token), done);
}

pub(super) fn link(state: &Arc<State>, number: INodeNo, folder: INodeNo, name: &OsStr, reply: ReplyEntry) {
    let name = name.as_bytes().to_vec();
    let from = path_or_reply!(state.path(number), reply);
    let to = path_or_reply!(state.path_in(folder, &name), reply);
    let (linking, volume, path) = (state.clone(), state.volume_for(reply.unique()), to.clone());
    let done: Done<()> = Box::new(move |done| {
        if let Err(error) = done {
            return reply.error(errno::of_stream(&error));
        }
        let volume = linking.volume.clone();
        let found: Done<FileInfo> = Box::new(move |found| match found {
            Ok(info) => {
                // A file that was only here until now gets its id, so that both names are one
                // inode.
                let _ = linking.kept().inodes.is_same(number, &info);
                linking.reply_entry(folder, &name, &info, reply);
            }
            Err(error) => reply.error(errno::of_stream(&error)),
        });
        volume.stat(&path[..], found);
    });
    volume.link(&from, &to, done);
}

pub(super) fn unlink(state: &Arc<State>, folder: INodeNo, name: &OsStr, reply: ReplyEmpty) {
    let name = name.as_bytes().to_vec();
    let path = path_or_reply!(state.path_in(folder, &name), reply);
    state.volume_for(reply.unique()).remove(&path, removed(state, folder, name, reply));
}

pub(super) fn rmdir(state: &Arc<State>, folder: INodeNo, name: &OsStr, reply: ReplyEmpty) {
    let name = name.as_bytes().to_vec();
    let path = path_or_reply!(state.path_in(folder, &name), reply);
    state.volume_for(reply.unique()).remove_folder(&path, removed(state, folder, name, reply));
}

fn removed(state: &Arc<State>, folder: INodeNo, name: Vec<u8>, reply: ReplyEmpty) -> Done<()> {
    let (removing, unique, answer) = (state.clone(), reply.unique(), reply_empty(reply));
    Box::new(move |done| {
        if done.is_ok() {
            removing.kept().once(unique, |inodes| inodes.removed(folder.0, &name));
        }
        answer(done);
        removing.kept().answered(unique);
    })
}

pub(super) fn rename(state: &Arc<State>, rename: &Rename<'_>, reply: ReplyEmpty) {
    if rename.flags & !rename_flag::NOREPLACE != 0 {
        return reply.error(errno::INVALID);
    }
    let replaces = rename.flags & rename_flag::NOREPLACE == 0;
    let (old_name, new_name) = (rename.name.as_bytes().to_vec(), rename.new_name.as_bytes().to_vec());
    if new_name.len() > NAME_BYTES_MAX {
        return reply.error(errno::NAME_TOO_LONG);
    }
    let old = path_or_reply!(state.path_in(rename.parent, &old_name), reply);
    let new = path_or_reply!(state.path_in(rename.new_parent, &new_name), reply);
    let (renaming, unique, answer) = (state.clone(), reply.unique(), reply_empty(reply));
    let (from, to) = (rename.parent.0, rename.new_parent.0);
    let done: Done<()> = Box::new(move |done| {
        if done.is_ok() {
            renaming.kept().once(unique, |inodes| inodes.renamed((from, &old_name), (to, &new_name)));
        }
        answer(done);
        renaming.kept().answered(unique);
    });
    state.volume_for(unique).rename(&old, &new, replaces, done);
}

pub(super) fn readdir(state: &Arc<State>, folder: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
    let listing = state.clone();
    state.listing(folder, handle, offset, move |listed| {
        let entries = match listed {
            Ok(entries) => entries,
            Err(error) => return reply.error(error),
        };
        let kept = listing.kept();
        let inodes = &kept.inodes;
        let dots = [(folder, "."), (inodes.folder_of(folder), "..")];
        for (position, (number, name)) in (0u64..).zip(dots).skip_while(|(position, _)| *position < offset) {
            if reply.add(number, position + 1, FileType::Directory, name) {
                return reply.ok();
            }
        }
        let skipped = usize::try_from(offset.saturating_sub(2)).unwrap_or(usize::MAX);
        for (index, entry) in entries.iter().enumerate().skip(skipped) {
            let number = inodes.peek(folder.0, &entry.name, &entry.info);
            let name = OsStr::from_bytes(&entry.name);
            if reply.add(number, index as u64 + 3, file_type(entry.info.kind), name) {
                break;
            }
        }
        drop(kept);
        reply.ok();
    });
}

/// The same with attributes: the kernel counts each entry as looked up.
pub(super) fn readdirplus(
    state: &Arc<State>,
    folder: INodeNo,
    handle: FileHandle,
    offset: u64,
    mut reply: ReplyDirectoryPlus,
) {
    let listing = state.clone();
    state.listing(folder, handle, offset, move |listed| {
        let entries = match listed {
            Ok(entries) => entries,
            Err(error) => return reply.error(error),
        };
        let ttl = listing.settings.ttl;
        let mut kept = listing.kept();
        let inodes = &mut kept.inodes;
        let dots = [(folder, "."), (inodes.folder_of(folder), "..")];
        for (position, (number, name)) in (0u64..).zip(dots).skip_while(|(position, _)| *position < offset) {
            // The kernel uses only the name and the type of these two.
            let info = FileInfo { kind: stream::FileKind::Folder, mode: 0o755, ..FileInfo::default() };
            if reply.add(position + 1, name, &ttl, &listing.attributes(number, &info), GENERATION) {
                // Nothing to undo: these two are not counted.
                let _ = reply.ok();
                return;
            }
        }
        let mut told = Vec::new();
        let skipped = usize::try_from(offset.saturating_sub(2)).unwrap_or(usize::MAX);
        for (index, entry) in entries.iter().enumerate().skip(skipped) {
            let number = inodes.found(folder.0, &entry.name, &entry.info);
            let attributes = listing.attributes(number, &entry.info);
            let name = OsStr::from_bytes(&entry.name);
            if reply.add(index as u64 + 3, name, &ttl, &attributes, GENERATION) {
                // The buffer is full.
                inodes.forget(number, 1);
                break;
            }
            told.push(number);
        }
        drop(kept);
        if !reply.ok() {
            // The kernel does not know them.
            let mut kept = listing.kept();
            told.into_iter().for_each(|number| kept.inodes.forget(number, 1));
        }
    });
}
