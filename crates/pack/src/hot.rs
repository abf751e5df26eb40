//! The hotness grouper: finds in traces which pages of the tree programs read when they start.
//!
//! Hot chunks lie apart from cold ones and before them, so that a start reads one sequential run
//! instead of many blocks of which most is not needed. A trace names pages by path. A file that the
//! tree does not have, or has in another size, counts as another file: the packer says how much of
//! a trace it could use, and refuses a trace of another tree.

use std::collections::{BTreeMap, BTreeSet};

use profile::Hot;
use units::PAGE_BYTES;

use crate::inodes::Inodes;
use crate::tree::Tree;
use crate::{Notes, PackError};

/// Hot pages by file.
#[derive(Debug, Default)]
pub(crate) struct HotPages(BTreeMap<u32, BTreeSet<u32>>);

impl HotPages {
    /// Finds what `hot` names in the tree.
    pub(crate) fn resolve(
        hot: &Hot,
        tree: &Tree,
        inodes: &Inodes<'_>,
        notes: &mut Notes,
    ) -> Result<HotPages, PackError> {
        let files: BTreeMap<_, _> = (0u32..).zip(&inodes.files).map(|(index, file)| (file.inode, index)).collect();
        let find = |path: &[u8]| {
            let index = *files.get(&inodes.numbers[tree.find(path)?.0 as usize]?)?;
            Some((index, inodes.files[index as usize].size))
        };
        let fit = hot.fit(|path| find(path).map(|(_, size)| size));
        let total = hot.files.len();
        if fit.is_foreign() {
            return Err(PackError::ForeignTrace { missing: total - fit.known, files: total });
        }
        if fit.known < total {
            notes.add(format!("the traces name {total} files, {} of them are in the tree as they were", fit.known));
        }
        let mut found = HotPages::default();
        for file in &hot.files {
            if let Some((index, _)) = find(&file.path).filter(|(_, size)| *size == file.size) {
                found.0.entry(index).or_default().extend(&file.pages);
            }
        }
        Ok(found)
    }

    /// Whether chunk `position` of a file is hot.
    pub(crate) fn contains(&self, file: u32, position: u32, chunk_bytes: usize) -> bool {
        let page = u64::from(position) * chunk_bytes as u64 / PAGE_BYTES as u64;
        self.0.get(&file).is_some_and(|pages| pages.contains(&(page as u32)))
    }
}
