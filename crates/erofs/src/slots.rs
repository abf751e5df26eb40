//! Slots of the virtual blob: the place of each page of the image.
//!
//! With chunks of a page, the usual case, a page is a chunk, and slots have the order of chunks:
//! chunks are numbered by first reference. With smaller chunks a page is a sequence of chunks and
//! holes. Each distinct sequence gets a slot, again by first reference.
//!
//! After every 255 slots one is left empty. The kernel merges neighbouring slots into one read. If
//! such a read must be split, and the second part fails while the first did not, EROFS fills the
//! rest with zeros and reports success (`erofs_fileio_ki_complete` in fs/erofs/fileio.c). A run of
//! less than 1 MiB is one FUSE request, which fails or succeeds as a whole.

use std::collections::HashMap;

use image::Metadata;
use units::{ChunkId, InodeId, PAGE_BYTES, PageId};

use crate::ErofsError;

/// Slots in a row with pages in them; the next one is empty.
pub const RUN_SLOTS_MAX: u32 = 255;

/// Pages of files of an image with small chunks: a table of 64 MiB for 64 GiB of files.
const TABLE_PAGES_MAX: u64 = 1 << 24;

/// Stands for a hole where a page is described by its chunks.
const NO_CHUNK: u32 = u32::MAX;

/// A page in the table of an image with small chunks that is a hole.
const HOLE: u32 = u32::MAX;

/// Which page lies in which slot.
pub(crate) enum Slots {
    /// A chunk is a page.
    Chunks {
        /// How many.
        count: u32,
    },
    /// A page is several chunks.
    Pages(Pages),
}

pub(crate) struct Pages {
    /// Where the pages of each inode start in `of_pages`; one more at the end.
    starts: Vec<u32>,
    /// The number of each page of each file, or [`HOLE`].
    of_pages: Vec<u32>,
    /// The first page with each number.
    owners: Vec<PageId>,
}

impl Slots {
    pub(crate) fn assign(image: &Metadata) -> Result<Slots, ErofsError> {
        if image.chunk_bytes() == PAGE_BYTES {
            return Ok(Slots::Chunks { count: image.chunk_count() });
        }
        let mut pages = Pages { starts: vec![0], of_pages: Vec::new(), owners: Vec::new() };
        let mut known: HashMap<Box<[u32]>, u32> = HashMap::new();
        for id in (1..=image.inode_count()).map(InodeId) {
            let found = pages.of_pages.len() as u64 + u64::from(image.page_count(id));
            if found > TABLE_PAGES_MAX {
                let what = "the number of pages of all files, with chunks smaller than a page,";
                return Err(ErofsError::Limit { what, limit: TABLE_PAGES_MAX, found });
            }
            for page in (0..image.page_count(id)).map(|index| PageId::new(id, index)) {
                pages.add(image, page, &mut known);
            }
            pages.starts.push(pages.of_pages.len() as u32);
        }
        Ok(Slots::Pages(pages))
    }

    /// Slots with and without pages.
    pub(crate) fn count(&self) -> u32 {
        match self.pages() {
            0 => 0,
            pages => slot(pages - 1) + 1,
        }
    }

    fn pages(&self) -> u32 {
        match self {
            Slots::Chunks { count } => *count,
            Slots::Pages(pages) => pages.owners.len() as u32,
        }
    }

    /// Calls `visit` with the slot of each of `count` pages of a file from page `first` on; `None`
    /// for a hole.
    pub(crate) fn of_file(
        &self,
        image: &Metadata,
        file: InodeId,
        first: u32,
        count: u32,
        mut visit: impl FnMut(Option<u32>),
    ) {
        match self {
            Slots::Chunks { .. } => {
                for index in first..first + count {
                    let chunks = image.page_chunks(PageId::new(file, index));
                    visit(chunks.and_then(|chunks| chunks.chunks().next()).map(|chunk| slot(chunk.0)));
                }
            }
            Slots::Pages(pages) => {
                let start = pages.starts[file.0 as usize - 1] + first;
                for page in &pages.of_pages[start as usize..(start + count) as usize] {
                    visit((*page != HOLE).then(|| slot(*page)));
                }
            }
        }
    }

    /// Calls `visit` with each chunk of the page in a slot and its start in the page; `false` if
    /// the slot is empty.
    pub(crate) fn chunks(&self, image: &Metadata, slot: u32, mut visit: impl FnMut(usize, ChunkId)) -> bool {
        let Some(page) = page_in(slot).filter(|page| *page < self.pages()) else { return false };
        match self {
            Slots::Chunks { .. } => visit(0, ChunkId(page)),
            Slots::Pages(pages) => {
                let Some(chunks) = image.page_chunks(pages.owners[page as usize]) else { return false };
                for piece in chunks.pieces() {
                    if let Some(chunk) = piece.chunk {
                        visit(piece.start, chunk);
                    }
                }
            }
        }
        true
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Slots::Chunks { .. } => 0,
            Slots::Pages(pages) => {
                size_of_val(&*pages.starts) + size_of_val(&*pages.of_pages) + size_of_val(&*pages.owners)
            }
        }
    }
}

impl Pages {
    fn add(&mut self, image: &Metadata, page: PageId, known: &mut HashMap<Box<[u32]>, u32>) {
        let Some(chunks) = image.page_chunks(page).filter(|chunks| !chunks.is_hole()) else {
            self.of_pages.push(HOLE);
            return;
        };
        let key: Box<[u32]> = chunks.pieces().map(|piece| piece.chunk.map_or(NO_CHUNK, |chunk| chunk.0)).collect();
        let next = self.owners.len() as u32;
        let number = *known.entry(key).or_insert(next);
        if number == next {
            self.owners.push(page);
        }
        self.of_pages.push(number);
    }
}

/// The slot of the page with a number.
fn slot(page: u32) -> u32 {
    page + page / RUN_SLOTS_MAX
}

/// The number of the page in a slot; `None` for those that stay empty.
fn page_in(slot: u32) -> Option<u32> {
    let (run, place) = (slot / (RUN_SLOTS_MAX + 1), slot % (RUN_SLOTS_MAX + 1));
    (place < RUN_SLOTS_MAX).then(|| run * RUN_SLOTS_MAX + place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_pages_are_inverse_and_runs_are_bounded() {
        let mut before = None;
        for page in 0..2000 {
            let at = slot(page);
            assert_eq!(page_in(at), Some(page));
            if before.is_some_and(|before| at != before + 1) {
                assert_eq!(page_in(at - 1), None);
                assert_eq!(page % RUN_SLOTS_MAX, 0);
            }
            before = Some(at);
        }
    }
}
