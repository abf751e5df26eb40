//! Demands of devices near the server: a device on a LAN takes longer to decode a block than the
//! link takes for its decoded bytes.

use std::sync::Arc;

use units::{BlockId, PAGE_BYTES, PageId, RequestId};
use wire::format::FRAME_BYTES_MAX_LEAST;
use wire::{ImageHandle, Reply};

use super::Session;
use crate::demand;
use crate::error::Failure;
use crate::proofs::Proven;
use crate::published::Published;

/// Largest decoded block that is sent: it fits the frames of every client, and takes a millisecond
/// of a LAN.
const DECODED_BYTES_MAX: usize = 128 << 10;

const _: () = assert!(DECODED_BYTES_MAX + 64 <= FRAME_BYTES_MAX_LEAST);

/// Answers a near device with the decoded bytes of a block, if they are in memory. False if not:
/// then they will be for the next one.
pub(super) fn answer_block(
    session: &mut Session,
    request: RequestId,
    (handle, image): (ImageHandle, &Arc<Published>),
    block: BlockId,
) -> Result<bool, Failure> {
    let takes = session.wire.takes_decoded() && session.wire.takes_proofs() && session.is_near();
    let (raw_bytes, stored_bytes) =
        image.metadata.block(block).map_or((0, 0), |entry| (entry.raw_bytes as usize, entry.stored_bytes));
    if !takes || !image.metadata.proves_chunk_hashes() || !image.proves() || raw_bytes > DECODED_BYTES_MAX {
        return Ok(false);
    }
    let Some(room) = session.workers.room(raw_bytes) else { return Ok(false) };
    let Some(bytes) = image.decoded_in_memory(block) else {
        session.shared.decoder.order(image, block);
        return Ok(false);
    };
    if let Some((pushes, mut link)) = session.pushes() {
        pushes.prove(&mut link, (handle, image), Proven::Decoded(block))?;
    }
    session.reply_with(request, Reply::Decoded { block, bytes }, room);
    session.count_block(stored_bytes);
    Ok(true)
}

/// Answers with single pages: at once if nothing has to be decoded for it, and no more than one is
/// compressed, which takes some ten microseconds.
pub(super) fn answer_pages(session: &mut Session, request: RequestId, image: &Arc<Published>, pages: &[PageId]) {
    let is_near = session.is_near();
    // Raw and compressed are in memory together for a moment.
    let bytes = 2 * pages.len() * PAGE_BYTES;
    if (is_near || pages.len() == 1)
        && image.absent_blocks(pages).is_empty()
        && let Some(room) = session.workers.room(bytes)
        && let Ok(reply) = demand::pages(image, pages, is_near)
    {
        return session.reply_with(request, reply, room);
    }
    let (work, wanted) = (image.clone(), pages.to_vec());
    let make = move || demand::pages(&work, &wanted, is_near);
    session.answer_at(session.shared.readers.pages().clone(), request, bytes, make);
}
