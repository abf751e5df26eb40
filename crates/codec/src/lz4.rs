//! LZ4 in its block format: no header, no length, no checksum; all of these stand in the block table.

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

#[cfg(feature = "encode")]
pub(crate) fn encode(raw: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
    out.resize(lz4_flex::block::get_maximum_output_size(raw.len()), 0);
    let stored = lz4_flex::block::compress_into(raw, out).map_err(|e| CodecError::library(Codec::Lz4, e))?;
    out.truncate(stored);
    Ok(())
}
