//! Fields of this crate's files and messages: a bounds-checked reader, and varints.
//!
//! Varints hold seven bits a byte, lowest first, in the fewest bytes possible; longer forms are
//! refused, so that accepted bytes are exactly what the writer would have written.

use thiserror::Error;

/// Bytes that are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CodingError {
    /// They end within a field.
    #[error("field {field} at offset {offset} needs {expected} bytes, {found} are left")]
    Truncated {
        /// The field.
        field: &'static str,
        /// Offset in bytes.
        offset: usize,
        /// Bytes that the field needs.
        expected: usize,
        /// Bytes that are left.
        found: usize,
    },
    /// A field holds what it must not.
    #[error("field {field} before offset {offset}: found {found}, expected {expected}")]
    BadValue {
        /// The field.
        field: &'static str,
        /// Offset in bytes, behind the field.
        offset: usize,
        /// What was found.
        found: u64,
        /// What is allowed.
        expected: &'static str,
    },
    /// They go on after the last field.
    #[error("{extra} bytes after the last field")]
    TrailingBytes {
        /// Bytes too many.
        extra: usize,
    },
    /// There are too many of something.
    #[error("{found} {what}, at most {max} are allowed")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many are allowed.
        max: usize,
    },
}

impl CodingError {
    /// Refuses `found` above `max`.
    pub(crate) fn limit(what: &'static str, found: usize, max: usize) -> Result<(), CodingError> {
        if found > max { Err(CodingError::TooMany { what, found, max }) } else { Ok(()) }
    }
}

/// Reads fields in order.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, offset: 0 }
    }

    pub fn take(&mut self, field: &'static str, count: usize) -> Result<&'a [u8], CodingError> {
        let left = &self.bytes[self.offset..];
        let Some(taken) = left.get(..count) else {
            return Err(CodingError::Truncated { field, offset: self.offset, expected: count, found: left.len() });
        };
        self.offset += count;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], CodingError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(field, N)?);
        Ok(out)
    }

    pub fn u8(&mut self, field: &'static str) -> Result<u8, CodingError> {
        Ok(self.array::<1>(field)?[0])
    }

    pub fn u64(&mut self, field: &'static str) -> Result<u64, CodingError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    pub fn varint(&mut self, field: &'static str) -> Result<u64, CodingError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(field)?;
            let bits = u64::from(byte & 0x7f);
            let is_last = byte & 0x80 == 0;
            let is_longest_form = is_last && byte == 0 && shift > 0;
            if bits << shift >> shift != bits || is_longest_form {
                break;
            }
            value |= bits << shift;
            if is_last {
                return Ok(value);
            }
        }
        Err(self.bad(field, value, "a varint of 64 bits in its shortest form"))
    }

    /// A number of things, at most `max`.
    pub fn count(&mut self, field: &'static str, max: usize) -> Result<usize, CodingError> {
        let found = usize::try_from(self.varint(field)?).unwrap_or(usize::MAX);
        CodingError::limit(field, found, max)?;
        Ok(found)
    }

    /// Bytes that their length stands before, at most `max`.
    pub fn counted(&mut self, field: &'static str, max: usize) -> Result<&'a [u8], CodingError> {
        let count = self.count(field, max)?;
        self.take(field, count)
    }

    pub fn bad(&self, field: &'static str, found: u64, expected: &'static str) -> CodingError {
        CodingError::BadValue { field, offset: self.offset, found, expected }
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.offset
    }

    pub fn end(self) -> Result<(), CodingError> {
        match self.left() {
            0 => Ok(()),
            extra => Err(CodingError::TrailingBytes { extra }),
        }
    }
}

/// Appends a varint.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends bytes after their length.
pub(crate) fn put_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}
