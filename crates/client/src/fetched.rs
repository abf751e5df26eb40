//! The start of an image file whose blocks are elsewhere, as far as it was fetched.

use std::io;
use std::ops::Range;

use image::ReadAt;

/// The superblock is one page at the start of the file.
pub(crate) const SUPERBLOCK_BYTES: u64 = image::format::SUPERBLOCK_BYTES as u64;

/// Superblock and the first part of the metadata region, of an image whose blocks are elsewhere.
pub(crate) struct Fetched {
    /// The superblock, then the region as far as it was fetched.
    pub bytes: Vec<u8>,
    pub region: Range<u64>,
    pub file_bytes: u64,
}

impl Fetched {
    /// Where a byte of `bytes` lies in the image file.
    pub fn file_offset(&self, at: u64) -> u64 {
        if at < SUPERBLOCK_BYTES { at } else { self.region.start + (at - SUPERBLOCK_BYTES) }
    }
}

impl ReadAt for Fetched {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let outside = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let end = offset.checked_add(buf.len() as u64).ok_or_else(outside)?;
        let start = if end <= SUPERBLOCK_BYTES {
            offset
        } else if offset >= self.region.start && end <= self.region.end {
            SUPERBLOCK_BYTES + (offset - self.region.start)
        } else {
            return Err(outside());
        };
        let start = start as usize;
        buf.copy_from_slice(self.bytes.get(start..start + buf.len()).ok_or_else(outside)?);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file_bytes)
    }
}
