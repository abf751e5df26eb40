//! Waiting for the rates of the client's principal. A connection that has to wait leaves bytes in
//! the socket and requests where they are, so nothing else waits for it.

use units::{Moment, RequestId};
use wire::Request;

use crate::access::Usage;

/// Fewer bytes are not sent or read for themselves unless no more are there: a packet.
const PACKET_BYTES: usize = 1500;

/// What a connection has to wait for.
#[derive(Default)]
pub(super) struct Rates {
    pub sending: Allowance,
    pub receiving: Allowance,
    /// A request that was not taken up yet, and when it may be.
    waiting: Option<(RequestId, Request, Moment)>,
}

/// Bytes that a connection may move in one direction. The principal's rate has counted them.
#[derive(Default)]
pub(super) struct Allowance {
    bytes: usize,
    /// There was no limit when it was looked at last.
    is_unlimited: bool,
    /// When there may be more, if they are too few.
    opens: Option<Moment>,
}

impl Allowance {
    /// Bytes that may be moved now; 0 while too few are allowed.
    pub fn bytes(&self) -> usize {
        if self.opens.is_some() { 0 } else { self.bytes }
    }

    /// So many were moved.
    pub fn spend(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Gets more if it is used up.
    fn refill(&mut self, usage: Option<&Usage>) {
        // What was allowed without a limit does not count under one.
        if self.is_unlimited {
            self.bytes = 0;
        } else if self.bytes >= PACKET_BYTES {
            return;
        }
        let more = usage.map_or(Ok(None), Usage::take_bytes);
        self.opens = more.err();
        match more {
            Ok(Some(more)) => (self.bytes, self.is_unlimited) = (self.bytes + more, false),
            Ok(None) => (self.bytes, self.is_unlimited) = (usize::MAX, true),
            Err(_) => self.is_unlimited = false,
        }
    }
}

impl Rates {
    /// Gets more of what is used up.
    pub fn refill(&mut self, usage: Option<&Usage>) {
        self.sending.refill(usage);
        self.receiving.refill(usage);
    }

    /// A request has to wait until then.
    pub fn keep(&mut self, request: RequestId, ask: Request, until: Moment) {
        self.waiting = Some((request, ask, until));
    }

    /// The request that waits.
    pub fn take_waiting(&mut self) -> Option<(RequestId, Request)> {
        self.waiting.take().map(|(request, ask, _)| (request, ask))
    }

    /// Whether a request waits: nothing that came behind it is taken up.
    pub fn holds_requests(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether the server does not read because of a rate.
    pub fn holds_reads(&self) -> bool {
        self.receiving.opens.is_some()
    }

    /// When to look again.
    pub fn opens(&self) -> Option<Moment> {
        let request = self.waiting.as_ref().map(|(_, _, until)| *until);
        [self.sending.opens, self.receiving.opens, request].into_iter().flatten().min()
    }
}
