//! A volume on a server, for all threads of a process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{Config, Server, Session};
use units::Token;
use wire::volume::{FileInfo, FolderEntry, LeaseKind, Share};

use crate::call::Call;
use crate::engine::Engine;
use crate::{Done, FileRef, Handle, Lost, OpenHow, Opened, Options, Status, StreamError};

/// Bytes that one read brings at most; a longer one is answered short.
pub const READ_BYTES_MAX: u32 = 1 << 20;

/// What a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its identity: another volume under the same name has another.
    pub id: u128,
    /// Bytes of a data block.
    pub block_bytes: u32,
    /// Files may be changed.
    pub writable: bool,
}

/// The folder in which unsent changes lie.
pub struct Outbox;

impl Outbox {
    /// The number of this device in an outbox; the folder and the number are made if they are not there. Whoever opens a session
    /// that a volume with this outbox is to be carried over gives it as `client::Config::device`.
    ///
    /// # Errors
    /// What the system says; a damaged `device` file.
    pub fn device(folder: &Path) -> Result<u128, StreamError> {
        crate::engine::device(folder)
    }
}

/// A volume on a server. No call blocks; callbacks run under no lock, once each, and may make further calls. Paths are names joined by `/`,
/// without one at either end; empty: the top folder. Dropping it shuts it down.
pub struct RemoteVolume {
    engine: std::sync::Mutex<Engine>,
    name: String,
    info: VolumeInfo,
}

impl RemoteVolume {
    /// Opens a volume over a connection of its own, and waits until that was done, [`Options::open_deadline`] at most.
    ///
    /// # Errors
    /// No server or volume in that time, no such volume, an outbox or cache that cannot be used.
    pub fn open(
        server: &Server,
        config: Config,
        name: &str,
        options: Options,
    ) -> Result<Arc<RemoteVolume>, StreamError> {
        crate::engine::open(server, config, name, options)
    }

    /// Opens a volume over a connection of an image's session, so that a program and its data share it. The session must have been opened with
    /// the device number of the outbox ([`Outbox::device`]), if there is one.
    ///
    /// # Errors
    /// As [`RemoteVolume::open`]; the session's image comes from no Runnel server, or it carries a volume already.
    pub fn carried(session: &Session, name: &str, options: Options) -> Result<Arc<RemoteVolume>, StreamError> {
        crate::engine::carried(session, name, options)
    }

    pub(crate) fn new(engine: Engine, name: &str, info: VolumeInfo) -> Arc<RemoteVolume> {
        Arc::new(RemoteVolume { engine: std::sync::Mutex::new(engine), name: name.to_owned(), info })
    }

    fn call(&self, call: Call) {
        let finished = {
            let mut engine = self.engine.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            engine.call(call);
            engine.take_finished()
        };
        finished.into_iter().for_each(|finish| finish());
    }

    /// What the volume is.
    pub fn info(&self) -> VolumeInfo {
        self.info
    }

    /// Name of the volume on its server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Attributes of a file, folder or link, with what was changed here and is not on the server yet.
    pub fn stat(&self, of: impl Into<FileRef>, done: Done<FileInfo>) {
        self.call(Call::Stat { of: of.into(), done });
    }

    /// All entries of a folder in the order of their names' bytes; files that were made here and are not on the server yet among them.
    pub fn list(&self, path: &[u8], done: Done<Vec<FolderEntry>>) {
        self.call(Call::List { path: path.to_vec(), done });
    }

    /// Where a symbolic link points.
    pub fn read_link(&self, path: &[u8], done: Done<Bytes>) {
        self.call(Call::ReadLink { path: path.to_vec(), done });
    }

    /// Opens a regular file. `token` is the running action: a random number for a process or a task, the same in its reads.
    pub fn open_file(&self, path: &[u8], how: OpenHow, token: Token, done: Done<Opened>) {
        self.call(Call::Open { path: path.to_vec(), how, token, done });
    }

    /// Reads bytes at an offset: fewer at the end of the file, and [`READ_BYTES_MAX`] at most. All of them are of one version.
    pub fn read(&self, handle: Handle, token: Token, offset: u64, bytes: u32, done: Done<Bytes>) {
        self.call(Call::Read { handle, token, offset, bytes, done });
    }

    /// Writes all bytes at an offset, or at the end if the file was opened to append. Done when all handles of this volume see them; it waits
    /// for the server only when too much is unsent.
    pub fn write(&self, handle: Handle, offset: u64, bytes: Bytes, done: Done<()>) {
        self.call(Call::Write { handle, offset, bytes, done });
    }

    /// Cuts a file, or extends it with a hole. By handle: sent with the next sync. By path: done when the server has it.
    pub fn set_size(&self, of: impl Into<FileRef>, size: u64, done: Done<()>) {
        self.call(Call::SetSize { of: of.into(), size, done });
    }

    /// Sets permission bits (07777). Of a file with unsent changes: sent with them. Else done when the server has it.
    pub fn set_mode(&self, of: impl Into<FileRef>, mode: u16, done: Done<()>) {
        self.call(Call::SetMode { of: of.into(), mode, done });
    }

    /// Sets the time of the last change, nanoseconds since 1970. As [`RemoteVolume::set_mode`].
    pub fn set_time(&self, of: impl Into<FileRef>, mtime_ns: i64, done: Done<()>) {
        self.call(Call::SetTime { of: of.into(), mtime_ns, done });
    }

    /// Done when everything that was written to the file through any handle is on the server's stable storage. An error of earlier
    /// changes that were refused is told once for each handle.
    pub fn sync(&self, handle: Handle, done: Done<()>) {
        self.call(Call::Sync { handle, done });
    }

    /// As [`RemoteVolume::sync`] if the handle is open for writing, and then the handle is closed, whatever the outcome.
    pub fn close(&self, handle: Handle, done: Done<()>) {
        self.call(Call::Close { handle, done });
    }

    /// Makes a folder. Done when the server has it; so are the next three.
    pub fn make_folder(&self, path: &[u8], mode: u16, done: Done<()>) {
        self.call(Call::MakeFolder { path: path.to_vec(), mode, done });
    }

    /// Removes a file or symbolic link. Unsent changes of it are dropped.
    pub fn remove(&self, path: &[u8], done: Done<()>) {
        self.call(Call::Remove { path: path.to_vec(), done });
    }

    /// Removes an empty folder.
    pub fn remove_folder(&self, path: &[u8], done: Done<()>) {
        self.call(Call::RemoveFolder { path: path.to_vec(), done });
    }

    /// Renames a file, folder or link; unsent changes of what is renamed are sent before. `replace`: what is there is replaced.
    pub fn rename(&self, from: &[u8], to: &[u8], replace: bool, done: Done<()>) {
        self.call(Call::Rename { from: from.to_vec(), to: to.to_vec(), replace, done });
    }

    /// Byte ranges (offset, length) of an open file that will be needed soon, in this order: those that are not here are pushed. Never fails;
    /// what the server does not take is read as ever.
    pub fn hint(&self, handle: Handle, ranges: &[(u64, u64)]) {
        self.call(Call::Hint { handle, ranges: ranges.to_vec() });
    }

    /// What an open file gets of the link for what is pushed of it, whatever its profile says.
    pub fn share(&self, handle: Handle, share: Share) {
        self.call(Call::Share { handle, share });
    }

    /// Caps what the server sends on this connection, bytes per second; 0 for no limit.
    pub fn rate_limit(&self, bytes_per_second: u64) {
        self.call(Call::RateLimit { bytes_per_second });
    }

    /// Takes, renews or (with `None`) gives back a lease of a file for this device. Tells how long it holds, which may be shorter than asked.
    /// Unsent changes of the file should be synced before it is given back.
    pub fn lease(&self, of: impl Into<FileRef>, kind: Option<LeaseKind>, duration: Duration, done: Done<Duration>) {
        self.call(Call::Lease { of: of.into(), kind, duration, done });
    }

    /// Done when everything that was written to any file is on the server's stable storage.
    pub fn sync_all(&self, done: Done<()>) {
        self.call(Call::SyncAll { done });
    }

    /// What the volume holds and did.
    pub fn status(&self) -> Status {
        self.engine.lock().unwrap_or_else(std::sync::PoisonError::into_inner).status()
    }

    /// Ends everything: calls that wait, and all later ones, get [`crate::ErrorKind::Shutdown`]. Changes that are not on the server are brought to the
    /// outbox, which takes as long as this device's storage needs; what has no place there is returned. Call
    /// [`RemoteVolume::sync_all`] with a deadline before, to get them to the server. A second call does nothing.
    pub fn shutdown(&self) -> Vec<Lost> {
        crate::engine::shutdown(self)
    }
}
