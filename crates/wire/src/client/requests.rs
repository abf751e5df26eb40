//! The requests of one connection that have no answer yet, including those that were cancelled.

use std::collections::BTreeMap;
use std::time::Duration;

use units::{Moment, RequestId};

use crate::error::{Refused, WireError};
use crate::format::{
    META_READ_BYTES_MAX, NAME_BYTES_MAX, NEED_RANGES_TOTAL_MAX, PUSH_PAGES_MAX, PUTS_MAX, REQUESTS_MAX,
    TRUST_FILES_BYTES_MAX, TRUST_KNOWN_BYTES_MAX,
};
use crate::message::{BlockRange, Reply, Request};

/// A request that has no answer yet.
#[derive(Debug)]
pub(crate) struct Pending {
    pub ask: Request,
    pub deadline: Moment,
    /// Cancelled or expired: the answer still comes and is dropped.
    pub abandoned: bool,
    /// Position in the order of asking.
    order: u64,
    pub put: Option<Upload>,
}

/// A request that must be asked again on another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered<'a> {
    /// Its number on this connection.
    pub request: RequestId,
    /// The request itself.
    pub ask: &'a Request,
    /// When its answer is due, to be kept on the other connection.
    pub deadline: Moment,
}

/// Where an upload stands.
#[derive(Debug, Default)]
pub(crate) struct Upload {
    need_complete: bool,
    ranges: usize,
    next_block: u32,
    stored: u64,
    pub committed: bool,
}

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pending: BTreeMap<RequestId, Pending>,
    last: u32,
    asked: u64,
}

impl Requests {
    /// Enters a request, checked against the limits of its frame.
    pub fn add(&mut self, ask: &Request, deadline: Moment) -> Result<RequestId, Refused> {
        check(ask)?;
        if self.pending.len() >= REQUESTS_MAX {
            return Err(Refused::Full { what: "requests in flight", max: REQUESTS_MAX });
        }
        let is_put = matches!(ask, Request::PutOpen { .. });
        if is_put && self.pending.values().filter(|pending| pending.put.is_some()).count() >= PUTS_MAX {
            return Err(Refused::Full { what: "puts in flight", max: PUTS_MAX });
        }
        // ends soon: of any 1025 numbers at most 1024 are in flight, and 0 is no number
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.pending.contains_key(&RequestId(self.last)) {
                break;
            }
        }
        let request = RequestId(self.last);
        let put = is_put.then(Upload::default);
        self.asked += 1;
        let pending = Pending { ask: ask.clone(), deadline, abandoned: false, order: self.asked, put };
        self.pending.insert(request, pending);
        Ok(request)
    }

    pub fn get_mut(&mut self, request: RequestId) -> Option<&mut Pending> {
        self.pending.get_mut(&request)
    }

    /// The put with this number, if it may go on.
    pub fn put_mut(&mut self, request: RequestId) -> Result<&mut Pending, Refused> {
        let pending = self.pending.get_mut(&request).filter(|pending| !pending.abandoned);
        let pending = pending.ok_or(Refused::UnknownRequest(request))?;
        if pending.put.as_ref().is_none_or(|put| put.committed) {
            return Err(Refused::WrongReply(request));
        }
        Ok(pending)
    }

    pub fn remove(&mut self, request: RequestId) -> Option<Pending> {
        self.pending.remove(&request)
    }

    pub fn len(&self) -> usize {
        self.pending.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Takes a request off the table whose reply came; an error if the reply does not answer it.
    pub fn answer(&mut self, request: RequestId, reply: &Reply) -> Result<Pending, WireError> {
        let unknown = WireError::UnknownRequest { kind: reply.name(), request };
        let pending = self.pending.get(&request).ok_or(unknown.clone())?;
        let early = matches!(reply, Reply::PutDone { .. }) && !pending.put.as_ref().is_some_and(|put| put.committed);
        if early || !pending.ask.accepts(reply) {
            return Err(WireError::WrongReply { request, asked: pending.ask.name(), found: reply.name() });
        }
        self.pending.remove(&request).ok_or(unknown)
    }

    /// The deadline that comes first among the requests somebody waits for.
    pub fn deadline(&self) -> Option<Moment> {
        self.pending.values().filter(|pending| !pending.abandoned).map(|pending| pending.deadline).min()
    }

    /// Requests somebody waits for whose deadline has come.
    pub fn overdue(&self, now: Moment) -> Vec<RequestId> {
        let overdue = self.pending.iter().filter(|(_, pending)| !pending.abandoned && now >= pending.deadline);
        overdue.map(|(request, _)| *request).collect()
    }

    /// Requests somebody waits for, in the order of asking.
    pub fn waiting(&self) -> Vec<(RequestId, &Pending)> {
        let waiting = self.pending.iter().filter(|(_, pending)| !pending.abandoned);
        let mut waiting: Vec<_> = waiting.map(|(request, pending)| (*request, pending)).collect();
        waiting.sort_by_key(|(_, pending)| pending.order);
        waiting
    }

    /// The server names blocks of an upload. `None` if nobody waits for the upload.
    pub fn need(
        &mut self,
        request: RequestId,
        ranges: &[BlockRange],
        last: bool,
    ) -> Result<Option<&mut Pending>, WireError> {
        let pending = self.put_in_flight(request, "PutNeed")?;
        let Some(put) = pending.put.as_mut() else { return Ok(None) };
        if put.need_complete {
            return Err(WireError::WrongOrder { kind: "PutNeed", when: "after the last PutNeed" });
        }
        if ranges.first().is_some_and(|range| range.first.0 < put.next_block) {
            return Err(WireError::WrongOrder {
                kind: "PutNeed",
                when: "for blocks before those of the PutNeed before",
            });
        }
        put.ranges += ranges.len();
        if put.ranges > NEED_RANGES_TOTAL_MAX {
            return Err(WireError::TooMany { what: "block ranges of a put", max: NEED_RANGES_TOTAL_MAX as u64 });
        }
        if ranges.is_empty() && !last {
            return Err(WireError::WrongOrder { kind: "PutNeed", when: "without ranges unless it is the last" });
        }
        put.next_block = ranges.last().map_or(put.next_block, |range| range.first.0.saturating_add(range.count));
        put.need_complete = last;
        Ok(Some(pending).filter(|pending| !pending.abandoned))
    }

    /// The server stored bytes of an upload. `None` if nobody waits for the upload.
    pub fn progress(&mut self, request: RequestId, bytes: u64) -> Result<Option<&mut Pending>, WireError> {
        let pending = self.put_in_flight(request, "PutProgress")?;
        let file_bytes = if let Request::PutOpen { file_bytes, .. } = pending.ask { file_bytes } else { 0 };
        let Some(put) = pending.put.as_mut() else { return Ok(None) };
        if bytes <= put.stored || bytes > file_bytes {
            return Err(WireError::WrongOrder {
                kind: "PutProgress",
                when: "unless it grows, up to the file's length",
            });
        }
        put.stored = bytes;
        Ok(Some(pending).filter(|pending| !pending.abandoned))
    }

    fn put_in_flight(&mut self, request: RequestId, kind: &'static str) -> Result<&mut Pending, WireError> {
        let pending = self.pending.get_mut(&request).filter(|pending| pending.put.is_some());
        pending.ok_or(WireError::UnknownRequest { kind, request })
    }
}

impl Pending {
    /// Puts the deadline off: the upload made progress.
    pub fn put_off(&mut self, now: Moment, time: Duration) {
        self.deadline = self.deadline.max(now.after(time));
    }
}

/// Checks a request against the limits of its frame.
fn check(ask: &Request) -> Result<(), Refused> {
    let limit = |what, found: u64, min: u64, max: u64| {
        if (min..=max).contains(&found) { Ok(()) } else { Err(Refused::Limit { what, found, min, max }) }
    };
    match ask {
        Request::Open { name } => limit("bytes of a name", name.len() as u64, 1, NAME_BYTES_MAX as u64),
        Request::MetaRead { offset, bytes, .. } => {
            limit("bytes of a metadata read", u64::from(*bytes), 1, META_READ_BYTES_MAX as u64)?;
            limit("offset of a metadata read", *offset, 0, u64::MAX - u64::from(*bytes))
        }
        Request::PullPages { pages, .. } => limit("pages of a pull", pages.len() as u64, 1, PUSH_PAGES_MAX as u64),
        Request::PutOpen { name, file_bytes, metadata_offset, metadata_bytes } => {
            limit("bytes of a name", name.len() as u64, 1, NAME_BYTES_MAX as u64)?;
            limit("metadata offset of a put", *metadata_offset, 0, *file_bytes)?;
            limit("metadata bytes of a put", *metadata_bytes, 0, file_bytes - metadata_offset)
        }
        Request::VolumeOpen { name } => limit("bytes of a name", name.len() as u64, 1, NAME_BYTES_MAX as u64),
        Request::TrustRead { name, known } => {
            limit("bytes of a name", name.len() as u64, 0, NAME_BYTES_MAX as u64)?;
            limit("bytes of known files", known.len() as u64, 1, TRUST_KNOWN_BYTES_MAX as u64)
        }
        Request::TrustWrite { name, files } => {
            limit("bytes of a name", name.len() as u64, 0, NAME_BYTES_MAX as u64)?;
            limit("bytes of signed files", files.len() as u64, 1, TRUST_FILES_BYTES_MAX as u64)
        }
        Request::Manage { name, ask } => {
            limit("bytes of a name", name.len() as u64, 0, NAME_BYTES_MAX as u64)?;
            limit("bytes of another name", u64::from(ask.fits()), 1, 1)
        }
        Request::Volume { ask, .. } => crate::volume::limits::check(ask),
        Request::PullBlock { .. } | Request::List | Request::Status => Ok(()),
    }
}
