//! What the client of one connection may do under the rules of now.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;
use units::{ImageId, RequestId};
use wire::{ErrorCode, ImageHandle};

use super::live::{Rules, Who, seconds_now, short};
use super::rules::ANONYMOUS;
use super::tokens::TokenHash;
use super::usage::{Share, Usage};
use super::{Access, Principal, Right};
use crate::catalog::Names;
use crate::error::Failure;
use crate::name::Name;

/// What a client shows of itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    /// DNS names and URIs of its certificate, which the handshake has checked.
    pub names: Vec<String>,
    /// The hash of its token.
    pub token: Option<TokenHash>,
}

/// What the client of one connection may do.
///
/// Invariant: as of the last [`Guard::follow`], the rules let the client have all that is granted
/// to it.
pub(crate) struct Guard {
    access: Arc<Access>,
    rules: watch::Receiver<Arc<Rules>>,
    shown: Shown,
    who: Who,
    /// What counts against the limits of its principal.
    share: Share,
    /// What it has open.
    grants: HashMap<ImageHandle, Grant>,
}

/// Why a client has something open.
struct Grant {
    right: Right,
    /// What the right was on.
    name: String,
    /// Of a volume: whether it may change files.
    writes: bool,
}

impl Guard {
    /// For a client whose certificate has these names, or that has none.
    pub fn new(access: &Arc<Access>, names: Vec<String>) -> Guard {
        let mut rules = access.rules();
        let who = rules.borrow_and_update().of_names(&names);
        let shown = Shown { names, token: None };
        let access = access.clone();
        let share = Share::new(access.usage(&who.principal));
        Guard { access, rules, shown, who, share, grants: HashMap::new() }
    }

    /// Whom the server takes the client for.
    pub fn principal(&self) -> &Arc<Principal> {
        &self.who.principal
    }

    /// What all clients of the principal have and do.
    pub fn usage(&self) -> &Arc<Usage> {
        self.share.usage()
    }

    /// Refuses a connection that is one too many.
    pub fn count_connection(&mut self) -> Result<(), Failure> {
        self.share.count_connection()
    }

    /// Refuses an image that is one too many.
    pub fn count_image(&mut self) -> Result<(), Failure> {
        self.share.count_image()
    }

    /// Changes whenever the rules do.
    pub fn rules(&self) -> watch::Receiver<Arc<Rules>> {
        self.rules.clone()
    }

    /// The client shows a token.
    ///
    /// # Errors
    /// Why the connection ends.
    pub fn show_token(&mut self, hash: TokenHash, uploads: &HashMap<RequestId, String>) -> Result<(), String> {
        self.shown.token = Some(hash);
        self.look_again(uploads)
    }

    /// Looks whether the rules have changed, which costs next to nothing while they have not.
    /// `uploads` are the names of those that are under way.
    ///
    /// # Errors
    /// Why the connection ends: the client is nobody any more, or may not have what it has open.
    pub fn follow(&mut self, uploads: &HashMap<RequestId, String>) -> Result<(), String> {
        // The server holds the other end as long as there are connections.
        if self.rules.has_changed().unwrap_or(false) { self.look_again(uploads) } else { Ok(()) }
    }

    fn look_again(&mut self, uploads: &HashMap<RequestId, String>) -> Result<(), String> {
        let rules = self.rules.borrow_and_update().clone();
        self.who = rules.who(&self.shown, seconds_now())?;
        self.share.move_to(self.access.usage(&self.who.principal));
        let lost = |right: Right, name: &str| {
            format!("what you have open was taken from you: {}", self.refusal(right, name).text)
        };
        let principal = &self.who.principal;
        for grant in self.grants.values() {
            let right = if grant.writes { Right::VolumeWrite } else { grant.right };
            if !principal.may(right, &grant.name) {
                return Err(lost(right, &grant.name));
            }
        }
        match uploads.values().find(|name| !principal.may(Right::Push, name)) {
            Some(name) => Err(lost(Right::Push, name)),
            None => Ok(()),
        }
    }

    /// Refuses what the client may not do.
    pub fn check(&self, right: Right, name: &str) -> Result<(), Failure> {
        if self.who.principal.may(right, name) { Ok(()) } else { Err(self.refusal(right, name)) }
    }

    /// Refuses a list to a client that may see nothing on it.
    pub fn check_list(&self) -> Result<(), Failure> {
        if self.who.principal.lists_any() { Ok(()) } else { Err(self.refusal(Right::Pull, "any image")) }
    }

    /// Who, what, and the next step, in this order: a message is cut at 256 bytes.
    fn refusal(&self, right: Right, name: &str) -> Failure {
        let Who { principal, because } = &self.who;
        let (who, right) = (&principal.name, right.name());
        let on = if name.is_empty() { String::new() } else { format!(" on {}", short(name)) };
        let next = match who.as_str() {
            ANONYMOUS => "give --token-file, or --cert and --key".to_owned(),
            who => format!("have it added to [principal.{who}] in the server's access file"),
        };
        let text = format!("the server takes you for {who} ({because}), who has no right `{right}`{on}; {next}");
        Failure::new(ErrorCode::Forbidden, text)
    }

    /// The beginning of an Open. By name it is refused here; for an id the blocking thread that
    /// opens the image looks for a name that may be pulled.
    pub fn opening(&self, name: &Name) -> Result<Opening, Failure> {
        let text = name.to_string();
        let by_id = match (self.check(Right::Pull, &text), name) {
            (Ok(()), _) => return Ok(Opening { granted: OnceLock::from(text), by_id: None }),
            (Err(failure), Name::Tag { .. }) => return Err(failure),
            (Err(failure), Name::Id(id)) => {
                ById { id: *id, access: self.access.clone(), principal: self.who.principal.clone(), failure }
            }
        };
        Ok(Opening { granted: OnceLock::new(), by_id: Some(by_id) })
    }

    /// Refuses what the client may not have any more.
    pub fn check_opening(&self, opening: &Opening) -> Result<(), Failure> {
        self.check(Right::Pull, opening.granted())
    }

    /// The image of an [`Opening`] is open.
    pub fn opened(&mut self, handle: ImageHandle, id: ImageId, opening: &Opening) {
        let name = opening.granted.get().cloned().unwrap_or_default();
        if opening.by_id.is_none() && !name.starts_with('@') {
            self.access.served.note(id, &name);
        }
        self.grants.insert(handle, Grant { right: Right::Pull, name, writes: false });
    }

    /// A volume was opened; `writable` if it is served for changes. Whether the client may make
    /// them.
    pub fn opened_volume(&mut self, handle: ImageHandle, name: &str, writable: bool) -> bool {
        let writes = writable && self.who.principal.may(Right::VolumeWrite, name);
        self.grants.insert(handle, Grant { right: Right::VolumeRead, name: name.to_owned(), writes });
        writes
    }

    /// Refuses changes of a volume that the client has open for reading.
    pub fn check_writes(&self, handle: ImageHandle) -> Result<(), Failure> {
        match self.grants.get(&handle) {
            Some(grant) if grant.writes => Ok(()),
            Some(grant) => Err(self.refusal(Right::VolumeWrite, &grant.name)),
            None => Ok(()),
        }
    }
}

/// An image that is being opened.
#[derive(Default)]
pub(crate) struct Opening {
    /// The name on which the right was.
    granted: OnceLock<String>,
    by_id: Option<ById>,
}

/// An image asked for by an id on which there is no right.
struct ById {
    id: ImageId,
    access: Arc<Access>,
    principal: Arc<Principal>,
    /// What to say if there is none on a name of it either.
    failure: Failure,
}

impl Opening {
    /// What was asked for, if it was an id on which there is no right.
    pub fn asked(&self) -> Option<String> {
        self.by_id.as_ref().map(|by_id| format!("@{}", by_id.id))
    }

    /// The name on which the right was, or nothing.
    pub fn granted(&self) -> &str {
        self.granted.get().map_or("", String::as_str)
    }

    /// Looks for a name of the image that its principal may pull. Blocks.
    pub fn check(&self, names: &Names) -> Result<(), Failure> {
        let Some(ById { id, access, principal, failure }) = &self.by_id else { return Ok(()) };
        let may = |name: &str| principal.may(Right::Pull, name);
        let name = match access.served.name_of(*id, may) {
            Some(name) => name,
            None => names.name_of(*id, may)?.ok_or_else(|| failure.clone())?,
        };
        // Set once, here.
        let _ = self.granted.set(name);
        Ok(())
    }
}
