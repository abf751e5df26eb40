//! Changes of names and attributes: transactions of their own, behind those on their way for the
//! same paths.

use std::collections::BTreeSet;

use wire::ErrorCode;
use wire::format::LINK_BYTES_MAX;
use wire::volume::{Change, Seen, XattrHow};

use super::attributes::Attributes;
use super::transaction::{Transaction, is_of_attributes, path_of, paths_of, unnamed_path};
use super::wants::Want;
use super::writer::Writer;
use crate::call::{Done, SetAttributes};
use crate::names::{check_path, is_below};
use crate::{ErrorKind, FileRef, StreamError};

/// Which file a change of attributes is meant for.
fn base_of(change: &Change) -> Option<Seen> {
    match change {
        Change::SetMode { base, .. } | Change::SetTime { base, .. } | Change::SetAccessTime { base, .. } => *base,
        _ => None,
    }
}

/// Whether a change cannot be made a second time with the same outcome.
fn is_done_once(change: &Change) -> bool {
    match change {
        Change::MakeFolder { .. } | Change::MakeNode { .. } | Change::MakeLink { .. } => true,
        Change::Link { .. } | Change::Rename { .. } | Change::Unlink { .. } | Change::RemoveFolder { .. } => true,
        Change::SetXattr { how, .. } => *how != XattrHow::Any,
        Change::RemoveXattr { .. } | Change::Copy { .. } => true,
        _ => false,
    }
}

impl Writer<'_> {
    /// Makes something whose name must be free, also of files that the server does not know.
    pub fn make(&mut self, path: &[u8], changes: Vec<Change>, done: Done<()>) {
        let Some(done) = self.done_before(path, done) else { return };
        if let Some(Change::MakeLink { target, .. }) = changes.first()
            && (target.is_empty() || target.len() > LINK_BYTES_MAX)
        {
            let text = format!("a symbolic link points to 1 to {LINK_BYTES_MAX} bytes");
            return self.session.finish(done, Err(StreamError::new(ErrorKind::NameTooLong, path, text)));
        }
        if self.files.is_only_here_at(path) {
            return self.session.finish(done, Err(StreamError::refused(ErrorCode::Exists, path, "")));
        }
        self.change(path, changes, done);
    }

    pub fn remove_folder(&mut self, path: Vec<u8>, done: Done<()>) {
        let Some(done) = self.done_before(&path, done) else { return };
        if self.files.has_only_here_below(&path) {
            return self.session.finish(done, Err(StreamError::refused(ErrorCode::NotEmpty, &path, "")));
        }
        self.change(&path.clone(), vec![Change::RemoveFolder { path }], done);
    }

    pub fn rename(&mut self, from: Vec<u8>, to: Vec<u8>, replace: bool, done: Done<()>) {
        let Some(done) = self.done_before(&from, done) else { return };
        if let Err(error) = check_path(&to) {
            return self.session.finish(done, Err(error));
        }
        if replace && from != to && self.files.has_only_here_below(&to) {
            let code = if self.files.at(&from).is_some() { ErrorCode::NotFile } else { ErrorCode::NotEmpty };
            return self.session.finish(done, Err(StreamError::refused(code, &to, "")));
        }
        if let Some(key) = self.files.at(&to).filter(|_| !replace) {
            // The server sees what is in the way.
            self.seal(key);
        }
        self.seal_linked(&to);
        let moved = self.files.iter().filter(|(_, file)| {
            file.unsent.is_dirty() && !file.gone && (file.path == from || is_below(&file.path, &from))
        });
        let moved: Vec<u64> = moved.map(|(key, _)| *key).collect();
        let attributes = self.files.take_attributes_at(&from);
        moved.into_iter().for_each(|key| self.seal(key));
        let rename = Change::Rename { from: from.clone(), base: None, to, replace };
        match attributes {
            Some((key, mut changes)) => {
                changes.push(rename);
                self.change_file(key, &from, changes, done);
            }
            None => self.change(&from, vec![rename], done),
        }
    }

    /// Gives a file one more name; what is unsent of it is sent before.
    pub fn link(&mut self, from: Vec<u8>, to: Vec<u8>, done: Done<()>) {
        let Some(done) = self.done_before(&from, done) else { return };
        let checked = check_path(&to).and_then(|()| match self.files.is_only_here_at(&to) {
            true => Err(StreamError::refused(ErrorCode::Exists, &to, "")),
            false => Ok(()),
        });
        if checked.is_err() {
            return self.session.finish(done, checked);
        }
        if let Some(key) = self.files.known_at(&from) {
            self.seal(key);
        }
        self.change(&from.clone(), vec![Change::Link { from, base: None, to }], done);
    }

    /// Makes a transaction of changes of names, behind all that is on its way for the same paths.
    ///
    /// Two kinds wait behind it instead. What was not sent yet of a file that loses its name is
    /// dropped when the name is gone: so a file can be removed whose changes the server refuses.
    /// And what is parked holds up only changes of the name of its own file, not of the folders
    /// above.
    pub fn change(&mut self, path: &[u8], changes: Vec<Change>, done: Done<()>) {
        self.change_of(None, path, changes, done);
    }

    /// The same of one file, whatever its path is by then.
    pub fn change_file(&mut self, key: u64, path: &[u8], changes: Vec<Change>, done: Done<()>) {
        self.change_of(Some(key), path, changes, done);
    }

    fn change_of(&mut self, file: Option<u64>, path: &[u8], changes: Vec<Change>, done: Done<()>) {
        let checked = check_path(path).and_then(|()| match (path.is_empty(), self.session.info()) {
            (true, _) => Err(StreamError::new(ErrorKind::Invalid, path, "the top folder stays as it is")),
            (_, Some(info)) if info.writable => Ok(()),
            _ => Err(StreamError::refused(ErrorCode::ReadOnly, path, "")),
        });
        if checked.is_err() {
            return self.session.finish(done, checked);
        }
        let once = changes.iter().any(is_done_once);
        let done = if once { self.done_before(path, done) } else { Some(done) };
        let Some(done) = done else { return };
        let txn = self.queue_change(file, path, changes);
        if once {
            self.transactions.set_request(txn, self.session.request());
        }
        self.calls.wait(Want::Change { path: path.to_vec(), txn, done }, self.session);
    }

    /// A request that comes again since the process that had it died: if its change was made, or is
    /// under way, the call ends with that. Else the callback comes back.
    pub fn done_before(&mut self, path: &[u8], done: Done<()>) -> Option<Done<()>> {
        let request = self.session.request();
        if let Some(outcome) = self.transactions.outcome(request) {
            let outcome = outcome.error.clone().map_or(Ok(()), Err);
            self.session.finish(done, outcome);
            return None;
        }
        let Some(txn) = self.transactions.of_request(request) else { return Some(done) };
        self.calls.wait(Want::Change { path: path.to_vec(), txn, done }, self.session);
        None
    }

    /// Makes the transaction, for which nobody waits yet.
    fn queue_change(&mut self, file: Option<u64>, path: &[u8], mut changes: Vec<Change>) -> u64 {
        let unnamed = unnamed_path(&changes).map(<[u8]>::to_vec);
        let unnames = unnamed.as_ref().and_then(|path| self.files.at(path));
        let unnames = unnames.filter(|key| !self.files.has_other_names(*key));
        if let Some(path) = unnamed.filter(|_| unnames.is_some()) {
            // Another device may have given it more names meanwhile.
            changes.insert(0, Change::OnlyName { path });
        }
        let mut txn = Transaction::new(path, changes, self.session.wall_ns());
        let paths: BTreeSet<&[u8]> = txn.changes.iter().flat_map(paths_of).collect();
        let related = |other: &Transaction| {
            let theirs = other.file.and_then(|key| self.files.get(&key)).map_or(&other.path, |file| &file.path);
            let near = |path: &[u8]| path == theirs || is_below(theirs, path) || is_below(path, theirs);
            paths.iter().any(|path| near(path))
                || other.changes.iter().flat_map(paths_of).any(|theirs| {
                    paths.iter().any(|path| *path == theirs || is_below(theirs, path) || is_below(path, theirs))
                })
        };
        let stuck = self.transactions.stuck();
        let (mut after, mut behind, mut again) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
        for (id, other) in self.transactions.iter().filter(|(_, other)| related(other)) {
            let own = other.file.is_some() && other.file == unnames;
            let file = other.file.and_then(|key| self.files.get(&key));
            if own && !other.sending.was_sent() && !self.transactions.has_names_after(*id) {
                behind.push(*id);
            } else if !stuck.contains(id) {
                after.insert(*id);
            } else if file.is_none_or(|file| paths.contains(file.path.as_slice())) {
                after.insert(*id);
                again.insert(*id);
            } else {
                behind.push(*id);
            }
        }
        (txn.after, txn.unnames, txn.changes_file) = (after, unnames, file);
        let id = self.session.next_id();
        self.transactions.insert(id, txn);
        self.transactions.wait_for(&behind, id);
        // It fails with them if they are refused again.
        self.transactions.unpark(&again);
        id
    }

    /// A change of names was to take the only name of a file that is open here or has changes that
    /// are not sent, and the server says that it has others: another device gave them. What was to
    /// be dropped with the file is sent before, while there is a name that is known here.
    pub fn is_linked_there(&mut self, id: u64) {
        let Some(txn) = self.transactions.get_mut(&id) else { return };
        let Some(key) = txn.unnames.take() else { return };
        txn.changes.retain(|change| !matches!(change, Change::OnlyName { .. }));
        // The refused number is used up.
        txn.sending.queue_anew(self.session.now());
        let path = unnamed_path(&txn.changes).unwrap_or_default().to_vec();
        if let Some(file) = self.files.get_mut(&key) {
            file.attributes.links = file.attributes.links.max(2);
            let seen = file.seen;
            seen.into_iter().for_each(|seen| self.files.linked_mut().add(seen.file, &path));
        }
        self.seal(key);
        let sealed = self.files.get(&key).map(|file| file.unsent.sealed().to_vec()).unwrap_or_default();
        let sealed: BTreeSet<u64> = sealed.into_iter().collect();
        // Transactions that wait for this change cannot be waited for.
        self.transactions.put_before(&sealed, id);
        self.transactions.unpark(&sealed);
    }

    /// Changes attributes: of a file with changes that no transaction has together with these,
    /// and of one that this device made a little later; of others on the server.
    pub fn set_attributes(&mut self, of: FileRef, wanted: SetAttributes, done: Done<()>) {
        let (key, path) = match self.files.resolve(&of, false) {
            Ok(found) => found,
            Err(error) => return self.session.finish(done, Err(error)),
        };
        if let Err(error) = self.files.check_is(&of, key) {
            return self.session.finish(done, Err(error));
        }
        let (changes, now_ns) = (wanted.changes(&path, of.base()), self.session.wall_ns());
        if let Some(file) = self.files.gone_file(key) {
            changes.iter().for_each(|change| file.attributes.change(change, now_ns));
            let outcome = file.stale.clone().map_or(Ok(()), Err);
            return self.session.finish(done, outcome);
        }
        if let Some(waits) = key.or_else(|| self.files.known_at(&path)).filter(|key| self.may_wait(*key, &of, &wanted))
        {
            self.begin(waits, false);
        }
        if let Some(file) = key.or_else(|| self.files.known_at(&path)).and_then(|key| self.files.get_mut(&key))
            && let Some(dirty) = file.unsent.dirty_mut()
        {
            for change in &changes {
                dirty.change(change);
                file.attributes.change(change, now_ns);
            }
            return self.session.finish(done, Ok(()));
        }
        match (changes.is_empty(), key) {
            (true, _) => self.session.finish(done, Ok(())),
            (false, Some(key)) => self.change_file(key, &path, changes, done),
            (false, None) => self.change(&path, changes, done),
        }
    }

    /// Whether attributes of a file may be sent later, as what is written to it is. So it is with
    /// times of what this device made and nobody else has changed since, and with its permission
    /// bits while it is open: the server has no reason to refuse them, and programs that copy files
    /// set several attributes of each, one after the other. A change of rights alone is not put
    /// off.
    fn may_wait(&self, key: u64, of: &FileRef, wanted: &SetAttributes) -> bool {
        let Some(file) = self.files.get(&key) else { return false };
        let known = file.seen.is_some() && !file.unsure && !file.gone && file.stale.is_none() && file.taken.is_none();
        let Attributes { made_here, links, has_xattrs, .. } = file.attributes;
        let ours = made_here && links == 1 && !has_xattrs;
        let plain = *wanted != SetAttributes::default() && wanted.uid.is_none() && wanted.gid.is_none();
        let rights_wait = wanted.mode.is_none() || file.handles > 0;
        // Without a connection they would be lost if this device ended, unlike what is written.
        let connected = self.session.link.is_open() && self.session.is_writable();
        known && ours && plain && rights_wait && connected && self.files.check_is(of, Some(key)).is_ok()
    }

    /// Sends attributes that were told to be changed already, as those that are asked for by path:
    /// whatever version of the file the server has. False if more than that is to be sent.
    pub fn send_attributes(&mut self, key: u64) -> bool {
        let changes = self.files.take_attributes(key);
        let path = self.files.get(&key).map(|file| file.path.clone()).unwrap_or_default();
        match changes.is_empty() {
            true => false,
            false => {
                let id = self.queue_change(Some(key), &path, changes);
                self.transactions.get_mut(&id).into_iter().for_each(|txn| txn.told = true);
                true
            }
        }
    }

    /// A transaction with attributes that go along with a rename was refused: tries the rename
    /// alone. The attributes are sent by themselves. False if there are none.
    pub fn without_taken_attributes(&mut self, id: u64) -> bool {
        let Some(txn) = self.transactions.get_mut(&id) else { return false };
        if !txn.renames_with_attributes() {
            return false;
        }
        let (attributes, others) = std::mem::take(&mut txn.changes).into_iter().partition(is_of_attributes);
        txn.changes = others;
        // The refused number is used up.
        txn.sending.queue_anew(self.session.now());
        self.put_back(attributes);
        true
    }

    /// Attributes of one file that were taken are to be sent with its other changes again.
    fn put_back(&mut self, attributes: Vec<Change>) {
        let Some(path) = attributes.first().map(path_of).map(<[u8]>::to_vec) else { return };
        // Another device may have put another file there.
        let key = self.files.known_at(&path).filter(|key| {
            let seen = self.files.get(key).and_then(|file| file.seen);
            attributes.iter().all(|change| base_of(change).map(|base| base.file) == seen.map(|seen| seen.file))
        });
        let Some(key) = key else {
            return self.session.lose(&path, 0, "its attributes were not sent".to_owned(), None);
        };
        self.begin(key, false);
        if let Some(dirty) = self.files.get_mut(&key).and_then(|file| file.unsent.dirty_mut()) {
            // Attributes that were set since take precedence.
            let (mode, atime, mtime) = (dirty.mode, dirty.atime, dirty.mtime);
            attributes.iter().for_each(|change| dirty.change(change));
            dirty.mode = mode.or(dirty.mode);
            dirty.atime = atime.or(dirty.atime);
            dirty.mtime = mtime.or(dirty.mtime);
        }
    }

    /// Whether a transaction that makes an empty file may take the one that another device made
    /// first: two that make a file to lock it both have the same. Who has written something by then
    /// has a conflict.
    pub fn may_take_existing(&self, id: u64) -> bool {
        let Some(txn) = self.transactions.get(&id).filter(|txn| txn.makes_empty().is_some()) else { return false };
        let written = txn.file.and_then(|key| self.files.get(&key)).is_some_and(|file| {
            let dirty = file.unsent.dirty().is_some_and(|dirty| dirty.cut.is_some() || dirty.extended);
            dirty || file.unsent.overlay().open_bytes() > 0
        });
        !written && !self.transactions.is_followed(id)
    }

    pub fn take_existing(&mut self, id: u64) {
        let Some(txn) = self.transactions.get_mut(&id) else { return };
        let made = txn.makes_empty();
        txn.take_existing(self.session.now());
        if let Some(file) = txn.file.and_then(|key| self.files.get_mut(&key)) {
            file.taken = made;
            file.attributes.made_here = false;
        }
    }
}
