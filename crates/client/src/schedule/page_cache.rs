//! The kernel's page cache, as far as the session knows it.

use std::collections::HashSet;
use std::sync::Arc;

use image::Metadata;
use units::{InodeId, PageId};

use super::answer::Pages;
use super::run::Run;
use crate::counters::StoreCounters;
use crate::page_parts::PageParts;
use crate::sink::StoreOutcome;

/// Inodes remembered as unknown to the kernel, 4 bytes each.
const UNKNOWN_INODES_MAX: usize = 4096;

/// Pages that were stored, pages that are being stored, and inodes that the kernel does not know.
///
/// Invariants:
/// - At most one run is being stored. READs of its pages are answered from it: the kernel takes the
///   run only when they are.
/// - A bit of `stored` is set once the kernel took a page that starts with this chunk. It is never
///   cleared, so it does not say that the kernel still has the page.
pub(super) struct PageCache {
    storing: Option<Arc<Run>>,
    /// One bit per chunk.
    stored: Vec<u64>,
    /// Inodes the kernel would not look up; not tried again.
    unknown_inodes: HashSet<InodeId>,
    counters: StoreCounters,
}

impl PageCache {
    pub fn new(metadata: &Metadata) -> PageCache {
        PageCache {
            storing: None,
            stored: vec![0; (metadata.chunk_count() as usize).div_ceil(64)],
            unknown_inodes: HashSet::new(),
            counters: StoreCounters::default(),
        }
    }

    pub fn counters(&self) -> StoreCounters {
        self.counters
    }

    /// Sets the run that is being stored, or that none is.
    pub fn set_storing(&mut self, run: Option<&Arc<Run>>) {
        self.storing = run.cloned();
    }

    /// The bytes of a page that is being stored.
    pub fn storing(&self, page: PageId) -> Option<&[u8]> {
        self.storing.as_ref().and_then(|run| run.page(page))
    }

    /// Whether the store that is under way has to wait for a READ of these pages: the kernel locks
    /// all pages of a READ until its reply. Such a READ must not wait in turn for anything that the
    /// storer brings.
    pub fn is_held_up_by(&self, pages: Pages) -> bool {
        self.storing.as_ref().is_some_and(|run| pages.iter().any(|page| run.page(page).is_some()))
    }

    /// The kernel's answer to a run.
    pub fn store_ended(&mut self, metadata: &Metadata, run: &Run, outcome: StoreOutcome) {
        self.storing = None;
        match outcome {
            StoreOutcome::Stored => {
                self.counters.pages_stored += u64::from(run.count);
                run.pages().for_each(|page| self.mark_stored(metadata, page));
            }
            StoreOutcome::UnknownInode => {}
            StoreOutcome::Failed => self.counters.store_failures += 1,
        }
    }

    fn mark_stored(&mut self, metadata: &Metadata, page: PageId) {
        let Some(chunk) = PageParts::of(metadata, page).and_then(|parts| parts.first_chunk()) else { return };
        if let Some(word) = self.stored.get_mut(chunk.0 as usize / 64) {
            *word |= 1 << (chunk.0 % 64);
        }
    }

    /// Whether the kernel was given this page by a store. A READ of it means that the kernel
    /// dropped it. Pages with the same contents share the mark, which at worst makes the server
    /// send a block that a push carries too.
    pub fn was_stored(&self, parts: &PageParts) -> bool {
        let Some(chunk) = parts.first_chunk() else { return false };
        self.stored.get(chunk.0 as usize / 64).is_some_and(|word| word >> (chunk.0 % 64) & 1 == 1)
    }

    /// Whether a page has bytes and was never stored.
    pub fn lacks(&self, metadata: &Metadata, page: PageId) -> bool {
        PageParts::of(metadata, page).is_some_and(|parts| !parts.is_hole() && !self.was_stored(&parts))
    }

    /// The kernel knows an inode because it was looked up; or it cannot be made to know it.
    pub fn looked_up(&mut self, inode: InodeId, known: bool) {
        if known {
            self.counters.looked_up += 1;
            self.unknown_inodes.remove(&inode);
            return;
        }
        if self.unknown_inodes.len() >= UNKNOWN_INODES_MAX {
            self.unknown_inodes.clear();
        }
        self.unknown_inodes.insert(inode);
    }

    /// The kernel reads from an inode, so it knows it.
    pub fn inode_read(&mut self, inode: InodeId) {
        self.unknown_inodes.remove(&inode);
    }

    pub fn is_unknown(&self, inode: InodeId) -> bool {
        self.unknown_inodes.contains(&inode)
    }

    #[cfg(test)]
    pub fn is_storing(&self) -> bool {
        self.storing.is_some()
    }
}
