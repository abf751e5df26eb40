//! Encryption of what a device keeps on its disk: the outbox and the disk cache of a volume, and
//! the device cache.
//!
//! A [`StorageKey`] is 32 bytes that the owner of the device gives. For each purpose a
//! [`PurposeKey`] is derived from it, so that bytes of one purpose are nothing to another one.
//! Sealed bytes are a nonce (24), the encrypted bytes, and a tag (16) that covers them, the nonce
//! and the *identity*: what the bytes are and where they belong. With another identity, or after
//! any change, they do not open.
//!
//! The nonce is random, and no counter has to outlive a power cut or the copy of a disk. It makes a
//! key for these bytes alone (BLAKE3, keyed), by which ChaCha20-Poly1305 encrypts them: the nonce
//! of that has 12 bytes, which is too few for random ones under one key for years.
//!
//! What this does not do: it hides no lengths and no times, and who can write to the disk can put
//! older bytes of the same identity back.

use std::fmt;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// Bytes of the name of a key.
pub const KEY_ID_BYTES: usize = 16;

const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;

/// Sealed bytes are so much longer.
pub const OVERHEAD_BYTES: usize = NONCE_BYTES + TAG_BYTES;

/// Longest text of a key, to bound what is read: base64 or hexadecimal digits, and the end of the
/// line.
pub const KEY_FILE_BYTES_MAX: usize = 2 * KEY_BYTES + 2;

/// Tells keys apart; says nothing about their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub [u8; KEY_ID_BYTES]);

/// The file of a key holds something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A wrong number of bytes, or other characters.
    #[error(
        "a key is 32 bytes: raw, as 64 hexadecimal digits, or as 44 characters of base64; this file has {bytes} bytes"
    )]
    Form {
        /// Bytes of the file, without the end of the line.
        bytes: usize,
    },
    /// All bytes are the same: an empty disk or a placeholder.
    #[error("all bytes of the key are the same, which is no key; `head -c32 /dev/urandom` makes one")]
    Uniform,
}

/// The key of a device for what lies on its disk.
#[derive(Clone, PartialEq, Eq)]
pub struct StorageKey([u8; KEY_BYTES]);

/// A key for one purpose.
#[derive(Clone)]
pub struct PurposeKey {
    sealing: [u8; KEY_BYTES],
    hashing: [u8; KEY_BYTES],
    id: KeyId,
}

impl fmt::Debug for StorageKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "StorageKey")
    }
}

impl fmt::Debug for PurposeKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PurposeKey")
    }
}

impl StorageKey {
    /// The key that is in a file: 32 raw bytes, or a line of hexadecimal digits or base64.
    ///
    /// # Errors
    /// The bytes are no key.
    pub fn parse(file: &[u8]) -> Result<StorageKey, KeyError> {
        let line = || file.strip_suffix(b"\n").map_or(file, |line| line.strip_suffix(b"\r").unwrap_or(line));
        let raw = || file.try_into().ok();
        let found: Option<[u8; KEY_BYTES]> = raw().or_else(|| from_hex(line())).or_else(|| from_base64(line()));
        let bytes = found.ok_or(KeyError::Form { bytes: line().len() })?;
        if bytes.iter().all(|byte| *byte == bytes[0]) {
            return Err(KeyError::Uniform);
        }
        Ok(StorageKey(bytes))
    }

    /// The key for one purpose. A purpose is a text that is used for nothing else, in any program.
    pub fn purpose(&self, purpose: &str) -> PurposeKey {
        let derive = |what: &str| blake3::derive_key(&format!("runnel 2026 {purpose}: {what}"), &self.0);
        let mut id = [0; KEY_ID_BYTES];
        id.copy_from_slice(&derive("id")[..KEY_ID_BYTES]);
        PurposeKey { sealing: derive("seal"), hashing: derive("hash"), id: KeyId(id) }
    }
}

impl PurposeKey {
    /// The name of the key.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// Encrypts bytes. `identity`: what they are, which must be the same when they are opened.
    ///
    /// # Panics
    /// The kernel gives no random bytes.
    pub fn seal(&self, identity: &[u8], plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(plain.len() + OVERHEAD_BYTES);
        self.seal_to(&mut out, identity, plain);
        out
    }

    /// The same, behind what `out` has.
    ///
    /// # Panics
    /// As [`PurposeKey::seal`].
    pub fn seal_to(&self, out: &mut Vec<u8>, identity: &[u8], plain: &[u8]) {
        let mut nonce = [0; NONCE_BYTES];
        SystemRandom::new().fill(&mut nonce).expect("the kernel gives random bytes");
        out.reserve(plain.len() + OVERHEAD_BYTES);
        out.extend_from_slice(&nonce);
        let start = out.len();
        out.extend_from_slice(plain);
        let (key, nonce) = self.of(&nonce);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(identity), &mut out[start..]);
        out.extend_from_slice(tag.expect("no file of ours is as long as the cipher allows").as_ref());
    }

    /// Decrypts bytes that were sealed with this key and identity, and are as they were.
    pub fn open(&self, identity: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        self.open_owned(identity, sealed.to_vec())
    }

    /// The same, in the memory of the sealed bytes.
    pub fn open_owned(&self, identity: &[u8], mut sealed: Vec<u8>) -> Option<Vec<u8>> {
        let (key, nonce) = self.of(sealed.first_chunk::<NONCE_BYTES>()?);
        let length = key.open_within(nonce, Aad::from(identity), &mut sealed, NONCE_BYTES..).ok()?.len();
        sealed.truncate(length);
        Some(sealed)
    }

    /// A hash that says nothing to who has not the key.
    pub fn hash(&self, bytes: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(&self.hashing, bytes).as_bytes()
    }

    /// The key of the bytes with this nonce. It is used once, so its own nonce may be zero.
    fn of(&self, nonce: &[u8; NONCE_BYTES]) -> (LessSafeKey, Nonce) {
        let key = blake3::keyed_hash(&self.sealing, nonce);
        let key = UnboundKey::new(&CHACHA20_POLY1305, key.as_bytes()).expect("a key of this cipher has 32 bytes");
        (LessSafeKey::new(key), Nonce::assume_unique_for_key([0; 12]))
    }
}

fn from_hex(text: &[u8]) -> Option<[u8; KEY_BYTES]> {
    let digits: Option<Vec<u32>> = text.iter().map(|digit| char::from(*digit).to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() == 2 * KEY_BYTES)?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect();
    bytes.try_into().ok()
}

/// Base64 with `+` and `/`, with or without the `=` at the end.
fn from_base64(text: &[u8]) -> Option<[u8; KEY_BYTES]> {
    let text = text.strip_suffix(b"=").unwrap_or(text);
    // 43 characters have 258 bits, the last two of which are zeros.
    if text.len() != (KEY_BYTES * 8).div_ceil(6) {
        return None;
    }
    let (mut bits, mut count, mut bytes) = (0u32, 0, Vec::with_capacity(KEY_BYTES));
    for character in text {
        let value = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (bits, count) = (bits << 6 | u32::from(value), count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    (bits == 0).then(|| bytes.try_into().ok()).flatten()
}

#[cfg(test)]
mod tests;
