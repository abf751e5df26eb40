//! Superblock, metadata and hashes of images: what a device asks for, and what it is sent
//! before it asks.

use std::sync::Arc;

use bytes::Bytes;
use units::{PageId, RequestId};
use wire::format::START_BYTES_MAX;
use wire::{ErrorCode, ImageHandle, Reply};

use super::Session;
use crate::demand;
use crate::error::Failure;
use crate::proofs::Proven;
use crate::published::Published;

/// Larger metadata is left to requests, which the memory for replies bounds one by one.
const START_BYTES_TOTAL_MAX: u64 = 1 << 20;

/// Answers a request for a range of superblock, metadata or chunk hashes.
pub(super) fn read(
    session: &mut Session,
    request: RequestId,
    handle: ImageHandle,
    offset: u64,
    bytes: u32,
) -> Result<(), Failure> {
    let image = session.image(handle)?;
    let region = image.metadata.metadata_region();
    let end = offset.saturating_add(bytes.into());
    // Hashes that the image does not store are served as if they followed its end.
    let hashes = image.metadata.chunk_hash_region();
    let derived = image.metadata.derives_chunk_hashes() && offset >= hashes.start && end <= hashes.end;
    let stored = end <= image::format::SUPERBLOCK_BYTES as u64 || offset >= region.start && end <= region.end;
    let inside = derived || stored;
    if !inside || bytes == 0 || bytes as usize > wire::format::META_READ_BYTES_MAX {
        return Err(Failure::bad_request(format!("bytes {offset} to {end} are not a range of superblock or metadata")));
    }
    session.shared.metrics.metadata_bytes.add(bytes.into());
    if derived {
        session.answer(request, bytes as usize, move || demand::chunk_hashes(&image, offset, bytes));
    } else {
        session.answer_read(request, image, offset, bytes, move |bytes| Reply::MetaData { offset, bytes });
    }
    Ok(())
}

/// Sends superblock and metadata without the hashes to a client that takes them before the
/// answer to Open, as far as they are in memory: they are, since the image was opened. What is left
/// out the client asks for.
pub(super) fn send_start(session: &mut Session, handle: ImageHandle, image: &Published) {
    let region = image.metadata.metadata_region();
    // Without proofs the device needs the hashes of all blocks to start.
    let hashes = image.metadata.superblock().hash_region().filter(|_| session.wire.takes_proofs());
    let end = hashes.unwrap_or(image.metadata.chunk_hash_region()).start.min(region.end);
    if !session.wire.takes_start() || end.saturating_sub(region.start) > START_BYTES_TOTAL_MAX {
        return;
    }
    let superblock = 0..image::format::SUPERBLOCK_BYTES as u64;
    let metadata = (region.start..end).step_by(START_BYTES_MAX);
    let parts = metadata.map(|start| start..end.min(start + START_BYTES_MAX as u64));
    for part in std::iter::once(superblock).chain(parts) {
        let bytes = (part.end - part.start) as usize;
        let Some((room, read)) = session.workers.cached(image, part.start, bytes) else { return };
        session.replies.keep(room);
        let sent = if part.start == 0 { used(&read) } else { read };
        session.shared.metrics.metadata_bytes.add(sent.len() as u64);
        if session.wire.start(handle, part.start, sent).is_err() {
            return;
        }
    }
}

/// The superblock without the zeros that end it: most of its table of sections is unused.
fn used(superblock: &Bytes) -> Bytes {
    superblock.slice(..superblock.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1))
}

/// Sends the chunk hashes of pages that are about to be answered with, to a client that takes them
/// so. False if they are not there yet: the request is answered then.
pub(super) fn prove(
    session: &mut Session,
    request: RequestId,
    handle: ImageHandle,
    image: &Arc<Published>,
    pages: &[PageId],
) -> Result<bool, Failure> {
    if session.wire.takes_proofs() && !image.proves() {
        // That may take seconds: the device may rather ask for blocks.
        let busy = || Failure::new(ErrorCode::Busy, "the chunk hashes are not there yet; ask again");
        if image.is_deriving() {
            return Err(busy());
        }
        let image = Arc::clone(image);
        session.answer(request, 0, move || image.prepare_proofs().and_then(|()| Err(busy())));
        return Ok(false);
    }
    if let Some((pushes, mut link)) = session.pushes() {
        pushes.prove(&mut link, (handle, image), Proven::Pages(pages))?;
    }
    Ok(true)
}
