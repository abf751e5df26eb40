//! An object that is written: a file of this machine until it is committed.

use std::collections::VecDeque;
use std::sync::Arc;

use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};
use store::{StoreError, Upload, check_key};
use tokio::task::JoinHandle;

use crate::failure::Failure;
use crate::remote::Shared;

/// Bytes of a part of a large object; smaller objects go up by one request.
const PART_BYTES: u64 = 8 << 20;

/// Most parts of an object, with some room: S3 takes 10,000.
const PARTS_MAX: u64 = 9_000;

/// Parts on their way at once: they are in memory.
const PARTS_AT_ONCE: usize = 4;

/// An upload in its file.
pub(crate) struct RemoteUpload {
    pub shared: Arc<Shared>,
    pub staged: Box<dyn Upload>,
    /// Where the last byte ends.
    pub bytes: u64,
}

type Part = JoinHandle<object_store::Result<()>>;

impl RemoteUpload {
    fn part(&self, range: std::ops::Range<u64>) -> Result<PutPayload, StoreError> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.staged.read_at(range.start, &mut bytes)?;
        Ok(bytes.into())
    }

    fn send(&self, key: &str) -> Result<(), StoreError> {
        let failed = |failure: Failure| self.shared.failed(failure, "write", key);
        let (service, path) = (self.shared.service.clone(), self.shared.path(key));
        if self.bytes <= PART_BYTES {
            let payload = self.part(0..self.bytes)?;
            let put = self.shared.request(async move { service.put(&path, payload).await });
            return put.map(drop).map_err(failed);
        }
        let begun = self.shared.request(async move { service.put_multipart(&path).await });
        let mut parts = begun.map_err(failed)?;
        let sent = self.send_parts(key, &mut *parts);
        let is_sent = sent.is_ok();
        // What was begun takes room in the bucket until it is completed or aborted.
        let ended = self.shared.request(async move {
            let completed = if is_sent { parts.complete().await.map(drop) } else { Ok(()) };
            if !is_sent || completed.is_err() {
                // The first error is the one to tell.
                let _ = parts.abort().await;
            }
            completed
        });
        sent.and_then(|()| ended.map_err(failed))
    }

    fn send_parts(&self, key: &str, parts: &mut dyn MultipartUpload) -> Result<(), StoreError> {
        let part_bytes = PART_BYTES.max(self.bytes.div_ceil(PARTS_MAX));
        let mut on_their_way: VecDeque<Part> = VecDeque::new();
        let wait = |on_their_way: &mut VecDeque<Part>| match on_their_way.pop_front() {
            None => Ok(()),
            Some(part) => {
                let sent = self.shared.request(async move { part.await.unwrap_or_else(|error| Err(error.into())) });
                sent.map_err(|failure| self.shared.failed(failure, "write", key))
            }
        };
        let mut from = 0;
        while from < self.bytes {
            let to = self.bytes.min(from + part_bytes);
            let part = parts.put_part(self.part(from..to)?);
            on_their_way.push_back(self.shared.bridge.handle().spawn(part));
            if on_their_way.len() >= PARTS_AT_ONCE {
                wait(&mut on_their_way)?;
            }
            from = to;
        }
        while !on_their_way.is_empty() {
            wait(&mut on_their_way)?;
        }
        Ok(())
    }
}

impl Upload for RemoteUpload {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.staged.write_at(offset, bytes)?;
        self.bytes = self.bytes.max(offset.saturating_add(bytes.len() as u64));
        Ok(())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.staged.read_at(offset, buf)
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<bool, StoreError> {
        self.staged.read_cached_at(offset, buf)
    }

    fn commit(self: Box<Self>, key: &str) -> Result<(), StoreError> {
        check_key(key)?;
        let sent = self.send(key);
        self.shared.forget(key);
        sent
    }
}
