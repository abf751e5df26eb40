//! One zstd frame per unit, decoded in a single pass so that the output buffer is the window.

use std::sync::{Mutex, PoisonError};

use crate::{Codec, CodecError, Dictionary};
use zstd::zstd_safe::{self, DCtx};

/// First four bytes of a data frame; skippable frames start otherwise and are not accepted.
pub(crate) const FRAME_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Decoders kept for the next units, 160 KiB each. One that is made anew costs as much as decoding
/// a few KiB: its memory comes from the system page by page.
const CONTEXTS_MAX: usize = 2;

/// Decoders that are not in use.
static CONTEXTS: Mutex<Vec<DCtx<'static>>> = Mutex::new(Vec::new());

/// A decoder. What it decoded before does not show: each call starts a new frame.
fn context() -> Result<DCtx<'static>, CodecError> {
    let kept = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner).pop();
    kept.or_else(DCtx::try_create).ok_or_else(|| CodecError::library(Codec::Zstd, "out of memory"))
}

fn keep(context: DCtx<'static>) {
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if contexts.len() < CONTEXTS_MAX {
        contexts.push(context);
    }
}

pub(crate) fn reason(code: usize) -> &'static str {
    zstd_safe::get_error_name(code)
}

pub(crate) fn decode(
    dictionary: Option<&Dictionary>,
    stored: &[u8],
    raw_bytes: usize,
    out: &mut Vec<u8>,
) -> Result<(), CodecError> {
    let damaged = |code| CodecError::damaged(Codec::Zstd, reason(code));
    if !stored.starts_with(&FRAME_MAGIC) {
        return Err(CodecError::damaged(Codec::Zstd, "no zstd frame starts here"));
    }
    let end = zstd_safe::find_frame_compressed_size(stored).map_err(damaged)?;
    if end != stored.len() {
        return Err(CodecError::Trailing { codec: Codec::Zstd, end: end as u64, stored: stored.len() as u64 });
    }
    if let Ok(Some(announced)) = zstd_safe::get_frame_content_size(stored)
        && announced != raw_bytes as u64
    {
        return Err(CodecError::Length { codec: Codec::Zstd, expected: raw_bytes as u64, found: announced });
    }
    out.resize(raw_bytes, 0);
    let mut context = context()?;
    let found = match dictionary {
        None => context.decompress(out.as_mut_slice(), stored),
        Some(dictionary) => context.decompress_using_ddict(out.as_mut_slice(), stored, dictionary.prepared()),
    }
    .map_err(damaged);
    keep(context);
    let found = found?;
    if found != raw_bytes {
        return Err(CodecError::length(Codec::Zstd, raw_bytes, found));
    }
    Ok(())
}

/// The levels we offer; zstd's negative ones store more bytes than LZ4 and are no faster to read.
#[cfg(feature = "encode")]
pub(crate) fn clamped(level: i32) -> i32 {
    level.clamp(1, 22)
}

/// The size is known to the library before it starts, so it picks the parameters of that size, as
/// its command does. No checksum and no dictionary number: the block hash and the block table stand
/// for them. The content size stays, a byte more than none, since the reader holds it against the
/// table before it decodes.
#[cfg(feature = "encode")]
pub(crate) fn encode(
    level: i32,
    dictionary: Option<&crate::EncodeDictionary>,
    raw: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), CodecError> {
    use zstd_safe::CParameter;
    out.resize(zstd_safe::compress_bound(raw.len()), 0);
    let failed = |code| CodecError::library(Codec::Zstd, reason(code));
    let mut context = zstd_safe::CCtx::try_create().ok_or_else(|| CodecError::library(Codec::Zstd, "out of memory"))?;
    context.set_parameter(CParameter::CompressionLevel(clamped(level))).map_err(failed)?;
    context.set_parameter(CParameter::ChecksumFlag(false)).map_err(failed)?;
    context.set_parameter(CParameter::DictIdFlag(false)).map_err(failed)?;
    if let Some(dictionary) = dictionary {
        context.ref_cdict(dictionary.prepared()).map_err(failed)?;
    }
    let stored = context.compress2(out.as_mut_slice(), raw).map_err(failed)?;
    out.truncate(stored);
    Ok(())
}
