//! SHA-256 and hexadecimal digits.

use ring::digest::{Algorithm, SHA256, SHA512, digest};

/// SHA-256 of `bytes`.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
}

/// The first `N` bytes of the SHA-256, at most 32.
pub(crate) fn short<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&sha256(bytes)[..N]);
    out
}

/// Whether `hex` is the digest of `bytes` by the algorithm that metadata call `name`; `None` for an
/// algorithm that is not known here.
pub(crate) fn matches(name: &str, hex: &str, bytes: &[u8]) -> Option<bool> {
    let algorithm: &Algorithm = match name {
        "sha256" => &SHA256,
        "sha512" => &SHA512,
        _ => return None,
    };
    let found = digest(algorithm, bytes);
    let found = found.as_ref();
    Some(hex.len() == found.len() * 2 && (0..found.len()).all(|index| byte_at(hex, index) == Some(found[index])))
}

/// The `N` bytes that the digits of `text` give, if there are exactly so many.
pub(crate) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != N * 2 {
        return None;
    }
    let mut out = [0; N];
    for (index, byte) in out.iter_mut().enumerate() {
        *byte = byte_at(text, index)?;
    }
    Some(out)
}

fn byte_at(hex: &str, index: usize) -> Option<u8> {
    let digit = |at: usize| char::from(*hex.as_bytes().get(at)?).to_digit(16);
    u8::try_from(digit(index * 2)? * 16 + digit(index * 2 + 1)?).ok()
}
