//! Changes of the running transaction so far.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::transaction::COPY_BYTES_MAX;
use crate::{FileId, VolumeError};

/// The running transaction.
///
/// A file that it changes has one version more than before, however often it is changed.
#[derive(Default)]
pub(super) struct Running {
    /// Files that it changes, with the version from before it.
    changed: HashMap<FileId, u64>,
    /// Files with a name that it changes; their content stays.
    moved: HashSet<FileId>,
    /// Times that files get at its end.
    times: BTreeMap<FileId, i64>,
    /// Where its records begin.
    first_record: usize,
    /// Bytes that it copies.
    copied: u32,
}

impl Running {
    /// A transaction whose records begin there.
    pub fn new(first_record: usize) -> Running {
        Running { first_record, ..Running::default() }
    }

    /// Where its records begin.
    pub fn first_record(&self) -> usize {
        self.first_record
    }

    /// The version that a file had before it, if it has this one now.
    pub fn version_before(&self, file: FileId, now: u64) -> u64 {
        self.changed.get(&file).copied().unwrap_or(now)
    }

    /// Counts a change of a file with this version.
    pub fn change(&mut self, file: FileId, version: &mut u64) {
        self.changed.entry(file).or_insert_with(|| {
            let before = *version;
            *version += 1;
            before
        });
    }

    /// Counts a file that it makes.
    pub fn make(&mut self, file: FileId) {
        self.changed.insert(file, 0);
    }

    /// Counts a change of a name of a file.
    pub fn change_name(&mut self, file: FileId) {
        self.moved.insert(file);
    }

    /// The files that it changed, in their order.
    pub fn touched(&self) -> Vec<FileId> {
        let mut touched: Vec<FileId> = self.changed.keys().chain(&self.moved).copied().collect();
        touched.sort_unstable();
        touched.dedup();
        touched
    }

    /// A file gets this time at its end.
    pub fn set_time(&mut self, file: FileId, mtime_ns: i64) {
        self.times.insert(file, mtime_ns);
    }

    /// The same, unless it gets another one.
    pub fn keep_time(&mut self, file: FileId, mtime_ns: i64) {
        self.times.entry(file).or_insert(mtime_ns);
    }

    /// The time that a file would get at its end; it gets none then.
    pub fn take_time(&mut self, file: FileId) -> Option<i64> {
        self.times.remove(&file)
    }

    /// The times that files get at its end.
    pub fn take_times(&mut self) -> BTreeMap<FileId, i64> {
        std::mem::take(&mut self.times)
    }

    /// Counts bytes that it copies.
    ///
    /// # Errors
    /// [`VolumeError::TooLarge`].
    pub fn copy(&mut self, length: u32) -> Result<(), VolumeError> {
        if length > COPY_BYTES_MAX || self.copied.saturating_add(length) > COPY_BYTES_MAX {
            let (found, limit) = (u64::from(length) + u64::from(self.copied), u64::from(COPY_BYTES_MAX));
            return Err(VolumeError::TooLarge { what: "bytes that a transaction copies", found, limit });
        }
        self.copied += length;
        Ok(())
    }
}
