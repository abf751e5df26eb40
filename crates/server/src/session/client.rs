//! Who is at the other end of a connection, and what it may do.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::watch;
use units::{ImageId, Moment, RequestId};
use wire::{Bearer, ErrorCode, ImageHandle};

use crate::access::{Guard, Opening, Principal, PushAccess, Right, Rules};
use crate::admission::ConnectionSlot;
use crate::error::Failure;
use crate::name::Name;
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
    access: Rights,
    /// Names of uploads that are under way.
    uploads: HashMap<RequestId, String>,
    slot: ConnectionSlot,
    /// `None` if the connection is not encrypted.
    #[cfg(feature = "tls")]
    standing: Option<Standing>,
}

/// What a client may do.
pub(crate) enum Rights {
    /// Everything, but perhaps not push.
    Open(PushAccess),
    /// What the access file says.
    Guarded(Box<Guard>),
}

impl Client {
    pub fn new(name: String, owner: Owner, access: Rights, slot: ConnectionSlot) -> Client {
        Client {
            name,
            owner,
            access,
            uploads: HashMap::new(),
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

    /// Refuses what the client may not do.
    pub fn check(&self, right: Right, name: &str) -> Result<(), Failure> {
        match &self.access {
            Rights::Open(access) if right == Right::Push => access.check(),
            Rights::Open(_) => Ok(()),
            Rights::Guarded(guard) => guard.check(right, name),
        }
    }

    /// Refuses a list of images of which the client may see none. Whose list it is, if not all
    /// images may be on it.
    pub fn check_list(&self) -> Result<Option<Arc<Principal>>, Failure> {
        let Some(guard) = self.guard() else { return Ok(None) };
        guard.check_list()?;
        Ok(Some(guard.principal().clone()))
    }

    /// The beginning of an Open.
    pub fn opening(&self, name: &Name) -> Result<Opening, Failure> {
        self.guard().map_or_else(|| Ok(Opening::default()), |guard| guard.opening(name))
    }

    /// Refuses an image that the client may not have any more.
    pub fn check_opening(&self, opening: &Opening) -> Result<(), Failure> {
        self.guard().map_or(Ok(()), |guard| guard.check_opening(opening))
    }

    /// An image is open.
    pub fn opened(&mut self, handle: ImageHandle, id: ImageId, opening: &Opening) {
        if let Some(guard) = self.guard_mut() {
            guard.opened(handle, id, opening);
        }
    }

    /// A volume is open; `writable` if it is served for changes. Whether the client may make them.
    pub fn opened_volume(&mut self, handle: ImageHandle, name: &str, writable: bool) -> bool {
        self.guard_mut().map_or(writable, |guard| guard.opened_volume(handle, name, writable))
    }

    /// Refuses changes of a volume that the client may only read.
    pub fn check_writes(&self, handle: ImageHandle) -> Result<(), Failure> {
        self.guard().map_or(Ok(()), |guard| guard.check_writes(handle))
    }

    /// An upload under this name has begun.
    pub fn upload_begins(&mut self, request: RequestId, name: String) {
        self.uploads.insert(request, name);
    }

    /// An upload is over.
    pub fn upload_ends(&mut self, request: RequestId) {
        self.uploads.remove(&request);
    }

    /// The client shows a token. Without access rules nobody needs one.
    ///
    /// # Errors
    /// Why the connection ends.
    pub fn show_token(&mut self, token: &Bearer) -> Result<(), String> {
        let Rights::Guarded(guard) = &mut self.access else { return Ok(()) };
        guard.show_token(token.hash(), &self.uploads)
    }

    /// Goes by the rules of now.
    ///
    /// # Errors
    /// Why the connection ends.
    pub fn follow_rules(&mut self) -> Result<(), String> {
        let Rights::Guarded(guard) = &mut self.access else { return Ok(()) };
        guard.follow(&self.uploads)
    }

    /// Changes whenever the rules do.
    pub fn rules(&self) -> Option<watch::Receiver<Arc<Rules>>> {
        self.guard().map(Guard::rules)
    }

    fn guard(&self) -> Option<&Guard> {
        if let Rights::Guarded(guard) = &self.access { Some(guard) } else { None }
    }

    fn guard_mut(&mut self) -> Option<&mut Guard> {
        if let Rights::Guarded(guard) = &mut self.access { Some(guard) } else { None }
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
