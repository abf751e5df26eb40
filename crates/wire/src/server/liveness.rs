//! Deadlines of a client, and how many pings it may send.

use std::time::Duration;

use units::Moment;

use super::ServerConfig;
use crate::error::WireError;
use crate::format::{PINGS_MAX, STALL_BYTES_MIN};

/// The deadlines of a client. A stall is open exactly while something is queued for it, as far as
/// the last call of [`Liveness::sent`] or [`Liveness::waits`] knows.
#[derive(Debug)]
pub(super) struct Liveness {
    hello_deadline: Duration,
    idle_max: Duration,
    stall_max: Duration,
    /// When the connection was accepted, until the client's hello came.
    opened: Option<Moment>,
    received: Moment,
    stall: Option<Stall>,
    /// Bytes a second that the client wants at most; 0 for no limit.
    rate_limit: u64,
    /// How many pings the client may send now: to answer one costs more than to send it.
    pings_left: u32,
    /// Until when time has granted pings.
    pings_since: Moment,
}

/// A time in which something is queued for the client.
#[derive(Clone, Copy, Debug)]
struct Stall {
    since: Moment,
    /// Bytes that were sent since.
    sent_bytes: usize,
}

impl Liveness {
    pub fn new(config: &ServerConfig, now: Moment) -> Liveness {
        Liveness {
            hello_deadline: config.hello_deadline,
            idle_max: config.idle_max,
            stall_max: config.stall_max,
            opened: Some(now),
            received: now,
            stall: None,
            rate_limit: 0,
            pings_left: PINGS_MAX,
            pings_since: now,
        }
    }

    /// Something came from the client.
    pub fn received(&mut self, now: Moment) {
        self.received = now;
    }

    /// The client's hello came.
    pub fn hello(&mut self) {
        self.opened = None;
    }

    pub fn limit_rate(&mut self, bytes_per_second: u64) {
        self.rate_limit = bytes_per_second;
    }

    /// A Ping came; an error if there were too many.
    pub fn ping(&mut self, now: Moment) -> Result<(), WireError> {
        let seconds = now.since(self.pings_since).as_secs();
        self.pings_since = self.pings_since.after(Duration::from_secs(seconds));
        let granted = u32::try_from(seconds).unwrap_or(u32::MAX);
        self.pings_left = self.pings_left.saturating_add(granted).min(PINGS_MAX);
        let too_many = WireError::TooMany { what: "pings within a short time", max: u64::from(PINGS_MAX) };
        self.pings_left = self.pings_left.checked_sub(1).ok_or(too_many)?;
        Ok(())
    }

    /// `bytes` were sent, and so much is queued.
    pub fn sent(&mut self, now: Moment, bytes: usize, queued_bytes: usize) {
        let needed = self.stall_bytes_min();
        self.stall = match self.stall {
            _ if queued_bytes == 0 => None,
            Some(stall) if stall.sent_bytes + bytes < needed => {
                Some(Stall { sent_bytes: stall.sent_bytes + bytes, ..stall })
            }
            _ => Some(Stall { since: now, sent_bytes: 0 }),
        };
    }

    /// Something is queued for the client.
    pub fn waits(&mut self, now: Moment) {
        self.stall.get_or_insert(Stall { since: now, sent_bytes: 0 });
    }

    /// When [`Liveness::check`] may fail. `queued`: something is queued for the client.
    pub fn deadline(&self, queued: bool) -> Moment {
        let first = match self.opened {
            Some(opened) => opened.after(self.hello_deadline),
            None => self.received.after(self.idle_max),
        };
        let stall = self.stall.map_or(self.received, |stall| stall.since).after(self.stall_max);
        if queued { first.min(stall) } else { first }
    }

    /// An error if the client took too long.
    pub fn check(&self, now: Moment) -> Result<(), WireError> {
        let late = |since: Moment, limit: Duration, what| {
            if now >= since.after(limit) { Err(WireError::Deadline { what, limit }) } else { Ok(()) }
        };
        match self.opened {
            Some(opened) => late(opened, self.hello_deadline, "the client sent no Hello")?,
            None => late(self.received, self.idle_max, "the client sent nothing")?,
        }
        match self.stall {
            Some(stall) => late(stall.since, self.stall_max, "the client hardly reads its answers"),
            None => Ok(()),
        }
    }

    /// Bytes that the client must read in the time for it: fewer if it wants its answers slower.
    fn stall_bytes_min(&self) -> usize {
        // A sender keeps to a limit in steps of a packet; a half leaves room for that.
        let limited = self.rate_limit.saturating_mul(self.stall_max.as_secs()) / 2;
        if self.rate_limit == 0 { STALL_BYTES_MIN } else { STALL_BYTES_MIN.min(limited as usize) }
    }
}
