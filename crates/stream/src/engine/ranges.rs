//! Ranges of files: zeros, room and copies that the server makes, and where data and holes are.

use bytes::Bytes;
use wire::format::COPY_BYTES_MAX;
use wire::volume::{Allocation, Change, Seen};

use super::Engine;
use super::file::{File, whole_blocks};
use super::files::Open;
use crate::call::{Done, Handle};
use crate::{ErrorKind, StreamError};

/// Zeros that are written at a time to a file that only this device has.
const ZEROS: &[u8] = &[0; 64 << 10];

impl Engine {
    pub(super) fn allocate(
        &mut self,
        handle: Handle,
        (offset, length): (u64, u64),
        allocation: Allocation,
        done: Done<()>,
    ) {
        let (key, path) = match self.for_changing(handle, offset.saturating_add(length)) {
            Ok(found) => found,
            Err(error) => return self.session.finish(done, Err(error)),
        };
        if self.files.get(&key).is_some_and(File::is_nameless) {
            let outcome = self.allocate_nameless(key, (offset, length), allocation);
            return self.session.finish(done, outcome);
        }
        self.seal(key);
        let change = Change::Allocate { path: path.clone(), base: None, offset, length, allocation };
        self.change_file(key, &path, vec![change], done);
    }

    /// The server does not have the file: zeros lie in memory as what is written does, and room
    /// is there as long as there is memory.
    fn allocate_nameless(
        &mut self,
        key: u64,
        (offset, length): (u64, u64),
        allocation: Allocation,
    ) -> Result<(), StreamError> {
        let size = self.files.get(&key).map_or(0, File::effective_size);
        let end = offset + length;
        let until = if allocation.zero { end.min(size) } else { offset };
        self.check_nameless(key, until.saturating_sub(offset))?;
        if let Some(file) = self.files.get_mut(&key) {
            let mut at = offset;
            while at < until {
                let step = (until - at).min(ZEROS.len() as u64);
                file.overlay.write(at, Bytes::from_static(&ZEROS[..step as usize]));
                at += step;
            }
        }
        if allocation.extend && end > size {
            self.resize(key, end);
        }
        Ok(())
    }

    pub(super) fn copy(
        &mut self,
        (source, from_offset): (Handle, u64),
        (handle, offset): (Handle, u64),
        length: u64,
        done: Done<u64>,
    ) {
        let change = self.copy_change((source, from_offset), (handle, offset), length);
        let (key, change) = match change {
            Ok(Some(found)) => found,
            Ok(None) => return self.session.finish(done, Ok(0)),
            Err(error) => return self.session.finish(done, Err(error)),
        };
        let copied = if let Change::Copy { length, .. } = &change { u64::from(*length) } else { 0 };
        let path = self.files.get(&key).map(|file| file.path.clone()).unwrap_or_default();
        let to = path.clone();
        let copied: Done<()> = Box::new(move |outcome| match outcome {
            Ok(()) => done(Ok(copied)),
            Err(error) if error.kind() == ErrorKind::Stale => {
                let text = "what is to be copied was changed meanwhile; read and write it";
                done(Err(StreamError::new(ErrorKind::Unsupported, &to, text)));
            }
            Err(error) => done(Err(error)),
        });
        self.seal(key);
        self.change_file(key, &path, vec![change], copied);
    }

    /// What is to be asked of the server, and the file that it changes; `None` if there is nothing
    /// to copy.
    fn copy_change(
        &self,
        (source, from_offset): (Handle, u64),
        (handle, offset): (Handle, u64),
        length: u64,
    ) -> Result<Option<(u64, Change)>, StreamError> {
        let Open { file: source, how } = self.files.handle(source).ok_or_else(StreamError::bad_handle)?;
        let source = self.files.get(&source).filter(|_| how.read).ok_or_else(StreamError::bad_handle)?;
        let left = source.effective_size().saturating_sub(from_offset);
        let length = length.min(left).min(COPY_BYTES_MAX.into());
        let (key, path) = self.for_changing(handle, offset.saturating_add(length))?;
        if length == 0 {
            return Ok(None);
        }
        let nameless = source.gone || self.files.get(&key).is_some_and(|file| file.gone);
        let Some(seen) = source.seen.filter(|_| !nameless && !source.is_changed() && !source.unsure) else {
            return Err(StreamError::new(
                ErrorKind::Unsupported,
                &source.path,
                "it is not on the server as it is here",
            ));
        };
        let (base, from, from_base, length) = (None, source.path.clone(), Some(seen), length as u32);
        Ok(Some((key, Change::Copy { path, base, offset, from, from_base, from_offset, length })))
    }

    /// The file of a handle, and its path, if it may be changed up to `end`.
    fn for_changing(&self, handle: Handle, end: u64) -> Result<(u64, Vec<u8>), StreamError> {
        let (key, file) = self.files.opened_to_write(handle).ok_or_else(StreamError::bad_handle)?;
        self.check_locks(key)?;
        if let Some(stale) = &file.stale {
            return Err(stale.clone());
        }
        self.check_size(&file.path, end)?;
        Ok((key, file.path.clone()))
    }

    /// The server has changed a range of a file for this device: its blocks are asked for anew.
    /// False if somebody else came between, or the file is not known here.
    pub(super) fn range_changed(&mut self, path: &[u8], change: &Change, to: Seen) -> bool {
        self.forget_names(to.file);
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
        if file.dirty.is_none() {
            file.attributes.wrote(wall_ns);
        }
        match allocation {
            Some(_) if is_zeroed => file.present.remove(offset.div_ceil(block), end / block),
            Some(_) => {}
            None => file.present.add(offset / block, end.div_ceil(block)),
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
        self.drop_blocks(key, touched);
        self.rebase_reads(key, from, to, touched);
        self.advance_reads(key);
        true
    }

    /// The server has cut or extended a file for this device, by its path. False if somebody else
    /// came between, or the file is not known here.
    pub(super) fn truncated(&mut self, path: &[u8], size: u64, to: Seen) -> bool {
        self.forget_names(to.file);
        let Some(key) = self.files.known_at(path) else { return false };
        let Some(from) = self.follow(key, to) else { return false };
        let (block, wall_ns) = (u64::from(self.session.block_bytes()), self.session.wall_ns());
        let Some(file) = self.files.get_mut(&key) else { return false };
        let old_size = std::mem::replace(&mut file.size, size);
        if file.dirty.is_none() {
            file.attributes.wrote(wall_ns);
        }
        file.note_stored(0, Some(size));
        file.present.remove(size.min(old_size).div_ceil(block), old_size.max(size).div_ceil(block));
        let first = size.min(old_size) / block;
        let touched = move |index: u32| u64::from(index) >= first;
        self.drop_blocks(key, touched);
        self.rebase_reads(key, from, to, touched);
        self.advance_reads(key);
        true
    }

    pub(super) fn seek(&mut self, handle: Handle, offset: u64, hole: bool, done: Done<Option<u64>>) {
        let block = u64::from(self.session.block_bytes());
        let file = self.files.opened(handle).map(|(_, file)| file);
        let outcome = file.ok_or_else(StreamError::bad_handle).map(|file| match hole {
            false => file.data_after(offset, block).map(|(from, _)| from),
            true => file.hole_after(offset, block),
        });
        self.session.finish(done, outcome);
    }
}

impl File {
    /// The server has so many bytes more of it, after it was cut if it was.
    pub(super) fn note_stored(&mut self, bytes: u64, cut: Option<u64>) {
        let stored = self.attributes.stored_bytes.min(cut.map_or(u64::MAX, whole_blocks));
        // What is written over takes no more room.
        let more = stored.saturating_add(whole_blocks(bytes));
        self.attributes.stored_bytes = more.min(whole_blocks(self.size).max(stored));
    }

    /// The next bytes from `at` on that may be no zeros, first and one behind the last. Blocks of
    /// `block` bytes.
    fn data_after(&self, at: u64, block: u64) -> Option<(u64, u64)> {
        let end = self.effective_size();
        let blocks = self.present.data_after(at / block);
        let blocks = blocks.map(|(first, until)| {
            ((first.saturating_mul(block)).max(at), until.saturating_mul(block).min(self.zero_from()))
        });
        let blocks = blocks.filter(|(from, until)| from < until);
        let written = self.overlay.extent_after(at);
        let first = blocks.into_iter().chain(written).min_by_key(|(from, _)| *from);
        first.map(|(from, until)| (from, until.min(end))).filter(|(from, until)| from < until)
    }

    /// The first byte from `at` on that lies in a hole, or the end; `None` behind it.
    fn hole_after(&self, at: u64, block: u64) -> Option<u64> {
        let end = self.effective_size();
        let mut hole = at;
        while let Some((from, until)) = self.data_after(hole, block) {
            if from > hole {
                break;
            }
            hole = until;
        }
        (at < end).then_some(hole.min(end))
    }
}
