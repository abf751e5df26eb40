//! One zstd frame per unit, decoded in a single pass so that the output buffer is the window.

use crate::{Codec, CodecError};
use zstd::zstd_safe::{self, DCtx};

/// First four bytes of a data frame; skippable frames start otherwise and are not accepted.
const FRAME_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

pub(crate) fn reason(code: usize) -> &'static str {
    zstd_safe::get_error_name(code)
}

pub(crate) fn decode(stored: &[u8], raw_bytes: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
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
    let mut context = DCtx::try_create().ok_or_else(|| CodecError::library(Codec::Zstd, "out of memory"))?;
    let found = context.decompress(out.as_mut_slice(), stored).map_err(damaged)?;
    if found != raw_bytes {
        return Err(CodecError::length(Codec::Zstd, raw_bytes, found));
    }
    Ok(())
}

#[cfg(feature = "encode")]
pub(crate) fn encode(level: i32, raw: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
    out.resize(zstd_safe::compress_bound(raw.len()), 0);
    let failed = |code| CodecError::library(Codec::Zstd, reason(code));
    let mut context = zstd_safe::CCtx::try_create().ok_or_else(|| CodecError::library(Codec::Zstd, "out of memory"))?;
    let stored = context.compress(out.as_mut_slice(), raw, level.clamp(1, 22)).map_err(failed)?;
    out.truncate(stored);
    Ok(())
}
