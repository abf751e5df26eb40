//! Changes of files: over the blocks at once, and into transactions by a sync, a close, a full budget, or their age.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use units::Moment;
use wire::ErrorCode;
use wire::volume::Change;

use super::Engine;
use super::file::{Base, Dirty, File};
use super::files::Open;
use super::transaction::{Effect, Transaction};
use super::wants::Want;
use crate::call::{Done, Handle};
use crate::names::check_path;
use crate::{ErrorKind, FileRef, StreamError};

/// Time that a write without room waits for the server's return before it fails.
const CUT_OFF_TIME: Duration = Duration::from_secs(5);

/// A transaction of so many bytes holds the longest path and some data.
const STORED_BYTES_MIN: usize = 16 << 10;

/// Bounds of the bytes of one transaction: a small one is as good as a large one if it takes a second, and demands of others wait for it.
const COMMIT_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=wire::format::COMMIT_BYTES_MAX_WRITTEN;

/// Bytes of one transaction before anything was measured.
const COMMIT_BYTES_START: f64 = 262_144.0;

/// Changes of one transaction; the protocol allows 4096.
const CHANGES_MAX: usize = wire::format::TRANSACTION_CHANGES_MAX - 8;

/// The rest of a transaction is left empty rather than a large write cut below this size.
const WRITE_BYTES_MIN: usize = 16 << 10;

impl Engine {
    /// Writes at an offset, or where the handle appends; a page of a mapping always at its offset.
    pub(super) fn write(&mut self, handle: Handle, offset: u64, bytes: Bytes, is_page: bool, done: Done<()>) {
        let open = self.files.handle(handle).map(|open| open.file);
        let locked = open.map_or(Ok(()), |file| self.check_locks(file));
        let checked = locked.and_then(|()| self.check_write(handle, offset, bytes.len(), is_page));
        if checked.is_err() || bytes.is_empty() {
            return self.session.finish(done, checked);
        }
        if self.is_nameless(handle) {
            let outcome = self.write_nameless(handle, offset, bytes, is_page);
            return self.session.finish(done, outcome);
        }
        if self.calls.has_writes() || !self.has_room(bytes.len() as u64) {
            self.calls.wait_for_room(Want::Write { handle, offset, bytes, is_page, done }, &mut self.session);
            return self.send_some();
        }
        self.apply_write(handle, offset, bytes, is_page);
        self.session.finish(done, Ok(()));
    }

    fn is_nameless(&self, handle: Handle) -> bool {
        let file = self.files.opened(handle).map(|(_, file)| file);
        file.is_some_and(File::is_nameless)
    }

    /// Writes to a file that has no name any more: the bytes lie in memory until it is closed, and
    /// have a limit of their own.
    fn write_nameless(&mut self, handle: Handle, offset: u64, bytes: Bytes, is_page: bool) -> Result<(), StreamError> {
        let length = bytes.len() as u64;
        let Some(Open { file: key, how }) = self.files.handle(handle) else { return Err(StreamError::bad_handle()) };
        let Some(file) = self.files.get(&key) else { return Err(StreamError::bad_handle()) };
        let over = (is_page || !how.append) && file.overlay.covers(offset, offset + length);
        self.check_nameless(key, if over { 0 } else { length })?;
        self.apply_write(handle, offset, bytes, is_page);
        Ok(())
    }

    /// Whether so many bytes more of a file without a name find room.
    pub(super) fn check_nameless(&self, key: u64, length: u64) -> Result<(), StreamError> {
        let limit = self.session.options().nameless_bytes as u64;
        if length == 0 || self.files.nameless_bytes() + length <= limit {
            return Ok(());
        }
        let path = self.files.get(&key).map(|file| file.path.as_slice()).unwrap_or_default();
        let text = format!(
            "it was removed while it is open, and such files have {limit} bytes on this device at most; close some"
        );
        Err(StreamError::new(ErrorKind::OutboxFull, path, text))
    }

    fn check_write(&self, handle: Handle, offset: u64, bytes: usize, is_page: bool) -> Result<(), StreamError> {
        let open = self.files.handle(handle).filter(|open| open.how.write || open.how.append);
        let file = open.and_then(|open| self.files.get(&open.file)).ok_or_else(StreamError::bad_handle)?;
        if let Some(stale) = &file.stale {
            return Err(stale.clone());
        }
        let from = if !is_page && open.is_some_and(|open| open.how.append) { file.effective_size() } else { offset };
        self.check_size(&file.path, from.saturating_add(bytes as u64))
    }

    pub(super) fn check_size(&self, path: &[u8], size: u64) -> Result<(), StreamError> {
        let max = (u64::from(self.session.block_bytes()) << 32).min(i64::MAX as u64);
        if size <= max {
            return Ok(());
        }
        let text = format!("a file of this volume has {max} bytes at most; serve it with larger blocks");
        Err(StreamError::new(ErrorKind::TooLarge, path, text))
    }

    fn apply_write(&mut self, handle: Handle, offset: u64, bytes: Bytes, is_page: bool) {
        let Some(Open { file: key, how }) = self.files.handle(handle) else { return };
        let appends = how.append && !is_page;
        self.begin(key, appends);
        let wall_ns = self.session.wall_ns();
        let Some(file) = self.files.get_mut(&key) else { return };
        let offset = if appends { file.effective_size() } else { offset };
        let end = offset + bytes.len() as u64;
        file.overlay.write(offset, bytes);
        file.local_size = Some(file.effective_size().max(end));
        file.attributes.wrote(wall_ns);
        if let Some(dirty) = &mut file.dirty {
            dirty.wrote_ns = wall_ns;
            dirty.mtime = None;
        }
        self.send_some();
    }

    /// Makes a file take changes: appends alone, or others too.
    pub(super) fn begin(&mut self, key: u64, append: bool) {
        let Some(file) = self.files.get_mut(&key) else { return };
        if file.gone {
            return;
        }
        let attributes = file.has_only_attributes();
        match &mut file.dirty {
            Some(dirty) if dirty.appends && !append => self.seal(key),
            Some(dirty) => {
                // A file that is only to be made so far, or only gets attributes, can become one
                // that is appended to.
                let bare = attributes || dirty.create.is_some() && dirty.cut.is_none() && !dirty.extended;
                dirty.appends |= append && bare && file.overlay.is_empty();
                return;
            }
            None => {}
        }
        let (now, wall_ns) = (self.session.now(), self.session.wall_ns());
        self.files.works_on(key);
        let Some(file) = self.files.get_mut(&key) else { return };
        let base = match (file.sealed.last(), file.seen) {
            (Some(last), _) => Base::Chain(*last),
            (None, Some(seen)) => Base::Known(seen),
            (None, None) => Base::Free,
        };
        file.dirty = Some(Dirty {
            base,
            create: None,
            replaces: false,
            unasked: false,
            appends: append,
            cut: None,
            extended: false,
            atime: None,
            mtime: None,
            mode: None,
            owner: (None, None),
            wrote_ns: wall_ns,
            since: now,
        });
        self.names.forget_file(&file.path);
    }

    /// Cuts or extends a file here.
    pub(super) fn resize(&mut self, key: u64, size: u64) {
        self.begin(key, false);
        let wall_ns = self.session.wall_ns();
        let Some(file) = self.files.get_mut(&key) else { return };
        let old = file.effective_size();
        if size < old {
            file.overlay.cut(size);
        }
        file.local_size = Some(size);
        file.attributes.wrote(wall_ns);
        if let Some(dirty) = &mut file.dirty {
            dirty.wrote_ns = wall_ns;
            // A cut sets the time by itself; what changes nothing does not.
            dirty.mtime = (size == old).then_some(wall_ns);
            if size < old {
                dirty.cut = Some(dirty.cut.map_or(size, |cut| cut.min(size)));
            }
            dirty.extended |= size > old;
        }
        if size < old {
            // One for all cuts that no transaction carries.
            match file.cuts.iter_mut().find(|(mark, _)| *mark == 0) {
                Some((_, cut)) => *cut = size.min(*cut),
                None => file.cuts.push((0, size)),
            }
        }
    }

    pub(super) fn set_size(&mut self, of: FileRef, size: u64, done: Done<()>) {
        let (key, path) = match self.resolve(&of, true) {
            Ok(found) => found,
            Err(error) => return self.session.finish(done, Err(error)),
        };
        let stale = key.and_then(|key| self.files.get(&key)).and_then(|file| file.stale.clone());
        let checked = stale.map_or(Ok(()), Err).and_then(|()| self.check_size(&path, size));
        let checked = checked.and_then(|()| self.files.check_is(&of, key));
        if checked.is_err() {
            return self.session.finish(done, checked);
        }
        match key {
            Some(key) => {
                self.resize(key, size);
                match of {
                    FileRef::Handle(_) => self.session.finish(done, Ok(())),
                    FileRef::Path(_) | FileRef::File { .. } => self.sync_file(key, None, done),
                }
            }
            None => self.change(&path.clone(), vec![Change::Truncate { path, base: of.base(), size }], done),
        }
    }

    /// The file that is meant, if it is known here, and its path. By path only a file with changes is meant here, others are the server's.
    pub(super) fn resolve(&self, of: &FileRef, write: bool) -> Result<(Option<u64>, Vec<u8>), StreamError> {
        match of {
            FileRef::Handle(handle) => {
                let open = self.files.handle(*handle).filter(|open| !write || open.how.write || open.how.append);
                let open = open.ok_or_else(StreamError::bad_handle)?;
                let path = self.files.get(&open.file).map(|file| file.path.clone()).unwrap_or_default();
                Ok((Some(open.file), path))
            }
            FileRef::Path(path) | FileRef::File { path, .. } => {
                check_path(path)?;
                let changed = |key: &u64| self.files.get(key).is_some_and(|file| file.is_changed());
                Ok((self.files.known_at(path).filter(changed), path.clone()))
            }
        }
    }

    /// Bytes that are not on the server.
    pub(super) fn unsent_bytes(&self) -> u64 {
        self.files.unsealed_bytes() + self.transactions.bytes()
    }

    /// Bytes of files that the server refuses for now: waiting makes no room of them.
    fn stuck_bytes(&self) -> u64 {
        let stuck: Vec<&Transaction> =
            self.transactions.stuck().iter().filter_map(|id| self.transactions.get(id)).collect();
        let keys: BTreeSet<u64> = stuck.iter().filter_map(|txn| txn.file).collect();
        let files = keys.iter().filter_map(|key| self.files.get(key)).filter(|file| file.dirty.is_some());
        files.map(|file| file.overlay.open_bytes()).sum::<u64>() + stuck.iter().map(|txn| txn.bytes).sum::<u64>()
    }

    pub(super) fn unsent_bytes_max(&self) -> u64 {
        let outbox = self.session.options().outbox.as_ref().filter(|_| !self.session.link.is_open());
        // What is stored has a head besides what is counted here.
        outbox.map_or(self.session.options().dirty_bytes as u64, |room| room.bytes - room.bytes / 8)
    }

    /// Bytes of a transaction, at most, so that several find room in the outbox.
    fn stored_bytes_max(&self) -> usize {
        let room = self.session.options().outbox.as_ref().map_or(u64::MAX, |room| room.bytes);
        usize::try_from(room / 4).unwrap_or(usize::MAX).max(STORED_BYTES_MIN)
    }

    fn has_room(&self, bytes: u64) -> bool {
        let unsent = self.unsent_bytes();
        unsent == 0 || unsent + bytes <= self.unsent_bytes_max()
    }

    /// Lets writes go on for which there is room now; while the server is away, they fail after a time.
    pub(super) fn admit_writes(&mut self) {
        self.admit_nameless();
        while let Some((id, waiting)) = self.calls.first_write() {
            let since = waiting.since;
            let bytes = if let Want::Write { bytes, .. } = &waiting.want { bytes.len() as u64 } else { 0 };
            let room = self.has_room(bytes);
            let since = since.max(self.session.link.away());
            let away = !self.session.link.is_open() && self.session.now() >= since.after(CUT_OFF_TIME);
            let stuck = self.stuck_bytes();
            let refused = stuck > 0 && stuck + bytes > self.unsent_bytes_max();
            if !room && !away && !refused {
                return;
            }
            let Some(waiting) = self.calls.take_write(id) else { continue };
            let Want::Write { handle, offset, bytes, is_page, done } = waiting.want else { continue };
            let checked = self.check_write(handle, offset, bytes.len(), is_page);
            let outcome = match (room, checked) {
                (_, Err(error)) => Err(error),
                (true, Ok(())) => {
                    self.apply_write(handle, offset, bytes, is_page);
                    Ok(())
                }
                (false, Ok(())) if !away => Err(self.no_room_there(handle)),
                (false, Ok(())) => Err(self.no_room(handle)),
            };
            self.session.finish(done, outcome);
        }
    }

    /// Writes to files that have lost their names meanwhile need no room among what is to be sent.
    fn admit_nameless(&mut self) {
        let nameless = |id: &u64| match self.calls.get(id).map(|waiting| &waiting.want) {
            Some(Want::Write { handle, .. }) => self.is_nameless(*handle),
            _ => false,
        };
        let admitted: Vec<u64> = self.calls.writes().filter(nameless).collect();
        for id in admitted {
            let Some(waiting) = self.calls.take_write(id) else { continue };
            let Want::Write { handle, offset, bytes, is_page, done } = waiting.want else { continue };
            let checked = self.check_write(handle, offset, bytes.len(), is_page);
            let outcome = checked.and_then(|()| self.write_nameless(handle, offset, bytes, is_page));
            self.session.finish(done, outcome);
        }
    }

    fn no_room(&self, handle: Handle) -> StreamError {
        let path = self.files.path_of(handle);
        let text = format!(
            "the server is away, and {} bytes that it has not got are all that may be kept here; wait for it, or allow more",
            self.unsent_bytes()
        );
        StreamError::new(ErrorKind::OutboxFull, path, text)
    }

    /// The server refuses what would make room here.
    fn no_room_there(&self, handle: Handle) -> StreamError {
        let path = self.files.path_of(handle);
        StreamError::refused(ErrorCode::NoSpace, path, "earlier changes were refused, and no more are kept here")
    }

    /// If much is unsent, sends the changes of the file that has most.
    fn send_some(&mut self) {
        if self.files.unsealed_bytes() <= self.session.options().dirty_bytes as u64 / 2 {
            return;
        }
        let most = self.files.changed().max_by_key(|(_, file)| file.overlay.open_bytes());
        if let Some(key) = most.map(|(key, _)| key) {
            self.seal(key);
        }
    }

    /// Sends changes that are old.
    pub(super) fn write_back(&mut self) {
        let now = self.session.now();
        let due = |file: &File| file.write_back_due().is_some_and(|due| now >= due);
        let keys: Vec<u64> = self.files.changed().filter(|(_, file)| due(file)).map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.seal(key));
    }

    pub(super) fn write_back_due(&self) -> Option<Moment> {
        let due = self.files.changed().filter_map(|(_, file)| file.write_back_due());
        let write = self.calls.first_write_since().filter(|_| !self.session.link.is_open());
        let write = write.map(|since| since.max(self.session.link.away()).after(CUT_OFF_TIME));
        due.chain(write).min()
    }

    pub(super) fn sync(&mut self, handle: Handle, done: Done<()>) {
        match self.files.handle(handle).map(|open| open.file) {
            Some(file) => match self.check_locks(file) {
                Ok(()) => self.sync_file(file, None, done),
                Err(error) => self.session.finish(done, Err(error)),
            },
            None => self.session.finish(done, Err(StreamError::bad_handle())),
        }
    }

    /// Brings a file to the server; then one of its handles goes away if `closing`.
    pub(super) fn sync_file(&mut self, key: u64, closing: Option<u64>, done: Done<()>) {
        self.seal(key);
        let Some(file) = self.files.get(&key) else {
            return self.session.finish(done, Err(StreamError::bad_handle()));
        };
        let (path, mut txns) = (file.path.clone(), file.sealed.iter().copied().collect::<BTreeSet<u64>>());
        let stale = file.stale.clone();
        txns.extend(self.transactions.attributes_told(key));
        if txns.is_empty() {
            let outcome = stale.map_or(Ok(()), Err);
            if let Some(key) = closing {
                self.release(key);
            }
            return self.session.finish(done, outcome);
        }
        self.transactions.unpark(&txns);
        self.wait_for(Want::Sync { path, txns, error: None, closing, done });
    }

    pub(super) fn sync_all(&mut self, done: Done<()>) {
        let keys: Vec<u64> = self.files.changed().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.seal(key));
        let txns = self.transactions.ids();
        if txns.is_empty() {
            return self.session.finish(done, Ok(()));
        }
        self.transactions.unpark(&txns);
        self.wait_for(Want::Sync { path: Vec::new(), txns, error: None, closing: None, done });
    }

    /// Makes transactions of what was changed of a file.
    pub(super) fn seal(&mut self, key: u64) {
        if self.send_attributes(key) {
            return;
        }
        let limit = self.session.link.outgoing().rate().unwrap_or(COMMIT_BYTES_START) as usize;
        let limit = limit.clamp(*COMMIT_BYTES.start(), *COMMIT_BYTES.end()).min(self.stored_bytes_max()) - 4096;
        let first = self.session.next_id();
        let Some(file) = self.files.get_mut(&key) else { return };
        if file.gone {
            file.dirty = None;
            return;
        }
        let Some(dirty) = file.dirty.take() else { return };
        let path = file.path.clone();
        let mut parts = Packing { limit, path: &path, mtime_ns: dirty.wrote_ns, done: Vec::new(), open: None };
        if let Some((mode, owner)) = dirty.create {
            let exclusive = !dirty.appends && !dirty.replaces;
            parts.add(Change::Create { path: path.clone(), mode, exclusive, owner }).created = true;
            if dirty.replaces {
                parts.add(Change::Truncate { path: path.clone(), base: None, size: 0 }).cut = Some(0);
            }
        }
        if let Some(cut) = dirty.cut {
            parts.add(Change::Truncate { path: path.clone(), base: None, size: cut }).cut = Some(cut);
        }
        let mut end = dirty.cut.unwrap_or(0);
        for (mut offset, mut bytes) in file.overlay.seal(first) {
            while !bytes.is_empty() {
                let now = bytes.split_to(parts.room().min(bytes.len()));
                let length = now.len() as u64;
                let (path, base) = (path.clone(), None);
                if dirty.appends {
                    parts.add(Change::Append { path, base, bytes: now.clone() }).appended += length;
                } else {
                    parts.add(Change::Write { path, base, offset, bytes: now.clone() });
                }
                parts.effect().writes.push((offset, now));
                offset += length;
                end = end.max(offset);
            }
        }
        let size = file.effective_size();
        // A file that was cut may have become longer since by a write of which a later cut left only the length.
        if (dirty.extended || dirty.cut.is_some()) && size > end {
            parts.add(Change::Truncate { path: path.clone(), base: None, size }).extended = Some(size);
        }
        if let (uid, gid) = dirty.owner
            && (uid.is_some() || gid.is_some())
        {
            parts.add(Change::SetOwner { path: path.clone(), base: None, uid, gid });
        }
        if let Some(mode) = dirty.mode {
            parts.add(Change::SetMode { path: path.clone(), base: None, mode });
        }
        if let Some(atime_ns) = dirty.atime {
            parts.add(Change::SetAccessTime { path: path.clone(), base: None, atime_ns });
        }
        if let Some(mtime_ns) = dirty.mtime {
            parts.add(Change::SetTime { path: path.clone(), base: None, mtime_ns });
        }
        let txns = parts.finish();
        if txns.is_empty() {
            return;
        }
        for (mark, _) in file.cuts.iter_mut().filter(|(mark, _)| *mark == 0) {
            *mark = first;
        }
        let names = self.transactions.iter().filter(|(_, txn)| !txn.is_data() && txn.concerns(&path));
        let mut after: BTreeSet<u64> = names.map(|(id, _)| *id).collect();
        after.extend(self.files.get(&key).and_then(|file| file.sealed.last().copied()));
        let free = dirty.appends || dirty.create.is_some();
        let mut base = if free { Base::Free } else { dirty.base };
        for (index, mut txn) in txns.into_iter().enumerate() {
            let id = if index == 0 { first } else { self.session.next_id() };
            let Some(file) = self.files.get_mut(&key) else { return };
            if index > 0 {
                for (offset, bytes) in &txn.effect.writes {
                    let end = offset + bytes.len() as u64;
                    file.overlay.split(*offset);
                    file.overlay.split(end);
                    file.overlay.remark(*offset, end, first, id);
                }
            }
            file.sealed.push(id);
            txn.file = Some(key);
            txn.base = base;
            txn.after = std::mem::take(&mut after);
            after.insert(id);
            base = if dirty.appends { Base::Free } else { Base::Chain(id) };
            self.transactions.insert(id, txn);
        }
        self.transactions.store_unsent(&self.files, &mut self.session);
    }
}

/// Changes on their way into transactions of a bounded size.
struct Packing<'a> {
    limit: usize,
    path: &'a [u8],
    mtime_ns: i64,
    done: Vec<Transaction>,
    open: Option<(Vec<Change>, Effect, usize)>,
}

impl Packing<'_> {
    /// Bytes that a write may have now.
    fn room(&mut self) -> usize {
        let taken = self.open.as_ref().map_or(0, |(_, _, bytes)| *bytes);
        let room = self.limit.saturating_sub(taken + self.path.len() + 64);
        if room >= WRITE_BYTES_MIN {
            return room;
        }
        self.close();
        self.limit - self.path.len() - 64
    }

    fn add(&mut self, change: Change) -> &mut Effect {
        // With the base that it gets later.
        let bytes = change.encoded_bytes() + 16;
        if self.open.as_ref().is_some_and(|(changes, _, taken)| {
            changes.len() >= CHANGES_MAX || (taken + bytes > self.limit && !changes.is_empty())
        }) {
            self.close();
        }
        let (changes, effect, taken) = self.open.get_or_insert_default();
        changes.push(change);
        *taken += bytes;
        effect
    }

    fn effect(&mut self) -> &mut Effect {
        &mut self.open.get_or_insert_default().1
    }

    fn close(&mut self) {
        if let Some((changes, effect, _)) = self.open.take() {
            self.done.push(Transaction::of_file(self.path, changes, self.mtime_ns, effect));
        }
    }

    fn finish(mut self) -> Vec<Transaction> {
        self.close();
        self.done
    }
}
