//! Calls that wait for something: an answer, a transaction, or room.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use units::{Moment, Token};
use wire::volume::{FileInfo, FolderEntry, LeaseKind, Seen, Space};

use super::{Effects, Engine};
use crate::call::{Done, Handle, OpenHow, Opened, Xattrs};
use crate::{FileRef, StreamError};

/// A call that waits, and since when.
pub(super) struct Waiting {
    pub want: Want,
    pub since: Moment,
    /// A request for it is under way.
    pub asked: bool,
}

/// What is waited for.
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

impl Engine {
    /// Tells those who wait for a transaction.
    pub(super) fn tell_wants(&mut self, id: u64, error: Option<&StreamError>, versions: &[Seen]) {
        let mut ended = Vec::new();
        for (want, waiting) in &mut self.wants {
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
        for want in ended {
            let Some(waiting) = self.wants.remove(&want) else { continue };
            let outcome = error.cloned().map_or(Ok(()), Err);
            match waiting.want {
                Want::Change { done, .. } => self.effects.finish(done, outcome),
                Want::Sync { error, closing, done, .. } => {
                    if let Some(key) = closing {
                        self.release(key);
                    }
                    self.effects.finish(done, error.map_or(Ok(()), Err));
                }
                Want::Create { path, how, token, made_ns, done, .. } => {
                    let made = outcome.map(|()| {
                        let seen = versions.first().copied().unwrap_or_default();
                        self.created(&path, how, token, (seen, made_ns))
                    });
                    self.effects.finish(done, made);
                }
                _ => {}
            }
        }
    }
}
