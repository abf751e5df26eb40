//! A volume on a server, for all threads of a process.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, ThreadId};
use std::time::Duration;

use bytes::Bytes;
use connection::{Attach, Config, DedicatedConnection, Server, VolumeConnection};
use units::Token;
use wire::volume::{
    Change, FileInfo, FileKind, FolderEntry, HeldLock, LeaseKind, Owner, Share, Space, Xattr, XattrHow,
};

use crate::cache::Cache;
use crate::call::{Call, XattrChange, Xattrs};
use crate::engine::Engine;
use crate::inner::Inner;
use crate::job::Order;
use crate::outbox::{Held, Outbox};
use crate::storage::StorageThread;
use crate::{
    Allocation, Done, ErrorKind, FileRef, Handle, Journal, LockWish, Lost, OpenHow, Opened, Options, SetAttributes,
    Status, StreamError,
};

/// Bytes that one read brings at most; a longer one is answered short.
pub const READ_BYTES_MAX: u32 = 1 << 20;

/// A volume, as its server describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// Its identity: another volume under the same name has another.
    pub id: u128,
    /// Bytes of a data block.
    pub block_bytes: u32,
    /// Files may be changed.
    pub writable: bool,
}

/// A volume on a server. No call blocks; callbacks run under no lock, once each, and may make
/// further calls. Paths are names joined by `/`, without one at either end; empty: the top folder.
/// Dropping it shuts it down.
pub struct RemoteVolume {
    shared: Arc<Shared>,
    /// The request for which calls are made; 0: none with a number.
    request: u64,
}

struct Shared {
    inner: Arc<Inner>,
    orders: Sender<Order>,
    storage: ThreadId,
    name: String,
    info: VolumeInfo,
}

/// The parts of a volume that are made before there is a connection.
struct Start {
    inner: Arc<Inner>,
    orders: Sender<Order>,
    storage: ThreadId,
    opened: Receiver<Result<VolumeInfo, StreamError>>,
    deadline: Duration,
}

impl RemoteVolume {
    /// Opens a volume over a connection of its own, and waits until that was done,
    /// [`Options::open_deadline`] at most.
    ///
    /// # Errors
    /// No server or volume in that time, no such volume, one for writing over a connection that
    /// others can change ([`Options::insecure`]), an outbox that cannot be used.
    pub fn open(
        server: &Server,
        config: Config,
        name: &str,
        options: Options,
    ) -> Result<Arc<RemoteVolume>, StreamError> {
        let start = Start::new(name, options)?;
        match DedicatedConnection::start(server, config, start.inner.clone()) {
            Ok(connection) => start.finish(name, connection),
            Err(error) => Err(start.give_up(StreamError::volume(ErrorKind::Failed, name, error.to_string()))),
        }
    }

    /// Opens a volume over the connection of an image's session, so that a program and its data
    /// share it.
    ///
    /// # Errors
    /// As [`RemoteVolume::open`]; the session's image comes from no Runnel server, or its
    /// connection has a volume already.
    pub fn attached(session: &dyn Attach, name: &str, options: Options) -> Result<Arc<RemoteVolume>, StreamError> {
        let start = Start::new(name, options)?;
        let Some(connection) = session.attach_volumes(start.inner.clone()) else {
            let text =
                "the image comes from no Runnel server, or its session has a volume already; open the volume by itself";
            return Err(start.give_up(StreamError::volume(ErrorKind::Failed, name, text)));
        };
        start.finish(name, connection)
    }

    fn call(&self, call: Call) {
        self.shared.inner.run(|engine, time| engine.call(time, self.request, call));
    }

    /// The same volume, for calls that a request with this number wants; not 0. If the process dies
    /// before it has answered the request, and the next one, with the same [`Options::journal`],
    /// makes the call again, then the outcome is that of the first call: what was made, removed,
    /// renamed or appended is not so twice. One request makes one such call.
    pub fn for_request(&self, request: u64) -> RemoteVolume {
        RemoteVolume { shared: Arc::clone(&self.shared), request }
    }

    /// The volume, as its server describes it.
    pub fn info(&self) -> VolumeInfo {
        self.shared.info
    }

    /// Name of the volume on its server.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Attributes of a file, folder or link, with what was changed here and is not on the server
    /// yet.
    pub fn stat(&self, of: impl Into<FileRef>, done: Done<FileInfo>) {
        self.call(Call::Stat { of: of.into(), done });
    }

    /// All entries of a folder in the order of their names' bytes; files that were made here and
    /// are not on the server yet among them.
    pub fn list(&self, path: &[u8], done: Done<Vec<FolderEntry>>) {
        self.call(Call::List { path: path.to_vec(), done });
    }

    /// Where a symbolic link points.
    pub fn read_link(&self, path: &[u8], done: Done<Bytes>) {
        self.call(Call::ReadLink { path: path.to_vec(), done });
    }

    /// How much room the volume has on its server. Never waits for a connection: without one it is
    /// [`ErrorKind::Timeout`].
    pub fn space(&self, done: Done<Space>) {
        self.call(Call::Space { done });
    }

    /// Opens a regular file. `token` is the running action: a random number for a process or a
    /// task, the same in its reads.
    pub fn open_file(&self, path: &[u8], how: OpenHow, token: Token, done: Done<Opened>) {
        self.call(Call::Open { path: path.to_vec(), how, token, done });
    }

    /// Reads bytes at an offset: fewer at the end of the file, and [`READ_BYTES_MAX`] at most. All
    /// of them are of one version.
    pub fn read(&self, handle: Handle, token: Token, offset: u64, bytes: u32, done: Done<Bytes>) {
        self.call(Call::Read { handle, token, offset, bytes, done });
    }

    /// Writes all bytes at an offset, or at the end if the file was opened to append. Done when all
    /// handles of this volume see them; it waits for the server only when too much is unsent.
    pub fn write(&self, handle: Handle, offset: u64, bytes: Bytes, done: Done<()>) {
        self.call(Call::Write { handle, offset, bytes, done });
    }

    /// As [`RemoteVolume::write`], of pages that programs changed in a mapping: they go to their
    /// offset, also if the file was opened to append.
    pub fn write_pages(&self, handle: Handle, offset: u64, bytes: Bytes, done: Done<()>) {
        self.call(Call::WritePage { handle, offset, bytes, done });
    }

    /// Cuts a file, or extends it with a hole. By handle: sent with the next sync. By path: done
    /// when the server has it.
    pub fn set_size(&self, of: impl Into<FileRef>, size: u64, done: Done<()>) {
        self.call(Call::SetSize { of: of.into(), size, done });
    }

    /// Sets attributes, all of them or none. Of a file with unsent changes: sent with them. Else
    /// done when the server has it.
    pub fn set_attributes(&self, of: impl Into<FileRef>, wanted: SetAttributes, done: Done<()>) {
        self.call(Call::SetAttributes { of: of.into(), wanted, done });
    }

    /// Sets permission bits (07777). As [`RemoteVolume::set_attributes`].
    pub fn set_mode(&self, of: impl Into<FileRef>, mode: u16, done: Done<()>) {
        self.set_attributes(of, SetAttributes { mode: Some(mode), ..SetAttributes::default() }, done);
    }

    /// Sets the time of the last change of the content, nanoseconds since 1970. As
    /// [`RemoteVolume::set_attributes`].
    pub fn set_time(&self, of: impl Into<FileRef>, mtime_ns: i64, done: Done<()>) {
        self.set_attributes(of, SetAttributes { mtime_ns: Some(mtime_ns), ..SetAttributes::default() }, done);
    }

    /// The extended attributes of a file, folder or link.
    pub fn xattrs(&self, of: impl Into<FileRef>, done: Done<Xattrs>) {
        self.call(Call::Xattrs { of: of.into(), done });
    }

    /// Those of a folder in which something is about to be made, as it was when it was last looked
    /// at.
    pub fn folder_xattrs(&self, path: &[u8], done: Done<Xattrs>) {
        self.call(Call::FolderXattrs { path: path.to_vec(), done });
    }

    /// Sets or removes an extended attribute of a file or folder. Done when the server has it; what
    /// is unsent of the file is sent before.
    pub fn change_xattr(&self, of: impl Into<FileRef>, name: &[u8], change: XattrChange, done: Done<()>) {
        self.call(Call::ChangeXattr { of: of.into(), name: name.to_vec(), change, done });
    }

    /// Done when everything that was written to the file through any handle is on the server's
    /// stable storage. An error of earlier changes that were refused is told once for each handle.
    pub fn sync(&self, handle: Handle, done: Done<()>) {
        self.call(Call::Sync { handle, done });
    }

    /// As [`RemoteVolume::sync`] if the handle is open for writing, and then the handle is closed,
    /// whatever the outcome.
    pub fn close(&self, handle: Handle, done: Done<()>) {
        self.call(Call::Close { handle, done });
    }

    /// Makes zeros or room of a range (offset, length) of a file that is open for writing. Done
    /// when the server has it; what was written before is sent first.
    pub fn allocate(&self, handle: Handle, range: (u64, u64), allocation: Allocation, done: Done<()>) {
        self.call(Call::Allocate { handle, range, allocation, done });
    }

    /// Copies a range of an open file into one that is open for writing, on the server; tells how
    /// many bytes, which may be fewer than asked for, and 0 at the end. Both files are to be synced
    /// before. Where the server cannot do it, or somebody changed the file that is read, it is
    /// [`crate::ErrorKind::Unsupported`]: read and write then.
    pub fn copy(&self, from: (Handle, u64), to: (Handle, u64), length: u64, done: Done<u64>) {
        self.call(Call::Copy { from, to, length, done });
    }

    /// The first byte from `offset` on that may be no zero, or with `hole` the first one that lies
    /// in a hole, as far as this device knows; the end of the file is one. `None` if there is none.
    pub fn seek(&self, handle: Handle, offset: u64, hole: bool, done: Done<Option<u64>>) {
        self.call(Call::Seek { handle, offset, hole, done });
    }

    /// Makes a folder. Done when the server has it; so are the next six. It belongs to `owner`, or
    /// to the server's user; so does what the next two make.
    pub fn make_folder(&self, path: &[u8], mode: u16, owner: Option<Owner>, done: Done<()>) {
        let change = Change::MakeFolder { path: path.to_vec(), mode: mode & 0o7777, owner };
        self.call(Call::Make { path: path.to_vec(), change, done });
    }

    /// Makes a symbolic link to `target`, 1 to 4095 bytes. Nothing follows it here.
    pub fn make_link(&self, path: &[u8], target: Bytes, owner: Option<Owner>, done: Done<()>) {
        let change = Change::MakeLink { path: path.to_vec(), target, owner };
        self.call(Call::Make { path: path.to_vec(), change, done });
    }

    /// Makes a FIFO, a socket or a device node, which nobody opens through this volume. `rdev`: the
    /// device, as `st_rdev`.
    pub fn make_node(
        &self,
        path: &[u8],
        (kind, mode, rdev): (FileKind, u16, u32),
        owner: Option<Owner>,
        done: Done<()>,
    ) {
        let change = Change::MakeNode { path: path.to_vec(), kind, mode: mode & 0o7777, rdev, owner };
        self.call(Call::Make { path: path.to_vec(), change, done });
    }

    /// As [`RemoteVolume::make_folder`]; the folder has these extended attributes from the
    /// beginning.
    pub fn make_folder_with(&self, path: &[u8], (mode, owner): (u16, Option<Owner>), xattrs: &[Xattr], done: Done<()>) {
        let change = Change::MakeFolder { path: path.to_vec(), mode: mode & 0o7777, owner };
        self.call(Call::MakeWith { path: path.to_vec(), changes: with_xattrs(path, change, xattrs), done });
    }

    /// As [`RemoteVolume::make_node`], with extended attributes.
    pub fn make_node_with(
        &self,
        path: &[u8],
        (kind, mode, rdev): (FileKind, u16, u32),
        owner: Option<Owner>,
        xattrs: &[Xattr],
        done: Done<()>,
    ) {
        let change = Change::MakeNode { path: path.to_vec(), kind, mode: mode & 0o7777, rdev, owner };
        self.call(Call::MakeWith { path: path.to_vec(), changes: with_xattrs(path, change, xattrs), done });
    }

    /// Removes a file or symbolic link. Unsent changes of it are dropped.
    pub fn remove(&self, path: &[u8], done: Done<()>) {
        self.call(Call::Remove { path: path.to_vec(), done });
    }

    /// Removes an empty folder.
    pub fn remove_folder(&self, path: &[u8], done: Done<()>) {
        self.call(Call::RemoveFolder { path: path.to_vec(), done });
    }

    /// Gives a file one more name, which must be free; what is unsent of it is sent before.
    pub fn link(&self, from: &[u8], to: &[u8], done: Done<()>) {
        self.call(Call::Link { from: from.to_vec(), to: to.to_vec(), done });
    }

    /// Renames a file, folder or link; unsent changes of what is renamed are sent before.
    /// `replace`: what is there is replaced.
    pub fn rename(&self, from: &[u8], to: &[u8], replace: bool, done: Done<()>) {
        self.call(Call::Rename { from: from.to_vec(), to: to.to_vec(), replace, done });
    }

    /// Byte ranges (offset, length) of an open file that will be needed soon, in this order: those
    /// that are not here are pushed. Never fails; what the server does not take is read as ever.
    pub fn hint(&self, handle: Handle, ranges: &[(u64, u64)]) {
        self.call(Call::Hint { handle, ranges: ranges.to_vec() });
    }

    /// Sets the share of the link that pushes of an open file get, whatever its profile says.
    pub fn share(&self, handle: Handle, share: Share) {
        self.call(Call::Share { handle, share });
    }

    /// Caps what the server sends on this connection, bytes per second; 0 for no limit.
    pub fn rate_limit(&self, bytes_per_second: u64) {
        self.call(Call::RateLimit { bytes_per_second });
    }

    /// Locks or unlocks a range of bytes of an open file across all devices, or tells which lock is
    /// in the way; nothing waits for others to unlock. What is in the way is the result, `None` if
    /// the wish was done. To unlock never fails. Other devices have it within a round trip.
    pub fn lock(&self, handle: Handle, wish: LockWish, done: Done<Option<HeldLock>>) {
        self.call(Call::Lock { handle, wish, done });
    }

    /// What an open file is on the server now, whoever changed it; reads from then on see at least
    /// that. For who has just locked it. A file with unsent changes is as it is here.
    pub fn look_again(&self, handle: Handle, done: Done<Opened>) {
        self.call(Call::Look { handle, done });
    }

    /// Takes, renews or (with `None`) gives back a lease of a file for this device. Tells how long
    /// it holds, which may be shorter than asked. Unsent changes of the file should be synced
    /// before it is given back.
    pub fn lease(&self, of: impl Into<FileRef>, kind: Option<LeaseKind>, duration: Duration, done: Done<Duration>) {
        self.call(Call::Lease { of: of.into(), kind, duration, done });
    }

    /// Done when everything that was written to any file is on the server's stable storage.
    pub fn sync_all(&self, done: Done<()>) {
        self.call(Call::SyncAll { done });
    }

    /// The status of the volume.
    pub fn status(&self) -> Status {
        self.shared.inner.lock().engine.status()
    }

    /// Ends everything: calls that wait, and all later ones, get [`crate::ErrorKind::Shutdown`].
    /// Changes that are not on the server are brought to the outbox, which takes as long as this
    /// device's storage needs; what has no place there is returned. Call [`RemoteVolume::sync_all`]
    /// with a deadline before, to get them to the server. A second call does nothing.
    pub fn shutdown(&self) -> Vec<Lost> {
        self.shared.shutdown()
    }
}

impl Shared {
    fn shutdown(&self) -> Vec<Lost> {
        self.inner.run(|engine, time| engine.shut_down(time));
        let connection = self.inner.lock().connection.take();
        drop(connection);
        stop(&self.orders, self.storage);
        self.inner.lock().engine.take_unkept()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// A change that makes something, and those that give it its attributes.
fn with_xattrs(path: &[u8], change: Change, xattrs: &[Xattr]) -> Vec<Change> {
    let set = |Xattr { name, value }: &Xattr| {
        let (name, value, how) = (name.clone(), value.clone(), XattrHow::Any);
        Change::SetXattr { path: path.to_vec(), base: None, name, value, how }
    };
    std::iter::once(change).chain(xattrs.iter().map(set)).collect()
}

/// Waits until the storage thread has done what it was told, unless this is that thread.
fn stop(orders: &Sender<Order>, storage: ThreadId) {
    let (told, stopped) = channel();
    if orders.send(Order::Stop(told)).is_ok() && thread::current().id() != storage {
        // It is gone already if this fails.
        let _ = stopped.recv();
    }
}

impl Start {
    fn new(name: &str, options: Options) -> Result<Start, StreamError> {
        let journal = options.journal.as_ref().map(|memory| memory.try_clone().and_then(Journal::open)).transpose();
        let failed = |error: String| StreamError::volume(ErrorKind::Failed, name, error);
        let journal = journal.map_err(|error| failed(error.to_string()))?;
        let goes_on = journal.as_ref().is_some_and(|(_, records)| !records.is_empty());
        let (outbox, held) = match &options.outbox {
            Some(room) => {
                let (outbox, held) = Outbox::open(&room.folder, options.key.as_ref(), goes_on)?;
                (Some(outbox), held)
            }
            // Nobody remembers who it was, so it is somebody new each time.
            None => (None, Held { next_number: 1, ..Held::default() }),
        };
        if let Some(room) = &options.cache {
            let refused = |error: std::io::Error| failed(format!("{}: {error}", room.folder.display()));
            Cache::check_key(&room.folder, options.key.as_ref()).map_err(refused)?;
        }
        let (room, key, deadline) = (options.cache.clone(), options.key.clone(), options.open_deadline);
        let (tell, opened) = channel();
        // Nobody waits for it after the deadline.
        let opening = Box::new(move |outcome| drop(tell.send(outcome)));
        let (journal, engine) = match journal {
            None => (None, Engine::new(name, options, held, opening)),
            Some((mut journal, records)) => {
                let mut engine = Engine::recorded(name, options, held, &records, opening).map_err(failed)?;
                journal.rewrite(&engine.take_records(true)).map_err(|error| failed(error.to_string()))?;
                (Some(journal), engine)
            }
        };
        let (orders, receiver) = channel();
        let inner = Arc::new(Inner::new(engine, orders.clone(), journal));
        let storage = StorageThread { inner: Arc::clone(&inner), orders: receiver, outbox, room, key, cache: None };
        let spawned = thread::Builder::new().name("runnel-volume".to_owned()).spawn(move || storage.work());
        let thread = spawned.map_err(|error| StreamError::volume(ErrorKind::Failed, name, error.to_string()))?;
        inner.run(|_, _| ());
        Ok(Start { inner, orders, storage: thread.thread().id(), opened, deadline })
    }

    fn finish(self, name: &str, connection: Arc<dyn VolumeConnection>) -> Result<Arc<RemoteVolume>, StreamError> {
        self.inner.lock().connection = Some(connection);
        self.inner.run(|_, _| ());
        let info = match self.opened.recv_timeout(self.deadline) {
            Ok(Ok(info)) => info,
            Ok(Err(error)) => return Err(self.give_up(error)),
            Err(_) => {
                let reason = self.inner.lock().engine.status().reason;
                let reason = if reason.is_empty() { "it does not answer".to_owned() } else { reason };
                let text = format!("not open within {:.1} s: {reason}", self.deadline.as_secs_f64());
                return Err(self.give_up(StreamError::volume(ErrorKind::Timeout, name, text)));
            }
        };
        let Start { inner, orders, storage, .. } = self;
        Ok(Arc::new(RemoteVolume {
            shared: Arc::new(Shared { inner, orders, storage, name: name.to_owned(), info }),
            request: 0,
        }))
    }

    fn give_up(self, error: StreamError) -> StreamError {
        self.inner.run(|engine, time| engine.shut_down(time));
        let connection = self.inner.lock().connection.take();
        drop(connection);
        stop(&self.orders, self.storage);
        error
    }
}
