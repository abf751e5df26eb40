//! Writing to files: over their blocks at once, and into transactions by a sync, a close, a full
//! budget, or the age of the changes.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use units::Token;
use wire::ErrorCode;
use wire::volume::{Allocation, Owner};

use super::attributes::Attributes;
use super::dirty::{Base, Dirty};
use super::file::File;
use super::files::{Files, Open};
use super::packing::pack;
use super::session::Session;
use super::transactions::{Outcome, Transactions};
use super::wants::{WaitingCalls, Want};
use crate::call::{Done, Handle, OpenHow, Opened};
use crate::names::{Names, parent};
use crate::{ErrorKind, StreamError};

/// Zeros that are written at a time to a file that only this device has.
const ZEROS: &[u8] = &[0; 64 << 10];

/// Time that a write without room waits for the server's return before it fails.
pub(super) const CUT_OFF_TIME: Duration = Duration::from_secs(5);

/// Bounds of the bytes of one transaction: a small one is as good as a large one if it takes a
/// second, and demands of others wait for it.
const COMMIT_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=wire::format::COMMIT_BYTES_MAX_WRITTEN;

/// Bytes of one transaction before anything was measured.
const COMMIT_BYTES_START: f64 = 262_144.0;

/// The parts that changes of files need before they are sent. Nothing here waits for an answer.
///
/// Invariant: what is written is in the overlay of its file, and in a transaction once it is
/// sealed; transactions of one file follow each other.
pub(super) struct Writer<'a> {
    pub session: &'a mut Session,
    pub files: &'a mut Files,
    pub calls: &'a mut WaitingCalls,
    pub names: &'a mut Names,
    pub transactions: &'a mut Transactions,
}

impl Writer<'_> {
    /// Makes a file take changes: appends alone, or others too.
    pub fn begin(&mut self, key: u64, append: bool) {
        let Some(file) = self.files.get_mut(&key) else { return };
        if file.gone {
            return;
        }
        let (attributes, unwritten) = (file.unsent.has_only_attributes(), file.unsent.overlay().is_empty());
        match file.unsent.dirty_mut() {
            Some(dirty) if dirty.appends && !append => self.seal(key),
            Some(dirty) => {
                // A file that is only to be made so far, or only gets attributes, can become one
                // that is appended to.
                let bare = attributes || dirty.create.is_some() && dirty.cut.is_none() && !dirty.extended;
                dirty.appends |= append && bare && unwritten;
                return;
            }
            None => {}
        }
        let (now, wall_ns) = (self.session.now(), self.session.wall_ns());
        self.files.works_on(key);
        let Some(file) = self.files.get_mut(&key) else { return };
        let base = match (file.unsent.sealed().last(), file.seen) {
            (Some(last), _) => Base::Chain(*last),
            (None, Some(seen)) => Base::Known(seen),
            (None, None) => Base::Free,
        };
        file.unsent.begin(Dirty::new(base, append, now, wall_ns));
        self.names.forget_file(&file.path);
    }

    pub fn apply_write(&mut self, handle: Handle, offset: u64, bytes: Bytes, is_page: bool) {
        let Some(Open { file: key, how, .. }) = self.files.handle(handle) else { return };
        let appends = how.append && !is_page;
        if appends {
            // Done again it would be there twice.
            self.transactions.note_outcome(self.session.request(), Outcome::default());
        }
        self.begin(key, appends);
        let wall_ns = self.session.wall_ns();
        let Some(file) = self.files.get_mut(&key) else { return };
        let offset = if appends { file.effective_size() } else { offset };
        let end = offset + bytes.len() as u64;
        let size = file.effective_size().max(end);
        file.unsent.write(offset, bytes, size);
        file.attributes.wrote(wall_ns);
        file.unsent.dirty_mut().into_iter().for_each(|dirty| dirty.wrote(wall_ns));
        self.send_some();
    }

    pub fn check_write(&self, handle: Handle, offset: u64, bytes: usize, is_page: bool) -> Result<(), StreamError> {
        let open = self.files.handle(handle).filter(|open| open.how.write || open.how.append);
        let file = open.and_then(|open| self.files.get(&open.file)).ok_or_else(StreamError::bad_handle)?;
        if let Some(stale) = &file.stale {
            return Err(stale.clone());
        }
        let from = if !is_page && open.is_some_and(|open| open.how.append) { file.effective_size() } else { offset };
        self.session.check_size(&file.path, from.saturating_add(bytes as u64))
    }

    /// Cuts or extends a file here.
    pub fn resize(&mut self, key: u64, size: u64) {
        self.begin(key, false);
        let wall_ns = self.session.wall_ns();
        let Some(file) = self.files.get_mut(&key) else { return };
        let old = file.effective_size();
        file.unsent.resize(old, size, wall_ns);
        file.attributes.wrote(wall_ns);
    }

    /// Writes to a file that has no name any more: the bytes lie in memory until it is closed, and
    /// have a limit of their own.
    pub fn write_nameless(
        &mut self,
        handle: Handle,
        offset: u64,
        bytes: Bytes,
        is_page: bool,
    ) -> Result<(), StreamError> {
        let length = bytes.len() as u64;
        let Some(Open { file: key, how, .. }) = self.files.handle(handle) else {
            return Err(StreamError::bad_handle());
        };
        let Some(file) = self.files.get(&key) else { return Err(StreamError::bad_handle()) };
        let over = (is_page || !how.append) && file.unsent.overlay().covers(offset, offset + length);
        self.files.check_nameless(key, if over { 0 } else { length }, self.session.options().nameless_bytes as u64)?;
        self.apply_write(handle, offset, bytes, is_page);
        Ok(())
    }

    /// The server does not have the file: zeros lie in memory as what is written does, and room
    /// is there as long as there is memory.
    pub fn allocate_nameless(
        &mut self,
        key: u64,
        (offset, length): (u64, u64),
        allocation: Allocation,
    ) -> Result<(), StreamError> {
        let size = self.files.get(&key).map_or(0, File::effective_size);
        let end = offset + length;
        let until = if allocation.zero { end.min(size) } else { offset };
        self.files.check_nameless(key, until.saturating_sub(offset), self.session.options().nameless_bytes as u64)?;
        if let Some(file) = self.files.get_mut(&key) {
            let mut at = offset;
            while at < until {
                let step = (until - at).min(ZEROS.len() as u64);
                file.unsent.write_within(at, Bytes::from_static(&ZEROS[..step as usize]));
                at += step;
            }
        }
        if allocation.extend && end > size {
            self.resize(key, end);
        }
        Ok(())
    }

    /// Lets writes go on for which there is room now; while the server is away, they fail after a
    /// time.
    pub fn admit_writes(&mut self) {
        self.admit_nameless();
        while let Some((id, waiting)) = self.calls.first_write() {
            let since = waiting.since;
            let bytes = if let Want::Write { bytes, .. } = &waiting.want { bytes.len() as u64 } else { 0 };
            let room = self.transactions.has_room(self.files, bytes, self.session.unsent_bytes_max());
            let since = since.max(self.session.link.away());
            let away = !self.session.link.is_open() && self.session.now() >= since.after(CUT_OFF_TIME);
            let stuck = self.transactions.stuck_bytes(self.files);
            let refused = stuck > 0 && stuck + bytes > self.session.unsent_bytes_max();
            if !room && !away && !refused {
                return;
            }
            let Some(waiting) = self.calls.take_write(id) else { continue };
            self.session.set_request(waiting.request);
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
            Some(Want::Write { handle, .. }) => self.files.is_nameless(*handle),
            _ => false,
        };
        let admitted: Vec<u64> = self.calls.writes().filter(nameless).collect();
        for id in admitted {
            let Some(waiting) = self.calls.take_write(id) else { continue };
            self.session.set_request(waiting.request);
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
            self.transactions.unsent_bytes(self.files)
        );
        StreamError::new(ErrorKind::OutboxFull, path, text)
    }

    /// The server refuses what would make room here.
    fn no_room_there(&self, handle: Handle) -> StreamError {
        let path = self.files.path_of(handle);
        StreamError::refused(ErrorCode::NoSpace, path, "earlier changes were refused, and no more are kept here")
    }

    /// If much is unsent, sends the changes of the file that has most.
    pub fn send_some(&mut self) {
        if self.files.unsealed_bytes() <= self.session.options().dirty_bytes as u64 / 2 {
            return;
        }
        let most = self.files.changed().max_by_key(|(_, file)| file.unsent.overlay().open_bytes());
        if let Some(key) = most.map(|(key, _)| key) {
            self.seal(key);
        }
    }

    /// Sends changes that are old.
    pub fn write_back(&mut self) {
        let now = self.session.now();
        let due = |file: &File| file.unsent.write_back_due().is_some_and(|due| now >= due);
        let keys: Vec<u64> = self.files.changed().filter(|(_, file)| due(file)).map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.seal(key));
    }

    /// A file that the server has not got, or that replaces what it has: made here, sent with the
    /// first transaction. `unasked`: it was not asked whether it is there. Who wants it empty
    /// replaces also what another device makes meanwhile.
    pub fn make_here(&mut self, path: &[u8], how: OpenHow, token: Token, unasked: bool) -> Opened {
        let mut file = File::new(path, token);
        file.attributes = made(self.names, path, how, self.session.wall_ns());
        let (key, mode) = (self.session.next_id(), file.attributes.mode);
        self.files.insert(key, file);
        self.begin(key, how.append);
        if let Some(dirty) = self.files.get_mut(&key).and_then(|file| file.unsent.dirty_mut()) {
            dirty.create = Some((mode, how.owner));
            (dirty.replaces, dirty.unasked) = (how.truncate && !how.append, unasked);
        }
        self.names.forget_file(path);
        self.names.folder_changed(parent(path), self.session.wall_ns());
        self.add_handle(key, OpenHow { truncate: false, ..how }, token, true)
    }

    pub fn add_handle(&mut self, key: u64, how: OpenHow, token: Token, unchanged: bool) -> Opened {
        let handle = Handle(self.session.next_id());
        if let Some(file) = self.files.get_mut(&key) {
            file.numbering.set_token(token);
        }
        self.files.open(handle, Open { file: key, how, request: self.session.request() });
        if how.truncate && self.files.get(&key).is_some_and(|file| file.effective_size() > 0 || file.unsure) {
            self.resize(key, 0);
        }
        let info = self.files.get(&key).map(File::info).unwrap_or_default();
        Opened { handle, info, unchanged }
    }

    /// A file with other names is about to lose this one: what is unsent of it is sent before.
    pub fn seal_linked(&mut self, path: &[u8]) {
        if let Some(key) = self.files.at(path).filter(|key| self.files.has_other_names(*key)) {
            self.seal(key);
        }
    }

    pub fn sync_all(&mut self, done: Done<()>) {
        let keys: Vec<u64> = self.files.changed().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.seal(key));
        let txns = self.transactions.ids();
        if txns.is_empty() {
            return self.session.finish(done, Ok(()));
        }
        self.transactions.unpark(&txns);
        self.calls.wait(Want::Sync { path: Vec::new(), txns, error: None, closing: None, done }, self.session);
    }

    /// Makes transactions of what was changed of a file.
    pub fn seal(&mut self, key: u64) {
        if self.send_attributes(key) {
            return;
        }
        let limit = self.session.link.outgoing().rate().unwrap_or(COMMIT_BYTES_START) as usize;
        let limit = limit.clamp(*COMMIT_BYTES.start(), *COMMIT_BYTES.end()).min(self.session.stored_bytes_max()) - 4096;
        let first = self.session.next_id();
        let Some(file) = self.files.get_mut(&key) else { return };
        if file.gone {
            file.unsent.take_dirty();
            return;
        }
        let Some(dirty) = file.unsent.take_dirty() else { return };
        let path = file.path.clone();
        let (extents, size) = (file.unsent.seal(first), file.effective_size());
        let txns = pack(&path, &dirty, extents, size, limit);
        if txns.is_empty() {
            return;
        }
        file.unsent.seal_cuts(first);
        let names = self.transactions.iter().filter(|(_, txn)| !txn.is_data() && txn.concerns(&path));
        let mut after: BTreeSet<u64> = names.map(|(id, _)| *id).collect();
        after.extend(self.files.get(&key).and_then(|file| file.unsent.sealed().last().copied()));
        let free = dirty.appends || dirty.create.is_some();
        let mut base = if free { Base::Free } else { dirty.base };
        for (index, mut txn) in txns.into_iter().enumerate() {
            let id = if index == 0 { first } else { self.session.next_id() };
            let Some(file) = self.files.get_mut(&key) else { return };
            file.unsent.push(id, first, &txn.effect.writes);
            txn.file = Some(key);
            txn.base = base;
            txn.after = std::mem::take(&mut after);
            after.insert(id);
            base = if dirty.appends { Base::Free } else { Base::Chain(id) };
            self.transactions.insert(id, txn);
        }
        self.transactions.store_unsent(self.files, self.session);
    }
}

/// Attributes of a file that is made: the server gives it the same.
pub(super) fn made(names: &Names, path: &[u8], how: OpenHow, made_ns: i64) -> Attributes {
    let group = names.group_in(parent(path));
    let owner = how.owner.map(|owner| Owner { gid: group.unwrap_or(owner.gid), ..owner });
    Attributes::new(how.create.unwrap_or(0o644), owner, made_ns)
}
