//! An object that is open.

use std::sync::Arc;

use bytes::Bytes;
use store::{Object, StoreError};

use crate::BLOCK_BYTES;
use crate::cache::{Cache, RUN_BLOCKS_MAX, Source};
use crate::failure::Failure;

/// One state of an object: whole in memory, or read block by block.
pub(crate) struct RemoteObject {
    pub key: String,
    pub place: String,
    pub source: Arc<Source>,
    pub cache: Arc<Cache>,
    /// All of it, if it has one block at most.
    pub whole: Option<Bytes>,
}

impl RemoteObject {
    /// Copies what a block has of `buf`, which begins at `offset`.
    fn copy(offset: u64, buf: &mut [u8], block: u64, bytes: &[u8]) {
        let begins = block * BLOCK_BYTES;
        let (from, to) = (offset.max(begins), (offset + buf.len() as u64).min(begins + bytes.len() as u64));
        if from < to {
            buf[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&bytes[(from - begins) as usize..(to - begins) as usize]);
        }
    }

    fn check(&self, offset: u64, buf: &[u8]) -> Result<(), StoreError> {
        let expected = offset.saturating_add(buf.len() as u64);
        if expected <= self.source.bytes {
            return Ok(());
        }
        Err(StoreError::Truncated { key: self.key.clone(), expected, found: self.source.bytes })
    }

    fn failed(&self, failure: Failure) -> StoreError {
        match failure {
            // Another state has the key now, or none.
            Failure::Changed | Failure::NotFound | Failure::NotModified => {
                StoreError::Replaced { key: self.key.clone() }
            }
            other => other.into_error(&self.place, "read", &self.key),
        }
    }
}

/// The blocks in which a part of an object lies.
fn blocks(offset: u64, bytes: usize) -> std::ops::Range<u64> {
    match bytes {
        0 => 0..0,
        bytes => offset / BLOCK_BYTES..(offset + bytes as u64 - 1) / BLOCK_BYTES + 1,
    }
}

impl Object for RemoteObject {
    fn len(&self) -> u64 {
        self.source.bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.check(offset, buf)?;
        if let Some(whole) = &self.whole {
            Self::copy(offset, buf, 0, whole);
            return Ok(());
        }
        let wanted = blocks(offset, buf.len());
        let mut first = wanted.start;
        while first < wanted.end {
            let end = wanted.end.min(first + RUN_BLOCKS_MAX);
            for (block, bytes) in (first..end).zip(self.cache.read(&self.source, first..end)) {
                Self::copy(offset, buf, block, &bytes.map_err(|failure| self.failed(failure))?);
            }
            first = end;
        }
        Ok(())
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<bool, StoreError> {
        self.check(offset, buf)?;
        if let Some(whole) = &self.whole {
            Self::copy(offset, buf, 0, whole);
            return Ok(true);
        }
        for block in blocks(offset, buf.len()) {
            let Some(bytes) = self.cache.in_memory(&self.source.key(block)) else { return Ok(false) };
            Self::copy(offset, buf, block, &bytes);
        }
        Ok(true)
    }
}
