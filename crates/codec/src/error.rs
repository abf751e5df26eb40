//! Errors of compressed bytes.

use crate::Codec;

/// Why bytes could not be decoded (or, with the feature `encode`, encoded).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The data decodes to fewer or more bytes than announced. When there are more, `found` is a
    /// lower bound.
    #[error("{codec} data decodes to {found} bytes, expected {expected}")]
    Length {
        /// Codec of the data.
        codec: Codec,
        /// Bytes announced.
        expected: u64,
        /// Bytes that came out.
        found: u64,
    },
    /// There are bytes after the end of the compressed data.
    #[error("{codec} data ends at byte {end} of {stored}")]
    Trailing {
        /// Codec of the data.
        codec: Codec,
        /// Where the compressed data ends.
        end: u64,
        /// Bytes given.
        stored: u64,
    },
    /// The bytes are not valid for the codec, or ask for more memory than allowed.
    #[error("{codec} data is damaged: {reason}")]
    Damaged {
        /// Codec of the data.
        codec: Codec,
        /// What the library said.
        reason: String,
    },
    /// A stream decoder was used after it had failed; its window is no longer known.
    #[error("the stream failed earlier and cannot be continued")]
    StreamFailed,
    /// A window size outside what the library supports.
    #[error("window of 2^{found} bytes is outside 2^{min}..=2^{max}")]
    Window {
        /// Base-2 logarithm asked for.
        found: u32,
        /// Smallest supported.
        min: u32,
        /// Largest supported.
        max: u32,
    },
    /// A dictionary is not usable, or was given for a codec that has none.
    #[error("the dictionary cannot be used: {reason}")]
    Dictionary {
        /// What is wrong with it.
        reason: String,
    },
    /// An expansion of deflate streams is damaged, or was made to take long.
    #[error("deflate block is damaged: {reason}")]
    Deflate {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The library could not set up or run, which in practice means out of memory.
    #[error("{codec} library failed: {reason}")]
    Library {
        /// Codec in use.
        codec: Codec,
        /// What the library said.
        reason: String,
    },
}

impl CodecError {
    pub(crate) fn damaged(codec: Codec, reason: impl ToString) -> CodecError {
        CodecError::Damaged { codec, reason: reason.to_string() }
    }

    pub(crate) fn library(codec: Codec, reason: impl ToString) -> CodecError {
        CodecError::Library { codec, reason: reason.to_string() }
    }

    pub(crate) fn length(codec: Codec, expected: usize, found: usize) -> CodecError {
        CodecError::Length { codec, expected: expected as u64, found: found as u64 }
    }
}
