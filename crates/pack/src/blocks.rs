//! Filling blocks with chunks and compressing them, many at a time, in the order in which they were filled.

use image::{BlockRecord, Codec};
use rayon::prelude::*;
use units::BlockId;

use crate::{Options, PackError};

/// Blocks being filled.
pub(crate) struct Blocks {
    codec: Codec,
    level: i32,
    block_bytes: usize,
    /// Full ones, not yet compressed.
    full: Vec<Vec<u8>>,
    open: Vec<u8>,
    pub(crate) records: Vec<BlockRecord>,
}

/// A block as it goes to the output.
pub(crate) struct Compressed {
    pub(crate) bytes: Vec<u8>,
    record: BlockRecord,
}

impl Blocks {
    pub(crate) fn new(options: &Options) -> Blocks {
        let block_bytes = options.block_bytes as usize;
        Blocks {
            codec: options.codec,
            level: options.effective_level(),
            block_bytes,
            full: Vec::new(),
            open: Vec::with_capacity(block_bytes),
            records: Vec::new(),
        }
    }

    /// Adds a chunk and says where it lies. Chunks never cross the border of a block.
    pub(crate) fn add(&mut self, chunk: &[u8]) -> (BlockId, u32) {
        if self.open.len() + chunk.len() > self.block_bytes {
            self.close();
        }
        let place = (BlockId((self.records.len() + self.full.len()) as u32), self.open.len() as u32);
        self.open.extend_from_slice(chunk);
        place
    }

    /// Ends the block being filled, if there is anything in it.
    pub(crate) fn close(&mut self) {
        if !self.open.is_empty() {
            self.full.push(std::mem::replace(&mut self.open, Vec::with_capacity(self.block_bytes)));
        }
    }

    /// Compresses the full blocks, on all threads of the current pool, and records them. The result depends on the
    /// blocks alone.
    pub(crate) fn compress(&mut self) -> Result<Vec<Compressed>, PackError> {
        let (codec, level) = (self.codec, self.level);
        let full = std::mem::take(&mut self.full);
        let done = full.into_par_iter().map(|raw| compress(codec, level, raw)).collect::<Result<Vec<_>, _>>()?;
        self.records.extend(done.iter().map(|block| block.record));
        Ok(done)
    }
}

fn compress(codec: Codec, level: i32, raw: Vec<u8>) -> Result<Compressed, PackError> {
    let raw_bytes = raw.len() as u32;
    let mut stored = Vec::new();
    codec::encode(codec, level, &raw, &mut stored)?;
    let (codec, bytes) = if stored.len() < raw.len() { (codec, stored) } else { (Codec::Stored, raw) };
    let hash = *blake3::hash(&bytes).as_bytes();
    let record = BlockRecord { codec, stored_bytes: bytes.len() as u32, raw_bytes, hash };
    Ok(Compressed { bytes, record })
}
