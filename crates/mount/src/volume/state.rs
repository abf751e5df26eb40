//! The state that all operations on a mounted volume share, and the steps that many of them take.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use fuse::{Errno, FileAttr, FileHandle, INodeNo, ReplyAttr, ReplyEmpty, ReplyEntry, Request};
use stream::{Done, FileInfo, FileRef, FolderEntry, Handle, Owner, RemoteVolume, Space, StreamError};
use units::Token;

use super::attributes::attributes;
use super::inodes::Nameless;
use super::kept::{Kept, KeptGuard};
use super::locks::Locks;
use crate::connection::Connection;
use crate::counters::Operations;
use crate::errno;
use crate::process::Processes;

/// The size of a volume until its server has told it, bytes.
const ROOM_BYTES: u64 = 1 << 40;

/// Generation of all inodes: a number is never used for another file while the mount lives.
pub(super) const GENERATION: u64 = 0;

/// Settings of the mount for its file system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// The volume takes changes, as agreed with the kernel.
    pub writable: bool,
    /// How long the kernel believes names and attributes.
    pub ttl: Duration,
    /// The owner of all files; `None`: the owners that the server tells.
    pub owner: Option<Owner>,
    /// Reads and writes go past the page cache.
    pub direct: bool,
    /// Bytes the kernel may read ahead by itself.
    pub readahead_bytes: u32,
}

/// The state of one mounted volume.
pub(super) struct State {
    pub volume: Arc<RemoteVolume>,
    pub settings: Settings,
    pub operations: Arc<Operations>,
    kept: Mutex<Kept>,
    pub locks: Locks,
    /// The free space that the server told last.
    space: Mutex<Space>,
    processes: Processes,
    /// The kernel obeys access control lists, and does not apply the umask to new files.
    acls: AtomicBool,
    /// The connection to the kernel's caches; set once the mount is made.
    connection: OnceLock<Arc<Connection>>,
}

impl State {
    pub fn new(volume: Arc<RemoteVolume>, settings: Settings, operations: Arc<Operations>, kept: Kept) -> Arc<State> {
        let processes = Processes::new(|_token| {});
        Arc::new(State {
            volume,
            settings,
            operations,
            kept: Mutex::new(kept),
            locks: Locks::default(),
            // Programs that check the free space before they write find some; if there is none, the
            // write fails.
            space: Mutex::new(Space {
                bytes: ROOM_BYTES,
                free_bytes: ROOM_BYTES,
                files: u64::MAX,
                free_files: u64::MAX,
            }),
            processes,
            acls: AtomicBool::new(false),
            connection: OnceLock::new(),
        })
    }

    /// Sets whether there are access control lists, as agreed with the kernel.
    pub fn set_acls(&self, has: bool) {
        self.acls.store(has, Ordering::Relaxed);
    }

    /// Whether there are access control lists.
    pub fn has_acls(&self) -> bool {
        self.acls.load(Ordering::Relaxed)
    }

    /// Sets the connection through which the kernel's caches can be invalidated.
    pub fn attach(&self, connection: Arc<Connection>) {
        // Called once, when the mount is made.
        let _ = self.connection.set(connection);
    }

    /// The free space that the server told last.
    pub fn last_space(&self) -> Space {
        *self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the free space that the server told.
    pub fn note_space(&self, space: Space) -> Space {
        *self.space.lock().unwrap_or_else(PoisonError::into_inner) = space;
        space
    }

    /// What the next daemon needs. Changes are kept for it when the guard is dropped, which must be
    /// before the kernel is answered.
    pub fn kept(&self) -> KeptGuard<'_> {
        KeptGuard(self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The volume for the call that makes the change of a request. If the request is made again
    /// after a death of this process, the change is not.
    pub fn volume_for(&self, unique: u64) -> RemoteVolume {
        self.volume.for_request(unique)
    }

    /// The token of the calling program.
    pub fn token(&self, request: &Request) -> Token {
        self.processes.token(request.pid())
    }

    /// The owner of a file that a program makes.
    pub fn maker(&self, request: &Request) -> Option<Owner> {
        self.settings.owner.is_none().then(|| Owner { uid: request.uid(), gid: request.gid() })
    }

    pub fn path(&self, number: INodeNo) -> Result<Vec<u8>, Errno> {
        self.kept().inodes.path(number).map_err(|Nameless| errno::STALE)
    }

    pub fn path_in(&self, folder: INodeNo, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.kept().inodes.path_in(folder, name).map_err(|Nameless| errno::STALE)
    }

    /// The reference of a file for the volume: the handle that the kernel names, else its path,
    /// else any open handle.
    pub fn file(&self, number: INodeNo, handle: Option<FileHandle>) -> Result<FileRef, Errno> {
        if let Some(handle) = handle {
            return Ok(FileRef::Handle(Handle(handle.0)));
        }
        let kept = self.kept();
        match kept.inodes.path(number) {
            Ok(path) => Ok(FileRef::Path(path)),
            Err(Nameless) => kept.inodes.handle(number).map(FileRef::Handle).ok_or(errno::STALE),
        }
    }

    /// As [`State::file`], for a change: it never names another file that has the path by now,
    /// since the kernel checked permissions of this one.
    pub fn file_to_change(&self, number: INodeNo, handle: Option<FileHandle>) -> Result<FileRef, Errno> {
        let file = self.file(number, handle)?;
        match (file, self.kept().inodes.file(number)) {
            (FileRef::Path(path), id @ 1..) => Ok(FileRef::File { path, id }),
            (file, _) => Ok(file),
        }
    }

    pub fn attributes(&self, number: INodeNo, info: &FileInfo) -> FileAttr {
        attributes(number, info, self.settings.owner, self.volume.info().block_bytes)
    }

    /// Answers with a name that was found; the kernel counts it.
    pub fn reply_entry(&self, folder: INodeNo, name: &[u8], info: &FileInfo, reply: ReplyEntry) {
        let number = self.kept().inodes.found(folder.0, name, info);
        if !reply.entry(&self.settings.ttl, &self.attributes(number, info), GENERATION) {
            // It was interrupted meanwhile, and knows no such inode.
            self.kept().inodes.forget(number, 1);
        }
    }

    /// Looks up a path and answers with the file.
    pub fn look(self: &Arc<Self>, folder: INodeNo, name: Vec<u8>, path: Vec<u8>, reply: ReplyEntry) {
        let state = self.clone();
        let done: Done<FileInfo> = Box::new(move |found| match found {
            Ok(info) => state.reply_entry(folder, &name, &info, reply),
            Err(error) => reply.error(errno::of_stream(&error)),
        });
        self.volume.stat(FileRef::Path(path), done);
    }

    /// Gets the attributes of a file and answers with them.
    pub fn reply_attributes(self: &Arc<Self>, number: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let of = match self.file(number, handle) {
            Ok(of) => of,
            Err(error) => return reply.error(error),
        };
        let state = self.clone();
        let done: Done<FileInfo> = Box::new(move |found| match found {
            Ok(info) => {
                let mut kept = state.kept();
                let is_same = handle.is_some() || kept.inodes.is_same(number, &info);
                if is_same {
                    kept.inodes.tell(number, &info);
                }
                drop(kept);
                if !is_same {
                    // Another device put another file there; this error makes the kernel look it
                    // up.
                    return reply.error(errno::STALE);
                }
                reply.attr(&state.settings.ttl, &state.attributes(number, &info));
            }
            Err(error) => reply.error(errno::of_stream(&error)),
        });
        self.volume.stat(of, done);
    }

    /// Forgets a handle that the kernel has closed, or never got because its answer came too late.
    pub fn closed(&self, number: INodeNo, handle: Handle, done: Done<()>) {
        self.kept().inodes.closed(number, handle);
        self.volume.close(handle, done);
    }

    /// Makes the kernel drop the attributes of a file: they may be old.
    pub fn forget_attributes(&self, number: INodeNo) {
        if let Some(connection) = self.connection.get() {
            connection.forget_attributes(number.0);
        }
    }

    /// Makes the kernel drop the pages and attributes of a file, which are old. Waits for READs in
    /// flight.
    pub fn drop_pages(&self, number: INodeNo) {
        if let Some(connection) = self.connection.get() {
            connection.drop_pages(number.0);
        }
    }

    /// Calls `then` with the listing of a handle: a new one at the start of the directory, later
    /// the same.
    pub fn listing(
        self: &Arc<Self>,
        folder: INodeNo,
        handle: FileHandle,
        offset: u64,
        then: impl FnOnce(Result<Arc<Vec<FolderEntry>>, Errno>) + Send + 'static,
    ) {
        let known = self.kept().folder(handle.0).cloned().flatten();
        if let Some(listing) = known.filter(|_| offset > 0) {
            return then(Ok(listing));
        }
        let path = match self.path(folder) {
            Ok(path) => path,
            Err(error) => return then(Err(error)),
        };
        let state = self.clone();
        let done: Done<Vec<FolderEntry>> = Box::new(move |listed| {
            let listed = listed.map(Arc::new).map_err(|error| errno::of_stream(&error));
            let mut kept = state.kept();
            if let (Ok(listing), Some(_)) = (&listed, kept.folder(handle.0)) {
                kept.put_folder(handle.0, Some(listing.clone()));
            }
            drop(kept);
            then(listed);
        });
        self.volume.list(&path, done);
    }
}

/// Answers with nothing but success or an error.
pub(super) fn reply_empty(reply: ReplyEmpty) -> Done<()> {
    Box::new(move |done: Result<(), StreamError>| match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno::of_stream(&error)),
    })
}
