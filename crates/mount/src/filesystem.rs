//! The FUSE file system of an image. It answers every question about names and attributes from the
//! image's metadata in memory. READs go to the client session, which answers them now or later from
//! its own threads.
//!
//! A warm mount is as quick as a local file system because the kernel need not ask. Names and
//! attributes of an image never change, so the kernel may keep them for ever (also "there is no
//! such name"). After the first ENOSYS it sends no OPEN. Symbolic links, directory listings and
//! pages stay in its caches. Inode numbers are those of the image, so hard links share one.
//!
//! No function here waits: READs return at once and are answered by a closure.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fuse::{
    FileAttr, FileHandle, FileType, Filesystem, INodeNo, KernelConfig, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyXattr, Request, Statfs, capability, open_flag,
};
use image::{Inode, Kind, Metadata};
use units::{InodeId, PAGE_BYTES};

use crate::counters::{Operations, count};
use crate::errno;
use crate::process::Processes;
use crate::record::{Read, Recorder, Tap};
use crate::repeated::TimedOut;
use crate::source::Source;
use crate::sparse::{self, Seek};

/// For ever, as far as the kernel counts: it cuts longer times to 32 bits of seconds.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Longest name of a directory entry in Linux.
const NAME_BYTES_MAX: usize = 255;

/// Largest READ and largest anything else the kernel may send: one segment. It bounds the memory of
/// one request, and larger reads would not travel better.
const REQUEST_BYTES_MAX: u32 = (units::SEGMENT_PAGES_MAX * PAGE_BYTES) as u32;

/// Requests the kernel may have in flight without a reader waiting (readahead); its own default of
/// 12 is small for a link with a long way.
const BACKGROUND_MAX: u16 = 64;

/// Settings of the mount for its file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Bytes the kernel may read ahead on its own; one page makes it ask for exactly what was
    /// touched.
    pub(crate) readahead_bytes: u32,
    /// Present everything as owned by this user and group.
    pub(crate) owner: Option<(u32, u32)>,
}

/// The file system of one mount.
pub(crate) struct ImageFilesystem {
    source: Arc<dyn Source>,
    metadata: Arc<Metadata>,
    processes: Processes,
    /// Where a recording of the mount goes.
    tap: Option<Arc<Tap>>,
    operations: Arc<Operations>,
    settings: Settings,
    timed_out: Arc<TimedOut>,
    /// Whether any inode has extended attributes; if none, the kernel is told not to ask again.
    has_xattrs: bool,
    /// Whether the kernel can open files and directories without asking.
    skips_open: bool,
    skips_opendir: bool,
}

impl ImageFilesystem {
    pub(crate) fn new(
        source: Arc<dyn Source>,
        operations: Arc<Operations>,
        settings: Settings,
        recorder: Option<Arc<dyn Recorder>>,
    ) -> ImageFilesystem {
        let metadata = source.metadata().clone();
        let tap = recorder.map(|recorder| Arc::new(Tap::new(recorder, &metadata)));
        let (ending, told) = (source.clone(), tap.clone());
        let processes = Processes::new(move |token| {
            if let Some(tap) = &told {
                tap.end(token);
            }
            ending.end(token);
        });
        let has_xattrs = has_xattrs(&metadata);
        ImageFilesystem {
            source,
            metadata,
            processes,
            tap,
            operations,
            settings,
            timed_out: Arc::default(),
            has_xattrs,
            skips_open: false,
            skips_opendir: false,
        }
    }

    fn inode(&self, number: INodeNo) -> Option<(InodeId, Inode)> {
        let id = InodeId(u32::try_from(number.0).ok()?);
        Some((id, self.metadata.inode(id)?))
    }

    fn attributes(&self, id: InodeId, inode: &Inode) -> FileAttr {
        let mut attributes = attributes(id, inode);
        if inode.kind() == Kind::File {
            attributes.blocks = sparse::blocks(&self.metadata, inode);
        }
        if let Some((uid, gid)) = self.settings.owner {
            (attributes.uid, attributes.gid) = (uid, gid);
        }
        attributes
    }

    /// The entries of a directory from position `from` on: `.`, `..`, then the image's own in their
    /// order. The second number of each is the position of the next, which the kernel hands back to
    /// go on there.
    fn listing(&self, folder: InodeId, from: u64, mut add: impl FnMut(u64, u64, FileType, &[u8]) -> bool) {
        let parent = self.metadata.parent(folder).unwrap_or(InodeId::ROOT);
        let dots: [(InodeId, &[u8]); 2] = [(folder, b"."), (parent, b"..")];
        for (position, (inode, name)) in (0u64..).zip(dots).skip_while(|(position, _)| *position < from) {
            if add(u64::from(inode.0), position + 1, FileType::Directory, name) {
                return;
            }
        }
        let Ok(mut position) = u32::try_from(from.saturating_sub(2)) else { return };
        while let Some(entry) = self.metadata.entry(folder, position) {
            let full = add(u64::from(entry.inode.0), u64::from(position) + 3, file_type(entry.kind), entry.name);
            if full {
                return;
            }
            position += 1;
        }
    }
}

impl Filesystem for ImageFilesystem {
    fn init(&mut self, config: &mut KernelConfig) -> io::Result<()> {
        let offered = config.capabilities();
        self.skips_open = offered & capability::NO_OPEN_SUPPORT != 0;
        self.skips_opendir = offered & capability::NO_OPENDIR_SUPPORT != 0;
        let wanted = capability::ASYNC_READ
            | capability::PARALLEL_DIROPS
            | capability::CACHE_SYMLINKS
            | capability::NO_OPEN_SUPPORT
            | capability::NO_OPENDIR_SUPPORT
            | capability::EXPLICIT_INVAL_DATA;
        // Each is an improvement only; a kernel that lacks one works without.
        config.add_capabilities(wanted);
        config.set_max_readahead(self.settings.readahead_bytes);
        config.set_max_write(REQUEST_BYTES_MAX);
        config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        count(&self.operations.lookup);
        if name.len() > NAME_BYTES_MAX {
            return reply.error(errno::NAME_TOO_LONG);
        }
        let Some((folder, inode)) = self.inode(parent) else { return reply.error(errno::NOT_FOUND) };
        if inode.kind() != Kind::Dir {
            return reply.error(errno::NOT_A_DIRECTORY);
        }
        let found = self.metadata.lookup(folder, name.as_bytes());
        let found = found.and_then(|id| Some((id, self.metadata.inode(id)?)));
        let attributes = found.map_or_else(nothing, |(id, inode)| self.attributes(id, &inode));
        // Look-ups are not counted, so one that did not arrive changes nothing.
        let _ = reply.entry(&FOR_EVER, &attributes, 0);
    }

    fn forget(&self, _request: &Request, _number: INodeNo, _lookups: u64) {
        // Inodes live as long as the image, so there is nothing to free.
        count(&self.operations.forget);
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        count(&self.operations.getattr);
        match self.inode(number) {
            Some((id, inode)) => reply.attr(&FOR_EVER, &self.attributes(id, &inode)),
            None => reply.error(errno::NOT_FOUND),
        }
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        count(&self.operations.readlink);
        match self.inode(number).and_then(|(id, _)| self.metadata.symlink(id)) {
            Some(target) => reply.data(target),
            None => reply.error(errno::WRONG_KIND),
        }
    }

    fn open(&self, _request: &Request, _number: INodeNo, _flags: i32, reply: ReplyOpen) {
        count(&self.operations.open);
        if self.skips_open {
            return reply.error(errno::KERNEL_DOES_IT);
        }
        let _ = reply.opened(FileHandle(0), open_flag::KEEP_CACHE | open_flag::NOFLUSH);
    }

    fn read(&self, request: &Request, number: INodeNo, read: fuse::Read, reply: ReplyData) {
        count(&self.operations.read);
        let Some((id, inode)) = self.inode(number) else { return reply.error(errno::NOT_FOUND) };
        if inode.kind() != Kind::File {
            return reply.error(errno::WRONG_KIND);
        }
        let fuse::Read { offset, size, .. } = read;
        let bytes = u64::from(size).min(inode.size().saturating_sub(offset)) as u32;
        if bytes == 0 {
            return reply.data(&[]);
        }
        if self.timed_out.take(id.0.into(), offset, Instant::now()) {
            return reply.error(errno::of_read(&client::ReadError::Timeout));
        }
        // Of a local file nobody asks who read it, unless it is recorded.
        let told = self.tap.is_some() || !self.source.is_local();
        let token = if told { self.processes.token(request.pid()) } else { client::NO_TOKEN };
        let timed_out = self.timed_out.clone();
        // Should the session drop this closure unused (a bug, or its thread panicked), dropping the
        // reply sends EIO.
        let done = Box::new(move |result: Result<&[u8], client::ReadError>| match result {
            Ok(data) if data.len() == bytes as usize => reply.data(data),
            Ok(_) => reply.error(errno::INCONSISTENT),
            Err(error) => {
                if error == client::ReadError::Timeout {
                    timed_out.note(id.0.into(), offset, bytes, Instant::now());
                }
                reply.error(errno::of_read(&error));
            }
        });
        match &self.tap {
            None => {
                self.source.read(token, id, offset, bytes, done);
            }
            Some(tap) => {
                let read = Read { token, thread: request.pid(), inode: id, offset, bytes };
                tap.read(&*self.source, &self.metadata, read, done);
            }
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: u64, reply: ReplyEmpty) {
        count(&self.operations.other);
        reply.error(errno::KERNEL_DOES_IT);
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _flocks: Option<u64>,
        reply: ReplyEmpty,
    ) {
        count(&self.operations.release);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        count(&self.operations.other);
        reply.error(errno::KERNEL_DOES_IT);
    }

    fn opendir(&self, _request: &Request, _number: INodeNo, _flags: i32, reply: ReplyOpen) {
        count(&self.operations.opendir);
        if self.skips_opendir {
            return reply.error(errno::KERNEL_DOES_IT);
        }
        let _ = reply.opened(FileHandle(0), open_flag::KEEP_CACHE | open_flag::CACHE_DIR);
    }

    fn readdir(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        count(&self.operations.readdir);
        let Some((folder, inode)) = self.inode(number) else { return reply.error(errno::NOT_FOUND) };
        if inode.kind() != Kind::Dir {
            return reply.error(errno::NOT_A_DIRECTORY);
        }
        self.listing(folder, offset, |inode, next, kind, name| {
            reply.add(INodeNo(inode), next, kind, OsStr::from_bytes(name))
        });
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, _: FileHandle, reply: ReplyEmpty) {
        count(&self.operations.release);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        count(&self.operations.other);
        reply.error(errno::KERNEL_DOES_IT);
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        count(&self.operations.statfs);
        let page = PAGE_BYTES as u32;
        let blocks = self.metadata.file_bytes().div_ceil(PAGE_BYTES as u64);
        let files = u64::from(self.metadata.inode_count());
        let namelen = NAME_BYTES_MAX as u32;
        reply.statfs(&Statfs { blocks, files, bsize: page, namelen, frsize: page, ..Statfs::default() });
    }

    fn getxattr(&self, _request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        count(&self.operations.xattr);
        if !self.has_xattrs {
            return reply.error(errno::KERNEL_DOES_IT);
        }
        let Some((id, _)) = self.inode(number) else { return reply.error(errno::NOT_FOUND) };
        match self.metadata.xattr(id, name.as_bytes()) {
            Some(value) => reply_sized(reply, value, size),
            None => reply.error(errno::NO_ATTRIBUTE),
        }
    }

    fn listxattr(&self, _request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        count(&self.operations.xattr);
        // Never left to the kernel: it would say that this file system knows no attributes, where a
        // disk has none to list.
        let Some((id, _)) = self.inode(number) else { return reply.error(errno::NOT_FOUND) };
        let mut names = Vec::new();
        for (name, _) in self.metadata.xattrs(id) {
            names.extend_from_slice(name);
            names.push(0);
        }
        reply_sized(reply, &names, size);
    }

    fn access(&self, _request: &Request, _number: INodeNo, _mask: u32, reply: ReplyEmpty) {
        // Asked only of mounts without default_permissions, which ours never are.
        count(&self.operations.other);
        reply.error(errno::KERNEL_DOES_IT);
    }

    fn lseek(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        count(&self.operations.lseek);
        let Some((_, inode)) = self.inode(number) else { return reply.error(errno::NOT_FOUND) };
        let wanted = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return reply.error(errno::WRONG_KIND),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(errno::NOTHING_BEHIND) };
        match sparse::seek(&self.metadata, &inode, offset, wanted) {
            Some(found) => reply.offset(found),
            None => reply.error(errno::NOTHING_BEHIND),
        }
    }
}

/// `SEEK_DATA` and `SEEK_HOLE` of lseek(2), the same on every architecture.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// The attributes of an inode as the kernel wants them.
fn attributes(id: InodeId, inode: &Inode) -> FileAttr {
    let mtime = time(inode.mtime());
    FileAttr {
        ino: INodeNo(u64::from(id.0)),
        size: inode.size(),
        blocks: inode.size().div_ceil(512),
        atime: mtime,
        mtime,
        ctime: mtime,
        kind: file_type(inode.kind()),
        perm: inode.permissions(),
        nlink: inode.nlink(),
        uid: inode.uid(),
        gid: inode.gid(),
        rdev: inode.rdev(),
        blksize: PAGE_BYTES as u32,
    }
}

/// Inode number 0 tells the kernel that the name does not exist and that it may remember so.
fn nothing() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
    }
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Dir => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Char => FileType::CharDevice,
        Kind::Block => FileType::BlockDevice,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
    }
}

/// A time as seconds since 1970, possibly negative, and nanoseconds to add. Out of range becomes
/// 1970.
fn time((seconds, nanoseconds): (i64, u32)) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    base.and_then(|base| base.checked_add(Duration::from_nanos(u64::from(nanoseconds)))).unwrap_or(UNIX_EPOCH)
}

fn has_xattrs(metadata: &Metadata) -> bool {
    (1..=metadata.inode_count()).any(|id| metadata.inode(InodeId(id)).is_some_and(|inode| inode.has_xattrs()))
}

/// Answers an attribute question: its size if the caller offers no buffer, the value if it fits.
fn reply_sized(reply: ReplyXattr, value: &[u8], size: u32) {
    if size == 0 {
        reply.size(value.len() as u32);
    } else if value.len() <= size as usize {
        reply.data(value);
    } else {
        reply.error(errno::BUFFER_TOO_SMALL);
    }
}
