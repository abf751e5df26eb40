//! Who is at the other end of a connection, and what it may do.

use units::Moment;
use wire::ErrorCode;

use crate::access::PushAccess;
use crate::admission::ConnectionSlot;
use crate::error::Failure;
use crate::peer::Owner;
#[cfg(feature = "tls")]
use crate::tls::Standing;

/// What a client is told whose slot goes to another one.
const DISPLACED: &str = "the server needs its place for another connection (--connections); connect again";

/// What a client is told whose certificate is refused since it connected.
#[cfg(feature = "tls")]
const WITHDRAWN: &str = "your certificate was revoked, or its authority is not trusted any more";

/// The client of a connection that was admitted. Its slot is free again when this is dropped.
pub(crate) struct Client {
    /// For log lines.
    name: String,
    owner: Owner,
    access: PushAccess,
    slot: ConnectionSlot,
    /// `None` if the connection is not encrypted.
    #[cfg(feature = "tls")]
    standing: Option<Standing>,
}

impl Client {
    pub fn new(name: String, owner: Owner, access: PushAccess, slot: ConnectionSlot) -> Client {
        Client {
            name,
            owner,
            access,
            slot,
            #[cfg(feature = "tls")]
            standing: None,
        }
    }

    /// The same client, which showed what it is over TLS.
    #[cfg(feature = "tls")]
    pub fn with_standing(self, standing: Standing) -> Client {
        Client { standing: Some(standing), ..self }
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

    /// Ready when it has to leave, with what it is told.
    pub async fn dismissed(&mut self) -> (ErrorCode, &'static str) {
        #[cfg(feature = "tls")]
        if let Some(standing) = &mut self.standing {
            return tokio::select! {
                biased;
                () = standing.withdrawn() => (ErrorCode::Forbidden, WITHDRAWN),
                () = self.slot.displaced() => (ErrorCode::Busy, DISPLACED),
            };
        }
        self.slot.displaced().await;
        (ErrorCode::Busy, DISPLACED)
    }
}
