//! Who is at the other end of a connection, and what it may do.

use std::collections::HashMap;
use std::sync::Arc;

use predict::Reader;
use tokio::sync::watch;
use units::{ImageId, Moment, RequestId};
use wire::{Bearer, ErrorCode, ImageHandle};

use crate::access::{Guard, Opening, Principal, PushAccess, Right, Rules, Usage};
use crate::admission::ConnectionSlot;
use crate::audit::{Audit, Entry};
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

/// Outcome of what was done, in the audit log.
pub(super) const DONE: &str = "done";

/// The client of a connection that was admitted. Its slot is free again when this is dropped.
pub(crate) struct Client {
    /// For log lines.
    name: String,
    owner: Owner,
    access: Rights,
    /// Names of uploads that are under way.
    uploads: HashMap<RequestId, String>,
    audit: Option<Arc<Audit>>,
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
    pub fn new(
        name: String,
        owner: Owner,
        (access, audit): (Rights, Option<Arc<Audit>>),
        slot: ConnectionSlot,
    ) -> Client {
        Client {
            name,
            owner,
            access,
            uploads: HashMap::new(),
            audit,
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
        let checked = match &self.access {
            Rights::Open(access) if matches!(right, Right::Push | Right::Admin) => access.check(),
            Rights::Open(_) => Ok(()),
            Rights::Guarded(guard) => guard.check(right, name),
        };
        checked.inspect_err(|failure| self.note_refused(name, failure))
    }

    /// Something was refused: that is worth a line of the audit log.
    pub fn note_refused(&self, name: &str, failure: &Failure) {
        self.note("refused", name, None, &failure.text);
    }

    fn note(&self, action: &'static str, name: &str, image: Option<ImageId>, outcome: &str) {
        if let Some(audit) = &self.audit {
            let principal = self.guard().map_or("", |guard| guard.principal().name.as_str());
            let image = image.map(|id| id.to_string());
            audit.note(&Entry { action, principal, address: &self.name, name, image, outcome });
        }
    }

    /// Notes how something ends that is done elsewhere.
    pub fn noted_later(&self, action: &'static str, name: &str) -> impl FnOnce(&str) + Send + 'static {
        let (audit, address, name) = (self.audit.clone(), self.name.clone(), name.to_owned());
        let principal = self.guard().map_or_else(String::new, |guard| guard.principal().name.clone());
        move |outcome| {
            if let Some(audit) = audit {
                let (principal, address, name) = (principal.as_str(), address.as_str(), name.as_str());
                audit.note(&Entry { action, principal, address, name, image: None, outcome });
            }
        }
    }

    /// Refuses a list of images of which the client may see none. Whose list it is, if not all
    /// images may be on it.
    pub fn check_list(&self) -> Result<Option<Arc<Principal>>, Failure> {
        let Some(guard) = self.guard() else { return Ok(None) };
        guard.check_list().inspect_err(|failure| self.note_refused("", failure))?;
        Ok(Some(guard.principal().clone()))
    }

    /// The beginning of an Open.
    pub fn opening(&self, name: &Name) -> Result<Opening, Failure> {
        let begun = self.guard().map_or_else(|| Ok(Opening::default()), |guard| guard.opening(name));
        begun.inspect_err(|failure| self.note_refused(&name.to_string(), failure))
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
        let writes = self.guard_mut().map_or(writable, |guard| guard.opened_volume(handle, name, writable));
        if writes {
            self.note("volume-write", name, None, DONE);
        }
        writes
    }

    /// Refuses changes of a volume that the client may only read.
    pub fn check_writes(&self, handle: ImageHandle) -> Result<(), Failure> {
        let checked = self.guard().map_or(Ok(()), |guard| guard.check_writes(handle));
        checked.inspect_err(|failure| self.note_refused("", failure))
    }

    /// An upload under this name has begun.
    pub fn upload_begins(&mut self, request: RequestId, name: String) {
        self.uploads.insert(request, name);
    }

    /// An upload is over: so it went.
    pub fn upload_ends(&mut self, request: RequestId, outcome: &Result<ImageId, Failure>) {
        let Some(name) = self.uploads.remove(&request) else { return };
        match outcome {
            Ok(id) => self.note("push", &name, Some(*id), DONE),
            Err(failure) => self.note("push", &name, None, &failure.text),
        }
    }

    /// The client shows a token. Without access rules nobody needs one.
    ///
    /// # Errors
    /// Why the connection ends.
    pub fn show_token(&mut self, token: &Bearer) -> Result<(), String> {
        let Rights::Guarded(guard) = &mut self.access else { return Ok(()) };
        let shown = guard.show_token(token.hash(), &self.uploads);
        shown.inspect_err(|reason| self.note("closed", "", None, reason))
    }

    /// Goes by the rules of now.
    ///
    /// # Errors
    /// Why the connection ends.
    pub fn follow_rules(&mut self) -> Result<(), String> {
        let Rights::Guarded(guard) = &mut self.access else { return Ok(()) };
        let followed = guard.follow(&self.uploads);
        followed.inspect_err(|reason| self.note("closed", "", None, reason))
    }

    /// What all clients of its principal have and do; `None` without access rules.
    pub fn usage(&self) -> Option<&Usage> {
        self.guard().map(|guard| &**guard.usage())
    }

    /// The same for those who outlive the connection.
    pub fn usage_shared(&self) -> Option<Arc<Usage>> {
        self.guard().map(|guard| guard.usage().clone())
    }

    /// For whom runs on this connection are predicted, and whether they teach.
    pub fn reader(&self) -> Reader {
        self.guard().map_or_else(Reader::default, |guard| guard.principal().reader)
    }

    /// Counts the connection among those of its principal, once.
    pub fn count_connection(&mut self) -> Result<(), Failure> {
        let counted = self.guard_mut().map_or(Ok(()), Guard::count_connection);
        counted.inspect_err(|failure| self.note("closed", "", None, &failure.text))
    }

    /// Counts an image among those that its principal has open.
    pub fn count_image(&mut self, opening: &Opening) -> Result<(), Failure> {
        let counted = self.guard_mut().map_or(Ok(()), Guard::count_image);
        counted.inspect_err(|failure| self.note_refused(opening.granted(), failure))
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
