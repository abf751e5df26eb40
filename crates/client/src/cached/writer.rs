//! What servers sent, on its way into the device cache.

use std::io::{self, Write};
use std::sync::Arc;

use cache::Kind;
use codec::Codec;
use image::Metadata;
use units::PageId;

use super::start::hashed;
use super::{ImageCache, RECORD_PAGES_MAX, label_of};
use crate::block_cache::{BlockBytes, Decoded, Evicted, Taken};
use crate::command::Kept;
use crate::schedule::{evicted_candidates, retain_good};

/// Writes records of one image.
pub(super) struct Writer {
    image: Arc<ImageCache>,
    metadata: Arc<Metadata>,
    /// Pages for the next record.
    pages: Vec<PageId>,
    raw: Vec<u8>,
}

impl Writer {
    pub fn new(image: Arc<ImageCache>, metadata: Arc<Metadata>) -> Writer {
        Writer { image, metadata, pages: Vec::new(), raw: Vec::new() }
    }

    /// Keeps what is not there yet. All of it was verified, but for what a server decoded.
    pub fn keep(&mut self, kept: Kept) {
        match kept {
            Kept::Pushed { pages, raw, .. } | Kept::Pages { pages, raw } => self.add(&pages, &raw),
            Kept::Block { block, stored } if !self.image.has_block(block) => {
                let key = cache::Key(*blake3::hash(&stored).as_bytes());
                if self.put(Kind::Block, &key, &block.0.to_le_bytes(), &stored) {
                    self.image.index().blocks.insert(block, key);
                }
            }
            Kept::Block { .. } => {}
            Kept::Decoded { block, raw } => {
                let bytes = BlockBytes::new(Decoded::Unverified(raw));
                let gone = Evicted::handed_on(block, bytes.clone(), Taken::default());
                let mut candidates = evicted_candidates(&self.metadata, &gone);
                retain_good(&self.metadata, &mut candidates, &bytes);
                for candidate in candidates {
                    self.add(&[candidate.page], &bytes[candidate.bytes]);
                }
            }
            Kept::Proof(proof) => {
                let key = hashed(&[&self.image.owner.0, &proof]);
                if !self.image.cache.has(Kind::Proof, &key) {
                    self.put(Kind::Proof, &key, &[], &proof);
                }
            }
        }
    }

    /// Adds pages to the record that is being filled.
    fn add(&mut self, pages: &[PageId], raw: &[u8]) {
        let mut rest = raw;
        for page in pages {
            let Some((bytes, after)) = rest.split_at_checked(self.metadata.page_bytes(*page).unwrap_or(0)) else {
                return;
            };
            rest = after;
            let first = self.image.first_of(*page);
            if self.image.is_kept(first) || self.pages.contains(&first) {
                continue;
            }
            self.pages.push(first);
            self.raw.extend_from_slice(bytes);
            if self.pages.len() >= RECORD_PAGES_MAX {
                self.flush();
            }
        }
    }

    /// Writes the record that is being filled.
    pub fn flush(&mut self) {
        let (pages, raw) = (std::mem::take(&mut self.pages), std::mem::take(&mut self.raw));
        if pages.is_empty() {
            return;
        }
        let mut stored = Vec::new();
        let codec = match codec::encode_fast(&raw, &mut stored) {
            true => Codec::Lz4,
            false => {
                stored = raw;
                Codec::Stored
            }
        };
        stored.insert(0, codec as u8);
        let label = label_of(&pages);
        let key = hashed(&[&self.image.owner.0, &label, &stored]);
        if self.put(Kind::Pages, &key, &label, &stored) {
            self.image.index().add(key, &pages);
        }
    }

    /// Writes what was learned.
    pub fn actions(&mut self, actions: &[u8]) {
        let key = cache::Key(self.image.owner.0);
        self.put(Kind::Actions, &key, &[], actions);
    }

    /// Writes what a program touched that no server was told of, if it may teach one.
    pub fn run(&mut self, pages: &[PageId]) {
        let record = self.image.untold().and_then(|(cache, untold)| untold.record_of(cache, pages));
        if let Some((key, record)) = record {
            self.put(Kind::Run, &key, &[], &record);
        }
    }

    /// Nothing more comes.
    pub fn close(&mut self) {
        self.image.cache.close();
    }

    fn put(&mut self, kind: Kind, key: &cache::Key, label: &[u8], payload: &[u8]) -> bool {
        if self.image.problem().is_some() {
            return false;
        }
        match self.image.cache.put(&self.image.owner, kind, key, label, payload) {
            Ok(taken) => taken,
            Err(error) => {
                let _ = self.image.problem.set(format!("the disk fails: {error}"));
                tell(&error);
                false
            }
        }
    }
}

/// Programs go on without a cache, and more slowly next time.
fn tell(error: &io::Error) {
    let _ = writeln!(io::stderr(), "warning: the device cache takes no more, since its disk fails: {error}");
}
