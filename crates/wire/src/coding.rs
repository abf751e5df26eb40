//! Fields of a payload: a bounds-checked reader, a writer, and the compact lists.
//!
//! Integers are little-endian. Varints hold seven bits a byte, lowest first, in the fewest bytes
//! possible; the reader rejects longer forms, so that every accepted payload is exactly what the
//! writer would have written.
//!
//! A page list is a varint count, then for each page one varint `v`. If bit 0 of `v` is clear, the
//! page is of the same inode as the one before, and `v >> 1` is the zigzag form of the difference
//! between the page indexes. Otherwise `v >> 1` is the zigzag form of the difference between the
//! inodes, never 0, and the index follows as a varint of its own. The first page is compared with
//! page 0 of inode 0. Pages that lie near each other cost one byte.

use bytes::{Buf, Bytes};
use units::{BlockId, InodeId, PageId, Token};

use crate::error::WireError;
use crate::format::{FRAME_HASH_BYTES, FRAME_HEADER_BYTES, KIND_HASHED};
use crate::range::BlockRange;

/// A frame on its way out: header and small fields, then bulk bytes which are shared, not copied,
/// then the hash of those kinds that have one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub head: Vec<u8>,
    pub body: Bytes,
    pub hash: Option<[u8; FRAME_HASH_BYTES]>,
}

impl Frame {
    /// Bytes on the wire, header included.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.body.len() + self.hash.map_or(0, |hash| hash.len())
    }

    /// Writes what lies at `from..` of the frame, at most `max` bytes; returns their number.
    pub fn write_from(&self, from: usize, max: usize, out: &mut impl Output) -> usize {
        let end = from.saturating_add(max).min(self.bytes());
        let within = |start: usize, part: &[u8]| {
            let at = |position: usize| position.saturating_sub(start).min(part.len());
            at(from)..at(end)
        };
        out.copy(&self.head[within(0, &self.head)]);
        let body = within(self.head.len(), &self.body);
        if !body.is_empty() {
            out.share(self.body.slice(body));
        }
        let hash = self.hash.as_ref().map_or(&[][..], |hash| &hash[..]);
        out.copy(&hash[within(self.head.len() + self.body.len(), hash)]);
        end.saturating_sub(from)
    }
}

/// Takes the bytes of frames in order.
pub trait Output {
    /// Takes a few bytes.
    fn copy(&mut self, bytes: &[u8]);

    /// Takes bytes which may be many, and need not be copied.
    fn share(&mut self, bytes: Bytes);
}

impl Output for Vec<u8> {
    fn copy(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn share(&mut self, bytes: Bytes) {
        self.extend_from_slice(&bytes);
    }
}

/// Writes the fields of one frame.
pub(crate) struct Writer {
    head: Vec<u8>,
}

impl Writer {
    pub fn new(kind: u8) -> Writer {
        let mut head = Vec::with_capacity(64);
        head.extend_from_slice(&[0, 0, 0, 0, kind]);
        Writer { head }
    }

    pub fn u8(mut self, value: u8) -> Writer {
        self.head.push(value);
        self
    }

    pub fn u16(self, value: u16) -> Writer {
        self.raw(&value.to_le_bytes())
    }

    pub fn u32(self, value: u32) -> Writer {
        self.raw(&value.to_le_bytes())
    }

    pub fn u64(self, value: u64) -> Writer {
        self.raw(&value.to_le_bytes())
    }

    pub fn u128(self, value: u128) -> Writer {
        self.raw(&value.to_le_bytes())
    }

    pub fn raw(mut self, bytes: &[u8]) -> Writer {
        self.head.extend_from_slice(bytes);
        self
    }

    pub fn varint(mut self, mut value: u64) -> Writer {
        while value >= 0x80 {
            self.head.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.head.push(value as u8);
        self
    }

    pub fn pages(self, pages: &[PageId]) -> Writer {
        let mut writer = self.varint(pages.len() as u64);
        let mut previous = PageId::default();
        for page in pages {
            writer = if page.inode == previous.inode {
                writer.varint(zigzag(page.index, previous.index) << 1)
            } else {
                writer.varint(zigzag(page.inode.0, previous.inode.0) << 1 | 1).varint(page.index as u64)
            };
            previous = *page;
        }
        writer
    }

    pub fn ranges(self, ranges: &[BlockRange]) -> Writer {
        let mut writer = self.varint(ranges.len() as u64);
        let mut end = 0u32;
        for range in ranges {
            writer = writer.varint(range.first.0.saturating_sub(end) as u64).varint(range.count as u64);
            end = range.first.0.saturating_add(range.count);
        }
        writer
    }

    pub fn finish(self) -> Frame {
        self.finish_with(Bytes::new())
    }

    /// Ends the frame with `body`, which needs no length of its own: it reaches to the end of the
    /// payload.
    pub fn finish_with(mut self, body: Bytes) -> Frame {
        let kind = self.head[FRAME_HEADER_BYTES - 1];
        let fields = &self.head[FRAME_HEADER_BYTES..];
        let hash = (kind & KIND_HASHED != 0).then(|| frame_hash(kind, fields, &body));
        let payload = fields.len() + body.len() + hash.map_or(0, |hash| hash.len());
        let length = u32::try_from(payload).expect("callers check that a frame stays below 2 MiB");
        self.head[..4].copy_from_slice(&length.to_le_bytes());
        Frame { head: self.head, body, hash }
    }
}

/// The hash at the end of a frame.
pub(crate) fn frame_hash(kind: u8, fields: &[u8], body: &[u8]) -> [u8; FRAME_HASH_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[kind]).update(fields).update(body);
    let mut hash = [0; FRAME_HASH_BYTES];
    hasher.finalize_xof().fill(&mut hash);
    hash
}

/// Reads the fields of one payload. Never panics, never allocates more than the payload's own
/// length suggests.
pub(crate) struct Reader {
    kind: &'static str,
    rest: Bytes,
    offset: usize,
}

impl Reader {
    pub fn new(kind: &'static str, payload: Bytes) -> Reader {
        Reader { kind, rest: payload, offset: 0 }
    }

    /// The payload of a frame of the kind `number`, called `kind`. A hash at its end is checked
    /// before anything is read.
    pub fn of_frame(kind: &'static str, number: u8, mut payload: Bytes) -> Result<Reader, WireError> {
        if number & KIND_HASHED != 0 {
            let content = payload.len().checked_sub(FRAME_HASH_BYTES).ok_or(WireError::Damaged { kind })?;
            let hash = payload.split_off(content);
            if frame_hash(number, &payload, &[]) != hash[..] {
                return Err(WireError::Damaged { kind });
            }
        }
        Ok(Reader::new(kind, payload))
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WireError> {
        let Some(array) = self.rest.first_chunk::<N>().copied() else {
            return Err(self.truncated(field, N));
        };
        self.advance(N);
        Ok(array)
    }

    pub fn u8(&mut self, field: &'static str) -> Result<u8, WireError> {
        Ok(self.array::<1>(field)?[0])
    }

    pub fn u16(&mut self, field: &'static str) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    pub fn u32(&mut self, field: &'static str) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub fn u64(&mut self, field: &'static str) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    pub fn u128(&mut self, field: &'static str) -> Result<u128, WireError> {
        Ok(u128::from_le_bytes(self.array(field)?))
    }

    pub fn id(&mut self, field: &'static str) -> Result<[u8; 32], WireError> {
        self.array(field)
    }

    pub fn token(&mut self) -> Result<Token, WireError> {
        Ok(Token(self.u128("token")?))
    }

    pub fn magic(&mut self) -> Result<(), WireError> {
        let found = self.array("magic")?;
        if found == crate::format::MAGIC { Ok(()) } else { Err(WireError::Magic { found }) }
    }

    /// A byte of which only bit 0 may be set.
    pub fn flag(&mut self, field: &'static str) -> Result<bool, WireError> {
        let value = self.u8(field)?;
        self.check(value <= 1, field, value as u64, "0 or 1")?;
        Ok(value == 1)
    }

    /// Exactly `bytes` bytes, shared with the payload.
    pub fn raw(&mut self, field: &'static str, bytes: usize) -> Result<Bytes, WireError> {
        if self.rest.len() < bytes {
            return Err(self.truncated(field, bytes));
        }
        self.offset += bytes;
        Ok(self.rest.split_to(bytes))
    }

    /// UTF-8 of exactly `bytes` bytes.
    pub fn text(&mut self, field: &'static str, bytes: usize) -> Result<String, WireError> {
        if self.rest.len() < bytes {
            return Err(self.truncated(field, bytes));
        }
        let text = std::str::from_utf8(&self.rest[..bytes]).map(str::to_owned);
        self.advance(bytes);
        text.map_err(|error| self.bad(field, error.valid_up_to() as u64, "UTF-8 (found: offset of the first fault)"))
    }

    /// An image's name: a length byte, 1 to 255, and UTF-8.
    pub fn name(&mut self) -> Result<String, WireError> {
        let bytes = self.u8("name length")?;
        self.check(bytes > 0, "name length", 0, "1 to 255")?;
        self.text("name", bytes as usize)
    }

    fn varint(&mut self, field: &'static str) -> Result<u64, WireError> {
        let mut value = 0u64;
        for shift in (0..).step_by(7) {
            let byte = self.u8(field)?;
            let bits = (byte & 0x7f) as u64;
            self.check(shift < 63 || (shift == 63 && bits <= 1), field, value, "a varint of at most 64 bits")?;
            value |= bits << shift;
            if byte & 0x80 == 0 {
                self.check(byte != 0 || shift == 0, field, value, "a varint in its shortest form")?;
                break;
            }
        }
        Ok(value)
    }

    fn varint_u32(&mut self, field: &'static str) -> Result<u32, WireError> {
        let value = self.varint(field)?;
        u32::try_from(value).map_err(|_| self.bad(field, value, "a varint of at most 32 bits"))
    }

    /// A count that is at least 1 and at most `max`; the list behind it has at least one byte for
    /// each.
    fn count(&mut self, field: &'static str, min: usize, max: usize) -> Result<usize, WireError> {
        let count = self.varint(field)?;
        self.check(count >= min as u64 && count <= max as u64, field, count, "a count within the limits")?;
        if self.rest.len() < count as usize {
            return Err(self.truncated(field, count as usize));
        }
        Ok(count as usize)
    }

    /// A page list of 1 to `max` pages.
    pub fn pages(&mut self, max: usize) -> Result<Vec<PageId>, WireError> {
        let count = self.count("page count", 1, max)?;
        let mut pages = Vec::with_capacity(count);
        let mut previous = PageId::default();
        for _ in 0..count {
            let value = self.varint("page")?;
            previous = if value & 1 == 0 {
                let index = unzigzag(value >> 1, previous.index);
                PageId::new(previous.inode, index.ok_or_else(|| self.bad("page", value, "a page index of 32 bits"))?)
            } else {
                self.check(value != 1, "page", value, "another inode")?;
                let inode = unzigzag(value >> 1, previous.inode.0);
                let inode = inode.ok_or_else(|| self.bad("page", value, "an inode of 32 bits"))?;
                PageId::new(InodeId(inode), self.varint_u32("page index")?)
            };
            pages.push(previous);
        }
        Ok(pages)
    }

    /// Ascending block ranges, none to `max` of them.
    pub fn ranges(&mut self, max: usize) -> Result<Vec<BlockRange>, WireError> {
        let count = self.count("range count", 0, max)?;
        let mut ranges = Vec::with_capacity(count);
        let mut end = 0u32;
        for _ in 0..count {
            let gap = self.varint_u32("range gap")?;
            let blocks = self.varint_u32("range length")?;
            self.check(blocks > 0, "range length", 0, "at least 1")?;
            let first = end.checked_add(gap);
            let Some((first, next)) = first.and_then(|first| Some((first, first.checked_add(blocks)?))) else {
                return Err(self.bad("range length", blocks as u64, "block numbers of 32 bits"));
            };
            ranges.push(BlockRange { first: BlockId(first), count: blocks });
            end = next;
        }
        Ok(ranges)
    }

    /// Everything that is left, `min` to `max` bytes.
    pub fn bulk(&mut self, field: &'static str, min: usize, max: usize) -> Result<Bytes, WireError> {
        let found = self.rest.len();
        self.check(found >= min && found <= max, field, found as u64, "bytes within the limits")?;
        self.offset += found;
        Ok(std::mem::take(&mut self.rest))
    }

    /// Ends the payload: nothing may be left.
    pub fn end<T>(self, value: T) -> Result<T, WireError> {
        match self.rest.len() {
            0 => Ok(value),
            extra => Err(WireError::TrailingBytes { kind: self.kind, extra }),
        }
    }

    pub fn check(&self, holds: bool, field: &'static str, found: u64, expected: &'static str) -> Result<(), WireError> {
        if holds { Ok(()) } else { Err(self.bad(field, found, expected)) }
    }

    pub fn bad(&self, field: &'static str, found: u64, expected: &'static str) -> WireError {
        WireError::BadValue { kind: self.kind, field, offset: self.offset, found, expected }
    }

    fn truncated(&self, field: &'static str, expected: usize) -> WireError {
        WireError::Truncated { kind: self.kind, field, offset: self.offset, expected, found: self.rest.len() }
    }

    fn advance(&mut self, bytes: usize) {
        self.rest.advance(bytes);
        self.offset += bytes;
    }
}

/// The difference `to - from` with its sign in bit 0, so that small differences either way give
/// small numbers.
fn zigzag(to: u32, from: u32) -> u64 {
    let difference = i64::from(to) - i64::from(from);
    ((difference << 1) ^ (difference >> 63)) as u64
}

/// Reverses [`zigzag`]; `None` if the result is not a `u32`.
fn unzigzag(value: u64, from: u32) -> Option<u32> {
    let difference = (value >> 1) as i64 ^ -((value & 1) as i64);
    u32::try_from(i64::from(from).checked_add(difference)?).ok()
}
