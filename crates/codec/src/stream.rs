//! A continuing zstd stream, flushed at piece borders: one context over all segments of a push
//! stream.
//!
//! Each piece is a run of whole zstd blocks, so piece k can be decoded as soon as pieces 0..=k were
//! fed, while its matches may point back into any earlier piece inside the window. The frame is
//! never ended: the message that carries the pieces says how many there are. The decoder caps the
//! window, which is all it ever allocates.
//!
//! Either side may restart: the next piece then begins a frame of its own and needs none of those
//! before it.

use crate::zstandard::{FRAME_MAGIC, reason};
use crate::{Codec, CodecError};
use zstd::zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

/// The smallest window zstd knows.
const WINDOW_LOG_MIN: u32 = 10;

/// Largest window we ever use: 128 MiB is zstd's own default limit for decoders.
const WINDOW_LOG_MAX: u32 = 27;

fn check_window(found: u32) -> Result<(), CodecError> {
    if !(WINDOW_LOG_MIN..=WINDOW_LOG_MAX).contains(&found) {
        return Err(CodecError::Window { found, min: WINDOW_LOG_MIN, max: WINDOW_LOG_MAX });
    }
    Ok(())
}

/// Decodes the pieces of one stream, in order.
pub struct StreamDecoder {
    context: DCtx<'static>,
    failed: bool,
    /// The next byte begins a frame.
    begins: bool,
}

impl StreamDecoder {
    /// A decoder that accepts windows of up to 2^`window_log_max` bytes (10..=27) and allocates no
    /// more than that plus about 300 KiB.
    ///
    /// # Errors
    /// The window is out of range, or there is no memory.
    pub fn new(window_log_max: u32) -> Result<StreamDecoder, CodecError> {
        check_window(window_log_max)?;
        let failed = |code| CodecError::library(Codec::Zstd, reason(code));
        let mut context = DCtx::try_create().ok_or_else(|| CodecError::library(Codec::Zstd, "out of memory"))?;
        context.init().map_err(failed)?;
        context.set_parameter(DParameter::WindowLogMax(window_log_max)).map_err(failed)?;
        Ok(StreamDecoder { context, failed: false, begins: true })
    }

    /// Forgets the pieces so far, and any error: the next piece begins a stream. The memory of the
    /// window stays.
    ///
    /// # Errors
    /// The library fails.
    pub fn restart(&mut self) -> Result<(), CodecError> {
        let failed = |code| CodecError::library(Codec::Zstd, reason(code));
        self.context.reset(ResetDirective::SessionOnly).map_err(failed)?;
        (self.failed, self.begins) = (false, true);
        Ok(())
    }

    /// Decodes the next piece into `out`, which holds exactly `raw_bytes` bytes afterwards, and
    /// nothing of what it held before.
    ///
    /// # Errors
    /// The piece is damaged, shorter or longer than announced, ends the stream, or needs a larger
    /// window. The stream cannot be continued after an error.
    pub fn piece(&mut self, stored: &[u8], raw_bytes: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
        if self.failed {
            out.clear();
            return Err(CodecError::StreamFailed);
        }
        let decoded = self.decode(stored, raw_bytes, out);
        if decoded.is_err() {
            self.failed = true;
            out.clear();
        }
        decoded
    }

    fn decode(&mut self, stored: &[u8], raw_bytes: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
        // The library may know formats that nobody writes any more.
        if self.begins && !stored.is_empty() && !stored.starts_with(&FRAME_MAGIC) {
            return Err(CodecError::damaged(Codec::Zstd, "no zstd frame starts here"));
        }
        self.begins &= stored.is_empty();
        // One byte more than announced, so that a piece that is too long shows itself. What is
        // there is written over.
        out.resize(raw_bytes + 1, 0);
        let mut input = InBuffer::around(stored);
        let mut found = 0;
        loop {
            let used = input.pos();
            let mut output = OutBuffer::around(&mut out[found..]);
            let hint = self
                .context
                .decompress_stream(&mut output, &mut input)
                .map_err(|code| CodecError::damaged(Codec::Zstd, reason(code)))?;
            let written = output.pos();
            found += written;
            if found > raw_bytes {
                return Err(CodecError::length(Codec::Zstd, raw_bytes, found));
            }
            if hint == 0 && input.pos() > 0 {
                return Err(CodecError::damaged(Codec::Zstd, "the stream ends inside a piece"));
            }
            if written == 0 && input.pos() == used {
                break;
            }
        }
        if found != raw_bytes {
            return Err(CodecError::length(Codec::Zstd, raw_bytes, found));
        }
        if input.pos() != stored.len() {
            let (end, stored) = (input.pos() as u64, stored.len() as u64);
            return Err(CodecError::Trailing { codec: Codec::Zstd, end, stored });
        }
        out.truncate(raw_bytes);
        Ok(())
    }
}

impl std::fmt::Debug for StreamDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamDecoder").field("failed", &self.failed).finish_non_exhaustive()
    }
}

/// Compresses the pieces of one stream, in order.
#[cfg(feature = "encode")]
pub struct StreamEncoder {
    context: zstd::zstd_safe::CCtx<'static>,
}

#[cfg(feature = "encode")]
impl StreamEncoder {
    /// An encoder at `level` (zstd -7..=22; below 1 it hardly looks for matches, and 0 is 3) whose
    /// decoder needs a window of 2^`window_log` bytes (10..=27).
    ///
    /// # Errors
    /// The window is out of range, or there is no memory.
    pub fn new(level: i32, window_log: u32) -> Result<StreamEncoder, CodecError> {
        use zstd::zstd_safe::{CCtx, CParameter};
        check_window(window_log)?;
        let failed = |code| CodecError::library(Codec::Zstd, reason(code));
        let mut context = CCtx::try_create().ok_or_else(|| CodecError::library(Codec::Zstd, "out of memory"))?;
        context.set_parameter(CParameter::CompressionLevel(level.clamp(-7, 22))).map_err(failed)?;
        context.set_parameter(CParameter::WindowLog(window_log)).map_err(failed)?;
        context.set_parameter(CParameter::ChecksumFlag(false)).map_err(failed)?;
        Ok(StreamEncoder { context })
    }

    /// Forgets the pieces so far: the next piece begins a stream.
    ///
    /// # Errors
    /// The library fails.
    pub fn restart(&mut self) -> Result<(), CodecError> {
        let failed = |code| CodecError::library(Codec::Zstd, reason(code));
        self.context.reset(ResetDirective::SessionOnly).map_err(failed)?;
        Ok(())
    }

    /// Compresses the next piece into `out`, which is cleared first, and flushes: after it the
    /// other side can decode everything up to here.
    ///
    /// # Errors
    /// The library fails; the stream cannot be continued then.
    pub fn piece(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
        use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective;
        out.clear();
        // Enough for most pieces in one go; the loop grows it otherwise.
        out.resize(zstd::zstd_safe::compress_bound(raw.len()) + 64, 0);
        let mut input = InBuffer::around(raw);
        let mut found = 0;
        loop {
            let mut output = OutBuffer::around(&mut out[found..]);
            let left = self
                .context
                .compress_stream2(&mut output, &mut input, ZSTD_EndDirective::ZSTD_e_flush)
                .map_err(|code| CodecError::library(Codec::Zstd, reason(code)))?;
            found += output.pos();
            if left == 0 && input.pos() == raw.len() {
                out.truncate(found);
                return Ok(());
            }
            if found == out.len() {
                out.resize(found + left.max(1024), 0);
            }
        }
    }
}

#[cfg(feature = "encode")]
impl std::fmt::Debug for StreamEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamEncoder").finish_non_exhaustive()
    }
}
