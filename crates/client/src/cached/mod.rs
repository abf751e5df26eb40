//! The device cache as an image sees it: which of its pages and blocks are there, and the thread
//! that reads and writes them.
//!
//! The schedule asks an [`ImageCache`] before it asks a server. What is there is requested from the
//! thread of the cache ([`worker::Worker`]), which answers as a connection would. The same thread
//! learns what programs touch, with the Predictor that servers use, and puts what comes next of a
//! known action into the page cache, as pushes of its own. It writes what came from servers: blocks
//! as they are stored, pushed pages compressed anew, since a push cannot be read from its middle.
//!
//! Pages and blocks are verified against the image when they come out of the cache, as if a server
//! had sent them. Chunk hashes that came with proofs are kept, too.

mod reader;
mod start;
mod untold;
mod worker;
mod writer;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cache::{Cache, Key, Kind, Owner};
use connection::Server;
use image::Metadata;
use units::{BlockId, PageId};

use crate::command::Wanted;
use crate::page_parts::PageParts;

pub(crate) use start::{CachedStart, Name, keep, keep_name, load_proofs, metadata_parts, part_key};
pub(crate) use untold::Untold;
pub(crate) use worker::Worker;

/// Pages in one record: as many as one push has.
pub(crate) const RECORD_PAGES_MAX: usize = units::SEGMENT_PAGES_MAX;

/// What the cache has of one image.
pub(crate) struct ImageCache {
    cache: Arc<Cache>,
    metadata: Arc<Metadata>,
    owner: Owner,
    index: Mutex<Index>,
    /// If there is a server that learns.
    untold: Option<Untold>,
    /// Why nothing more is written.
    problem: OnceLock<String>,
}

/// Where the pages and blocks of the image are.
#[derive(Default)]
struct Index {
    blocks: HashMap<BlockId, Key>,
    pages: HashMap<PageId, u32>,
    /// Records of pages; `None` if it turned out to be damaged.
    records: Vec<Option<Key>>,
}

impl ImageCache {
    /// What `cache` has of an image. `server`: the one that learns from its programs, if any does.
    pub fn new(cache: Arc<Cache>, metadata: Arc<Metadata>, server: Option<&Server>) -> ImageCache {
        let owner = Owner(metadata.id().0);
        let mut index = Index::default();
        for found in cache.records(&owner, Kind::Block) {
            if let Ok(block) = found.label[..].try_into() {
                index.blocks.insert(BlockId(u32::from_le_bytes(block)), found.key);
            }
        }
        for found in cache.records(&owner, Kind::Pages) {
            index.add(found.key, &pages_of(&found.label));
        }
        let untold = server.map(|server| Untold::of(server, &metadata.id()));
        ImageCache { cache, metadata, owner, index: Mutex::new(index), untold, problem: OnceLock::new() }
    }

    /// Where runs are kept that the server was not told of.
    pub fn untold(&self) -> Option<(&Cache, &Untold)> {
        self.untold.as_ref().map(|untold| (&*self.cache, untold))
    }

    /// Why nothing more is written, if that is so.
    pub fn problem(&self) -> Option<&str> {
        self.problem.get().map(String::as_str)
    }

    /// Whether a request can be answered: all pages are there, or the block is.
    pub fn has(&self, wanted: &Wanted) -> bool {
        let index = self.index();
        match wanted {
            Wanted::Block { block, .. } => index.blocks.contains_key(block),
            Wanted::Pages(pages) => {
                self.metadata.takes_pages() && pages.iter().all(|page| index.pages.contains_key(&self.first_of(*page)))
            }
        }
    }

    /// Whether a page is there by itself.
    pub fn has_page(&self, page: PageId) -> bool {
        self.metadata.takes_pages() && self.is_kept(page)
    }

    /// Whether a page is there, though there may be no hash yet to verify it with.
    fn is_kept(&self, page: PageId) -> bool {
        self.index().pages.contains_key(&self.first_of(page))
    }

    /// Whether all blocks of a page are there.
    pub fn has_blocks_of(&self, page: PageId) -> bool {
        PageParts::of(&self.metadata, page).is_some_and(|parts| {
            let blocks = parts.blocks(&self.metadata);
            !blocks.is_empty() && blocks.into_iter().all(|block| self.has_block(block))
        })
    }

    /// Whether a block is there.
    pub fn has_block(&self, block: BlockId) -> bool {
        self.index().blocks.contains_key(&block)
    }

    /// The first page of the image with the contents of this one: only that is kept.
    fn first_of(&self, page: PageId) -> PageId {
        let metadata = &self.metadata;
        let whole_chunk = |page| {
            let parts = PageParts::of(metadata, page)?;
            let chunk = parts.first_chunk()?;
            metadata.chunk(chunk).filter(|lies| lies.bytes as usize == parts.bytes()).map(|_| chunk)
        };
        let Some(chunk) = whole_chunk(page) else { return page };
        metadata.chunk_owner(chunk).filter(|first| whole_chunk(*first) == Some(chunk)).unwrap_or(page)
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stored bytes of a block.
    fn block(&self, block: BlockId) -> Option<Vec<u8>> {
        let key = *self.index().blocks.get(&block)?;
        self.cache.read(Kind::Block, &key)
    }

    /// The record that a page is in.
    fn record_of(&self, page: PageId) -> Option<(u32, Key)> {
        let index = self.index();
        let record = *index.pages.get(&self.first_of(page))?;
        Some((record, (*index.records.get(record as usize)?)?))
    }

    /// The payload of a record of pages, and the pages in it.
    fn record(&self, key: &Key) -> Option<(Vec<PageId>, Vec<u8>)> {
        let (label, payload) = self.cache.read_all(Kind::Pages, key)?;
        Some((pages_of(&label), payload))
    }

    /// A block that is damaged, or does not match the image, is not there any more, for this
    /// session.
    fn forget_block(&self, block: BlockId) {
        self.index().blocks.remove(&block);
    }

    /// The same of all pages of a record.
    fn forget_record(&self, record: u32) {
        let mut index = self.index();
        index.pages.retain(|_, of| *of != record);
        if let Some(key) = index.records.get_mut(record as usize) {
            *key = None;
        }
    }
}

impl Index {
    fn add(&mut self, key: Key, pages: &[PageId]) {
        let record = self.records.len() as u32;
        self.records.push(Some(key));
        // A page that is in two records is read from the newer one.
        self.pages.extend(pages.iter().map(|page| (*page, record)));
    }
}

/// The pages that the label of a record names.
fn pages_of(label: &[u8]) -> Vec<PageId> {
    let numbers = label.chunks_exact(8).map(|number| u64::from_le_bytes(number.try_into().unwrap_or_default()));
    numbers.map(PageId::from_u64).collect()
}

/// The label of a record of these pages.
fn label_of(pages: &[PageId]) -> Vec<u8> {
    pages.iter().flat_map(|page| page.to_u64().to_le_bytes()).collect()
}
