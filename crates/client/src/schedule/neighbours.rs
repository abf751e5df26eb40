//! The blocks that lie around a page: candidates for readahead.

use image::Metadata;
use units::{BlockId, InodeId, PAGE_BYTES, PageId};

use super::readahead::{Around, Guess, Reach, Use};
use crate::page_parts::PageParts;

/// Pages looked at in one direction to find the blocks of a file: two of the largest blocks, holes
/// included.
const LOOK_PAGES_MAX: u32 = 512;

const _: () = assert!(LOOK_PAGES_MAX as usize * PAGE_BYTES == 2 << 20);

/// The block that holds the start of a page.
pub(super) fn first_block(metadata: &Metadata, page: PageId) -> Option<BlockId> {
    let parts = PageParts::of(metadata, page)?;
    parts.iter(metadata).next().map(|part| part.block)
}

/// The use of a page of `block`.
pub(super) fn use_of(metadata: &Metadata, page: PageId, block: BlockId) -> Use {
    let end_page = end_of_block(metadata, page, block);
    Use { inode: page.inode, first_page: page.index, end_page, file_pages: metadata.page_count(page.inode) }
}

/// The first page after `page` that lies in another block.
fn end_of_block(metadata: &Metadata, page: PageId, block: BlockId) -> u32 {
    let limit = page.index.saturating_add(LOOK_PAGES_MAX).min(metadata.page_count(page.inode));
    let other =
        |index: &u32| first_block(metadata, PageId::new(page.inode, *index)).is_some_and(|found| found != block);
    (page.index + 1..limit).find(other).unwrap_or(limit)
}

/// The blocks around a page of `block`.
pub(super) fn around(metadata: &Metadata, page: PageId, block: BlockId, reach: Reach) -> Around {
    Around {
        end: end_of_file(metadata, page.inode, block).filter(|_| reach.end),
        after: of_file(metadata, page, block, reach.after, true),
        before: of_file(metadata, page, block, reach.before, false),
        image_after: of_image(metadata, block, reach.image_after, true),
        image_before: of_image(metadata, block, reach.image_before, false),
    }
}

/// The last block of a file with another one.
fn end_of_file(metadata: &Metadata, inode: InodeId, block: BlockId) -> Option<Guess> {
    let pages = metadata.page_count(inode);
    let indexes = (pages.saturating_sub(LOOK_PAGES_MAX)..pages).rev();
    let mut pages = indexes.map(|index| PageId::new(inode, index));
    let last = pages.find_map(|page| Some(Guess { block: first_block(metadata, page)?, page }));
    last.filter(|guess| guess.block != block)
}

/// Up to `count` other blocks of the file, outward from `page` in one direction.
fn of_file(metadata: &Metadata, page: PageId, block: BlockId, count: u32, forward: bool) -> Vec<Guess> {
    let mut found: Vec<Guess> = Vec::new();
    let mut last = block;
    for distance in 1..=LOOK_PAGES_MAX {
        let index = if forward { page.index.checked_add(distance) } else { page.index.checked_sub(distance) };
        let Some(index) = index.filter(|index| *index < metadata.page_count(page.inode)) else { break };
        if found.len() >= count as usize {
            break;
        }
        let page = PageId::new(page.inode, index);
        let Some(next) = first_block(metadata, page).filter(|next| *next != last) else { continue };
        last = next;
        found.push(Guess { block: next, page });
    }
    found
}

/// Up to `count` blocks beside a block in the image: the packer lays files of a directory side by
/// side.
fn of_image(metadata: &Metadata, block: BlockId, count: u32, forward: bool) -> Vec<Guess> {
    let beside = (1..=count).map_while(|distance| {
        let id = if forward { block.0.checked_add(distance) } else { block.0.checked_sub(distance) };
        let block = BlockId(id.filter(|id| *id < metadata.block_count())?);
        let chunk = metadata.block_chunks(block).next()?;
        Some(Guess { block, page: metadata.chunk_owner(chunk)? })
    });
    beside.collect()
}
