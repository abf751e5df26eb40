//! The hotness grouper: finds in traces which pages of the tree programs read when they start.
//!
//! Hot chunks lie apart from cold ones and before them, so that a start reads one sequential run
//! instead of many blocks of which most is not needed. A trace names pages by path. A file that the
//! tree does not have, or has in another size, counts as another file: the packer says how much of
//! a trace it could use, and refuses a trace of another tree.
//!
//! The order in which each program of a trace touched its pages travels with the image: a server
//! pushes by it until it has learned from starts of its own.

use std::collections::BTreeMap;

use profile::{ActionSet, Hot};
use units::{InodeId, PAGE_BYTES};

use crate::inodes::Inodes;
use crate::tree::Tree;
use crate::{Notes, PackError};

/// Programs of a trace, a bit for each; those behind the 63rd share the last one.
pub(crate) type Programs = u64;

/// Hot pages by file, each with the programs that touch it.
#[derive(Debug, Default)]
pub(crate) struct HotPages(BTreeMap<u32, BTreeMap<u32, Programs>>);

impl HotPages {
    /// Finds what `hot` names in the tree.
    pub(crate) fn resolve(
        hot: &Hot,
        actions: &ActionSet,
        tree: &Tree,
        inodes: &Inodes<'_>,
        notes: &mut Notes,
    ) -> Result<HotPages, PackError> {
        let files = by_inode(inodes);
        let find = |path: &[u8]| find(&files, tree, inodes, path);
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
                found.0.entry(index).or_default().extend(file.pages.iter().map(|page| (*page, 0)));
            }
        }
        let numbers = by_inode(inodes);
        for (program, action) in (0..).zip(actions.iter()) {
            for page in &action.pages {
                let file = numbers.get(&page.inode).and_then(|index| found.0.get_mut(index));
                if let Some(programs) = file.and_then(|pages| pages.get_mut(&page.index)) {
                    *programs |= 1 << Programs::min(program, u64::from(Programs::BITS) - 1);
                }
            }
        }
        Ok(found)
    }

    /// The programs of the traces, as actions on the inodes of the tree.
    pub(crate) fn actions(hot: &Hot, tree: &Tree, inodes: &Inodes<'_>) -> ActionSet {
        let files = by_inode(inodes);
        hot.actions(|path, size| {
            let (index, found) = find(&files, tree, inodes, path)?;
            (found == size).then_some(inodes.files[index as usize].inode)
        })
    }

    /// Which programs touch chunk `position` of a file, if it is hot.
    pub(crate) fn programs(&self, file: u32, position: u32, chunk_bytes: usize) -> Option<Programs> {
        let page = u64::from(position) * chunk_bytes as u64 / PAGE_BYTES as u64;
        self.0.get(&file)?.get(&(page as u32)).copied()
    }
}

fn by_inode(inodes: &Inodes<'_>) -> BTreeMap<InodeId, u32> {
    (0u32..).zip(&inodes.files).map(|(index, file)| (file.inode, index)).collect()
}

/// The file at `path`: its place among the files, and its size.
fn find(files: &BTreeMap<InodeId, u32>, tree: &Tree, inodes: &Inodes<'_>, path: &[u8]) -> Option<(u32, u64)> {
    let index = *files.get(&inodes.numbers[tree.find(path)?.0 as usize]?)?;
    Some((index, inodes.files[index as usize].size))
}
