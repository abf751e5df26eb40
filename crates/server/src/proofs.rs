//! Chunk hashes for a device that takes them with proofs: those of the pages that it is sent,
//! before the pages, each once on a connection.

use std::collections::HashMap;

use bytes::Bytes;
use image::PROOF_LEAVES_MAX;
use units::{BlockId, ImageId, PageId};
use wire::{ErrorCode, ImageHandle, ServerConnection};

use crate::error::Failure;
use crate::published::Published;

/// Whose chunk hashes a device needs.
#[derive(Clone, Copy)]
pub(crate) enum Proven<'a> {
    Pages(&'a [PageId]),
    Block(BlockId),
}

/// What was sent on one connection: a bit for each leaf of the chunk hashes of an image.
///
/// Invariant: what is marked was queued before anything that is queued from now on, and nothing
/// that is queued so is dropped while the connection lives.
#[derive(Default)]
pub(crate) struct Proofs {
    sent: HashMap<ImageId, Vec<u64>>,
}

impl Proofs {
    /// Sends those chunk hashes that were not sent before, if the device takes proofs. To be called
    /// before the bytes are queued that they are for.
    pub fn send(
        &mut self,
        wire: &mut ServerConnection,
        handle: ImageHandle,
        image: &Published,
        of: Proven<'_>,
    ) -> Result<(), Failure> {
        if !wire.takes_proofs() || !image.metadata.proves_chunk_hashes() {
            return Ok(());
        }
        let sent = self.sent.entry(image.id).or_default();
        sent.resize(image.metadata.hash_leaf_count().div_ceil(64) as usize, 0);
        let is_sent = |leaf: &u32| sent.get(*leaf as usize / 64).is_some_and(|word| word >> (leaf % 64) & 1 == 1);
        let mut leaves = match of {
            Proven::Pages(pages) => image.metadata.hash_leaves(pages),
            Proven::Block(block) => image.metadata.block_hash_leaves(block),
        };
        leaves.retain(|leaf| !is_sent(leaf));
        for leaves in leaves.chunks(PROOF_LEAVES_MAX) {
            let refused = |refused: wire::Refused| Failure::new(ErrorCode::Internal, refused.to_string());
            let proof = image.proof(leaves)?;
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
