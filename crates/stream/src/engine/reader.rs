//! The contents of files on this device: their numbers on the connection, their clean blocks, and
//! the version of which these are.

use std::collections::{BTreeMap, BTreeSet};

use units::InodeId;
use wire::volume::{FileInfo, Seen, VolumeAsk, Xattr};
use wire::{ErrorCode, Notice};

use super::blocks::Blocks;
use super::dirty::Base;
use super::files::Files;
use super::read::Read;
use super::requests::AskFor;
use super::session::{ANSWER_TIME, Session};
use super::table::Block;
use super::touches::Touches;
use super::transaction::{Effect, Transaction};
use super::wants::{WaitingCalls, Want};
use crate::StreamError;
use crate::call::Xattrs;
use crate::names::Names;
use crate::present::Present;

/// The parts that reading needs. Nothing here changes a transaction or a lock.
///
/// Invariant: all blocks of a file are of the version that it was seen in. A file that nobody has
/// open, and that has nothing to send, keeps no number.
pub(super) struct Reader<'a> {
    pub session: &'a mut Session,
    pub files: &'a mut Files,
    pub reads: &'a mut BTreeMap<u64, Read>,
    pub calls: &'a mut WaitingCalls,
    pub blocks: &'a mut Blocks,
    pub touches: &'a mut Touches,
    pub names: &'a mut Names,
}

impl Reader<'_> {
    /// A file has several names: what was believed of the others is old.
    pub fn forget_names(&mut self, file: u64) {
        for path in self.files.linked().names(file) {
            self.names.forget(path);
        }
    }

    /// The server gave a file one more name.
    pub fn linked(&mut self, from: &[u8], to: &[u8], seen: Seen) {
        self.files.linked_mut().add(seen.file, from);
        self.files.linked_mut().add(seen.file, to);
        self.forget_names(seen.file);
        let wall_ns = self.session.wall_ns();
        if let Some(file) = self.files.known_at(from).and_then(|key| self.files.get_mut(&key)) {
            file.attributes.links = file.attributes.links.saturating_add(1);
            file.attributes.touch(wall_ns);
        }
    }

    /// Remembers what the server said of a path, for as long as names are believed.
    pub fn keep_xattrs(&mut self, path: &[u8], info: FileInfo, xattrs: Vec<Xattr>) -> Xattrs {
        let xattrs = Xattrs::new(xattrs);
        self.names.put(path, Some(info), self.session.now());
        self.files.note_linked(path, &info);
        self.names.put_xattrs(path, &xattrs, self.session.now());
        xattrs
    }

    /// The server changed an extended attribute for this device: answers from before are old.
    pub fn xattr_changed(&mut self, path: &[u8], seen: Option<&Seen>) {
        let now = self.session.now();
        self.names.xattrs_changed(path, now);
        let others: Vec<Vec<u8>> =
            seen.map_or(Vec::new(), |seen| self.files.linked().names(seen.file).cloned().collect());
        others.iter().for_each(|path| self.names.xattrs_changed(path, now));
    }

    /// Opens a file on the present connection again, or asks what it is now.
    pub fn open_number(&mut self, key: u64) {
        if !self.session.link.is_open() {
            return;
        }
        let Some(file) = self.files.get_mut(&key).filter(|file| !file.numbering.is_opening()) else { return };
        // One that was overtaken may still be there, in a later version, below what was changed
        // here.
        if file.gone && file.stale.is_none() {
            let error = StreamError::refused(ErrorCode::Stale, &file.path, "");
            return self.reopen_failed(key, &error);
        }
        file.numbering.set_opening(true);
        let ask = VolumeAsk::FileOpen { token: file.numbering.token(), path: file.path.clone() };
        self.session.ask(AskFor::File(key), ask, ANSWER_TIME);
    }

    pub fn reopen_failed(&mut self, key: u64, error: &StreamError) {
        let reads = self.files.get(&key).map(|file| file.reads.clone()).unwrap_or_default();
        reads.into_iter().for_each(|id| self.end_read(id, Err(error.clone())));
        let of_it = |want: &Want| matches!(want, Want::Fstat { file, .. } | Want::Look { file, .. } if *file == key);
        for id in self.calls.which(|waiting| of_it(&waiting.want)) {
            if let Some(waiting) = self.calls.remove(&id) {
                waiting.want.fail(error.clone(), self.session.effects());
            }
        }
    }

    /// The server need not know a number any more, unless a file here has it.
    pub fn close_number(&mut self, number: InodeId) {
        if let Some(volume) = self.session.link.volume()
            && self.files.numbered(number).is_none()
        {
            self.session.link.notify(Notice::FileClose { volume, file: number });
        }
    }

    pub fn forget_number(&mut self, key: u64, number: InodeId) {
        if self.files.numbered(number) == Some(key) {
            self.files.remove_number(number);
            self.close_number(number);
        }
    }

    /// A path does not stand for this file any more.
    pub fn detach(&mut self, key: u64) {
        self.files.mark_gone(key);
        self.drop_unused(key);
    }

    /// Forgets a file that nobody has open and that has nothing to send, if it is of no use.
    pub fn drop_unused(&mut self, key: u64) {
        let Some(key) = self.files.unused(key) else { return };
        self.drop_blocks(key, |_| true);
        if let Some(number) = self.files.remove(key).and_then(|file| file.numbering.number()) {
            self.forget_number(key, number);
        }
    }

    /// A file whose changes were refused: they stay readable until it is closed, and whoever opens
    /// it again sees the server's. Returns the bytes that no transaction has.
    pub fn overtaken(&mut self, key: u64, error: &StreamError) -> u64 {
        let Some(file) = self.files.get_mut(&key) else { return 0 };
        file.stale = Some(error.clone());
        let path = file.path.clone();
        let open = if file.unsent.take_dirty().is_some() { file.unsent.overlay().open_bytes() } else { 0 };
        self.detach(key);
        self.names.forget(&path);
        open
    }

    /// Drops clean blocks of a file.
    pub fn drop_blocks(&mut self, key: u64, which: impl Fn(u32) -> bool) {
        if let Some(file) = self.files.get_mut(&key) {
            self.blocks.drop_some(file, which);
        }
    }

    /// Somebody else changed a file: nothing of the older version is kept.
    pub fn move_file(&mut self, key: u64, version: u64, size: Option<u64>) {
        self.drop_blocks(key, |_| true);
        let Some(file) = self.files.get_mut(&key) else { return };
        if let Some(seen) = &mut file.seen {
            seen.version = version;
        }
        file.attributes.made_here = false;
        match size {
            Some(size) => (file.size, file.unsure) = (size, false),
            None => file.unsure = true,
        }
        *file.table.present_mut() = Present::unknown();
        file.kernel = None;
        self.names.forget(&file.path);
    }

    /// The blocks of a file that has no name can be asked of nobody: they stay, as if they were
    /// written here, as far as there is room.
    pub fn keep_blocks(&mut self, key: u64) {
        let block = u64::from(self.session.block_bytes());
        let mut room = (self.session.options().nameless_bytes as u64).saturating_sub(self.files.nameless_bytes());
        let Some(file) = self.files.get(&key).filter(|file| file.handles > 0) else { return };
        let mut kept = Vec::new();
        for (index, entry) in file.table.iter() {
            let start = u64::from(index) * block;
            let Block::Memory { bytes, .. } = entry else { continue };
            let length = file.zero_from().saturating_sub(start).min(bytes.len() as u64);
            if length > 0 && length <= room && !file.unsent.overlay().covers(start, start + length) {
                room -= length;
                let mut bytes = bytes[..length as usize].to_vec();
                file.unsent.overlay().copy_into(start, &mut bytes);
                kept.push((index, start, bytes));
            }
        }
        let indexes: BTreeSet<u32> = kept.iter().map(|(index, ..)| *index).collect();
        self.drop_blocks(key, |index| indexes.contains(&index));
        let Some(file) = self.files.get_mut(&key) else { return };
        for (_, start, bytes) in kept {
            file.unsent.write_within(start, bytes.into());
        }
    }

    /// After a commit of our own: what waits goes on with the new version, without the blocks that
    /// were touched.
    pub fn rebase_reads(&mut self, key: u64, from: Seen, to: Seen, touched: impl Fn(u32) -> bool) {
        let Some(file) = self.files.get(&key) else { return };
        for id in &file.reads {
            self.reads.get_mut(id).into_iter().for_each(|read| read.rebase(from, to, &touched));
        }
    }

    /// The server has what a transaction wrote: so has the table.
    pub fn file_committed(&mut self, key: u64, id: u64, txn: &Transaction, to: Seen) {
        let Some(file) = self.files.get_mut(&key) else { return };
        file.unsent.committed(id);
        if let Some(dirty) = file.unsent.dirty_mut()
            && dirty.base == Base::Chain(id)
        {
            dirty.base = Base::Known(txn.effect.seen_before(to));
        }
        let effect = &txn.effect;
        let from = match txn.base {
            Base::Known(seen) => Some(seen),
            _ => None,
        };
        let new = effect.created && effect.appended == 0;
        // Of a file that was made here and was there already it is not known what else is in it.
        let exact = effect.appended == 0 && (new || (from.is_some() && file.seen == from && !file.unsure));
        if exact && (new || from.is_some_and(|from| from.file == to.file && from.version < to.version)) {
            self.advance_file(key, effect, from, to);
        } else if file.seen != Some(to) {
            match file.seen {
                Some(seen) if seen.file == to.file && seen.version >= to.version => {}
                Some(seen) if seen.file == to.file => {
                    file.size = effect.new_size(file.size);
                    self.move_file(key, to.version, None);
                }
                _ => {
                    file.seen = Some(to);
                    file.size = effect.appended.max(file.size);
                    *file.table.present_mut() = Present::unknown();
                    file.unsure = true;
                }
            }
        }
        if let Some(file) = self.files.get_mut(&key)
            && !file.is_changed()
        {
            file.unsent.forget_size();
        }
        if let Some(file) = self.files.get(&key) {
            let is_whole = exact && file.seen == Some(to) && !file.unsure && !file.is_changed();
            let (path, info) = (file.path.clone(), file.info());
            match txn.effect.created {
                true => self.names.name_changed(&path, self.session.wall_ns()),
                false => self.names.forget_file(&path),
            }
            self.forget_names(to.file);
            if is_whole {
                self.names.put(&path, Some(info), self.session.now());
            }
        }
        if txn.effect.taken {
            // Whether it may be the file that was made here, nobody knows before.
            self.open_number(key);
        }
        self.advance_reads(key);
        self.drop_unused(key);
    }

    /// A file goes on from the version that a transaction was based on to the one that it made.
    fn advance_file(&mut self, key: u64, effect: &Effect, from: Option<Seen>, to: Seen) {
        let block = u64::from(self.session.block_bytes());
        let Some(file) = self.files.get_mut(&key) else { return };
        let new = effect.created && effect.appended == 0;
        let old_size = if new { 0 } else { file.size };
        if new {
            (*file.table.present_mut(), file.kernel) = (Present::nothing(), Some(to));
        } else {
            file.kernel = file.kernel.filter(|kernel| Some(*kernel) == from).map(|_| to);
        }
        let touched = effect.touched_blocks(old_size, block);
        let contents = self.take_touched(key, &touched);
        let Some(file) = self.files.get_mut(&key) else { return };
        file.size = effect.new_size(old_size);
        file.note_stored(effect.writes.iter().map(|(_, bytes)| bytes.len() as u64).sum(), effect.cut);
        file.seen = Some(to);
        // Blocks that the disk cache reads now are of the version before.
        file.table.forget_reading();
        for (offset, bytes) in &effect.writes {
            file.table.present_mut().add(offset / block, (offset + bytes.len() as u64).div_ceil(block));
        }
        if let Some(from) = from {
            self.rebase_reads(key, from, to, touched);
        }
        self.merge_writes(key, effect, block, contents);
    }

    /// Takes the blocks out of the table that a transaction changed, while they are still of the
    /// version before.
    fn take_touched(&mut self, key: u64, touched: impl Fn(u32) -> bool) -> BTreeMap<u32, Vec<u8>> {
        let Some(file) = self.files.get(&key) else { return BTreeMap::new() };
        let there = file.table.iter().filter(|(index, _)| touched(*index));
        let taken = there.filter_map(|(index, entry)| match entry {
            Block::Memory { bytes, .. } => Some((index, bytes.to_vec())),
            _ => None,
        });
        let taken = taken.collect();
        self.drop_blocks(key, touched);
        taken
    }

    /// Blocks that were in memory take what was written into them; those that were written wholly
    /// are in memory from now on.
    fn merge_writes(&mut self, key: u64, effect: &Effect, block: u64, mut contents: BTreeMap<u32, Vec<u8>>) {
        let Some(size) = self.files.get(&key).map(|file| file.size) else { return };
        let cut = effect.cut.unwrap_or(u64::MAX);
        contents.retain(|index, _| (u64::from(*index) + 1) * block <= cut);
        for (offset, bytes) in &effect.writes {
            let end = offset + bytes.len() as u64;
            for index in offset / block..end.div_ceil(block) {
                let Ok(small) = u32::try_from(index) else { return };
                let start = index * block;
                let valid = size.saturating_sub(start).min(block) as usize;
                let (from, until) = ((*offset).max(start), end.min(start + valid as u64));
                if from == start && until == start + valid as u64 && from < until {
                    contents.insert(small, vec![0; valid]);
                }
                if let Some(content) = contents.get_mut(&small).filter(|_| from < until) {
                    content.resize(valid, 0);
                    let source = &bytes[(from - offset) as usize..(until - offset) as usize];
                    content[(from - start) as usize..(until - start) as usize].copy_from_slice(source);
                }
            }
        }
        for (index, content) in contents {
            self.install(key, index, content.into(), false);
        }
    }
}
