//! Requests that change what the server keeps.

use units::RequestId;
use wire::{ManageAsk, Reply};

use super::Session;
use super::client::DONE;
use crate::access::Right;
use crate::error::Failure;
use crate::manage;
use crate::name::Name;
use crate::upload::Publisher;

/// Does what an operator asks for, if he may.
pub(super) fn ask(session: &mut Session, request: RequestId, name: String, ask: ManageAsk) -> Result<(), Failure> {
    let client = &session.client;
    let (name, what) = match &ask {
        ManageAsk::Remove | ManageAsk::Tag { .. } => {
            let name = Name::parse(&name).map_err(Failure::bad_request)?.to_string();
            client.check(Right::Push, &name)?;
            (name, if ask == ManageAsk::Remove { "remove" } else { "tag" })
        }
        ManageAsk::Rules | ManageAsk::Retain { .. } => (name, "retain"),
        ManageAsk::Collect { .. } => (name, "collect"),
    };
    match &ask {
        ManageAsk::Remove => {}
        ManageAsk::Tag { of } => {
            client.check(Right::Pull, &Name::parse(of).map_err(Failure::bad_request)?.to_string())?;
        }
        ManageAsk::Rules | ManageAsk::Retain { .. } | ManageAsk::Collect { .. } => client.check(Right::Admin, &name)?,
    }
    let is_change = !matches!(ask, ManageAsk::Rules | ManageAsk::Collect { dry_run: true, .. });
    let note = is_change.then(|| client.noted_later(what, &name));
    let (shared, publisher) = (session.shared.clone(), client.usage_shared().map(Publisher));
    session.answer(request, wire::format::FRAME_BYTES_MAX_WRITTEN, move || {
        let done = manage::manage(&shared, &name, ask, publisher.as_ref());
        if let Some(note) = note {
            note(done.as_ref().map_or_else(|failure| failure.text.as_str(), |_| DONE));
        }
        Ok(Reply::Managed { json: done? })
    });
    Ok(())
}
