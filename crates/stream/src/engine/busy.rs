//! Which of the known files have changes that no transaction carries, or reads.
//!
//! A device knows a thousand files and works on a few of them. After each call and each answer it
//! asks what is due, so that must not walk through files that only lie here.

use std::collections::BTreeSet;

use super::Engine;
use super::file::File;

/// Keys of all files that are busy, and of some that were since the last [`Engine::rest`].
#[derive(Default)]
pub(super) struct Busy(BTreeSet<u64>);

impl File {
    fn is_busy(&self) -> bool {
        self.dirty.is_some() || !self.reads.is_empty()
    }
}

impl Engine {
    /// A file gets changes, or a read.
    pub(super) fn works_on(&mut self, key: u64) {
        self.busy.0.insert(key);
    }

    /// Files with changes that no transaction carries, by their keys.
    pub(super) fn changed_files(&self) -> impl Iterator<Item = (u64, &File)> {
        self.busy_files().filter(|(_, file)| file.dirty.is_some())
    }

    /// Files with reads, by their keys.
    pub(super) fn read_files(&self) -> impl Iterator<Item = (u64, &File)> {
        self.busy_files().filter(|(_, file)| !file.reads.is_empty())
    }

    fn busy_files(&self) -> impl Iterator<Item = (u64, &File)> {
        self.busy.0.iter().filter_map(|key| Some((*key, self.files.get(key)?)))
    }

    /// Forgets those that are busy no more.
    pub(super) fn rest(&mut self) {
        let files = &self.files;
        self.busy.0.retain(|key| files.get(key).is_some_and(File::is_busy));
        #[cfg(test)]
        for (key, file) in files {
            assert!(!file.is_busy() || self.busy.0.contains(key), "{key} is busy and not noted");
        }
    }
}
