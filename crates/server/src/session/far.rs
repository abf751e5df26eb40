//! Demands of devices that are far from the server: their links carry no more bytes than are of
//! use.
//!
//! A program that follows a push gets no more of a block than the page that it touched, since the
//! push brings what else it needs. For the same reason its device is to read nothing ahead.

use std::sync::Arc;

use units::{BlockId, PAGE_BYTES, PageId, RequestId, SEGMENT_PAGES_MAX, Token};
use wire::{ErrorCode, ImageHandle, Reply};

use super::pushes::Pushes;
use super::{Session, metadata, near};
use crate::error::Failure;
use crate::proofs::Proven;
use crate::published::Published;

/// Bytes of a full segment of a push.
const SEGMENT_BYTES: usize = SEGMENT_PAGES_MAX * PAGE_BYTES;

/// Who wants a block.
#[derive(Clone, Copy)]
pub(super) enum By {
    /// The program of this token has touched a page of it.
    Program(Token),
    /// The client supposes that it will.
    Readahead(Token),
}

impl By {
    /// The program that touched a page.
    pub fn touched(self) -> Option<Token> {
        match self {
            By::Program(token) => Some(token),
            By::Readahead(_) => None,
        }
    }
}

/// Whether the device is far, and takes a page alone: its hashes come before it.
pub(super) fn takes_lone_pages(session: &Session, image: &Published) -> bool {
    let takes = session.wire.takes_lone_pages() && session.wire.takes_proofs() && !session.is_near();
    takes && image.metadata.proves_chunk_hashes() && image.proves()
}

/// Answers a device that takes lone pages. `dropped`: it was sent the page before. Then it lacks
/// others as well that no push brings, since it is thought to have them. Or it asked just before
/// the page came: its block is not sent for that if it is larger than a segment, as hot ones can
/// be.
pub(super) fn answer(
    session: &mut Session,
    request: RequestId,
    (handle, image): (ImageHandle, &Arc<Published>),
    (by, dropped): (By, bool),
    (page, block): (PageId, BlockId),
) -> Result<(), Failure> {
    let foresees = |pushes: &Pushes| match by {
        By::Program(token) => pushes.foresees(&session.wire, image, token, Some(page)),
        By::Readahead(token) => pushes.foresees(&session.wire, image, token, None),
    };
    let is_large = image.metadata.block(block).is_some_and(|it| it.raw_bytes as usize > SEGMENT_BYTES);
    let has_pushed = |pushes: &Pushes| by.touched().is_some_and(|token| pushes.has_pushed(image, token, page));
    let dropped = dropped && !(is_large && session.pushes.as_ref().is_some_and(has_pushed));
    if dropped || !session.pushes.as_ref().is_some_and(foresees) {
        return answer_block(session, request, (handle, image), (block, false));
    }
    if by.touched().is_none() {
        // Refused only if the request was cancelled or the connection is closed.
        let _ = session.wire.reply_error(request, ErrorCode::Busy, "what the program needs is pushed");
    } else if metadata::prove(session, request, handle, image, &[page])? {
        near::answer_pages(session, request, image, &[page]);
        session.shared.metrics.pages_demanded.one();
    }
    Ok(())
}

/// Answers with a block as it is stored. `verified`: only if its hash is right, since what the
/// device got before was perhaps not.
pub(super) fn answer_block(
    session: &mut Session,
    request: RequestId,
    (handle, image): (ImageHandle, &Arc<Published>),
    (block, verified): (BlockId, bool),
) -> Result<(), Failure> {
    let entry = image.metadata.block(block).ok_or_else(|| image.no_block(block))?;
    if let Some((pushes, mut link)) = session.pushes() {
        pushes.prove(&mut link, (handle, image), Proven::Stored(block))?;
    }
    let reply = move |bytes| Reply::Block { block, bytes };
    if verified {
        let image = image.clone();
        let read = move || image.verified_block(block).map(reply);
        session.answer(request, entry.stored_bytes as usize, read);
    } else {
        session.answer_read(request, image.clone(), entry.file_offset, entry.stored_bytes, reply);
    }
    session.count_block(entry.stored_bytes);
    Ok(())
}
