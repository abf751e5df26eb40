//! Calls that wait for something: an answer, a transaction, or room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use units::{Moment, Token};
use wire::volume::{FileInfo, FolderEntry, LeaseKind, Seen, Space};

use super::effects::Effects;
use super::read::TRIES_MAX;
use super::session::Session;
use crate::call::{Done, Handle, OpenHow, Opened, Xattrs};
use crate::{FileRef, StreamError};

/// How often a listing begins anew because the folder changed; then it is taken as it comes.
pub(super) const LISTING_TRIES: u32 = 3;

/// A call that waits, and since when.
pub(super) struct Waiting {
    pub want: Want,
    pub since: Moment,
    /// A request for it is under way.
    pub asked: bool,
    /// Answers that were of no use.
    pub tries: u32,
    /// The request for which it waits; 0: none with a number.
    pub request: u64,
}

/// A call that waits, and for what.
pub(super) enum Want {
    Stat {
        path: Vec<u8>,
        done: Done<FileInfo>,
    },
    List {
        path: Vec<u8>,
        folder: Option<Seen>,
        entries: Vec<FolderEntry>,
        again: u32,
        done: Done<Vec<FolderEntry>>,
    },
    ReadLink {
        path: Vec<u8>,
        done: Done<Bytes>,
    },
    Xattrs {
        path: Vec<u8>,
        done: Done<Xattrs>,
    },
    /// Ends with the connection.
    Space {
        done: Done<Space>,
    },
    Open {
        path: Vec<u8>,
        how: OpenHow,
        token: Token,
        done: Done<Opened>,
    },
    /// A file that must not exist yet, by a transaction of its own.
    Create {
        path: Vec<u8>,
        how: OpenHow,
        token: Token,
        txn: u64,
        /// When it was asked for: the server gives the file this time.
        made_ns: i64,
        done: Done<Opened>,
    },
    Lease {
        path: Vec<u8>,
        file: Option<u64>,
        kind: Option<LeaseKind>,
        duration: Duration,
        done: Done<Duration>,
    },
    /// For room for what is written.
    Write {
        handle: Handle,
        offset: u64,
        bytes: Bytes,
        is_page: bool,
        done: Done<()>,
    },
    /// For a change of names or attributes.
    Change {
        path: Vec<u8>,
        txn: u64,
        done: Done<()>,
    },
    /// For transactions of a file, or of all; then a handle of `closing` goes away.
    Sync {
        path: Vec<u8>,
        txns: BTreeSet<u64>,
        error: Option<StreamError>,
        closing: Option<u64>,
        done: Done<()>,
    },
    /// For what a file is on the server by now.
    Look {
        handle: Handle,
        file: u64,
        done: Done<Opened>,
    },
    /// For what a handle is, after something that makes it unsure.
    Fstat {
        of: FileRef,
        file: u64,
        done: Done<FileInfo>,
    },
}

impl Want {
    /// What it is about.
    pub fn path(&self) -> &[u8] {
        match self {
            Want::Stat { path, .. }
            | Want::List { path, .. }
            | Want::ReadLink { path, .. }
            | Want::Xattrs { path, .. }
            | Want::Open { path, .. }
            | Want::Create { path, .. }
            | Want::Lease { path, .. }
            | Want::Change { path, .. }
            | Want::Sync { path, .. } => path,
            Want::Fstat { of: FileRef::Path(path) | FileRef::File { path, .. }, .. } => path,
            Want::Space { .. } | Want::Write { .. } | Want::Look { .. } | Want::Fstat { .. } => b"",
        }
    }

    /// Ends it with an error.
    pub fn fail(self, error: StreamError, effects: &mut Effects) {
        match self {
            Want::Stat { done, .. } | Want::Fstat { done, .. } => effects.finish(done, Err(error)),
            Want::List { done, .. } => effects.finish(done, Err(error)),
            Want::ReadLink { done, .. } => effects.finish(done, Err(error)),
            Want::Xattrs { done, .. } => effects.finish(done, Err(error)),
            Want::Space { done } => effects.finish(done, Err(error)),
            Want::Open { done, .. } | Want::Create { done, .. } | Want::Look { done, .. } => {
                effects.finish(done, Err(error))
            }
            Want::Lease { done, .. } => effects.finish(done, Err(error)),
            Want::Write { done, .. } | Want::Change { done, .. } | Want::Sync { done, .. } => {
                effects.finish(done, Err(error));
            }
        }
    }
}

/// Calls that wait, by id.
///
/// Invariant: every call ends once, with an outcome or an error. Writes that wait for room go on in
/// their order; one of them may have ended already.
#[derive(Default)]
pub(super) struct WaitingCalls {
    calls: BTreeMap<u64, Waiting>,
    /// Writes that wait for room.
    writes: VecDeque<u64>,
}

impl WaitingCalls {
    /// A call waits from now on.
    pub fn wait(&mut self, want: Want, session: &mut Session) -> u64 {
        let id = session.next_id();
        self.insert(id, Waiting { want, since: session.now(), asked: false, tries: 0, request: session.request() });
        id
    }

    /// A write waits for room, behind all others that do.
    pub fn wait_for_room(&mut self, want: Want, session: &mut Session) {
        let id = self.wait(want, session);
        self.writes.push_back(id);
    }

    pub fn insert(&mut self, id: u64, waiting: Waiting) {
        self.calls.insert(id, waiting);
    }

    pub fn get(&self, id: &u64) -> Option<&Waiting> {
        self.calls.get(id)
    }

    pub fn get_mut(&mut self, id: &u64) -> Option<&mut Waiting> {
        self.calls.get_mut(id)
    }

    pub fn remove(&mut self, id: &u64) -> Option<Waiting> {
        self.calls.remove(id)
    }

    /// Since when they wait.
    pub fn since(&self) -> impl Iterator<Item = Moment> {
        self.calls.values().map(|waiting| waiting.since)
    }

    /// Ids of those for which this holds.
    pub fn which(&self, holds: impl Fn(&Waiting) -> bool) -> Vec<u64> {
        self.calls.iter().filter(|(_, waiting)| holds(waiting)).map(|(id, _)| *id).collect()
    }

    /// What was answered about a file is of no use to those who want to know what it is: they ask
    /// again. Returns those that did so too often.
    pub fn ask_again_of(&mut self, file: u64) -> Vec<Waiting> {
        let is_of_it =
            |want: &Want| matches!(want, Want::Look { file: of, .. } | Want::Fstat { file: of, .. } if *of == file);
        for waiting in self.calls.values_mut().filter(|waiting| is_of_it(&waiting.want)) {
            (waiting.asked, waiting.tries) = (false, waiting.tries + 1);
        }
        let hopeless = self.which(|waiting| is_of_it(&waiting.want) && waiting.tries > TRIES_MAX);
        hopeless.iter().filter_map(|id| self.calls.remove(id)).collect()
    }

    /// The server has what this device had made or changed in this folder. A listing on its way may
    /// have been made before that, and is asked for anew.
    pub fn list_again(&mut self, folder: &[u8], session: &mut Session) {
        let asked = self.which(|waiting| {
            let of_it =
                matches!(&waiting.want, Want::List { path, again, .. } if path == folder && *again < LISTING_TRIES);
            of_it && waiting.asked
        });
        for id in asked {
            let Some(waiting) = self.calls.remove(&id) else { continue };
            let Want::List { path, again, done, .. } = waiting.want else { continue };
            let want = Want::List { path, folder: None, entries: Vec::new(), again: again + 1, done };
            // By another id, since the answer on its way is of no use.
            self.calls.insert(session.next_id(), Waiting { want, asked: false, ..waiting });
        }
    }

    /// Their requests are to be sent again on the next connection.
    pub fn disconnected(&mut self) {
        self.calls.values_mut().for_each(|waiting| waiting.asked = false);
    }

    /// Takes all of them.
    pub fn take_all(&mut self) -> impl Iterator<Item = Waiting> + use<> {
        self.writes.clear();
        std::mem::take(&mut self.calls).into_values()
    }

    /// Whether writes wait for room.
    pub fn has_writes(&self) -> bool {
        !self.writes.is_empty()
    }

    /// The write that waits for room longest.
    pub fn first_write(&mut self) -> Option<(u64, &Waiting)> {
        let id = loop {
            let id = *self.writes.front()?;
            if self.calls.contains_key(&id) {
                break id;
            }
            self.writes.pop_front();
        };
        self.calls.get(&id).map(|waiting| (id, waiting))
    }

    /// Since when the first of the writes waits.
    pub fn first_write_since(&self) -> Option<Moment> {
        self.writes.front().and_then(|id| self.calls.get(id)).map(|waiting| waiting.since)
    }

    /// Ids of writes that wait for room, in order.
    pub fn writes(&self) -> impl Iterator<Item = u64> {
        self.writes.iter().copied()
    }

    /// A write does not wait for room any more.
    pub fn take_write(&mut self, id: u64) -> Option<Waiting> {
        self.writes.retain(|other| *other != id);
        self.calls.remove(&id)
    }

    /// A transaction was answered: those that waited for it alone end now, in order.
    pub fn answered(&mut self, id: u64, error: Option<&StreamError>) -> Vec<Waiting> {
        let mut ended = Vec::new();
        for (want, waiting) in &mut self.calls {
            match &mut waiting.want {
                Want::Change { txn, .. } | Want::Create { txn, .. } if *txn == id => ended.push(*want),
                Want::Sync { txns, error: first, .. } => {
                    if !txns.remove(&id) {
                        continue;
                    }
                    if first.is_none() {
                        *first = error.cloned();
                    }
                    if txns.is_empty() {
                        ended.push(*want);
                    }
                }
                _ => {}
            }
        }
        ended.iter().filter_map(|id| self.calls.remove(id)).collect()
    }
}
