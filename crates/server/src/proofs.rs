//! Hashes for a device that takes them with proofs: those of the chunks and blocks that it is sent,
//! before these, each once on a connection.

use std::collections::HashMap;

use bytes::Bytes;
use image::PROOF_LEAVES_MAX;
use units::{BlockId, ImageId, PageId};
use wire::{ErrorCode, ImageHandle, ServerConnection};

use crate::error::Failure;
use crate::published::Published;

/// What a device is about to be sent.
#[derive(Clone, Copy)]
pub(crate) enum Proven<'a> {
    /// Pages: it needs the hashes of their chunks.
    Pages(&'a [PageId]),
    /// A decoded block: those of its chunks.
    Decoded(BlockId),
    /// A block as it is stored: its own hash.
    Stored(BlockId),
}

/// What the hashes of a section are of.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum HashesOf {
    Chunks,
    Blocks,
}

/// What was sent on one connection: a bit for each leaf of the hashes of an image.
///
/// Invariant: what is marked was queued before anything that is queued from now on, and nothing
/// that is queued so is dropped while the connection lives.
#[derive(Default)]
pub(crate) struct Proofs {
    sent: HashMap<(ImageId, HashesOf), Vec<u64>>,
}

impl Proofs {
    /// Sends those hashes that were not sent before, if the device takes proofs. To be called
    /// before the bytes are queued that they are for.
    pub fn send(
        &mut self,
        wire: &mut ServerConnection,
        handle: ImageHandle,
        image: &Published,
        of: Proven<'_>,
    ) -> Result<(), Failure> {
        let metadata = &image.metadata;
        let (hashes, proves, count) = match of {
            Proven::Stored(_) => (HashesOf::Blocks, metadata.proves_block_hashes(), metadata.block_leaf_count()),
            _ => (HashesOf::Chunks, metadata.proves_chunk_hashes(), metadata.hash_leaf_count()),
        };
        if !wire.takes_proofs() || !proves {
            return Ok(());
        }
        let sent = self.sent.entry((image.id, hashes)).or_default();
        sent.resize(count.div_ceil(64) as usize, 0);
        let is_sent = |leaf: &u32| sent.get(*leaf as usize / 64).is_some_and(|word| word >> (leaf % 64) & 1 == 1);
        let mut leaves = match of {
            Proven::Pages(pages) => metadata.hash_leaves(pages),
            Proven::Decoded(block) => metadata.block_hash_leaves(block),
            Proven::Stored(block) => vec![metadata.leaf_of_block(block)],
        };
        leaves.retain(|leaf| !is_sent(leaf));
        for leaves in leaves.chunks(PROOF_LEAVES_MAX) {
            let refused = |refused: wire::Refused| Failure::new(ErrorCode::Internal, refused.to_string());
            let proof = image.proof(hashes, leaves)?;
            wire.hashes(handle, Bytes::from(proof)).map_err(refused)?;
        }
        for leaf in leaves {
            if let Some(word) = sent.get_mut(leaf as usize / 64) {
                *word |= 1 << (leaf % 64);
            }
        }
        Ok(())
    }
}
