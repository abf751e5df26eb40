//! Pieces of pushes of one connection, from the thread that builds them to the wire.

use std::sync::Arc;

use wire::{ErrorCode, ServerConnection};

use crate::budget::Room;
use crate::builders::Builders;
use crate::done::{Done, DoneSender};
use crate::error::Failure;
use crate::peer::Owner;

/// Has pieces built, and holds the memory of those that are queued.
///
/// Invariant: a piece holds its memory from before it is built until it has left.
pub(super) struct PieceQueue {
    builders: Arc<Builders>,
    owner: Owner,
    done: DoneSender,
    queued: Room,
}

impl PieceQueue {
    pub fn new(builders: Arc<Builders>, owner: Owner, done: DoneSender) -> PieceQueue {
        let queued = builders.memory().nothing(owner);
        PieceQueue { builders, owner, done, queued }
    }

    /// Has a thread do `work` when there is memory of `bytes_max` for it. `report` makes what the
    /// connection is told.
    pub fn build<T>(
        &self,
        bytes_max: usize,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
        report: impl FnOnce(Result<T, Failure>, Room) -> Done + Send + 'static,
    ) {
        let done = self.done.clone();
        self.builders.build(self.owner, bytes_max, work, move |outcome, room| {
            let failed = |_| Err(Failure::new(ErrorCode::Internal, "building a piece of a push failed"));
            // The connection may be gone.
            let _ = done.send(Box::new(report(outcome.unwrap_or_else(failed), room)));
        });
    }

    /// Memory for a piece that need not be built, if there is some at once.
    pub fn try_room(&self, bytes: usize) -> Option<Room> {
        self.builders.memory().try_take(self.owner, bytes)
    }

    /// An encoder for a stream that is compressed live, if one is free.
    pub fn try_encoder(&self) -> Option<Room> {
        self.builders.encoders().try_take(self.owner, 1)
    }

    /// A piece that takes `room` was queued.
    pub fn keep(&mut self, room: Room) {
        self.queued.merge(room);
    }

    /// Gives back the memory of pieces that have left.
    pub fn release(&mut self, wire: &ServerConnection) {
        self.queued.shrink_to(wire.queued_push_bytes());
    }

    /// Memory of pieces that have not left, bytes.
    pub fn bytes(&self) -> usize {
        self.queued.amount()
    }
}
