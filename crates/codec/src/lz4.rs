//! LZ4 in its block format: no header, no length, no checksum; all of these stand in the block
//! table.
//!
//! Decoding and level 0 are lz4_flex, in Rust. Levels 1..=12 are LZ4-HC of the C library, which a
//! device never links: the format is the same, only the search for matches is longer.

use crate::{Codec, CodecError};

pub(crate) fn decode(stored: &[u8], raw_bytes: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
    out.resize(raw_bytes, 0);
    let found = lz4_flex::block::decompress_into(stored, out).map_err(|e| match e {
        lz4_flex::block::DecompressError::OutputTooSmall { expected, .. } => {
            CodecError::length(Codec::Lz4, raw_bytes, expected.max(raw_bytes + 1))
        }
        other => CodecError::damaged(Codec::Lz4, other),
    })?;
    if found != raw_bytes {
        return Err(CodecError::length(Codec::Lz4, raw_bytes, found));
    }
    Ok(())
}

/// Returns the size of the result, if there is one.
pub(crate) fn encode_fast(raw: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    out.resize(lz4_flex::block::get_maximum_output_size(raw.len()), 0);
    let bytes = lz4_flex::block::compress_into(raw, out).ok()?;
    out.truncate(bytes);
    Some(bytes)
}

#[cfg(feature = "encode")]
pub(crate) fn encode(level: i32, raw: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
    let failed = |e: &dyn std::fmt::Display| CodecError::library(Codec::Lz4, e);
    // Nothing at all goes the Rust way at every level: an empty slice points to no memory, and the
    // C library computes with that pointer and reads there.
    let stored = if level <= 0 || raw.is_empty() {
        encode_fast(raw, out).ok_or_else(|| failed(&"no room for the result"))?
    } else {
        use lz4::block::{CompressionMode, compress_bound, compress_to_buffer};
        out.resize(compress_bound(raw.len()).map_err(|e| failed(&e))?, 0);
        let mode = CompressionMode::HIGHCOMPRESSION(level.min(HC_LEVEL_MAX));
        compress_to_buffer(raw, Some(mode), false, out).map_err(|e| failed(&e))?
    };
    out.truncate(stored);
    Ok(())
}

/// The library's own limit.
#[cfg(feature = "encode")]
const HC_LEVEL_MAX: i32 = 12;
