//! What the image of this bench holds: pages to ask for, and the blocks that they lie in.

use std::path::Path;

use anyhow::{Context, ensure};
use image::{Limits, Metadata};
use units::{BlockId, InodeId, PageId, Rng, SplitMix64, Token};
use wire::{ImageHandle, Request};

/// Name of the image on the server.
pub(super) const IMAGE: &str = "app";

/// Name of the volume on the server.
pub(super) const VOLUME: &str = "data";

/// Pages with the blocks that hold them, and what is needed to check these.
pub(super) struct Content {
    /// The image's metadata.
    pub metadata: Metadata,
    pages: Vec<(PageId, BlockId)>,
}

impl Content {
    /// Reads the metadata of an image file.
    ///
    /// # Errors
    /// The file cannot be read, is no image, or has no data.
    pub fn read(path: &Path) -> anyhow::Result<Content> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let metadata = Metadata::open(&bytes, &Limits::default())?;
        let mut pages = Vec::new();
        for inode in (1..=metadata.inode_count()).map(InodeId) {
            for page in (0..metadata.page_count(inode)).map(|index| PageId::new(inode, index)) {
                let chunk = metadata.page_chunks(page).and_then(|chunks| chunks.chunks().next());
                pages.extend(chunk.and_then(|chunk| metadata.chunk(chunk)).map(|place| (page, place.block)));
            }
        }
        ensure!(!pages.is_empty(), "{} holds no data", path.display());
        Ok(Content { metadata, pages })
    }

    /// Any page, and its block.
    pub fn random(&self, rng: &mut SplitMix64) -> (PageId, BlockId) {
        self.pages[rng.below(self.pages.len() as u64) as usize]
    }

    /// Pages in the order of the image, as a program might touch them: `count` of them from the
    /// `start`-th.
    pub fn run(&self, start: usize, count: usize) -> Vec<PageId> {
        self.pages.iter().cycle().skip(start % self.pages.len()).take(count).map(|(page, _)| *page).collect()
    }

    /// A demand for the block of any page.
    pub fn pull_block(&self, image: ImageHandle, token: Token, rng: &mut SplitMix64) -> Request {
        let (page, block) = self.random(rng);
        Request::PullBlock { image, token, page, block, force: true, speculative: false }
    }
}
