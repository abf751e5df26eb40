//! Blocks that leave the cache.
//!
//! Pages that may be used yet go to the kernel, which then uses them unseen. A near server is
//! rather asked again, so that it learns all touches of a start. But a start that needs very many
//! blocks gets them after all, as far as they need not be decoded for it.

use super::readahead::Readahead;
use crate::block_cache::Evicted;

/// Blocks dropped until a program ends: as many as the cache keeps of a server that is not near.
const DROPPED_MAX: u32 = 128;

/// Blocks on their way from the cache to the storer.
pub(super) struct Leaving {
    stores: bool,
    blocks: Vec<Evicted>,
    /// Blocks that were dropped since a program ended.
    dropped: u32,
}

impl Leaving {
    /// `stores`: whether any go to the kernel.
    pub fn new(stores: bool) -> Leaving {
        Leaving { stores, blocks: Vec::new(), dropped: 0 }
    }

    /// These left the cache.
    pub fn add(&mut self, gone: Vec<Evicted>, is_near: bool, readahead: &mut Readahead) {
        for gone in gone {
            if gone.speculated && !gone.used {
                readahead.wasted();
            }
            let stores = !is_near || (gone.is_decoded() && self.dropped >= DROPPED_MAX);
            self.dropped += u32::from(!stores);
            if self.stores && stores {
                self.blocks.push(gone);
            }
        }
    }

    /// Those for the storer.
    pub fn take(&mut self) -> Vec<Evicted> {
        std::mem::take(&mut self.blocks)
    }

    /// A program ended.
    pub fn end(&mut self) {
        self.dropped = 0;
    }
}
