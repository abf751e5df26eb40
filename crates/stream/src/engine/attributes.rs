//! Attributes of files that are changed, and whether it is the file that is meant.

use wire::volume::{Change, Seen};

use super::Engine;
use super::file::{Attributes, Dirty, File};
use super::transaction::{State, is_of_attributes, path_of};
use crate::FileRef;
use crate::call::{Done, SetAttributes};

impl Engine {
    /// Changes attributes: of a file with changes that no transaction carries together with these,
    /// and of one that this device made a little later; of others on the server.
    pub(super) fn set_attributes(&mut self, of: FileRef, wanted: SetAttributes, done: Done<()>) {
        let (key, path) = match self.resolve(&of, false) {
            Ok(found) => found,
            Err(error) => return self.session.finish(done, Err(error)),
        };
        if let Err(error) = self.files.check_is(&of, key) {
            return self.session.finish(done, Err(error));
        }
        let (changes, now_ns) = (wanted.changes(&path, of.base()), self.session.wall_ns());
        if let Some(file) = self.gone_file(key) {
            changes.iter().for_each(|change| file.attributes.change(change, now_ns));
            let outcome = file.stale.clone().map_or(Ok(()), Err);
            return self.session.finish(done, outcome);
        }
        if let Some(waits) = key.or_else(|| self.files.known_at(&path)).filter(|key| self.may_wait(*key, &of, &wanted))
        {
            self.begin(waits, false);
        }
        if let Some(file) = key.or_else(|| self.files.known_at(&path)).and_then(|key| self.files.get_mut(&key))
            && let Some(dirty) = &mut file.dirty
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

    /// Takes what was changed of a file, if that is nothing but attributes which nothing on its way
    /// must go before.
    fn take_attributes(&mut self, key: u64) -> Vec<Change> {
        let Some(file) = self.files.get_mut(&key) else { return Vec::new() };
        let alone = file.has_only_attributes() && file.sealed.is_empty() && !file.gone;
        let Some(seen) = file.seen.filter(|_| alone) else { return Vec::new() };
        let Some(Dirty { mode, atime, mtime, owner: (None, None), .. }) = file.dirty else { return Vec::new() };
        file.dirty = None;
        let wanted = SetAttributes { mode, atime_ns: atime, mtime_ns: mtime, ..SetAttributes::default() };
        wanted.changes(&file.path, Some(Seen::of_file(seen.file)))
    }

    /// The same of the file at a path that is about to be renamed, with its key. What is written to
    /// an open file meanwhile would be based on the version before.
    pub(super) fn take_attributes_at(&mut self, path: &[u8]) -> Option<(u64, Vec<Change>)> {
        let key = self.files.at(path)?;
        self.files.get(&key).filter(|file| file.handles == 0)?;
        let changes = self.take_attributes(key);
        (!changes.is_empty()).then_some((key, changes))
    }

    /// Sends attributes that were told to be changed already, as those that are asked for by path:
    /// whatever version of the file the server has. False if more than that is to be sent.
    pub(super) fn send_attributes(&mut self, key: u64) -> bool {
        let changes = self.take_attributes(key);
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
    pub(super) fn without_taken_attributes(&mut self, id: u64) -> bool {
        let Some(txn) = self.transactions.get_mut(&id) else { return false };
        if !txn.renames_with_attributes() {
            return false;
        }
        let (attributes, others) = std::mem::take(&mut txn.changes).into_iter().partition(is_of_attributes);
        txn.changes = others;
        // What was refused has used up its number.
        (txn.number, txn.sent, txn.state) = (None, false, State::Queued(self.session.now()));
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
        if let Some(dirty) = self.files.get_mut(&key).and_then(|file| file.dirty.as_mut()) {
            // What was set since goes before.
            let (mode, atime, mtime) = (dirty.mode, dirty.atime, dirty.mtime);
            attributes.iter().for_each(|change| dirty.change(change));
            dirty.mode = mode.or(dirty.mode);
            dirty.atime = atime.or(dirty.atime);
            dirty.mtime = mtime.or(dirty.mtime);
        }
    }

    /// A file that is not at its path any more: the server is not asked to change it.
    fn gone_file(&mut self, key: Option<u64>) -> Option<&mut File> {
        self.files.get_mut(&key?).filter(|file| file.gone)
    }
}

/// Which file a change of attributes is meant for.
fn base_of(change: &Change) -> Option<Seen> {
    match change {
        Change::SetMode { base, .. } | Change::SetTime { base, .. } | Change::SetAccessTime { base, .. } => *base,
        _ => None,
    }
}
