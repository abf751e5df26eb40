//! Verified pages that may be stored into the page cache, and runs of them.

use std::ops::Range;

use image::Metadata;
use units::{InodeId, PAGE_BYTES, PageId, SEGMENT_PAGES_MAX};

use crate::block_cache::Evicted;
use crate::page_parts::PageParts;

/// A verified page that may be stored: where its bytes lie in the piece or block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub page: PageId,
    pub bytes: Range<usize>,
}

/// Consecutive pages of one file on their way into the page cache.
///
/// Invariant: all pages but the last are whole, and there are at most as many as a segment has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    pub inode: InodeId,
    pub first: u32,
    pub count: u32,
    pub bytes: Vec<u8>,
}

impl Run {
    /// The bytes of a page of the run.
    pub fn page(&self, page: PageId) -> Option<&[u8]> {
        let index =
            page.index.checked_sub(self.first).filter(|index| page.inode == self.inode && *index < self.count)?;
        let start = index as usize * PAGE_BYTES;
        self.bytes.get(start..self.bytes.len().min(start + PAGE_BYTES))
    }

    pub(super) fn pages(&self) -> impl Iterator<Item = PageId> + use<> {
        let (inode, first) = (self.inode, self.first);
        (0..self.count).map(move |i| PageId::new(inode, first + i))
    }

    pub(super) fn clear(&mut self) {
        (self.count, self.first) = (0, 0);
        self.bytes.clear();
    }

    /// Whether the run is empty, or goes on with this page.
    pub(super) fn takes(&self, page: PageId) -> bool {
        self.count == 0
            || page.inode == self.inode
                && self.first + self.count == page.index
                && (self.count as usize) < SEGMENT_PAGES_MAX
                && self.bytes.len() == self.count as usize * PAGE_BYTES
    }

    /// Adds a page that the run [takes](Run::takes).
    pub(super) fn push(&mut self, page: PageId, bytes: &[u8]) {
        if self.count == 0 {
            (self.inode, self.first) = (page.inode, page.index);
        }
        self.bytes.extend_from_slice(bytes);
        self.count += 1;
    }
}

/// Leaves those whose bytes match the image, of a block that a server decoded. The others are left
/// to their READs.
pub(crate) fn retain_good(metadata: &Metadata, candidates: &mut Vec<Candidate>, raw: &[u8]) {
    let bytes_of = |candidate: &Candidate| (candidate.page, &raw[candidate.bytes.clone()]);
    if metadata.verify_pages(&candidates.iter().map(bytes_of).collect::<Vec<_>>()).is_err() {
        candidates.retain(|candidate| metadata.verify_pages(&[bytes_of(candidate)]).is_ok());
    }
}

/// Whole pages of a block that left the cache which nobody took: the kernel may have them.
pub(crate) fn evicted_candidates(metadata: &Metadata, gone: &Evicted) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for chunk in metadata.block_chunks(gone.block) {
        let (Some(page), Some(lies)) = (metadata.chunk_owner(chunk), metadata.chunk(chunk)) else { continue };
        let Some(parts) = PageParts::of(metadata, page) else { continue };
        let (start, bytes) = (lies.offset as usize, lies.bytes as usize);
        // A page of several chunks, or with a hole in it, is not worth the trouble.
        let whole = parts.first_chunk() == Some(chunk) && bytes == parts.bytes();
        if whole && !gone.taken.any(start, bytes) {
            candidates.push(Candidate { page, bytes: start..start + bytes });
        }
    }
    candidates.sort_by_key(|candidate| candidate.page);
    candidates
}
