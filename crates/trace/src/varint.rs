//! Variable-length integers (LEB128: seven bits a byte, low bits first, high bit set on all but the
//! last).
//!
//! Only the shortest form of a number is accepted, so that every value has one encoding and
//! re-encoding a decoded file gives the same bytes. `profile` uses the same integers for its
//! actions file.

/// Longest encoding of a `u64`.
pub const BYTES_MAX: usize = 10;

/// Why a number could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VarintError {
    /// The bytes end inside the number.
    Short,
    /// Not the shortest form, or more than 64 bits.
    Malformed,
}

/// Appends `value` to `out`.
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a number at `*at` and moves `*at` behind it. On error `*at` is unchanged.
///
/// # Errors
/// The bytes end inside the number, or it is not in its shortest form.
pub fn get(bytes: &[u8], at: &mut usize) -> Result<u64, VarintError> {
    let mut value = 0u64;
    let mut position = *at;
    for shift in (0..70).step_by(7) {
        let byte = *bytes.get(position).ok_or(VarintError::Short)?;
        position += 1;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return Err(VarintError::Malformed);
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            if byte == 0 && shift > 0 {
                return Err(VarintError::Malformed);
            }
            *at = position;
            return Ok(value);
        }
    }
    Err(VarintError::Malformed)
}

/// Maps a difference to an unsigned number that is small when the difference is near zero.
pub const fn zigzag(difference: i64) -> u64 {
    ((difference << 1) ^ (difference >> 63)) as u64
}

/// Reverses [`zigzag`].
pub const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}
