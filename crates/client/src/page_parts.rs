//! The parts of blocks that make up a page.

use image::{Metadata, PageChunks};
use units::{BlockId, ChunkId, PageId};

/// A part of a page, and the part of a decoded block that holds its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Where it starts in the page.
    pub start: usize,
    pub bytes: usize,
    pub block: BlockId,
    /// Where it starts in the decoded block.
    pub offset: usize,
}

/// Where the bytes of one page lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageParts {
    chunks: PageChunks,
}

impl PageParts {
    /// Locates a page; `None` if it lies outside its file.
    pub fn of(metadata: &Metadata, page: PageId) -> Option<PageParts> {
        metadata.page_chunks(page).map(|chunks| PageParts { chunks })
    }

    /// Whether the page is all zeros without a byte stored for it.
    pub fn is_hole(&self) -> bool {
        self.chunks.is_hole()
    }

    /// Valid bytes of the page.
    pub fn bytes(&self) -> usize {
        self.chunks.bytes()
    }

    /// Its first stored chunk, which stands for the page where a dense number is wanted.
    pub fn first_chunk(&self) -> Option<ChunkId> {
        self.chunks.chunks().next()
    }

    /// The stored parts in order; bytes between them are zero. A part whose chunk does not fit is
    /// left out: an opened image has none, and [`PageParts::assemble`] fails then.
    pub fn iter<'a>(&'a self, metadata: &'a Metadata) -> impl Iterator<Item = Part> + 'a {
        self.chunks.pieces().filter_map(|piece| {
            let chunk = metadata.chunk(piece.chunk?).filter(|chunk| chunk.bytes as usize == piece.bytes)?;
            Some(Part { start: piece.start, bytes: piece.bytes, block: chunk.block, offset: chunk.offset as usize })
        })
    }

    /// The blocks that hold parts of the page, each once, in order.
    pub fn blocks(&self, metadata: &Metadata) -> Vec<BlockId> {
        let mut blocks = Vec::with_capacity(1);
        for part in self.iter(metadata) {
            if !blocks.contains(&part.block) {
                blocks.push(part.block);
            }
        }
        blocks
    }

    /// Puts the page together from decoded blocks. False if a block is missing or too short; `out`
    /// is then undefined.
    pub fn assemble<'b>(
        &self,
        metadata: &Metadata,
        out: &mut [u8],
        mut block: impl FnMut(BlockId) -> Option<&'b [u8]>,
    ) -> bool {
        let Some(out) = out.get_mut(..self.bytes()) else { return false };
        let (mut filled, mut parts) = (0, 0);
        for part in self.iter(metadata) {
            let Some(from) = block(part.block).and_then(|bytes| bytes.get(part.offset..part.offset + part.bytes))
            else {
                return false;
            };
            out[filled..part.start].fill(0);
            out[part.start..part.start + part.bytes].copy_from_slice(from);
            filled = part.start + part.bytes;
            parts += 1;
        }
        out[filled..].fill(0);
        // A part that was left out must never become zeros.
        parts == self.chunks.chunks().count()
    }
}
