//! The codecs a block, a section or a push stream may be stored in, behind one enum.
//!
//! The reader knows from a hashed table how many bytes must come out. So decoding is a function of
//! (codec, stored bytes, expected size) that either yields exactly that many bytes or fails.
//! Nothing in the stored bytes can make it allocate more: the caller sizes the output, and
//! dictionaries and windows are capped. Checksums inside the formats are switched off, since a
//! BLAKE3 hash covers every stored unit already.
//!
//! Units: bytes. Compression is behind the feature `encode`; a device that only mounts does not
//! need it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod deflate;
mod dictionary;
mod error;
pub mod filter;
mod lz4;
mod stream;
mod xz;
mod zstandard;

#[cfg(test)]
mod tests;

pub use dictionary::{DICTIONARY_BYTES_MAX, Dictionary};
#[cfg(feature = "encode")]
pub use dictionary::{EncodeDictionary, train};
pub use error::CodecError;
pub use filter::Filter;
pub use stream::StreamDecoder;
#[cfg(feature = "encode")]
pub use stream::StreamEncoder;

/// How a stored unit is compressed. The discriminant is what stands on disk and on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Codec {
    /// The bytes as they are.
    Stored = 0,
    /// One zstd frame (RFC 8878).
    Zstd = 1,
    /// One LZ4 block, without a frame.
    Lz4 = 2,
    /// One .xz stream holding LZMA2, without an integrity check of its own.
    Xz = 3,
}

impl Codec {
    /// Every codec, in the order of their numbers.
    pub const ALL: [Codec; 4] = [Codec::Stored, Codec::Zstd, Codec::Lz4, Codec::Xz];

    /// The codec with this number on disk, or `None` if this version knows none.
    pub const fn from_u8(number: u8) -> Option<Codec> {
        match number {
            0 => Some(Codec::Stored),
            1 => Some(Codec::Zstd),
            2 => Some(Codec::Lz4),
            3 => Some(Codec::Xz),
            _ => None,
        }
    }

    /// The number on disk.
    pub const fn to_u8(self) -> u8 {
        self as u8
    }

    /// The name users type and dumps print.
    pub const fn name(self) -> &'static str {
        match self {
            Codec::Stored => "stored",
            Codec::Zstd => "zstd",
            Codec::Lz4 => "lz4",
            Codec::Xz => "xz",
        }
    }

    /// The codec of this name, as printed by [`Codec::name`].
    pub fn from_name(name: &str) -> Option<Codec> {
        Codec::ALL.into_iter().find(|codec| codec.name() == name)
    }

    /// The level used when the user names none: the point where more time stops buying much size.
    /// For LZ4 that is its last, since it is chosen for how fast it reads, which the level does not
    /// change.
    pub const fn default_level(self) -> i32 {
        match self {
            Codec::Stored => 0,
            Codec::Lz4 => 12,
            Codec::Zstd => 9,
            Codec::Xz => 6,
        }
    }
}

impl std::fmt::Display for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Decodes `stored` into `out` without a dictionary; see [`decode_with`].
///
/// # Errors
/// Those of [`decode_with`].
pub fn decode(codec: Codec, stored: &[u8], raw_bytes: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
    decode_with(codec, None, stored, raw_bytes, out)
}

/// Decodes `stored` into `out`, which holds exactly `raw_bytes` bytes afterwards, and nothing of
/// what it held before.
///
/// `dictionary` is the one the data was compressed with, and only zstd knows any. Without it, or
/// with another one, zstd data either fails to decode or yields wrong bytes, which the hash of the
/// unit notices.
///
/// Allocates at most `raw_bytes` plus a constant (about 160 KiB for zstd, and for xz a dictionary
/// of at most 1.5 times `raw_bytes` with 96 KiB of state). The caller bounds `raw_bytes`.
///
/// # Errors
/// Fewer or more bytes than `raw_bytes`, bytes after the end of the compressed data, data that is
/// not of this codec, or a dictionary with a codec other than zstd. `out` is empty after an error.
pub fn decode_with(
    codec: Codec,
    dictionary: Option<&Dictionary>,
    stored: &[u8],
    raw_bytes: usize,
    out: &mut Vec<u8>,
) -> Result<(), CodecError> {
    // LZ4 writes over what is there: to fill it with zeros first costs a tenth of decoding.
    if codec != Codec::Lz4 || dictionary.is_some() {
        out.clear();
    }
    if dictionary.is_some() && codec != Codec::Zstd {
        return Err(dictionary::only_zstd(codec));
    }
    let decoded = match codec {
        Codec::Stored => copy(stored, raw_bytes, out),
        Codec::Zstd => zstandard::decode(dictionary, stored, raw_bytes, out),
        Codec::Lz4 => lz4::decode(stored, raw_bytes, out),
        Codec::Xz => xz::decode(stored, raw_bytes, out),
    };
    if decoded.is_err() {
        out.clear();
    }
    debug_assert!(decoded.is_err() || out.len() == raw_bytes);
    decoded
}

/// Compresses `raw` into `out` with LZ4, quickly, as a device can. False, with `out` of no use, if
/// that does not make it smaller.
pub fn encode_fast(raw: &[u8], out: &mut Vec<u8>) -> bool {
    lz4::encode_fast(raw, out).is_some_and(|bytes| bytes < raw.len())
}

/// Compresses `raw` into `out` without a dictionary; see [`encode_with`].
///
/// # Errors
/// Those of [`encode_with`].
#[cfg(feature = "encode")]
pub fn encode(codec: Codec, level: i32, raw: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
    encode_with(codec, level, None, raw, out)
}

/// Compresses `raw` into `out`, which is cleared first. The result may be larger than `raw`; the
/// caller then stores.
///
/// Deterministic for a given version of the libraries. Levels: zstd 1..=22, xz 0..=9 (10..=19 mean
/// "extreme" 0..=9), lz4 0 (fast) and 1..=12 (LZ4-HC, slower to write, as fast to read); values
/// outside are clamped; `Stored` has none. With a dictionary, the level is the one the dictionary
/// was prepared for, and `level` is not looked at.
///
/// # Errors
/// A dictionary with a codec other than zstd, or the library refuses, which happens only when
/// memory runs out.
#[cfg(feature = "encode")]
pub fn encode_with(
    codec: Codec,
    level: i32,
    dictionary: Option<&EncodeDictionary>,
    raw: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), CodecError> {
    out.clear();
    if dictionary.is_some() && codec != Codec::Zstd {
        return Err(dictionary::only_zstd(codec));
    }
    match codec {
        Codec::Stored => {
            out.extend_from_slice(raw);
            Ok(())
        }
        Codec::Zstd => zstandard::encode(level, dictionary, raw, out),
        Codec::Lz4 => lz4::encode(level, raw, out),
        Codec::Xz => xz::encode(level, raw, out),
    }
}

fn copy(stored: &[u8], raw_bytes: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
    if stored.len() != raw_bytes {
        let (expected, found) = (raw_bytes as u64, stored.len() as u64);
        return Err(CodecError::Length { codec: Codec::Stored, expected, found });
    }
    out.extend_from_slice(stored);
    Ok(())
}
