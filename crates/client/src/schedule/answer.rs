//! The pages of a READ, and its answer while they are put together.

use image::{Kind, Metadata};
use units::{InodeId, PAGE_BYTES, PageId};

use crate::allocator::PageBuffer;
use crate::error::ReadError;
use crate::sink::Done;

/// Bytes of one READ. The kernel asks for at most 1 MiB; more is no READ.
const READ_BYTES_MAX: u32 = 16 << 20;

/// Consecutive pages of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pages {
    pub inode: InodeId,
    pub first: u32,
    pub count: u32,
}

/// What a READ covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub pages: Pages,
    /// Bytes of the first page before the READ begins.
    pub skip: usize,
    pub bytes: usize,
}

/// The bytes of a READ, still in pages.
pub(crate) struct Answer {
    slots: Vec<Slot>,
    /// Bytes of the first page before the READ begins.
    skip: usize,
    bytes: usize,
}

/// One page of an answer.
pub(super) enum Slot {
    Missing,
    Hole,
    Filled(PageBuffer),
}

/// A READ that is over.
pub(crate) struct Finished {
    pub done: Done,
    pub outcome: Result<Answer, ReadError>,
    /// Its pages, to be released once the reply was handed over.
    pub pages: Pages,
}

impl Pages {
    /// No pages of a file.
    pub fn none(inode: InodeId) -> Pages {
        Pages { inode, first: 0, count: 0 }
    }

    pub fn iter(self) -> impl Iterator<Item = PageId> {
        // `first + count` fits: it was made from the last page's index.
        (0..self.count).map(move |i| PageId::new(self.inode, self.first + i))
    }
}

impl Span {
    /// What a READ covers.
    ///
    /// # Errors
    /// [`ReadError::Io`]: there is no such file, or the READ is too large.
    pub(super) fn of(metadata: &Metadata, inode: InodeId, offset: u64, bytes: u32) -> Result<Span, ReadError> {
        let file = metadata.inode(inode).filter(|found| found.kind() == Kind::File).ok_or(ReadError::Io)?;
        if bytes > READ_BYTES_MAX {
            return Err(ReadError::Io);
        }
        let end = offset.saturating_add(u64::from(bytes)).min(file.size());
        let bytes = end.saturating_sub(offset) as usize;
        if bytes == 0 {
            return Ok(Span { pages: Pages::none(inode), skip: 0, bytes: 0 });
        }
        let page_bytes = PAGE_BYTES as u64;
        let first = u32::try_from(offset / page_bytes).map_err(|_| ReadError::Io)?;
        let last = u32::try_from((end - 1) / page_bytes).map_err(|_| ReadError::Io)?;
        let pages = Pages { inode, first, count: last - first + 1 };
        Ok(Span { pages, skip: (offset % page_bytes) as usize, bytes })
    }
}

impl Answer {
    /// The empty answer to a READ.
    pub(super) fn empty(span: &Span) -> Answer {
        let slots = span.pages.iter().map(|_| Slot::Missing).collect();
        Answer { slots, skip: span.skip, bytes: span.bytes }
    }

    /// Fills the slot of one page.
    pub(super) fn fill(&mut self, slot: u32, content: Slot) {
        self.slots[slot as usize] = content;
    }

    /// Hands the bytes to `done`, put together in `scratch` if they span several pages.
    pub fn hand_over(self, scratch: &mut Vec<u8>, done: Done) {
        if let [Slot::Filled(page)] = self.slots.as_slice() {
            return done(Ok(&page[self.skip..self.skip + self.bytes]));
        }
        scratch.clear();
        let mut skip = self.skip;
        for slot in &self.slots {
            let bytes = (PAGE_BYTES - skip).min(self.bytes - scratch.len());
            match slot {
                Slot::Filled(page) => scratch.extend_from_slice(&page[skip..skip + bytes]),
                Slot::Hole => scratch.resize(scratch.len() + bytes, 0),
                // A READ is only answered when no page is missing; never zeros in place of bytes.
                Slot::Missing => return done(Err(ReadError::Io)),
            }
            skip = 0;
        }
        done(Ok(scratch));
    }
}
