//! Pages of an image out of the device cache, verified.

use std::collections::VecDeque;
use std::sync::Arc;

use codec::Codec;
use image::Metadata;
use units::{BlockId, PageId};

use super::ImageCache;
use crate::page_parts::PageParts;

/// Records and blocks that are kept decoded: the pages of an action lie in few at a time.
const DECODED_MAX: usize = 8;

/// Reads pages and blocks of one image.
pub(super) struct Reader {
    image: Arc<ImageCache>,
    metadata: Arc<Metadata>,
    /// The newest last.
    decoded: VecDeque<(Source, Arc<Decoded>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Record(u32),
    Block(BlockId),
}

/// A record of pages, or a block; without pages then.
struct Decoded {
    pages: Vec<(PageId, usize, usize)>,
    raw: Vec<u8>,
}

impl Reader {
    pub fn new(image: Arc<ImageCache>, metadata: Arc<Metadata>) -> Reader {
        Reader { image, metadata, decoded: VecDeque::new() }
    }

    /// Adds the bytes of a page to `out`. False if it is not there: then nothing is added.
    pub fn page(&mut self, page: PageId, out: &mut Vec<u8>) -> bool {
        if self.metadata.takes_pages()
            && let Some((number, key)) = self.image.record_of(page)
        {
            let found = self.decoded(Source::Record(number), |reader| reader.read_record(&key));
            match &found {
                None => self.image.forget_record(number),
                Some(decoded) => {
                    let first = self.image.first_of(page);
                    if let Some((_, start, bytes)) = decoded.pages.iter().find(|(found, ..)| *found == first) {
                        out.extend_from_slice(&decoded.raw[*start..start + bytes]);
                        return true;
                    }
                }
            }
        }
        self.page_of_blocks(page, out).is_some()
    }

    /// The bytes of a block as they are stored.
    pub fn stored_block(&mut self, block: BlockId) -> Option<Vec<u8>> {
        let stored = self.image.block(block).filter(|stored| self.metadata.verify_block(block, stored).is_ok());
        if stored.is_none() {
            self.image.forget_block(block);
        }
        stored
    }

    /// Whether a page can be had, as far as is known without reading.
    pub fn has(&self, page: PageId) -> bool {
        self.image.has_page(page) || self.image.has_blocks_of(page)
    }

    fn page_of_blocks(&mut self, page: PageId, out: &mut Vec<u8>) -> Option<()> {
        let parts = PageParts::of(&self.metadata, page)?;
        let mut blocks = Vec::new();
        for block in parts.blocks(&self.metadata) {
            if !self.image.has_block(block) {
                return None;
            }
            let read = |reader: &mut Reader| {
                let mut raw = Vec::new();
                let stored = reader.stored_block(block)?;
                reader.metadata.decode_verified(block, &stored, &mut raw).ok()?;
                Some(Decoded { pages: Vec::new(), raw })
            };
            blocks.push((block, self.decoded(Source::Block(block), read)?));
        }
        let start = out.len();
        out.resize(start + parts.bytes(), 0);
        let bytes_of = |block| blocks.iter().find(|(found, _)| *found == block).map(|(_, decoded)| &decoded.raw[..]);
        let is_whole = !blocks.is_empty() && parts.assemble(&self.metadata, &mut out[start..], bytes_of);
        if !is_whole {
            out.truncate(start);
        }
        is_whole.then_some(())
    }

    fn decoded(&mut self, source: Source, read: impl FnOnce(&mut Reader) -> Option<Decoded>) -> Option<Arc<Decoded>> {
        if let Some((_, found)) = self.decoded.iter().find(|(of, _)| *of == source) {
            return Some(Arc::clone(found));
        }
        let found = Arc::new(read(self)?);
        if self.decoded.len() >= DECODED_MAX {
            self.decoded.pop_front();
        }
        self.decoded.push_back((source, Arc::clone(&found)));
        Some(found)
    }

    /// Reads a record of pages: its first byte is the codec. `None` if it is not whole, or its
    /// pages are not those of the image.
    fn read_record(&self, key: &cache::Key) -> Option<Decoded> {
        let (pages, payload) = self.image.record(key)?;
        let (codec, stored) = payload.split_first()?;
        let mut decoded = Decoded { pages: Vec::with_capacity(pages.len()), raw: Vec::new() };
        let mut end = 0;
        for page in pages {
            let bytes = self.metadata.page_bytes(page)?;
            decoded.pages.push((page, end, bytes));
            end += bytes;
        }
        codec::decode(Codec::from_u8(*codec)?, stored, end, &mut decoded.raw).ok()?;
        let parts: Vec<_> =
            decoded.pages.iter().map(|(page, start, bytes)| (*page, &decoded.raw[*start..start + bytes])).collect();
        self.metadata.verify_pages(&parts).ok()?;
        Some(decoded)
    }
}
