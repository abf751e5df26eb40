//! The source of an image's bytes. This crate opens no file: callers implement [`ReadAt`] for
//! theirs.

use std::io;

/// Random access to the bytes of an image.
pub trait ReadAt {
    /// Fills `buf` with the bytes at `offset`.
    ///
    /// # Errors
    /// The range is not wholly inside, or the source fails.
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Bytes in the source.
    ///
    /// # Errors
    /// The source fails.
    fn len(&self) -> io::Result<u64>;

    /// Whether there are no bytes.
    ///
    /// # Errors
    /// The source fails.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

fn copy(bytes: &[u8], offset: u64, buf: &mut [u8]) -> io::Result<()> {
    let range = usize::try_from(offset)
        .ok()
        .and_then(|start| Some(start..start.checked_add(buf.len())?))
        .and_then(|range| bytes.get(range))
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    buf.copy_from_slice(range);
    Ok(())
}

impl ReadAt for &[u8] {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        copy(self, offset, buf)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(<[u8]>::len(self) as u64)
    }
}

impl ReadAt for Vec<u8> {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        copy(self, offset, buf)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.as_slice().len() as u64)
    }
}

impl ReadAt for bytes::Bytes {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        copy(self, offset, buf)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.as_ref().len() as u64)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for std::sync::Arc<T> {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (**self).read_exact_at(offset, buf)
    }

    fn len(&self) -> io::Result<u64> {
        (**self).len()
    }
}
