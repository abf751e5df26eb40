//! The data block table of a file.

use std::collections::HashMap;

use bytes::Bytes;
use units::{Moment, PageId, StreamId, Token};

use super::arrival::Arrival;
use crate::memory::Stamp;
use crate::present::Present;

/// An entry of the data block table. A block without one is absent, or a hole; what was written
/// here lies in the overlay.
#[derive(Debug)]
pub(super) enum Block {
    /// The server was asked for it.
    Asked,
    /// A push brings it: the server said so (`told`), or it is the next one of a row.
    OnTheWay { stream: StreamId, until: Moment, told: bool },
    /// It is being read from the disk cache, as of this version.
    Reading { version: u64 },
    /// Here it is; `fresh`: it was pushed and nobody used it yet.
    Memory { bytes: Bytes, stamp: Stamp, fresh: bool },
}

/// The clean blocks of a file, and which of its blocks are holes.
///
/// Invariant: all of them are of one version, that in which the file was seen.
#[derive(Debug)]
pub(super) struct BlockTable {
    blocks: HashMap<u32, Block>,
    present: Present,
    /// The blocks in a row that the last push brought.
    arrival: Option<Arrival>,
    /// The last block that was touched, so that reading a block in pieces is one touch.
    touched: Option<(Token, u32)>,
}

impl Default for BlockTable {
    /// That of a file without data.
    fn default() -> BlockTable {
        BlockTable { blocks: HashMap::new(), present: Present::nothing(), arrival: None, touched: None }
    }
}

impl BlockTable {
    pub fn get(&self, index: u32) -> Option<&Block> {
        self.blocks.get(&index)
    }

    pub fn get_mut(&mut self, index: u32) -> Option<&mut Block> {
        self.blocks.get_mut(&index)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Block)> {
        self.blocks.iter().map(|(index, block)| (*index, block))
    }

    pub fn insert(&mut self, index: u32, block: Block) {
        self.blocks.insert(index, block);
    }

    pub fn remove(&mut self, index: u32) -> Option<Block> {
        self.blocks.remove(&index)
    }

    pub fn retain(&mut self, mut keep: impl FnMut(u32, &mut Block) -> bool) {
        self.blocks.retain(|index, block| keep(*index, block));
    }

    /// The server was asked for these.
    pub fn ask(&mut self, indexes: &[u32]) {
        self.blocks.extend(indexes.iter().map(|index| (*index, Block::Asked)));
    }

    /// The connection is gone: nothing comes any more.
    pub fn disconnected(&mut self) {
        self.arrival = None;
        self.blocks.retain(|_, block| !matches!(block, Block::Asked | Block::OnTheWay { .. }));
    }

    /// Blocks that are pushed from now on are not of this file.
    pub fn forget_pushes(&mut self) {
        self.blocks.retain(|_, block| !matches!(block, Block::OnTheWay { .. }));
    }

    /// Blocks that the disk cache reads now are of the version before.
    pub fn forget_reading(&mut self) {
        self.blocks.retain(|_, block| !matches!(block, Block::Reading { .. }));
    }

    /// Which blocks hold data.
    pub fn present(&self) -> &Present {
        &self.present
    }

    pub fn present_mut(&mut self) -> &mut Present {
        &mut self.present
    }

    /// The blocks in a row that the last push brought.
    pub fn arrival(&self) -> Option<Arrival> {
        self.arrival
    }

    /// A push brought these.
    pub fn arrived(&mut self, stream: StreamId, blocks: &[PageId], now: Moment) {
        self.arrival = Arrival::note(self.arrival, stream, blocks, now);
    }

    /// A block is touched; false if it was the last one that was.
    pub fn touch(&mut self, token: Token, index: u32) -> bool {
        self.touched.replace((token, index)) != Some((token, index))
    }
}
