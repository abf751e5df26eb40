//! Where the bytes of a piece of pages come from.

use std::sync::Arc;

use bytes::Bytes;
use codec::StreamEncoder;
use units::{PAGE_BYTES, PageId};
use wire::ErrorCode;

use super::choose::LIVE_LEVEL;
use super::sequence::LiveCoding;
use crate::bundle::{Bundle, independent, stored};
use crate::decoder::Decoder;
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
///
/// Over a link so fast that nothing is compressed, decoding blocks is what takes time, and memory
/// holds less of them than a large program needs: they are kept decoded for the next start.
pub(super) fn compress(
    image: &Arc<Published>,
    pages: &[PageId],
    coding: LiveCoding,
    decoder: &Decoder,
) -> Result<(Bytes, Option<Box<StreamEncoder>>), Failure> {
    let mut raw = Vec::with_capacity(pages.len() * PAGE_BYTES);
    for page in pages {
        image.page(*page, &mut raw)?;
    }
    let failed = |error: codec::CodecError| Failure::new(ErrorCode::Internal, error.to_string());
    let mut encoder = match coding {
        LiveCoding::Stored => return Ok((Bytes::from(raw), None)),
        LiveCoding::Independent(PushCodec::Stored) => {
            image.blocks_of(pages).into_iter().for_each(|block| decoder.order(image, block));
            return Ok((stored(&raw).into(), None));
        }
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use store::Memory;

    use super::*;
    use crate::bundle::tests::published_with;

    #[test]
    fn blocks_of_pages_that_nobody_compresses_are_kept_decoded() {
        // There is no memory for them.
        let image = Arc::new(published_with(64, 0).0);
        let decoder = Decoder::start(Arc::new(Memory::new())).unwrap();
        let file = image.metadata.resolve(b"/file").unwrap();
        let [first, last] = [0, 63].map(|index| vec![PageId::new(file, index)]);
        let [lz4, decoded] = [&first, &last].map(|pages| image.blocks_of(pages)[0]);
        assert_ne!(lz4, decoded);
        compress(&image, &first, LiveCoding::Independent(PushCodec::Lz4), &decoder).unwrap();
        compress(&image, &last, LiveCoding::Independent(PushCodec::Stored), &decoder).unwrap();
        let started = Instant::now();
        while image.decoded_in_memory(decoded).is_none() {
            assert!(started.elapsed() < Duration::from_secs(60), "nobody decodes it");
            std::thread::yield_now();
        }
        assert!(image.decoded_in_memory(lz4).is_none());
    }
}
