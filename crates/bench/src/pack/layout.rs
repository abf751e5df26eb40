//! What a read set costs on one of our images, from its metadata: every page needs the blocks that
//! hold its chunks.
//!
//! Also where files and hot chunks lie, and how long the blocks take to decode. Sizes are bytes,
//! times seconds.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use image::{Kind, Limits, Metadata, ReadAt};
use pack::FileImage;
use rustix::time::{ClockId, clock_gettime};
use units::{BlockId, InodeId, PageId};

use super::read_set::{DEVICE_PAGE_BYTES, Page};
use crate::interrupt;

/// Blocks that are decoded to learn how fast a codec is.
const RATE_BLOCKS_MAX: u32 = 200;

/// What must be read for a set of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Reads {
    /// Bytes of the pages themselves.
    pub wanted: u64,
    /// Stored bytes of everything that holds one of them.
    pub stored: u64,
    /// The same, decoded.
    pub decoded: u64,
    /// Runs of neighbouring stored bytes: what a disk would seek for.
    pub runs: u64,
    /// Pages of the device that are read.
    pub device_pages: u64,
    /// CPU time to verify and decode, seconds.
    pub decode: f64,
}

/// An image of ours, open.
pub struct Opened {
    metadata: Metadata,
    file: FileImage,
}

impl Opened {
    /// Opens an image.
    ///
    /// # Errors
    /// It is damaged, or cannot be read.
    pub fn open(path: &Path) -> anyhow::Result<Opened> {
        let file = FileImage::open(path)?;
        let metadata = Metadata::open(&file, &Limits::default()).with_context(|| path.display().to_string())?;
        Ok(Opened { metadata, file })
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The page of this image that `page` names, if there is one.
    pub fn page(&self, page: &Page) -> Option<PageId> {
        let inode = self.metadata.resolve(&page.path)?;
        let found = PageId::new(inode, page.index);
        self.metadata.page_bytes(found).map(|_| found)
    }

    /// The regular files.
    pub fn files(&self) -> impl Iterator<Item = InodeId> + '_ {
        let is_file = |id: &InodeId| self.metadata.inode(*id).is_some_and(|inode| inode.kind() == Kind::File);
        (1..=self.metadata.inode_count()).map(InodeId).filter(is_file)
    }

    fn blocks_of(&self, page: PageId) -> impl Iterator<Item = BlockId> + '_ {
        let chunks: Vec<_> = self.metadata.page_chunks(page).map(|found| found.chunks().collect()).unwrap_or_default();
        chunks.into_iter().filter_map(|chunk| Some(self.metadata.chunk(chunk)?.block))
    }

    /// What must be read for `pages`; those that the image does not have are left out.
    ///
    /// # Errors
    /// A block is damaged.
    pub fn reads(&self, pages: &[Page]) -> anyhow::Result<Reads> {
        let found: BTreeSet<PageId> = pages.iter().filter_map(|page| self.page(page)).collect();
        let blocks: BTreeSet<BlockId> = found.iter().flat_map(|page| self.blocks_of(*page)).collect();
        let wanted = found.iter().filter_map(|page| self.metadata.page_bytes(*page)).map(|bytes| bytes as u64).sum();
        let mut reads = Reads { wanted, ..Reads::default() };
        let mut stretches = Vec::new();
        for block in blocks.iter().filter_map(|id| self.metadata.block(*id)) {
            reads.decoded += u64::from(block.raw_bytes);
            stretches.push((block.file_offset, block.file_offset + u64::from(block.stored_bytes)));
        }
        let pieces = Pieces::of(stretches);
        (reads.stored, reads.runs, reads.device_pages) = (pieces.bytes, pieces.runs, pieces.device_pages);
        reads.decode = self.decode_time(blocks.iter().copied())?.0;
        Ok(reads)
    }

    /// CPU time and decoded bytes of verifying and decoding `blocks`.
    fn decode_time(&self, blocks: impl Iterator<Item = BlockId>) -> anyhow::Result<(f64, u64)> {
        let (mut seconds, mut bytes) = (0.0, 0);
        let (mut stored, mut decoded) = (Vec::new(), Vec::new());
        for id in blocks {
            interrupt::check()?;
            let Some(block) = self.metadata.block(id) else { continue };
            stored.resize(block.stored_bytes as usize, 0);
            self.file.read_exact_at(block.file_offset, &mut stored).context("cannot read a block")?;
            let start = thread_time();
            self.metadata.decode_block(id, &stored, &mut decoded)?;
            seconds += thread_time() - start;
            bytes += u64::from(block.raw_bytes);
        }
        Ok((seconds, bytes))
    }

    /// CPU seconds to verify and decode a byte, from blocks all over the image.
    ///
    /// # Errors
    /// A block is damaged.
    pub fn decode_rate(&self) -> anyhow::Result<f64> {
        let count = self.metadata.block_count();
        let step = count.div_ceil(RATE_BLOCKS_MAX).max(1);
        let (seconds, bytes) = self.decode_time((0..count).step_by(step as usize).map(BlockId))?;
        Ok(seconds / bytes.max(1) as f64)
    }

    /// Mean number of blocks that hold a file, over the files with data of which no page is in
    /// `hot`.
    pub fn blocks_per_file(&self, hot: &[Page]) -> f64 {
        let hot: BTreeSet<InodeId> = hot.iter().filter_map(|page| self.page(page)).map(|page| page.inode).collect();
        let (mut files, mut blocks) = (0u64, 0u64);
        for inode in self.files().filter(|inode| !hot.contains(inode)) {
            let pages = (0..self.metadata.page_count(inode)).map(|index| PageId::new(inode, index));
            let touched: BTreeSet<BlockId> = pages.flat_map(|page| self.blocks_of(page)).collect();
            if !touched.is_empty() {
                files += 1;
                blocks += touched.len() as u64;
            }
        }
        blocks as f64 / files.max(1) as f64
    }

    /// Paths of the files in the order in which their data lies: by the place of the chunk in the
    /// middle of each, as the first may lie apart with other headers.
    pub fn files_in_order(&self) -> Vec<Vec<u8>> {
        let mut files: Vec<(u64, Vec<u8>)> = Vec::new();
        for inode in self.files() {
            let pages = (0..self.metadata.page_count(inode)).map(|index| PageId::new(inode, index));
            let mut places: Vec<u64> = pages.flat_map(|page| self.places_of(page)).map(|(place, _)| place).collect();
            places.sort_unstable();
            if let (Some(place), Some(path)) = (places.get(places.len() / 2), self.metadata.path(inode)) {
                files.push((*place, path));
            }
        }
        files.sort();
        files.into_iter().map(|(_, path)| path).collect()
    }

    /// Start and length of the chunks of a page in the concatenation of all decoded blocks.
    fn places_of(&self, page: PageId) -> Vec<(u64, u64)> {
        let chunks: Vec<_> = self.metadata.page_chunks(page).map(|found| found.chunks().collect()).unwrap_or_default();
        let place = |chunk| {
            let place = self.metadata.chunk(chunk)?;
            let block = self.metadata.block(place.block)?;
            Some((block.raw_start + u64::from(place.offset), u64::from(place.bytes)))
        };
        chunks.into_iter().filter_map(place).collect()
    }

    /// The share of hot bytes in each of `cells` equal parts of the decoded data.
    pub fn heat(&self, hot: &[Page], cells: usize) -> Vec<f64> {
        let last = self.metadata.block_count().checked_sub(1).and_then(|last| self.metadata.block(BlockId(last)));
        let total = last.map_or(0, |block| block.raw_start + u64::from(block.raw_bytes));
        let mut heat = vec![0.0; cells];
        if total == 0 || cells == 0 {
            return heat;
        }
        let cell_bytes = total as f64 / cells as f64;
        let pages = hot.iter().filter_map(|page| self.page(page));
        let places: BTreeSet<(u64, u64)> = pages.flat_map(|page| self.places_of(page)).collect();
        for (start, bytes) in places {
            // A chunk that crosses the border of two cells counts in both, for its share.
            let (mut at, end) = (start as f64, (start + bytes) as f64);
            while at < end {
                let cell = ((at / cell_bytes) as usize).min(cells - 1);
                let next = if cell + 1 == cells { end } else { end.min((cell + 1) as f64 * cell_bytes).max(at + 1e-3) };
                heat[cell] += (next - at) / cell_bytes;
                at = next;
            }
        }
        heat.iter().map(|share| share.min(1.0)).collect()
    }
}

/// Stretches of a file put together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pieces {
    /// Bytes, those of overlaps once.
    pub bytes: u64,
    /// Runs without a gap.
    pub runs: u64,
    /// Pages of the device that hold any of the bytes.
    pub device_pages: u64,
}

impl Pieces {
    /// Of stretches, start and end, in any order.
    pub fn of(mut stretches: Vec<(u64, u64)>) -> Pieces {
        stretches.sort_unstable();
        let (mut pieces, mut end, mut page_end) = (Pieces::default(), None, 0);
        for (start, stop) in stretches.into_iter().filter(|(start, stop)| stop > start) {
            let from = end.map_or(start, |end: u64| start.max(end));
            if end.is_none_or(|end| start > end) {
                pieces.runs += 1;
            }
            pieces.bytes += stop.saturating_sub(from);
            let (first, last) = ((start / DEVICE_PAGE_BYTES).max(page_end), stop.div_ceil(DEVICE_PAGE_BYTES));
            pieces.device_pages += last.saturating_sub(first);
            page_end = page_end.max(last);
            end = Some(end.map_or(stop, |end| end.max(stop)));
        }
        pieces
    }
}

/// CPU time of this thread, seconds.
fn thread_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;
    use pack::{Options, Silent, Source};

    #[test]
    fn stretches_are_counted_once() {
        let pieces = Pieces::of(vec![(10_000, 12_000), (0, 100), (100, 5000), (4000, 4500), (7, 7)]);
        // Pages 0 and 1, and 2.
        assert_eq!(pieces, Pieces { bytes: 7000, runs: 2, device_pages: 3 });
        assert_eq!(Pieces::of(vec![]), Pieces::default());
    }

    #[test]
    fn reads_follow_the_blocks_of_an_image() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let (tree, path) = (folder.path().join("tree"), folder.path().join("image.rnl"));
        std::fs::create_dir_all(tree.join("d"))?;
        // Four pages that differ and do not compress, two in each file; a block holds two.
        let noise = |seed: u64, bytes: usize| -> Vec<u8> {
            let mut random = units::SplitMix64(seed);
            (0..bytes).map(|_| units::Rng::next_u64(&mut random) as u8).collect()
        };
        std::fs::write(tree.join("d/a"), noise(1, 8192))?;
        std::fs::write(tree.join("d/b"), noise(2, 8000))?;
        let source = Source::detect(&tree)?;
        pack::pack(source, &path, &Options { block_bytes: 8192, ..Options::default() }, &Silent)?;
        let opened = Opened::open(&path)?;
        let page = |path: &str, index| Page { path: path.as_bytes().to_vec(), index };
        let one = opened.reads(&[page("/d/b", 1), page("/d/b", 1), page("/none", 0), page("/d/b", 9)])?;
        assert_eq!(one.wanted, 8000 - 4096);
        let blocks = opened.metadata().block_count();
        let all = opened.reads(&[page("/d/a", 0), page("/d/a", 1), page("/d/b", 0), page("/d/b", 1)])?;
        assert_eq!((all.wanted, all.decoded), (16192, 16192));
        assert!(all.stored >= 16192 && all.runs == 1 && blocks >= 2 && one.stored < all.stored, "{one:?} {all:?}");
        assert!(opened.blocks_per_file(&[]) >= 1.0 && opened.decode_rate()? > 0.0);
        assert_eq!(opened.files_in_order().len(), 2);
        let heat = opened.heat(&[page("/d/a", 0), page("/d/a", 1)], 4);
        assert!((heat.iter().sum::<f64>() - 4.0 * 8192.0 / 16192.0).abs() < 0.01, "{heat:?}");
        Ok(())
    }
}
