//! The thread that decodes blocks of which near devices wanted pages, so that the next such device
//! gets them decoded.
//!
//! A device on a LAN takes longer to decode a block than the link takes for its decoded bytes. The
//! first one decodes the block itself all the same: it would wait as long for the server to do it.
//! Decoded blocks lie where all sessions find them ([`crate::decoded`]).

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};

use store::Store;
use units::BlockId;

use crate::builders::idle_priority;
use crate::decoded::Taken;
use crate::panics::caught_blocking;
use crate::published::Published;

/// Blocks that wait to be decoded; more are left to a later demand. As many as a large program
/// start uses.
const WAITING_MAX: usize = 1024;

/// The thread; it ends when this is dropped.
pub(crate) struct Decoder {
    blocks: SyncSender<(Weak<Published>, BlockId)>,
}

impl Decoder {
    /// Starts it; blocks go to temporary files of `store`.
    pub fn start(store: Arc<dyn Store>) -> std::io::Result<Decoder> {
        let (blocks, waiting) = sync_channel(WAITING_MAX);
        std::thread::Builder::new().name("decoder".to_owned()).spawn(move || decode(&waiting, &*store))?;
        Ok(Decoder { blocks })
    }

    /// Has a block decoded. Without room it is not.
    pub fn order(&self, image: &Arc<Published>, block: BlockId) {
        let _ = self.blocks.try_send((Arc::downgrade(image), block));
    }
}

fn decode(blocks: &Receiver<(Weak<Published>, BlockId)>, store: &dyn Store) {
    let taken = Taken::default();
    // Who decodes for a start that is yet to come must not slow down one that runs.
    idle_priority();
    while let Ok((image, block)) = blocks.recv() {
        let Some(image) = image.upgrade() else { continue };
        // Who reads a damaged block is told.
        let _ = caught_blocking(|| image.decode_ahead(block, store, &taken));
    }
}
