//! The requests of one connection that have no reply yet.

use std::collections::{BTreeMap, VecDeque};

use units::RequestId;

use super::put::Put;
use crate::error::{Refused, WireError};
use crate::format::{PUTS_ENDED_MAX, PUTS_MAX, REQUESTS_MAX};
use crate::message::{Reply, Request};
use crate::volume::VolumeReply;

/// Memory of a request without a reply. The nodes of its map may be half full.
pub(super) const REQUEST_BYTES: usize = 2 * size_of::<(RequestId, Unanswered)>();

/// A request without a reply.
#[derive(Debug)]
struct Unanswered {
    ask: Request,
    /// Changes of a transaction, which `ask` does not hold any more.
    changes: usize,
    put: Option<Put>,
}

/// The table. It holds at most `REQUESTS_MAX` requests, `PUTS_MAX` of them uploads. A number is
/// never in the table and among the ended uploads at once.
#[derive(Debug, Default)]
pub(super) struct Requests {
    unanswered: BTreeMap<RequestId, Unanswered>,
    /// Uploads answered lately; frames that were on their way for them are dropped.
    puts_ended: VecDeque<RequestId>,
}

impl Requests {
    /// Enters a request.
    pub fn add(&mut self, request: RequestId, ask: &Request) -> Result<(), WireError> {
        if self.unanswered.contains_key(&request) {
            return Err(WireError::RequestNumber { request });
        }
        if self.unanswered.len() >= REQUESTS_MAX {
            return Err(WireError::TooMany { what: "requests in flight", max: REQUESTS_MAX as u64 });
        }
        let put = match ask {
            Request::PutOpen { file_bytes, metadata_bytes, .. } => Some(Put::new(*file_bytes, *metadata_bytes)),
            _ => None,
        };
        if put.is_some() && self.puts().count() >= PUTS_MAX {
            return Err(WireError::TooMany { what: "puts in flight", max: PUTS_MAX as u64 });
        }
        self.puts_ended.retain(|ended| *ended != request);
        let changes = if let Request::Volume { ask, .. } = ask { ask.changes() } else { 0 };
        self.unanswered.insert(request, Unanswered { ask: ask.without_data(), changes, put });
        Ok(())
    }

    /// Takes off a request that is answered; whether it was in the table.
    pub fn remove(&mut self, request: RequestId) -> bool {
        let removed = self.unanswered.remove(&request);
        if removed.as_ref().is_some_and(|removed| removed.put.is_some()) {
            self.puts_ended.push_back(request);
            let excess = self.puts_ended.len().saturating_sub(PUTS_ENDED_MAX);
            self.puts_ended.drain(..excess);
        }
        removed.is_some()
    }

    /// The request, if `reply` may answer it now.
    pub fn answered_by(&self, request: RequestId, reply: &Reply) -> Result<&Request, Refused> {
        let Unanswered { ask, changes, put } = self.unanswered.get(&request).ok_or(Refused::UnknownRequest(request))?;
        let early = matches!(reply, Reply::PutDone { .. }) && !put.as_ref().is_some_and(Put::is_committed);
        let miscounted = match reply {
            Reply::Volume(VolumeReply::Committed { versions }) => versions.len() != *changes,
            _ => false,
        };
        if early || miscounted || !ask.accepts(reply) { Err(Refused::WrongReply(request)) } else { Ok(ask) }
    }

    /// Somebody waits for the reply to a speculative request now.
    pub fn hurry(&mut self, request: RequestId) {
        if let Some(unanswered) = self.unanswered.get_mut(&request)
            && let Request::PullBlock { speculative, .. } = &mut unanswered.ask
        {
            *speculative = false;
        }
    }

    /// The upload that the server speaks of.
    pub fn put_mut(&mut self, request: RequestId) -> Result<&mut Put, Refused> {
        let unanswered = self.unanswered.get_mut(&request).ok_or(Refused::UnknownRequest(request))?;
        unanswered.put.as_mut().ok_or(Refused::WrongReply(request))
    }

    /// The upload a frame of the client belongs to; `None` if it ended lately and the frame was on
    /// its way.
    pub fn put_of_frame(&mut self, request: RequestId, kind: &'static str) -> Result<Option<&mut Put>, WireError> {
        match self.unanswered.get_mut(&request).and_then(|unanswered| unanswered.put.as_mut()) {
            Some(put) => Ok(Some(put)),
            None if self.puts_ended.contains(&request) => Ok(None),
            None => Err(WireError::UnknownRequest { kind, request }),
        }
    }

    /// The uploads.
    pub fn puts_mut(&mut self) -> impl Iterator<Item = (RequestId, &mut Put)> {
        let unanswered = self.unanswered.iter_mut();
        unanswered.filter_map(|(request, unanswered)| Some((*request, unanswered.put.as_mut()?)))
    }

    fn puts(&self) -> impl Iterator<Item = &Put> {
        self.unanswered.values().filter_map(|unanswered| unanswered.put.as_ref())
    }

    pub fn len(&self) -> usize {
        self.unanswered.len()
    }

    /// Memory of the table.
    pub fn memory_bytes(&self) -> usize {
        self.unanswered.len() * REQUEST_BYTES
    }
}
