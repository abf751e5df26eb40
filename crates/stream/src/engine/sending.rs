//! The state of a transaction on its way to the server.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use units::Moment;

use crate::StreamError;

/// How long before a parked transaction is sent again by itself: at first, and twice as long each
/// time, up to the second. So changes go on soon after a lease ended or there is room, and a large
/// transaction that is refused again and again takes little of the link.
const PARKED: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(16);

/// How often a transaction is sent to a server that fails with it.
const TRIES_MAX: u32 = 20;

/// Where a transaction is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    /// To be sent, not before this moment.
    Queued(Moment),
    /// Sent on the present connection.
    Sent,
    /// Refused for want of room or because of a lease; sent again, with another number, by a sync
    /// or at this moment.
    Parked(Moment),
}

/// The number of a transaction, and what the server has said of it.
///
/// Invariant: it is sent under the number that it has. Once the server has refused that one it gets
/// another, which is higher; a parked one has none.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Sending {
    /// Given when it is sent or stored for the first time.
    number: Option<u64>,
    state: State,
    /// The server may have it: it was sent under its present number.
    sent: bool,
    /// How often the server failed with it.
    tries: u32,
    /// How often it was parked.
    parked: u32,
    /// Why it is parked.
    why: Option<StreamError>,
}

impl Default for Sending {
    fn default() -> Sending {
        Sending { number: None, state: State::Queued(Moment(0)), sent: false, tries: 0, parked: 0, why: None }
    }
}

impl Sending {
    /// That of a transaction from an outbox, which may have been sent.
    pub fn replayed(number: u64) -> Sending {
        Sending { number: Some(number), sent: true, ..Sending::default() }
    }

    pub fn number(&self) -> Option<u64> {
        self.number
    }

    pub fn set_number(&mut self, number: u64) {
        self.number = Some(number);
    }

    /// It gets another number, since nobody knows it by the one that it has.
    pub fn drop_number(&mut self) {
        self.number = None;
    }

    /// From when on it may be sent, if it is to be sent.
    pub fn queued(&self) -> Option<Moment> {
        if let State::Queued(from) = self.state { Some(from) } else { None }
    }

    pub fn is_under_way(&self) -> bool {
        self.state == State::Sent
    }

    pub fn is_parked(&self) -> bool {
        matches!(self.state, State::Parked(_))
    }

    /// Whether the server may have it.
    pub fn was_sent(&self) -> bool {
        self.sent
    }

    /// Whether it can be forgotten: it has no number yet.
    pub fn is_new(&self) -> bool {
        self.number.is_none() && self.queued().is_some()
    }

    /// It is sent now.
    pub fn send(&mut self) {
        (self.state, self.sent) = (State::Sent, true);
    }

    /// It is sent again by its number.
    pub fn queue(&mut self, from: Moment) {
        self.state = State::Queued(from);
    }

    /// It is sent by another number: it was refused by this one, or never sent by it.
    pub fn queue_anew(&mut self, from: Moment) {
        (self.number, self.sent, self.state) = (None, false, State::Queued(from));
    }

    /// Whether it is sent again to a server that failed with it.
    pub fn may_retry(&self) -> bool {
        self.tries < TRIES_MAX
    }

    /// The server failed with it.
    pub fn retry(&mut self, from: Moment) {
        self.tries += 1;
        self.state = State::Queued(from);
    }

    /// The server does not know what became of it by its number.
    pub fn retry_anew(&mut self, from: Moment) {
        self.number = None;
        self.retry(from);
    }

    /// It waits longer each time that it is refused.
    pub fn park(&mut self, now: Moment, why: StreamError) {
        let wait = PARKED.start().saturating_mul(1 << self.parked.min(8)).min(*PARKED.end());
        self.queue_anew(now);
        self.state = State::Parked(now.after(wait));
        self.parked += 1;
        self.why = Some(why);
    }

    /// Why it is parked, or was.
    pub fn why(&self) -> Option<&StreamError> {
        self.why.as_ref()
    }

    /// It is sent again if it is parked.
    pub fn unpark(&mut self) {
        if self.is_parked() {
            self.state = State::Queued(Moment(0));
        }
    }

    /// The same if its time has come.
    pub fn unpark_due(&mut self, now: Moment) {
        if let State::Parked(until) = self.state
            && until <= now
        {
            self.state = State::Queued(Moment(0));
        }
    }

    /// The connection is gone: if it was sent, it may be done, and is sent again.
    pub fn disconnected(&mut self) {
        if self.is_under_way() {
            self.state = State::Queued(Moment(0));
        }
    }

    /// Another process goes on with it, whose clock begins anew. It may have been sent, also by its
    /// number.
    pub fn resumed(&mut self) {
        self.state = State::Queued(Moment(0));
    }

    /// When it is sent again, if that is later than now.
    pub fn due(&self, now: Moment) -> Option<Moment> {
        match self.state {
            State::Queued(from) | State::Parked(from) => Some(from).filter(|from| *from > now),
            State::Sent => None,
        }
    }
}
