//! Files that have several names: which paths are one file, as far as this device has seen them.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};

use crate::names::is_below;

/// Names that are remembered at most; all are forgotten when there are more.
const NAMES_MAX: usize = 4096;

/// Paths by the id of their file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Linked {
    names: HashMap<u64, BTreeSet<Vec<u8>>>,
    count: usize,
}

impl Linked {
    /// A path is a name of this file, which has several.
    pub fn add(&mut self, file: u64, path: &[u8]) {
        if self.count >= NAMES_MAX {
            *self = Linked::default();
        }
        self.count += usize::from(self.names.entry(file).or_default().insert(path.to_vec()));
    }

    /// A path is a name of this file no more.
    pub fn remove(&mut self, file: u64, path: &[u8]) {
        let Some(names) = self.names.get_mut(&file) else { return };
        self.count -= usize::from(names.remove(path));
        if names.is_empty() {
            self.names.remove(&file);
        }
    }

    /// The file with this name, if it has several.
    pub fn file(&self, path: &[u8]) -> Option<u64> {
        self.names.iter().find(|(_, names)| names.contains(path)).map(|(file, _)| *file)
    }

    /// The names of a file.
    pub fn names(&self, file: u64) -> impl Iterator<Item = &Vec<u8>> {
        self.names.get(&file).into_iter().flatten()
    }

    /// Paths at `from` or below it are at `to` now.
    pub fn rename(&mut self, from: &[u8], to: &[u8]) {
        for names in self.names.values_mut() {
            let moved: Vec<_> = names.iter().filter(|path| *path == from || is_below(path, from)).cloned().collect();
            for path in moved {
                names.remove(&path);
                names.insert([to, &path[from.len()..]].concat());
            }
        }
        self.count = self.names.values().map(BTreeSet::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_counted_moved_and_bounded() {
        let mut linked = Linked::default();
        for path in ["a", "d/b", "d/b", "e"] {
            linked.add(7, path.as_bytes());
        }
        linked.rename(b"d", b"x");
        linked.remove(7, b"a");
        linked.remove(8, b"e");
        assert_eq!(linked.names(7).map(Vec::as_slice).collect::<Vec<_>>(), [&b"e"[..], b"x/b"]);
        assert_eq!((linked.file(b"x/b"), linked.file(b"d/b"), linked.count), (Some(7), None, 2));
        (0..2 * NAMES_MAX as u64).for_each(|file| linked.add(file, b"n"));
        assert!(linked.count <= NAMES_MAX);
    }
}
