//! Superblock, metadata and chunk hashes of images.

use std::sync::Arc;

use units::{PageId, RequestId};
use wire::{ErrorCode, ImageHandle, Reply};

use super::Session;
use crate::demand;
use crate::error::Failure;
use crate::published::Published;

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
        let image = Arc::clone(image);
        // Seconds, perhaps: the device may rather ask for blocks.
        let prepare = move || {
            image.prepare_proofs()?;
            Err(Failure::new(ErrorCode::Busy, "the chunk hashes were not there yet; ask again"))
        };
        session.answer(request, 0, prepare);
        return Ok(false);
    }
    if let Some((pushes, mut link)) = session.pushes() {
        pushes.prove(&mut link, (handle, image), pages)?;
    }
    Ok(true)
}
