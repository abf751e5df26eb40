//! Dictionaries for zstd: what many small blocks have in common, kept once beside them.
//!
//! A block of 64 KiB starts with nothing to refer to. A dictionary trained on samples of its group
//! gives it up to some 100 KiB of likely matches and ready-made entropy tables (RFC 8878, section
//! 5). Both sides prepare it once; the prepared form is shared by reference, or cloned for the
//! price of a counter.
//!
//! Frames carry no dictionary number: the block table says which dictionary a block needs, and the
//! hash of the block detects a wrong one.

use crate::{Codec, CodecError};
use std::sync::Arc;
use zstd::zstd_safe::DDict;

/// Largest dictionary accepted, in bytes; trained ones are about a tenth of this.
pub const DICTIONARY_BYTES_MAX: usize = 1 << 20;

/// The library takes anything shorter for no dictionary at all.
const DICTIONARY_BYTES_MIN: usize = 8;

fn check_size(bytes: &[u8]) -> Result<(), CodecError> {
    let (min, max) = (DICTIONARY_BYTES_MIN, DICTIONARY_BYTES_MAX);
    if !(min..=max).contains(&bytes.len()) {
        let reason = format!("it has {} bytes, accepted are {min} to {max}", bytes.len());
        return Err(CodecError::Dictionary { reason });
    }
    Ok(())
}

fn refused() -> CodecError {
    CodecError::Dictionary { reason: "its entropy tables are damaged, or there is no memory".into() }
}

/// A dictionary prepared for decoding. Clones share it.
#[derive(Clone)]
pub struct Dictionary {
    prepared: Arc<DDict<'static>>,
}

impl Dictionary {
    /// Prepares `bytes` (8 bytes to [`DICTIONARY_BYTES_MAX`]), which are copied. Bytes that do not
    /// begin as trained dictionaries do serve as plain content to refer to.
    ///
    /// # Errors
    /// The size is out of range, the tables of a trained dictionary are damaged, or there is no
    /// memory.
    pub fn new(bytes: &[u8]) -> Result<Dictionary, CodecError> {
        check_size(bytes)?;
        let prepared = DDict::try_create(bytes).ok_or_else(refused)?;
        Ok(Dictionary { prepared: Arc::new(prepared) })
    }

    /// Memory it holds, in bytes: its own size plus about 27 KiB of tables.
    pub fn memory_bytes(&self) -> usize {
        self.prepared.sizeof()
    }

    pub(crate) fn prepared(&self) -> &DDict<'static> {
        &self.prepared
    }
}

impl std::fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dictionary").field("memory_bytes", &self.memory_bytes()).finish_non_exhaustive()
    }
}

/// The error of a caller that names a dictionary for a codec without any.
pub(crate) fn only_zstd(codec: Codec) -> CodecError {
    CodecError::Dictionary { reason: format!("{codec} has no dictionaries, only zstd does") }
}

#[cfg(feature = "encode")]
pub use encoding::{EncodeDictionary, train};

#[cfg(feature = "encode")]
mod encoding {
    use super::*;
    use crate::zstandard::{self, reason};
    use zstd::zstd_safe::{self, CDict};

    /// The trainer cuts samples into a training and a testing part and refuses fewer than this.
    const SAMPLES_MIN: usize = 8;
    /// What the trainer accepts as a dictionary, in bytes.
    const TRAINED_BYTES_MIN: usize = 256;
    /// Samples are looked at in strings of this many bytes.
    const STRING_BYTES: usize = 8;

    /// A dictionary prepared for encoding at one level. Clones share it.
    #[derive(Clone)]
    pub struct EncodeDictionary {
        prepared: Arc<CDict<'static>>,
    }

    impl EncodeDictionary {
        /// Prepares `bytes` (see [`Dictionary::new`]) for zstd at `level` (1..=22, clamped).
        ///
        /// # Errors
        /// The size is out of range, the tables of a trained dictionary are damaged, or there is no
        /// memory.
        pub fn new(level: i32, bytes: &[u8]) -> Result<EncodeDictionary, CodecError> {
            check_size(bytes)?;
            let prepared = CDict::try_create(bytes, zstandard::clamped(level)).ok_or_else(refused)?;
            Ok(EncodeDictionary { prepared: Arc::new(prepared) })
        }

        /// Memory it holds, in bytes: its own size plus the match tables of the level, some MiB at
        /// high levels.
        pub fn memory_bytes(&self) -> usize {
            self.prepared.sizeof()
        }

        pub(crate) fn prepared(&self) -> &CDict<'static> {
            &self.prepared
        }
    }

    impl std::fmt::Debug for EncodeDictionary {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("EncodeDictionary").field("memory_bytes", &self.memory_bytes()).finish_non_exhaustive()
        }
    }

    /// Trains a dictionary of at most `bytes_max` bytes on `samples`, best blocks or chunks as they
    /// will be stored. `None` when they say too little: fewer than eight that are not empty, hardly
    /// any bytes, nothing repeated.
    ///
    /// Deterministic: the same samples in the same order give the same bytes, on one thread. Holds
    /// a copy of the samples while it runs; a hundred times `bytes_max` of them is enough, more
    /// cost time and win little.
    ///
    /// # Errors
    /// The library fails, which in practice means out of memory.
    pub fn train(samples: &[&[u8]], bytes_max: usize) -> Result<Option<Vec<u8>>, CodecError> {
        let bytes_max = bytes_max.min(DICTIONARY_BYTES_MAX);
        let sizes: Vec<usize> =
            samples.iter().map(|sample| sample.len()).filter(|&bytes| bytes >= STRING_BYTES).collect();
        let total: usize = sizes.iter().sum();
        // A dictionary as large as what it was trained on has learnt nothing.
        let bytes_max = bytes_max.min(total / 2);
        if sizes.len() < SAMPLES_MIN || bytes_max < TRAINED_BYTES_MIN {
            return Ok(None);
        }
        let mut joined = Vec::with_capacity(total);
        for sample in samples.iter().filter(|sample| sample.len() >= STRING_BYTES) {
            joined.extend_from_slice(sample);
        }
        let mut dictionary = vec![0; bytes_max];
        match zstd_safe::train_from_buffer(dictionary.as_mut_slice(), &joined, &sizes) {
            Ok(bytes) => {
                dictionary.truncate(bytes);
                Ok(Some(dictionary))
            }
            Err(code) if too_little(code) => Ok(None),
            Err(code) => Err(CodecError::library(Codec::Zstd, reason(code))),
        }
    }

    /// Whether the trainer says that samples do not suffice. Codes are negative numbers of the
    /// library's list.
    fn too_little(code: usize) -> bool {
        use zstd_safe::zstd_sys::ZSTD_ErrorCode;
        let number = code.wrapping_neg();
        number == ZSTD_ErrorCode::ZSTD_error_srcSize_wrong as usize
            || number == ZSTD_ErrorCode::ZSTD_error_dictionaryCreation_failed as usize
    }
}
