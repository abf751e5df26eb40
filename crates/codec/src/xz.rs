//! LZMA2 in the .xz container, which may carry branch filters for machine code. The container costs
//! about 60 bytes; its own integrity check is left out because the block hash covers it.

use crate::{Codec, CodecError};
use liblzma::stream::{Action, Status, Stream};

/// Decoder memory beyond the dictionary: liblzma needs about 35 KiB of probabilities and filter
/// state, and rounds dictionaries of small blocks up to 4 KiB; twice that leaves room for the next
/// version of the library.
const STATE_BYTES: u64 = 96 << 10;

/// The encoder picks a dictionary of at most the raw size, rounded up to this (the smallest liblzma
/// accepts).
const DICTIONARY_BYTES_MIN: usize = 4096;

/// Largest dictionary liblzma's encoder accepts is 1.5 GiB; blocks are at most a few MiB, sections
/// below 1 GiB.
#[cfg(feature = "encode")]
const DICTIONARY_BYTES_MAX: usize = 1 << 30;

/// The header can only say dictionaries of 2^n and 3 * 2^n bytes, so the size is rounded up by at
/// most half.
fn decoder_memory_max(raw_bytes: usize) -> u64 {
    let dictionary = raw_bytes.max(DICTIONARY_BYTES_MIN) as u64;
    dictionary + dictionary / 2 + STATE_BYTES
}

pub(crate) fn decode(stored: &[u8], raw_bytes: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let mut stream =
        Stream::new_stream_decoder(decoder_memory_max(raw_bytes), 0).map_err(|e| CodecError::library(Codec::Xz, e))?;
    // One byte more than announced, so that data that is too long shows itself.
    out.resize(raw_bytes + 1, 0);
    let status = run(&mut stream, stored, out)?;
    let (used, found) = (stream.total_in() as usize, stream.total_out() as usize);
    if found != raw_bytes {
        return Err(CodecError::length(Codec::Xz, raw_bytes, found));
    }
    if status != Status::StreamEnd {
        return Err(CodecError::damaged(Codec::Xz, "the stream has no end"));
    }
    if used != stored.len() {
        return Err(CodecError::Trailing { codec: Codec::Xz, end: used as u64, stored: stored.len() as u64 });
    }
    out.truncate(raw_bytes);
    Ok(())
}

/// Feeds everything until the stream ends, stalls or fills `out`.
fn run(stream: &mut Stream, stored: &[u8], out: &mut [u8]) -> Result<Status, CodecError> {
    loop {
        let (used, found) = (stream.total_in() as usize, stream.total_out() as usize);
        let status = match stream.process(&stored[used..], &mut out[found..], Action::Finish) {
            Ok(status) => status,
            // No progress possible: input or output ran out; the caller's length check says which.
            Err(liblzma::stream::Error::MemLimit) => {
                return Err(CodecError::damaged(Codec::Xz, "the dictionary is larger than the data"));
            }
            Err(e) => return Err(CodecError::damaged(Codec::Xz, e)),
        };
        let progress = stream.total_in() as usize != used || stream.total_out() as usize != found;
        if status != Status::Ok || !progress || stream.total_out() as usize == out.len() {
            return Ok(status);
        }
    }
}

#[cfg(feature = "encode")]
pub(crate) fn encode(level: i32, raw: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
    use liblzma::stream::{Check, Filters, LzmaOptions};
    /// The library's flag for "extreme" presets.
    const EXTREME: u32 = 1 << 31;
    let level = level.clamp(0, 19) as u32;
    let preset = if level >= 10 { (level - 10) | EXTREME } else { level };
    let failed = |e: liblzma::stream::Error| CodecError::library(Codec::Xz, e);
    let mut options = LzmaOptions::new_preset(preset).map_err(failed)?;
    options.dict_size(raw.len().clamp(DICTIONARY_BYTES_MIN, DICTIONARY_BYTES_MAX) as u32);
    let mut filters = Filters::new();
    filters.lzma2(&options);
    let mut stream = Stream::new_stream_encoder(&filters, Check::None).map_err(failed)?;
    // Incompressible data grows by 3 bytes per 64 KiB; the container adds less than 128 bytes.
    out.resize(raw.len() + raw.len() / 1024 + 256, 0);
    let status = run(&mut stream, raw, out)?;
    if status != Status::StreamEnd {
        return Err(CodecError::library(Codec::Xz, "the encoder did not finish"));
    }
    out.truncate(stream.total_out() as usize);
    Ok(())
}
