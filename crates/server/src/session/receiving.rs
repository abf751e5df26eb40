//! Memory of what arrives on a connection.

use wire::{MEMORY_PER_BYTE, ServerConnection};

use crate::budget::Room;
use crate::config::RECEIVED_FREE_BYTES;
use crate::done::{Done, DoneSender};
use crate::peer::Owner;
use crate::shared::Shared;

/// Memory that is asked for beyond what has arrived, so that cancels and credits can be read while
/// requests wait.
const AHEAD_BYTES: usize = 4 << 10;

/// Memory of what arrived and was not taken up or committed yet.
///
/// Invariant: no more arrives than `room` and [`RECEIVED_FREE_BYTES`] hold together, and at most
/// one task waits for more.
pub(super) struct Receiving {
    owner: Owner,
    room: Room,
    /// More of it was asked for.
    is_waiting: bool,
    /// Bytes of transactions that wait without memory of their own: small ones, part of
    /// [`RECEIVED_FREE_BYTES`].
    uncovered: usize,
}

impl Receiving {
    pub fn new(shared: &Shared, owner: Owner) -> Receiving {
        Receiving { owner, room: shared.buffers.received().nothing(owner), is_waiting: false, uncovered: 0 }
    }

    /// Bytes that may be read from the socket now. A frame that has begun is read on when there is
    /// memory for all of it. What follows it may become many small requests.
    pub fn allowed(&mut self, wire: &ServerConnection, shared: &Shared, done: &DoneSender) -> usize {
        let held = wire.received_bytes() + self.uncovered;
        let whole = wire.arriving_bytes() + self.uncovered;
        let beyond_free = |bytes: usize| (bytes + AHEAD_BYTES).saturating_sub(RECEIVED_FREE_BYTES);
        let wanted = beyond_free(held.max(whole));
        let lacking = wanted.saturating_sub(self.room.amount());
        // A connection that waits for more keeps only what it needs now: others may wait for the
        // rest.
        self.room.shrink_to(if lacking == 0 { wanted } else { beyond_free(held) });
        if lacking > 0 && !self.is_waiting {
            match self.room.try_more(wanted - self.room.amount()) {
                Some(room) => self.room.merge(room),
                None => {
                    self.is_waiting = true;
                    let (received, owner, done) = (shared.buffers.received().clone(), self.owner, done.clone());
                    tokio::spawn(async move {
                        tokio::select! {
                            // All of it, since what it has now it may have given back by then.
                            room = received.take(owner, wanted) => drop(done.send(Box::new(Done::Received(room)))),
                            () = done.closed() => {}
                        }
                    });
                }
            }
        }
        let filled = held - wire.spare_bytes();
        let left = (self.room.amount() + RECEIVED_FREE_BYTES).saturating_sub(filled);
        let frame = wire.missing_bytes().min(left);
        frame + (left - frame) / MEMORY_PER_BYTE
    }

    /// The memory that was waited for.
    pub fn granted(&mut self, room: Room) {
        self.room.merge(room);
        self.is_waiting = false;
    }

    /// Whether memory is waited for: nothing is read meanwhile.
    pub fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Memory beyond what is free, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.room.amount()
    }

    /// The memory of `bytes` that go to somebody else.
    pub fn split(&mut self, bytes: usize) -> Room {
        self.room.split(bytes)
    }

    /// The memory of a transaction of `bytes` that waits, and how many of them have none.
    pub fn split_transaction(&mut self, bytes: usize) -> (Room, usize) {
        let room = self.room.split(bytes);
        let uncovered = bytes.saturating_sub(room.amount());
        self.uncovered += uncovered;
        (room, uncovered)
    }

    /// A transaction without memory for so many bytes is over.
    pub fn forget_uncovered(&mut self, bytes: usize) {
        self.uncovered -= bytes;
    }
}
