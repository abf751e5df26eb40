//! Files and names after the server committed a change of their content, their attributes or their
//! names.

use units::Token;
use wire::ErrorCode;
use wire::volume::{Change, Seen};

use super::committer::Committer;
use super::dirty::Base;
use super::file::File;
use super::transaction::{Transaction, path_of};
use super::writer::made;
use crate::StreamError;
use crate::call::{OpenHow, Opened};
use crate::present::Present;

impl Committer<'_> {
    /// The server has changes of names: what is known here follows.
    pub fn names_changed(&mut self, txn: &Transaction, versions: &[Seen]) {
        // The file at the name that was removed, if the server was asked for it.
        let was_there = match txn.changes.first() {
            Some(Change::OnlyName { .. }) => versions.first().map(|seen| seen.file),
            _ => None,
        };
        for (index, change) in txn.changes.iter().enumerate() {
            if let Change::SetTime { path, .. } | Change::RemoveFolder { path } = change {
                self.names.forget_folder_time(path);
            }
            if let Change::SetXattr { path, .. } | Change::RemoveXattr { path, .. } = change {
                self.reader().xattr_changed(path, versions.get(index));
            }
            if let Change::MakeFolder { path, .. } | Change::MakeLink { path, .. } | Change::MakeNode { path, .. } =
                change
                && let Some(old) = self.files.at(path)
            {
                // Another device had removed it.
                self.taken_away(old);
            }
            self.name_changed(txn, change, versions.get(index).copied(), was_there);
        }
    }

    /// The server has made one change of names or attributes; `seen`: what it made of the file.
    fn name_changed(&mut self, txn: &Transaction, change: &Change, seen: Option<Seen>, was_there: Option<u64>) {
        match change {
            Change::Allocate { path, .. } | Change::Copy { path, .. }
                if seen.is_some_and(|to| self.range_changed(path, change, to)) =>
            {
                self.names.forget_file(path);
            }
            Change::SetMode { path, .. }
            | Change::SetOwner { path, .. }
            | Change::SetTime { path, .. }
            | Change::SetAccessTime { path, .. }
            | Change::SetXattr { path, .. }
            | Change::RemoveXattr { path, .. }
                if seen.is_some_and(|to| self.attributes_changed(path, change, to)) =>
            {
                self.names.forget_file(path);
            }
            Change::Rename { from, to, .. } => self.renamed(from, to, was_there),
            Change::Link { from, to, .. } => {
                self.names.forget(from);
                self.names.forget(to);
                seen.into_iter().for_each(|seen| self.reader().linked(from, to, seen));
            }
            Change::Unlink { path, .. } => self.removed(path, seen, txn.unnames, was_there),
            Change::Truncate { path, size, .. } if seen.is_some_and(|to| self.truncated(path, *size, to)) => {
                self.names.forget_file(path);
            }
            Change::Truncate { path, .. }
            | Change::Allocate { path, .. }
            | Change::Copy { path, .. }
            | Change::SetMode { path, .. }
            | Change::SetOwner { path, .. }
            | Change::SetTime { path, .. }
            | Change::SetAccessTime { path, .. }
            | Change::SetXattr { path, .. }
            | Change::RemoveXattr { path, .. } => {
                if let Some(file) = self.files.known_at(path).and_then(|key| self.files.get_mut(&key)) {
                    file.unsure = file.seen.is_some();
                    file.kernel = None;
                }
                self.names.forget(path);
            }
            Change::RemoveFolder { path } => {
                self.names.forget_all();
                self.names.forget_folders(path);
                self.files.below(path).into_iter().for_each(|key| self.taken_away(key));
            }
            Change::Create { path, .. } | Change::MakeLink { path, .. } | Change::MakeNode { path, .. } => {
                self.names.name_changed(path, self.session.wall_ns());
            }
            other => self.names.forget(path_of(other)),
        }
    }

    /// The server has removed a name of a file, or its only one; `unnames`: the file known here
    /// that was to lose it.
    fn removed(&mut self, path: &[u8], seen: Option<Seen>, unnames: Option<u64>, was_there: Option<u64>) {
        let removed = seen.map(|seen| seen.file);
        // Another one may have been made here meanwhile.
        let is_it = |key: &u64| {
            let seen = self.files.get(key).and_then(|file| file.seen);
            unnames == Some(*key) || seen.is_some_and(|seen| Some(seen.file) == removed)
        };
        match self.files.known_at(path).filter(is_it) {
            Some(key) if self.files.has_other_names(key) => self.unlinked(key, path),
            Some(key) if self.files.is_another(key, was_there) => self.taken_away(key),
            Some(key) => self.unname(key),
            None => {}
        }
        if let Some(removed) = removed {
            self.reader().forget_names(removed);
            self.files.linked_mut().remove(removed, path);
        }
        self.names.name_changed(path, self.session.wall_ns());
    }

    /// Attributes of a file that is known here became another version of it, with the same content,
    /// if it is the next one: then what is written to the open file goes on from there. False if
    /// somebody else came between.
    fn attributes_changed(&mut self, path: &[u8], change: &Change, to: Seen) -> bool {
        self.reader().forget_names(to.file);
        let Some(key) = self.files.known_at(path) else { return false };
        let wall_ns = self.session.wall_ns();
        let Some(file) = self.files.get_mut(&key) else { return false };
        if file.seen == Some(to) && !file.unsent.is_dirty() {
            // Not the first change of the transaction.
            file.attributes.change(change, wall_ns);
            return true;
        }
        let Some(from) = self.follow(key, to) else { return false };
        if let Some(file) = self.files.get_mut(&key)
            && !file.unsent.is_dirty()
        {
            file.attributes.change(change, wall_ns);
        }
        self.reader().rebase_reads(key, from, to, |_| false);
        true
    }

    /// Goes on from the version that a change of our own made of a file, if it is the next one,
    /// with what was written to the file meanwhile. Returns the version before.
    pub fn follow(&mut self, key: u64, to: Seen) -> Option<Seen> {
        let from = Seen { file: to.file, version: to.version.checked_sub(1)? };
        let file = self.files.get_mut(&key)?;
        let waiting = self.transactions.which_mut(|txn| txn.file == Some(key) && !txn.sending.was_sent());
        let bases = waiting.map(|txn| &mut txn.base).chain(file.unsent.dirty_mut().map(|dirty| &mut dirty.base));
        bases.filter(|base| **base == Base::Known(from)).for_each(|base| *base = Base::Known(to));
        // An answer of that version, or a push, may have come before.
        if file.seen == Some(to) {
            return Some(from);
        }
        file.seen = file.seen.filter(|seen| *seen == from).and(Some(to)).or(file.seen);
        if file.seen != Some(to) {
            return None;
        }
        file.kernel = file.kernel.filter(|kernel| *kernel == from).map(|_| to);
        // Blocks that the disk cache reads now are of the version before.
        file.table.forget_reading();
        Some(from)
    }

    /// The server has changed a range of a file for this device: its blocks are asked for anew.
    /// False if somebody else came between, or the file is not known here.
    fn range_changed(&mut self, path: &[u8], change: &Change, to: Seen) -> bool {
        self.reader().forget_names(to.file);
        let Some(key) = self.files.known_at(path) else { return false };
        let (offset, end, allocation) = match *change {
            Change::Allocate { offset, length, allocation, .. } => (offset, offset + length, Some(allocation)),
            Change::Copy { offset, length, .. } => (offset, offset + u64::from(length), None),
            _ => return false,
        };
        let Some(from) = self.follow(key, to) else { return false };
        let (block, wall_ns) = (u64::from(self.session.block_bytes()), self.session.wall_ns());
        let Some(file) = self.files.get_mut(&key) else { return false };
        let (old_size, is_zeroed) = (file.size, allocation.is_some_and(|allocation| allocation.zero));
        if allocation.is_none_or(|allocation| allocation.extend) {
            file.size = file.size.max(end);
        }
        if !file.unsent.is_dirty() {
            file.attributes.wrote(wall_ns);
        }
        match allocation {
            Some(_) if is_zeroed => file.table.present_mut().remove(offset.div_ceil(block), end / block),
            Some(_) => {}
            None => file.table.present_mut().add(offset / block, end.div_ceil(block)),
        }
        // How much that is only the server knows; it is asked when the file is looked at by name.
        match allocation {
            Some(allocation) if allocation.reserve => file.note_stored(end - offset, None),
            Some(_) => {
                let stored = &mut file.attributes.stored_bytes;
                *stored = stored.saturating_sub((end.min(old_size)).saturating_sub(offset));
            }
            None => file.note_stored(end - offset, None),
        }
        let grown = file.size != old_size;
        let touched = move |index: u32| {
            let index = u64::from(index);
            let of_range = allocation.is_none() || is_zeroed;
            (of_range && (offset / block..end.div_ceil(block)).contains(&index)) || (grown && index == old_size / block)
        };
        self.reader().drop_blocks(key, touched);
        self.reader().rebase_reads(key, from, to, touched);
        self.reader().advance_reads(key);
        true
    }

    /// The server has cut or extended a file for this device, by its path. False if somebody else
    /// came between, or the file is not known here.
    fn truncated(&mut self, path: &[u8], size: u64, to: Seen) -> bool {
        self.reader().forget_names(to.file);
        let Some(key) = self.files.known_at(path) else { return false };
        let Some(from) = self.follow(key, to) else { return false };
        let (block, wall_ns) = (u64::from(self.session.block_bytes()), self.session.wall_ns());
        let Some(file) = self.files.get_mut(&key) else { return false };
        let old_size = std::mem::replace(&mut file.size, size);
        if !file.unsent.is_dirty() {
            file.attributes.wrote(wall_ns);
        }
        file.note_stored(0, Some(size));
        file.table.present_mut().remove(size.min(old_size).div_ceil(block), old_size.max(size).div_ceil(block));
        let first = size.min(old_size) / block;
        let touched = move |index: u32| u64::from(index) >= first;
        self.reader().drop_blocks(key, touched);
        self.reader().rebase_reads(key, from, to, touched);
        self.reader().advance_reads(key);
        true
    }

    /// A file or folder was renamed; `replaced` is the file that was there, where the server told
    /// it.
    fn renamed(&mut self, from: &[u8], to: &[u8], replaced: Option<u64>) {
        match self.files.at(from).is_some() && !self.names.has_linked() {
            true => [from, to].into_iter().for_each(|path| self.names.name_changed(path, self.session.wall_ns())),
            // Everything below it has another name; or other names of a file tell how many there
            // are.
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

    /// One of several names of a file is gone. If it is the one by which the file is known here and
    /// no other one is known, the file is lost to this device: whoever has it open is told.
    fn unlinked(&mut self, key: u64, path: &[u8]) {
        let wall_ns = self.session.wall_ns();
        let Some(file) = self.files.get_mut(&key) else { return };
        let Some(seen) = file.seen else { return };
        file.attributes.links = file.attributes.links.saturating_sub(1);
        file.attributes.touch(wall_ns);
        self.reader().forget_names(seen.file);
        self.files.linked_mut().remove(seen.file, path);
        let other = self.files.linked().names(seen.file).next().cloned();
        let other = other.filter(|other| self.files.at(other).is_none());
        let Some(file) = self.files.get_mut(&key).filter(|file| file.path == path) else { return };
        match other {
            Some(other) => {
                // The server knows its number by the name that is gone.
                let number = file.numbering.take();
                self.files.move_to(key, other);
                if let Some(number) = number {
                    self.reader().forget_number(key, number);
                }
            }
            None => self.taken_away(key),
        }
    }

    /// This device took the name of a file, which nobody asks for any more: what was not sent of it
    /// is not sent. Whoever has it open reads and writes it on here, as long as what is read is
    /// here.
    pub fn unname(&mut self, key: u64) {
        let Some(file) = self.files.get_mut(&key) else { return };
        file.gone = true;
        file.attributes.links = 0;
        let unsent = file.unsent.abandon();
        for id in &unsent {
            if let Some(mut txn) = self.transactions.remove(*id) {
                self.transactions.unstore(*id, &mut txn, None, self.session);
            }
        }
        unsent.into_iter().for_each(|id| self.tell_callers(id, None, &[]));
        self.reader().keep_blocks(key);
        self.reader().detach(key);
    }

    /// Somebody else removed or replaced a file, or a folder above it. What was not sent of it is
    /// sent, and refused: whoever syncs it is told.
    pub fn taken_away(&mut self, key: u64) {
        self.writer().seal(key);
        if let Some(file) = self.files.get_mut(&key) {
            let stale = StreamError::refused(ErrorCode::Stale, &file.path, "");
            file.stale.get_or_insert(stale);
        }
        self.reader().detach(key);
    }

    /// A file that was made exclusively: nothing but our own writes can be in it.
    pub fn created(&mut self, path: &[u8], how: OpenHow, token: Token, (seen, made_ns): (Seen, i64)) -> Opened {
        if let Some(old) = self.files.at(path) {
            self.taken_away(old);
        }
        let mut file = File::new(path, token);
        file.attributes = made(self.names, path, how, made_ns);
        (file.seen, file.kernel) = (Some(seen), Some(seen));
        let key = self.session.next_id();
        self.files.insert(key, file);
        self.names.name_changed(path, self.session.wall_ns());
        self.writer().add_handle(key, OpenHow { truncate: false, ..how }, token, true)
    }

    /// A file in the place of one that was made here belongs to somebody else, or has other
    /// permission bits: nobody was asked whether he may open that one.
    pub fn is_of_others(&mut self, key: u64) {
        let Some(file) = self.files.get_mut(&key) else { return };
        (file.seen, file.size, file.unsure) = (None, 0, false);
        *file.table.present_mut() = Present::nothing();
        if let Some(number) = file.numbering.take() {
            self.reader().forget_number(key, number);
        }
        self.reader().drop_blocks(key, |_| true);
        let Some(file) = self.files.get(&key) else { return };
        let error = StreamError::refused(ErrorCode::Stale, &file.path, "");
        let sealed = file.unsent.sealed().to_vec();
        self.reader().overtaken(key, &error);
        self.reader().reopen_failed(key, &error);
        sealed.into_iter().for_each(|id| self.refuse(id, &error));
    }
}
