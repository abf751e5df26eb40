//! A journal: records in a memory that outlives this process, from which the next one goes on.
//!
//! The memory is a file without a name. Two areas take turns: records are added to one, and when it
//! has become long, what is still true is written to the other. A process may be killed between any
//! two system calls. So the length of an area is written after the records, and the number of the
//! area in use after its length: what a process finds is all that was added by calls that returned,
//! and never a part of what one call added. Nothing is synced, since the memory ends with the
//! machine.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

/// Begins a journal; the last digit is the version of its layout.
const JOURNAL_MAGIC: [u8; 8] = *b"rnljrnl1";

/// Where the number of the area in use stands, which is 0 or 1.
const AREA_AT: u64 = 8;

/// Where the length of the first area stands, bytes; that of the other one follows.
const LENGTHS_AT: u64 = 16;

/// Where the areas begin. The file takes memory only where something was written.
const AREAS_AT: [u64; 2] = [4096, 1 << 40];

/// An area is not called long before it has so many bytes.
const LONG_BYTES_MIN: u64 = 4 << 20;

/// A longer journal is none of ours.
const JOURNAL_BYTES_MAX: u64 = 1 << 30;

/// Says in place of the area's number that records are missing.
const BROKEN: u64 = u64::MAX;

/// A journal that this process adds to.
#[derive(Debug)]
pub struct Journal {
    memory: File,
    area: usize,
    length: u64,
    /// Length of the area when it was begun.
    begun: u64,
    is_broken: bool,
}

impl Journal {
    /// Makes a memory for a journal, with nothing in it.
    ///
    /// # Errors
    /// The kernel has no memory or descriptor left.
    pub fn memory() -> io::Result<OwnedFd> {
        let memory = File::from(memfd_create("runnel-journal", MemfdFlags::CLOEXEC)?);
        memory.write_all_at(&JOURNAL_MAGIC, 0)?;
        memory.write_all_at(&[0; 24], AREA_AT)?;
        Ok(memory.into())
    }

    /// Goes on with a journal; also returns what was added to it so far.
    ///
    /// # Errors
    /// It is of another version, an earlier process could not add to it, or it cannot be read.
    pub fn open(memory: OwnedFd) -> io::Result<(Journal, Vec<u8>)> {
        let memory = File::from(memory);
        let mut magic = [0; JOURNAL_MAGIC.len()];
        memory.read_exact_at(&mut magic, 0)?;
        let bad = |text| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        if magic != JOURNAL_MAGIC {
            return bad("the journal of the last process is of another version");
        }
        let word = |at| -> io::Result<u64> {
            let mut word = [0; 8];
            memory.read_exact_at(&mut word, at)?;
            Ok(u64::from_le_bytes(word))
        };
        let area = match word(AREA_AT)? {
            area @ (0 | 1) => area as usize,
            _ => return bad("the journal of the last process is not whole: no memory was left"),
        };
        let length = word(LENGTHS_AT + 8 * area as u64)?;
        if length > JOURNAL_BYTES_MAX {
            return bad("the journal of the last process makes no sense");
        }
        let mut records = vec![0; length as usize];
        memory.read_exact_at(&mut records, AREAS_AT[area])?;
        // A process that was killed may have left something behind.
        release(&memory, 1 - area);
        Ok((Journal { memory, area, length, begun: length, is_broken: false }, records))
    }

    /// Adds records, all of them or none.
    ///
    /// # Errors
    /// No memory is left. Nothing can be added any more, and no process can go on with it.
    pub fn append(&mut self, records: &[u8]) -> io::Result<()> {
        self.put(self.area, self.length, records).inspect_err(|_| self.is_broken = true)?;
        self.length += records.len() as u64;
        Ok(())
    }

    /// Whether it has become so long that what is still true should be written anew.
    pub fn is_long(&self) -> bool {
        self.length >= LONG_BYTES_MIN.max(self.begun.saturating_mul(2))
    }

    /// Puts what is still true in the place of all that was added before.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn rewrite(&mut self, records: &[u8]) -> io::Result<()> {
        let area = 1 - self.area;
        let written = self.put(area, 0, records).and_then(|()| self.set_word(AREA_AT, area as u64));
        written.inspect_err(|_| self.is_broken = true)?;
        release(&self.memory, self.area);
        (self.area, self.length, self.begun) = (area, records.len() as u64, records.len() as u64);
        Ok(())
    }

    fn put(&self, area: usize, at: u64, records: &[u8]) -> io::Result<()> {
        if self.is_broken {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let length = at + records.len() as u64;
        let written = match length <= JOURNAL_BYTES_MAX {
            true => self.memory.write_all_at(records, AREAS_AT[area] + at),
            false => Err(io::ErrorKind::StorageFull.into()),
        };
        let written = written.and_then(|()| self.set_word(LENGTHS_AT + 8 * area as u64, length));
        if written.is_err() {
            // What is missing from now on must not be taken for what never was. The page of this
            // word is there, so there is room for it.
            let _ = self.set_word(AREA_AT, BROKEN);
        }
        written
    }

    fn set_word(&self, at: u64, value: u64) -> io::Result<()> {
        self.memory.write_all_at(&value.to_le_bytes(), at)
    }
}

/// Gives the memory of an area back.
fn release(memory: &File, area: usize) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // What cannot be given back is written over later.
    let _ = fallocate(memory, flags, AREAS_AT[area], JOURNAL_BYTES_MAX);
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn opened(memory: &OwnedFd) -> (Journal, Vec<u8>) {
        Journal::open(memory.try_clone().expect("a descriptor")).expect("a journal")
    }

    #[test]
    fn what_was_added_is_found_also_after_a_rewrite() {
        let memory = Journal::memory().expect("a memory");
        let (mut journal, records) = opened(&memory);
        assert!(records.is_empty());
        journal.append(b"one ").expect("added");
        journal.append(b"two ").expect("added");
        drop(journal);
        let (mut journal, records) = opened(&memory);
        assert_eq!(records, b"one two ");
        journal.rewrite(b"both ").expect("rewritten");
        journal.append(b"three").expect("added");
        let (mut journal, records) = opened(&memory);
        assert_eq!(records, b"both three");
        assert!(!journal.is_long());
        let many = vec![7; LONG_BYTES_MIN as usize];
        journal.append(&many).expect("added");
        assert!(journal.is_long());
        journal.rewrite(&many).expect("rewritten");
        assert!(!journal.is_long(), "it cannot be shorter");
        assert_eq!(opened(&memory).1, many);
        let held = rustix::fs::fstat(memory.as_fd()).expect("a file").st_blocks * 512;
        assert!(held < 2 * LONG_BYTES_MIN as i64, "{held} bytes are held");
    }

    /// A process that is killed leaves what it has written, up to any of its system calls.
    #[test]
    fn a_part_of_what_one_call_added_is_never_found() {
        let memory = Journal::memory().expect("a memory");
        let (mut journal, _) = opened(&memory);
        journal.append(b"whole").expect("added");
        // Killed before the length was written.
        let file = File::from(memory.try_clone().expect("a descriptor"));
        file.write_all_at(b"part", AREAS_AT[0] + 5).expect("written");
        assert_eq!(opened(&memory).1, b"whole");
        // Killed while it was rewritten, before the area was changed.
        let (journal, _) = opened(&memory);
        journal.put(1, 0, b"other").expect("written");
        assert_eq!(opened(&memory).1, b"whole");
    }

    #[test]
    fn a_journal_that_lacks_something_is_refused() {
        let memory = Journal::memory().expect("a memory");
        let (mut journal, _) = opened(&memory);
        journal.length = JOURNAL_BYTES_MAX;
        journal.append(b"x").expect_err("no room");
        journal.append(b"").expect_err("nor for anything else");
        let error = Journal::open(memory).expect_err("refused").to_string();
        assert!(error.contains("no memory"), "{error}");
        let other = OwnedFd::from(File::from(memfd_create("x", MemfdFlags::CLOEXEC).expect("a file")));
        File::from(other.try_clone().expect("a descriptor")).write_all_at(b"rnlother", 0).expect("written");
        assert!(Journal::open(other).is_err());
    }
}
