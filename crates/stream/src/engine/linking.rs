//! Names that files get and lose. All names of a file are one file here too, whose changes are sent
//! under the name by which it was opened.

use std::collections::BTreeSet;

use wire::ErrorCode;
use wire::volume::{Change, Seen};

use super::Engine;
use super::file::Block;
use super::transaction::{State, unnamed_path};
use crate::StreamError;
use crate::call::Done;
use crate::names::check_path;

impl Engine {
    /// Gives a file one more name; what is unsent of it is sent before.
    pub(super) fn link(&mut self, from: Vec<u8>, to: Vec<u8>, done: Done<()>) {
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

    /// A file with other names is about to lose this one: what is unsent of it is sent before.
    pub(super) fn seal_linked(&mut self, path: &[u8]) {
        if let Some(key) = self.files.at(path).filter(|key| self.files.has_other_names(*key)) {
            self.seal(key);
        }
    }

    /// A file has several names: what was believed of the others is old.
    pub(super) fn forget_names(&mut self, file: u64) {
        for path in self.files.linked().names(file) {
            self.names.forget(path);
        }
    }

    /// The server gave a file one more name.
    pub(super) fn linked(&mut self, from: &[u8], to: &[u8], seen: Seen) {
        self.files.linked_mut().add(seen.file, from);
        self.files.linked_mut().add(seen.file, to);
        self.forget_names(seen.file);
        let wall_ns = self.session.wall_ns();
        if let Some(file) = self.files.known_at(from).and_then(|key| self.files.get_mut(&key)) {
            file.attributes.links = file.attributes.links.saturating_add(1);
            file.attributes.touch(wall_ns);
        }
    }

    /// One of several names of a file is gone. If it is the one by which the file is known here and
    /// no other one is known, the file is lost to this device: whoever has it open hears of that.
    pub(super) fn unlinked(&mut self, key: u64, path: &[u8]) {
        let wall_ns = self.session.wall_ns();
        let Some(file) = self.files.get_mut(&key) else { return };
        let Some(seen) = file.seen else { return };
        file.attributes.links = file.attributes.links.saturating_sub(1);
        file.attributes.touch(wall_ns);
        self.forget_names(seen.file);
        self.files.linked_mut().remove(seen.file, path);
        let other = self.files.linked().names(seen.file).next().cloned();
        let other = other.filter(|other| self.files.at(other).is_none());
        let Some(file) = self.files.get_mut(&key).filter(|file| file.path == path) else { return };
        match other {
            Some(other) => {
                // The server knows its number by the name that is gone.
                let number = file.number.take();
                self.files.move_to(key, other);
                if let Some(number) = number {
                    self.forget_number(key, number);
                }
            }
            None => self.taken_away(key),
        }
    }

    /// A change of names was to take the only name of a file that is open here or has changes that
    /// are not sent, and the server says that it has others: another device gave them. What was to
    /// be dropped with the file is sent before, while there is a name that is known here.
    pub(super) fn is_linked_there(&mut self, id: u64) {
        let Some(txn) = self.transactions.get_mut(&id) else { return };
        let Some(key) = txn.unnames.take() else { return };
        txn.changes.retain(|change| !matches!(change, Change::OnlyName { .. }));
        // What was refused has used up its number.
        (txn.number, txn.sent, txn.state) = (None, false, State::Queued(self.session.now()));
        let path = unnamed_path(&txn.changes).unwrap_or_default().to_vec();
        if let Some(file) = self.files.get_mut(&key) {
            file.attributes.links = file.attributes.links.max(2);
            let seen = file.seen;
            seen.into_iter().for_each(|seen| self.files.linked_mut().add(seen.file, &path));
        }
        self.seal(key);
        let sealed = self.files.get(&key).map(|file| file.sealed.clone()).unwrap_or_default();
        let sealed: BTreeSet<u64> = sealed.into_iter().collect();
        // What waits for this change cannot be waited for.
        self.transactions.put_before(&sealed, id);
        self.transactions.unpark(&sealed);
    }

    /// This device took the name of a file, which nobody asks for any more: what was not sent of it
    /// is not sent. Whoever has it open reads and writes it on here, as long as what is read is
    /// here.
    pub(super) fn unname(&mut self, key: u64) {
        let Some(file) = self.files.get_mut(&key) else { return };
        file.dirty = None;
        file.gone = true;
        file.attributes.links = 0;
        let unsent = std::mem::take(&mut file.sealed);
        // Its cuts hold for ever, as does what lies over its blocks.
        let cut = file.cuts.drain(..).map(|(_, cut)| cut).min();
        file.cuts.extend(cut.map(|cut| (0, cut)));
        for id in &unsent {
            if let Some(mut txn) = self.transactions.remove(*id) {
                self.transactions.unstore(*id, &mut txn, None, &mut self.session);
            }
        }
        unsent.into_iter().for_each(|id| self.tell_wants(id, None, &[]));
        self.keep_blocks(key);
        self.detach(key);
    }

    /// The blocks of a file that has no name can be asked of nobody: they stay, as if they were
    /// written here, as far as there is room.
    fn keep_blocks(&mut self, key: u64) {
        let block = u64::from(self.session.block_bytes());
        let mut room = (self.session.options().nameless_bytes as u64).saturating_sub(self.files.nameless_bytes());
        let Some(file) = self.files.get(&key).filter(|file| file.handles > 0) else { return };
        let mut kept = Vec::new();
        for (index, entry) in &file.blocks {
            let start = u64::from(*index) * block;
            let Block::Memory { bytes, .. } = entry else { continue };
            let length = file.zero_from().saturating_sub(start).min(bytes.len() as u64);
            if length > 0 && length <= room && !file.overlay.covers(start, start + length) {
                room -= length;
                let mut bytes = bytes[..length as usize].to_vec();
                file.overlay.copy_into(start, &mut bytes);
                kept.push((*index, start, bytes));
            }
        }
        let indexes: BTreeSet<u32> = kept.iter().map(|(index, ..)| *index).collect();
        self.drop_blocks(key, |index| indexes.contains(&index));
        let Some(file) = self.files.get_mut(&key) else { return };
        for (_, start, bytes) in kept {
            file.overlay.write(start, bytes.into());
        }
    }

    /// Somebody else removed or replaced a file, or a folder above it. What was not sent of it is
    /// sent, and refused: whoever syncs it hears of that.
    pub(super) fn taken_away(&mut self, key: u64) {
        self.seal(key);
        if let Some(file) = self.files.get_mut(&key) {
            let stale = StreamError::refused(ErrorCode::Stale, &file.path, "");
            file.stale.get_or_insert(stale);
        }
        self.detach(key);
    }

    /// What was renamed is at its new place; `replaced` is what was there, where the server told
    /// it.
    pub(super) fn renamed(&mut self, from: &[u8], to: &[u8], replaced: Option<u64>) {
        match self.files.at(from).is_some() && !self.names.has_linked() {
            true => [from, to].into_iter().for_each(|path| self.names.name_changed(path, self.session.wall_ns())),
            // What is below it has another name; or names of one file tell how many there are.
            false => self.names.forget_all(),
        }
        if from == to {
            return;
        }
        self.names.folder_renamed(from, to);
        self.names.forget_folders(from);
        self.names.forget_folders(to);
        match self.files.at(to) {
            Some(key) if self.files.has_other_names(key) => self.unlinked(key, to),
            Some(key) if self.files.is_another(key, replaced) => self.taken_away(key),
            Some(key) => self.unname(key),
            None => {}
        }
        if let Some(replaced) = self.files.linked().file(to) {
            self.files.linked_mut().remove(replaced, to);
        }
        self.files.linked_mut().rename(from, to);
        self.files.below(to).into_iter().for_each(|key| self.taken_away(key));
        let mut moved = self.files.below(from);
        moved.extend(self.files.at(from));
        for key in moved {
            let Some(file) = self.files.get_mut(&key) else { continue };
            if file.path == from {
                file.attributes.touch(self.session.wall_ns());
            }
            let path = [to, &file.path[from.len()..]].concat();
            self.files.move_to(key, path);
        }
    }
}
