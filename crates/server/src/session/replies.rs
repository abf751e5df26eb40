//! What is being done for one connection, and the memory of its replies.

use wire::ServerConnection;

use super::workers::Reading;
use crate::budget::{Budget, Room};
use crate::peer::Owner;
use crate::shared::Shared;

/// Memory of a request while it is answered, however small its reply is.
pub(super) const REQUEST_BYTES: usize = 4 << 10;

/// Images that are being opened for a connection before it takes up further requests.
const OPENING_MAX: usize = 4;

/// Work for the requests of a connection, and replies that it has not read.
///
/// Invariant: `making_bytes` is the sum of what all requests count that are being answered.
/// `queued` is memory of the replies that the wire has queued. While their sum is `bytes_max` or
/// more, or somebody waits for memory, no further request is begun.
pub(super) struct Replies {
    owner: Owner,
    bytes_max: usize,
    /// Bytes of replies that are being read, and of transactions that are being committed.
    making_bytes: usize,
    /// Requests that wait for memory for their replies.
    ungranted: usize,
    /// Images that are being opened.
    opening: usize,
    queued: Room,
}

impl Replies {
    pub fn new(shared: &Shared, owner: Owner) -> Replies {
        let queued = shared.buffers.replies().nothing(owner);
        let bytes_max = shared.config.connections.bytes_max;
        Replies { owner, bytes_max, making_bytes: 0, ungranted: 0, opening: 0, queued }
    }

    /// Whether a further request may be begun.
    pub fn has_room(&self) -> bool {
        self.ungranted == 0 && self.opening < OPENING_MAX && self.bytes_left() > 0
    }

    /// Bytes that the connection may still hold.
    pub fn bytes_left(&self) -> usize {
        self.bytes_max.saturating_sub(self.making_bytes + self.queued.amount())
    }

    /// Whether the client has replies to read.
    pub fn are_queued(&self) -> bool {
        self.queued.amount() > 0
    }

    /// Begins to read a reply. Its memory is given at once or later. No further request is begun
    /// before that: a request that waits takes memory too.
    pub fn begin_reading(&mut self, memory: &Budget, bytes: usize, slots: Budget) -> Reading {
        let bytes = bytes.max(REQUEST_BYTES);
        self.begin(bytes);
        let room = memory.try_take(self.owner, bytes);
        self.ungranted += usize::from(room.is_none());
        Reading { owner: self.owner, bytes, room, slots }
    }

    /// A reply that waited for memory has it.
    pub fn granted(&mut self) {
        self.ungranted -= 1;
    }

    /// Begins something else that counts so many bytes.
    pub fn begin(&mut self, bytes: usize) {
        self.making_bytes += bytes;
    }

    /// What was begun with `bytes` is done, and its reply takes `room`.
    pub fn end(&mut self, bytes: usize, room: Room) {
        self.making_bytes = self.making_bytes.saturating_sub(bytes);
        self.keep(room);
    }

    /// A reply takes `room` until it has left.
    pub fn keep(&mut self, room: Room) {
        self.queued.merge(room);
    }

    /// Gives back the memory of replies that have left.
    pub fn release(&mut self, wire: &ServerConnection) {
        self.queued.shrink_to(wire.queued_bytes().saturating_sub(wire.queued_push_bytes()));
    }

    /// Begins to open an image.
    pub fn begin_opening(&mut self) {
        self.opening += 1;
    }

    /// An image was opened, or could not be.
    pub fn end_opening(&mut self) {
        self.opening -= 1;
    }
}
