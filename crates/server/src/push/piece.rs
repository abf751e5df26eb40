//! Where the bytes of a piece of pages come from.

use std::sync::Arc;

use bytes::Bytes;
use codec::StreamEncoder;
use units::{PAGE_BYTES, PageId};
use wire::ErrorCode;

use super::choose::LIVE_LEVEL;
use super::sequence::LiveCoding;
use crate::bundle::{Bundle, independent, stored};
use crate::error::Failure;
use crate::published::Published;
use crate::speed::PushCodec;

/// LZ4 level of pieces that are compressed live: the one that is not HC.
const FAST_LEVEL: i32 = 0;

/// A piece to be made.
pub(super) struct Work {
    pub pages: Vec<PageId>,
    pub coding: Coding,
}

/// Where the bytes of a piece come from.
pub(super) enum Coding {
    /// It was compressed before.
    Bundle {
        bundle: Arc<Bundle>,
        piece: u32,
        codec: PushCodec,
    },
    Live(LiveCoding),
}

/// The bytes of a piece: the pages' valid bytes in order, compressed unless they are stored; with
/// the encoder of the next one.
pub(super) fn compress(
    image: &Published,
    pages: &[PageId],
    coding: LiveCoding,
) -> Result<(Bytes, Option<Box<StreamEncoder>>), Failure> {
    let mut raw = Vec::with_capacity(pages.len() * PAGE_BYTES);
    for page in pages {
        image.page(*page, &mut raw)?;
    }
    let failed = |error: codec::CodecError| Failure::new(ErrorCode::Internal, error.to_string());
    let mut encoder = match coding {
        LiveCoding::Stored => return Ok((Bytes::from(raw), None)),
        LiveCoding::Independent(PushCodec::Stored) => return Ok((stored(&raw).into(), None)),
        LiveCoding::Independent(_) => return Ok((independent(&raw, FAST_LEVEL)?.into(), None)),
        LiveCoding::First { window_log } => {
            Box::new(StreamEncoder::new(LIVE_LEVEL, window_log.into()).map_err(failed)?)
        }
        LiveCoding::Next(encoder) => encoder,
    };
    let mut compressed = Vec::new();
    encoder.piece(&raw, &mut compressed).map_err(failed)?;
    Ok((Bytes::from(compressed), Some(encoder)))
}
