//! Whether the server still answers: deadlines of the handshake and of silence, pings, round trips.

use std::time::Duration;

use units::Moment;

use super::ClientConfig;
use crate::error::WireError;

/// When the server was last seen, and what it owes. At most one Ping has no Pong. Silence counts
/// only while something is outstanding: the server's hello, an answer or a Pong.
#[derive(Debug)]
pub(super) struct Liveness {
    hello_deadline: Duration,
    keepalive: Duration,
    silence_max: Duration,
    /// When the connection was opened, until the server's hello came.
    opened: Option<Moment>,
    /// Something came, or data of an upload left.
    alive: Moment,
    /// Since when something has been outstanding without a break.
    outstanding: Option<Moment>,
    /// The Ping that has no Pong yet.
    ping: Option<(u64, Moment)>,
    nonce: u64,
    /// The least one so far.
    round_trip: Option<Duration>,
}

impl Liveness {
    pub fn new(config: &ClientConfig, now: Moment) -> Liveness {
        Liveness {
            hello_deadline: config.hello_deadline,
            keepalive: config.keepalive,
            silence_max: config.silence_max,
            opened: Some(now),
            alive: now,
            outstanding: Some(now),
            ping: None,
            nonce: 0,
            round_trip: None,
        }
    }

    /// The server, or the transport, is alive.
    pub fn alive(&mut self, now: Moment) {
        self.alive = now;
    }

    /// The server's hello came.
    pub fn hello(&mut self, now: Moment) {
        if let Some(opened) = self.opened.take() {
            self.add_round_trip(now.since(opened));
        }
    }

    /// The Ping to send now, if one is due.
    pub fn ping(&mut self, now: Moment) -> Option<u64> {
        self.ping_due().filter(|due| now >= *due)?;
        self.nonce += 1;
        self.ping = Some((self.nonce, now));
        Some(self.nonce)
    }

    /// A Pong came.
    pub fn pong(&mut self, now: Moment, nonce: u64) -> Result<(), WireError> {
        match self.ping.take() {
            Some((sent_nonce, sent)) if sent_nonce == nonce => self.add_round_trip(now.since(sent)),
            _ => return Err(WireError::WrongOrder { kind: "Pong", when: "without its Ping" }),
        }
        Ok(())
    }

    /// Begins or ends the time in which silence counts. `requests`: some have no answer.
    pub fn note_outstanding(&mut self, now: Moment, requests: bool) {
        if self.opened.is_some() || requests || self.ping.is_some() {
            self.outstanding.get_or_insert(now);
        } else {
            self.outstanding = None;
        }
    }

    /// When [`Liveness::check`] may fail, or a Ping is due.
    pub fn deadline(&self) -> Option<Moment> {
        let hello = self.opened.map(|opened| opened.after(self.hello_deadline));
        let silence = self.silence_began().map(|since| since.after(self.silence_max));
        [hello, silence, self.ping_due()].into_iter().flatten().min()
    }

    /// An error if the server took too long.
    pub fn check(&self, now: Moment) -> Result<(), WireError> {
        let late = |since: Option<Moment>, limit: Duration, what| match since {
            Some(since) if now >= since.after(limit) => Err(WireError::Deadline { what, limit }),
            _ => Ok(()),
        };
        late(self.opened, self.hello_deadline, "the server sent no HelloReply")?;
        late(self.silence_began(), self.silence_max, "the server sent nothing")
    }

    /// Least round trip of hello and pings so far.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Start of the silence that counts: something was outstanding all the time since, and nothing
    /// came.
    fn silence_began(&self) -> Option<Moment> {
        self.outstanding.map(|since| since.max(self.alive))
    }

    /// When to send a Ping: early if something is outstanding, so that a slow answer is not taken
    /// for a dead server.
    fn ping_due(&self) -> Option<Moment> {
        if self.ping.is_some() || self.opened.is_some() {
            return None;
        }
        match self.silence_began() {
            Some(since) => Some(since.after(self.silence_max / 2)),
            None => Some(self.alive.after(self.keepalive)),
        }
    }

    fn add_round_trip(&mut self, sample: Duration) {
        self.round_trip = Some(self.round_trip.map_or(sample, |least| least.min(sample)));
    }
}
