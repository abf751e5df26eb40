//! What a mounted volume knows and the kernel counts on: inodes, open directories, leases, owners
//! of locks. The next daemon needs it too, so each change is added to a journal.
//!
//! All of it is under one lock. When that is released, all that has changed is added at once, which
//! is before the kernel can be answered. So a daemon that is killed leaves the state before or
//! after a step. A request whose step is in the journal and that was not answered is done again by
//! the next daemon ([`Kept::once`]).
//!
//! The kernel's pages of all files are in doubt then: an earlier daemon may have learnt that they
//! are old, and not have told the kernel. They are dropped when a file is opened or locked next.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard};

use stream::{FolderEntry, Journal};
use units::LockPiece;

use super::inodes::Inodes;
use super::lease::Leases;
use super::locks::Held;
use super::record::{Record, VERSION, decode, encode};
use crate::MountError;

/// A listing that a program reads; `None` before its first READDIR.
pub(super) type Listing = Option<Arc<Vec<FolderEntry>>>;

/// The state; see the module.
pub(super) struct Kept {
    pub inodes: Inodes,
    pub leases: Leases,
    pub held: Held,
    folders: HashMap<u64, Listing>,
    /// Requests that are in the journal and were not answered, with how the range of each was
    /// locked before, if it was a lock.
    done: HashMap<u64, Vec<LockPiece>>,
    /// The volume took changes when it was mounted.
    is_writable: bool,
    /// There was an earlier daemon.
    is_resumed: bool,
    /// What is added next, beside the inodes, leases and locks that have changed.
    records: Vec<Record>,
    /// Changes that can wait for the next ones.
    late: Vec<Record>,
    journal: Option<Journal>,
}

/// The state under its lock.
pub(super) struct KeptGuard<'a>(pub MutexGuard<'a, Kept>);

impl Deref for KeptGuard<'_> {
    type Target = Kept;

    fn deref(&self) -> &Kept {
        &self.0
    }
}

impl DerefMut for KeptGuard<'_> {
    fn deref_mut(&mut self) -> &mut Kept {
        &mut self.0
    }
}

impl Drop for KeptGuard<'_> {
    fn drop(&mut self) {
        self.0.commit();
    }
}

impl Kept {
    /// The state of a new mount, or what an earlier daemon has left in the memory of a journal.
    ///
    /// # Errors
    /// The journal cannot be read, or is of another version.
    pub fn open(memory: Option<OwnedFd>, is_writable: bool) -> Result<Kept, MountError> {
        let mut kept = Kept {
            inodes: Inodes::new(),
            leases: Leases::default(),
            held: Held::default(),
            folders: HashMap::new(),
            done: HashMap::new(),
            is_writable,
            is_resumed: false,
            records: Vec::new(),
            late: Vec::new(),
            journal: None,
        };
        let Some(memory) = memory else { return Ok(kept) };
        let bad = |problem: String| MountError::Keeper { problem };
        let (mut journal, records) = Journal::open(memory).map_err(|error| bad(error.to_string()))?;
        if records.is_empty() {
            journal.append(&encode(&kept.all())).map_err(|error| bad(error.to_string()))?;
        } else {
            decode(&records, |record| kept.replay(record)).map_err(bad)?;
            kept.inodes.resume();
            kept.is_resumed = true;
        }
        kept.journal = Some(journal);
        Ok(kept)
    }

    /// Whether the volume took changes when it was mounted, as agreed with the kernel.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Whether there was an earlier daemon.
    pub fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// A directory was opened, or is read from a listing.
    pub fn put_folder(&mut self, handle: u64, listing: Listing) {
        let record = listing.as_deref().cloned();
        self.folders.insert(handle, listing);
        self.records.push(Record::Folder { handle, open: Some(record) });
    }

    /// A directory was closed.
    pub fn remove_folder(&mut self, handle: u64) {
        if self.folders.remove(&handle).is_some() {
            self.records.push(Record::Folder { handle, open: None });
        }
    }

    /// The listing of an open directory.
    pub fn folder(&self, handle: u64) -> Option<&Listing> {
        self.folders.get(&handle)
    }

    /// What a request changes is changed now. `before`: how the range was locked, of a lock.
    pub fn put_done(&mut self, unique: u64, before: Vec<LockPiece>) {
        if self.journal.is_some() {
            self.records.push(Record::Done { unique, before: before.clone() });
            self.done.insert(unique, before);
        }
    }

    /// Changes the inodes for a request, unless an earlier daemon has, which has not answered it:
    /// by now its names may be those of other files.
    pub fn once(&mut self, unique: u64, change: impl FnOnce(&mut Inodes)) {
        if !self.done.contains_key(&unique) {
            change(&mut self.inodes);
            self.put_done(unique, Vec::new());
        }
    }

    /// How the range of a lock was locked before an earlier daemon has locked it.
    pub fn before(&self, unique: u64) -> Option<Vec<LockPiece>> {
        self.done.get(&unique).cloned()
    }

    /// A request was answered.
    pub fn answered(&mut self, unique: u64) {
        if self.done.remove(&unique).is_some() {
            self.late.push(Record::Answered(unique));
        }
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Begin { .. } => {}
            Record::Writable(is_writable) => self.is_writable = is_writable,
            Record::Next(next) => self.inodes.replay_next(next),
            Record::Inode { number, node } => self.inodes.replay(number, node),
            Record::Folder { handle, open: None } => drop(self.folders.remove(&handle)),
            Record::Folder { handle, open: Some(listing) } => {
                self.folders.insert(handle, listing.map(Arc::new));
            }
            Record::Locks { number, owner, ranges, handles } => self.held.replay(number, owner, ranges, handles),
            Record::Lease { number, lease } => self.leases.replay(number, lease),
            Record::Done { unique, before } => {
                self.done.insert(unique, before);
            }
            Record::Answered(unique) => drop(self.done.remove(&unique)),
        }
    }

    /// All that is true.
    fn all(&self) -> Vec<Record> {
        let mut all = vec![Record::Begin { version: VERSION }, Record::Writable(self.is_writable)];
        self.inodes.all(&mut all);
        self.held.all(&mut all);
        self.leases.all(&mut all);
        let folders = self.folders.iter();
        all.extend(
            folders
                .map(|(handle, listing)| Record::Folder { handle: *handle, open: Some(listing.as_deref().cloned()) }),
        );
        let done = self.done.iter();
        all.extend(done.map(|(unique, before)| Record::Done { unique: *unique, before: before.clone() }));
        all
    }

    /// Adds what has changed to the journal.
    fn commit(&mut self) {
        let mut records = std::mem::take(&mut self.records);
        self.inodes.take_changes(&mut records);
        self.held.take_changes(&mut records);
        self.leases.take_changes(&mut records);
        let Some(journal) = &mut self.journal else { return };
        if records.is_empty() {
            return;
        }
        records.append(&mut self.late);
        let mut added = journal.append(&encode(&records));
        if added.is_ok() && journal.is_long() {
            let all = encode(&self.all());
            added = self.journal.as_mut().map_or(Ok(()), |journal| journal.rewrite(&all));
        }
        if let Err(error) = added {
            // The journal is marked, so that no daemon goes on with it.
            self.journal = None;
            eprintln!("warning: the state of the mount cannot be kept ({error}); it will not survive its daemon");
        }
    }
}

#[cfg(test)]
mod tests;
