//! The state that all operations on a mounted volume share, and the steps that many of them take.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use fuse::{Errno, FileAttr, FileHandle, INodeNo, ReplyAttr, ReplyEmpty, ReplyEntry, Request};
use stream::{Done, FileInfo, FileRef, FolderEntry, Handle, Owner, RemoteVolume, Space, StreamError};
use units::Token;

use super::attributes::attributes;
use super::inodes::{Inodes, Nameless};
use super::lease::Leases;
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
    /// How long the kernel believes names and attributes.
    pub ttl: Duration,
    /// The owner of all files; `None`: the owners that the server tells.
    pub owner: Option<Owner>,
    /// Reads and writes go past the page cache.
    pub direct: bool,
    /// Bytes the kernel may read ahead by itself.
    pub readahead_bytes: u32,
}

/// A listing that a program reads; `None` before its first READDIR.
type Listing = Option<Arc<Vec<FolderEntry>>>;

/// The state of one mounted volume.
pub(super) struct State {
    pub volume: Arc<RemoteVolume>,
    pub settings: Settings,
    pub operations: Arc<Operations>,
    inodes: Mutex<Inodes>,
    /// Open handles that may change the file, by writing or by truncation at open.
    writers: Mutex<HashSet<Handle>>,
    folders: Mutex<HashMap<u64, Listing>>,
    next_folder: AtomicU64,
    leases: Mutex<Leases>,
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
    pub fn new(volume: Arc<RemoteVolume>, settings: Settings, operations: Arc<Operations>) -> Arc<State> {
        let processes = Processes::new(|_token| {});
        Arc::new(State {
            volume,
            settings,
            operations,
            inodes: Mutex::new(Inodes::new()),
            writers: Mutex::default(),
            folders: Mutex::default(),
            next_folder: AtomicU64::new(1),
            leases: Mutex::default(),
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

    pub fn inodes(&self) -> MutexGuard<'_, Inodes> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn writers(&self) -> MutexGuard<'_, HashSet<Handle>> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folders(&self) -> MutexGuard<'_, HashMap<u64, Listing>> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.inodes().path(number).map_err(|Nameless| errno::STALE)
    }

    pub fn path_in(&self, folder: INodeNo, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.inodes().path_in(folder, name).map_err(|Nameless| errno::STALE)
    }

    /// The reference of a file for the volume: the handle that the kernel names, else its path,
    /// else any open handle.
    pub fn file(&self, number: INodeNo, handle: Option<FileHandle>) -> Result<FileRef, Errno> {
        if let Some(handle) = handle {
            return Ok(FileRef::Handle(Handle(handle.0)));
        }
        let inodes = self.inodes();
        match inodes.path(number) {
            Ok(path) => Ok(FileRef::Path(path)),
            Err(Nameless) => inodes.handle(number).map(FileRef::Handle).ok_or(errno::STALE),
        }
    }

    /// As [`State::file`], for a change: it never names another file that has the path by now,
    /// since the kernel checked permissions of this one.
    pub fn file_to_change(&self, number: INodeNo, handle: Option<FileHandle>) -> Result<FileRef, Errno> {
        let file = self.file(number, handle)?;
        match (file, self.inodes().file(number)) {
            (FileRef::Path(path), id @ 1..) => Ok(FileRef::File { path, id }),
            (file, _) => Ok(file),
        }
    }

    pub fn attributes(&self, number: INodeNo, info: &FileInfo) -> FileAttr {
        attributes(number, info, self.settings.owner, self.volume.info().block_bytes)
    }

    /// Answers with a name that was found; the kernel counts it.
    pub fn reply_entry(&self, folder: INodeNo, name: &[u8], info: &FileInfo, reply: ReplyEntry) {
        let number = self.inodes().found(folder.0, name, info);
        if !reply.entry(&self.settings.ttl, &self.attributes(number, info), GENERATION) {
            // It was interrupted meanwhile, and knows no such inode.
            self.inodes().forget(number, 1);
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
                let mut inodes = state.inodes();
                if handle.is_none() && !inodes.is_same(number, &info) {
                    // Another device put another file there; this error makes the kernel look it
                    // up.
                    return reply.error(errno::STALE);
                }
                inodes.tell(number, &info);
                drop(inodes);
                reply.attr(&state.settings.ttl, &state.attributes(number, &info));
            }
            Err(error) => reply.error(errno::of_stream(&error)),
        });
        self.volume.stat(of, done);
    }

    /// A file was opened or made: remembers the handle.
    pub fn opened(&self, number: INodeNo, handle: Handle, changes: bool) {
        self.inodes().opened(number, handle);
        if changes {
            self.writers().insert(handle);
        }
    }

    /// Forgets a handle that the kernel has closed, or never got because its answer came too late.
    pub fn closed(&self, number: INodeNo, handle: Handle, done: Done<()>) {
        self.writers().remove(&handle);
        self.inodes().closed(number, handle);
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

    /// A new handle of an open directory.
    pub fn open_folder(&self) -> FileHandle {
        let number = self.next_folder.fetch_add(1, Ordering::Relaxed);
        self.folders().insert(number, None);
        FileHandle(number)
    }

    pub fn close_folder(&self, handle: FileHandle) {
        self.folders().remove(&handle.0);
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
        if offset > 0
            && let Some(Some(listing)) = self.folders().get(&handle.0).cloned()
        {
            return then(Ok(listing));
        }
        let path = match self.path(folder) {
            Ok(path) => path,
            Err(error) => return then(Err(error)),
        };
        let state = self.clone();
        let done: Done<Vec<FolderEntry>> = Box::new(move |listed| {
            let listed = listed.map(Arc::new).map_err(|error| errno::of_stream(&error));
            if let (Ok(listing), Some(kept)) = (&listed, state.folders().get_mut(&handle.0)) {
                *kept = Some(listing.clone());
            }
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
