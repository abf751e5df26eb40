//! Answers that need the disk: they are read on blocking threads, and the connection goes on
//! meanwhile. What the page cache has needs no thread, and the connection reads it itself.
//!
//! A program stands still because of a demand. The demand takes memory and a reader's slot, at once
//! if there are some. Its answer is the block as it lies in the file, or as it lies decoded in
//! memory: nothing is decoded, and no prediction is waited for.

use std::sync::Arc;

use bytes::Bytes;
use units::RequestId;
use wire::{ErrorCode, Reply};

use crate::budget::{Budget, Room};
use crate::done::{Done, DoneSender};
use crate::error::Failure;
use crate::panics::caught_blocking;
use crate::peer::Owner;
use crate::published::Published;
use crate::shared::Shared;

/// Bytes that a connection's own task reads, if they are in memory. That takes 50 microseconds, in
/// which the connection does nothing else; waking a thread to do it costs as much.
const CACHED_BYTES_MAX: usize = 512 << 10;

/// A reply that is to be read.
pub(super) struct Reading {
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
    pub async fn begin(self, workers: &Workers) -> (Room, Room) {
        let room = match self.room {
            Some(room) => room,
            None => {
                let room = workers.shared.buffers.replies().take(self.owner, self.bytes).await;
                workers.report(Done::Granted);
                room
            }
        };
        (room, self.slots.take(self.owner, 1).await)
    }
}

/// Has work done for one connection, and its outcome reported to the connection's task.
///
/// Invariant: what was begun is reported once, unless the connection is gone.
#[derive(Clone)]
pub(super) struct Workers {
    shared: Arc<Shared>,
    owner: Owner,
    done: DoneSender,
}

impl Workers {
    pub fn new(shared: Arc<Shared>, owner: Owner, done: DoneSender) -> Workers {
        Workers { shared, owner, done }
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Where outcomes go.
    pub fn done(&self) -> &DoneSender {
        &self.done
    }

    /// Reports to the connection, which may be gone.
    pub fn report(&self, done: Done) {
        let _ = self.done.send(Box::new(done));
    }

    /// Runs `work` on a blocking thread when there is room for its reply.
    pub fn answer(
        &self,
        request: RequestId,
        mut reading: Reading,
        work: impl FnOnce() -> Result<Reply, Failure> + Send + 'static,
    ) {
        let bytes = reading.bytes;
        let run = move |workers: Workers, (room, slot): (Room, Room)| {
            tokio::task::spawn_blocking(move || {
                let failed = "the server failed while it worked on the request";
                let failed = |_| Err(Failure::new(ErrorCode::Internal, failed));
                let reply = caught_blocking(work).unwrap_or_else(failed);
                drop(slot);
                workers.report(Done::Reply { request, reply, room, bytes });
            });
        };
        let workers = self.clone();
        if let Some(rooms) = reading.try_begin() {
            return run(workers, rooms);
        }
        tokio::spawn(async move {
            let rooms = tokio::select! {
                rooms = reading.begin(&workers) => rooms,
                // The connection is gone: nobody waits for the answer.
                () = workers.done.closed() => return,
            };
            run(workers, rooms);
        });
    }

    /// Memory of a reply, if it is there at once.
    pub fn room(&self, bytes: usize) -> Option<Room> {
        self.shared.buffers.replies().try_take(self.owner, bytes)
    }

    /// Bytes of the image file and their room, if both are there at once: then no thread need be
    /// woken to read them.
    pub fn cached(&self, image: &Published, offset: u64, bytes: usize) -> Option<(Room, Bytes)> {
        let room = (bytes <= CACHED_BYTES_MAX).then(|| self.room(bytes)).flatten()?;
        Some((room, image.read_cached(offset, bytes)?))
    }

    /// Opens an image on a blocking thread, and gets ready to push from it to a client that takes
    /// proofs of chunk hashes or not. `open` also tells whether the image was not open before.
    pub fn open_image(
        &self,
        takes_proofs: bool,
        open: impl FnOnce() -> Result<(Arc<Published>, bool), Failure> + Send + 'static,
        report: impl FnOnce(Result<Arc<Published>, Failure>) -> Done + Send + 'static,
    ) {
        let workers = self.clone();
        tokio::spawn(async move {
            let slot = tokio::select! {
                slot = workers.shared.readers.opens().take(workers.owner, 1) => slot,
                () = workers.done.closed() => return,
            };
            let work = tokio::task::spawn_blocking(move || {
                let opened = open();
                drop(slot);
                opened
            });
            let opened = work.await.unwrap_or_else(|_| {
                Err(Failure::new(ErrorCode::Internal, "the server failed while it opened the image"))
            });
            let prepare = opened.as_ref().ok().filter(|(_, fresh)| *fresh).map(|(image, _)| image.clone());
            // Where they are not stored, all blocks are decoded for them: nothing is pushed before.
            // One thread is enough.
            let derives = |image: &&Arc<Published>| takes_proofs && !image.proves() && !image.is_deriving();
            let derive = opened.as_ref().ok().map(|(image, _)| image).filter(derives).cloned();
            // The image stays open even if the connection is gone.
            workers.report(report(opened.map(|(image, _)| image)));
            if let Some(image) = derive {
                // Whoever needs them meets the error again.
                let _ = tokio::task::spawn_blocking(move || image.prepare_proofs()).await;
            }
            if let Some(image) = prepare {
                // A panic there is a bug that the hook reported; the image is served without
                // preparation.
                let _ = tokio::task::spawn_blocking(move || workers.shared.prepare(&image)).await;
            }
        });
    }
}
