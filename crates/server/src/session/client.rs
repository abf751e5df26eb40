//! Who is at the other end of a connection, and what it may do.

use units::Moment;

use crate::access::PushAccess;
use crate::admission::ConnectionSlot;
use crate::error::Failure;
use crate::peer::Owner;

/// The client of a connection that was admitted. Its slot is free again when this is dropped.
pub(crate) struct Client {
    /// For log lines.
    name: String,
    owner: Owner,
    access: PushAccess,
    slot: ConnectionSlot,
}

impl Client {
    pub fn new(name: String, owner: Owner, access: PushAccess, slot: ConnectionSlot) -> Client {
        Client { name, owner, access, slot }
    }

    /// What log lines call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whom memory and slots are counted against.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Refuses a client that may not push images.
    pub fn check_push(&self) -> Result<(), Failure> {
        self.access.check()
    }

    /// It made a request.
    pub fn asked(&self, now: Moment) {
        self.slot.asked(now);
    }

    /// Ready when its slot is needed for another connection.
    pub async fn displaced(&self) {
        self.slot.displaced().await;
    }
}
