//! Answers that need the disk: they are read on blocking threads, and the connection goes on
//! meanwhile. What the page cache has needs none, and the connection reads it itself.
//!
//! A program stands still because of a demand. The demand takes memory and a reader's slot, at once if there are some. Its
//! answer is the block as it lies in the file: nothing is decoded, and no prediction is waited for.

use std::sync::Arc;

use bytes::Bytes;
use codec::Codec;
use units::{PAGE_BYTES, PageId, RequestId};
use wire::Reply;

use crate::budget::{Budget, Room};
use crate::done::{Done, DoneSender};
use crate::error::Failure;
use crate::panics::caught_blocking;
use crate::peer::Owner;
use crate::published::Published;
use crate::shared::Shared;

/// zstd level of single pages: they are compressed while a program waits.
const PAGES_LEVEL: i32 = 3;

/// Bytes that a connection's own task reads, if they are in memory. That takes 50 microseconds, in
/// which the connection does nothing else; waking a thread to do it costs as much.
const CACHED_BYTES_MAX: usize = 512 << 10;

/// A reply that is to be read.
pub(crate) struct Reading {
    pub owner: Owner,
    /// Memory that it takes.
    pub bytes: usize,
    /// That memory, if it was free at once.
    pub room: Option<Room>,
    /// What it takes a slot of: reads, pages, or listings.
    pub slots: Budget,
}

impl Reading {
    /// Memory and a slot, if both are there at once.
    pub fn try_begin(&mut self) -> Option<(Room, Room)> {
        let slot = self.room.is_some().then(|| self.slots.try_take(self.owner, 1)).flatten()?;
        self.room.take().map(|room| (room, slot))
    }

    /// Waits for them.
    pub async fn begin(self, shared: &Shared, done: &DoneSender) -> (Room, Room) {
        let room = match self.room {
            Some(room) => room,
            None => {
                let room = shared.buffers.replies().take(self.owner, self.bytes).await;
                // The connection may be gone.
                let _ = done.send(Box::new(Done::Granted));
                room
            }
        };
        (room, self.slots.take(self.owner, 1).await)
    }
}

/// Runs `work` on a blocking thread when there is room for its reply, and reports the reply to the
/// connection.
pub(crate) fn answer(
    shared: &Arc<Shared>,
    done: &DoneSender,
    request: RequestId,
    mut reading: Reading,
    work: impl FnOnce() -> Result<Reply, Failure> + Send + 'static,
) {
    let (shared, done, bytes) = (shared.clone(), done.clone(), reading.bytes);
    let run = move |done: DoneSender, (room, slot): (Room, Room)| {
        tokio::task::spawn_blocking(move || {
            let failed = "the server failed while it worked on the request";
            let reply = caught_blocking(work).unwrap_or_else(|_| Err(Failure::new(wire::ErrorCode::Internal, failed)));
            drop(slot);
            // The connection may be gone.
            let _ = done.send(Box::new(Done::Reply { request, reply, room, bytes }));
        });
    };
    if let Some(rooms) = reading.try_begin() {
        return run(done, rooms);
    }
    tokio::spawn(async move {
        let rooms = tokio::select! {
            rooms = reading.begin(&shared, &done) => rooms,
            // The connection is gone: nobody waits for the answer.
            () = done.closed() => return,
        };
        run(done, rooms);
    });
}

/// Bytes of the image file and their room, if both are there at once: then no thread need be woken
/// to read them.
pub(crate) fn cached(
    shared: &Shared,
    owner: Owner,
    image: &Published,
    offset: u64,
    bytes: usize,
) -> Option<(Room, Bytes)> {
    let room = (bytes <= CACHED_BYTES_MAX).then(|| shared.buffers.replies().try_take(owner, bytes)).flatten()?;
    Some((room, image.read_cached(offset, bytes)?))
}

/// A range of the chunk hashes of an image that does not store them; the first to ask waits until they are derived.
pub(crate) fn chunk_hashes(image: &Published, offset: u64, bytes: u32) -> Result<Reply, Failure> {
    let outside = || Failure::bad_request(format!("bytes {offset} and on are no range of the chunk hashes"));
    let start = offset.checked_sub(image.metadata.chunk_hash_region().start).ok_or_else(outside)? as usize;
    let end = start.checked_add(bytes as usize).ok_or_else(outside)?;
    Ok(Reply::MetaData { offset, bytes: image.chunk_hashes(start..end)? })
}

/// Single pages, as one piece, compressed if that makes it smaller.
pub(crate) fn pages(image: &Published, pages: &[PageId]) -> Result<Reply, Failure> {
    let mut raw = Vec::with_capacity(pages.len() * PAGE_BYTES);
    for page in pages {
        image.page(*page, &mut raw)?;
    }
    let mut stored = Vec::new();
    let compressed = codec::encode(Codec::Zstd, PAGES_LEVEL, &raw, &mut stored).is_ok() && stored.len() < raw.len();
    let (codec, bytes) = if compressed { (Codec::Zstd, stored) } else { (Codec::Stored, raw) };
    Ok(Reply::Pages { codec: codec.to_u8(), bytes: Bytes::from(bytes) })
}
