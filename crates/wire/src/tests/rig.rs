//! A client and a server over a simulated link. Time is a number: an hour of idling costs nothing.

use std::collections::VecDeque;
use std::time::Duration;

use units::{Moment, Rng, SplitMix64};

use crate::{ClientConfig, ClientConnection, ClientEvent, ServerConfig, ServerConnection, ServerEvent};

/// Payload of a TCP segment on Ethernet.
const SEGMENT_BYTES: usize = 1448;

/// Properties of a link, the same both ways.
#[derive(Clone, Copy, Debug)]
pub struct LinkConfig {
    pub round_trip: Duration,
    pub bits_per_second: u64,
    /// Lost segments of a thousand. TCP sends them again: they, and all behind them, come a round
    /// trip later.
    pub loss_permille: u64,
    /// Bytes the sender's socket holds that are not on the wire yet.
    pub socket_bytes: usize,
}

impl LinkConfig {
    pub fn new(round_trip_ms: u64, megabits: u64) -> LinkConfig {
        let round_trip = Duration::from_millis(round_trip_ms);
        LinkConfig { round_trip, bits_per_second: megabits * 1_000_000, loss_permille: 0, socket_bytes: 16 << 10 }
    }

    pub fn bytes_per_second(&self) -> u64 {
        self.bits_per_second / 8
    }

    /// Bytes on the wire when it is full.
    pub fn product(&self) -> u64 {
        (self.bytes_per_second() as u128 * self.round_trip.as_micros() / 1_000_000) as u64
    }

    /// Time to put `bytes` on the wire.
    pub fn time(&self, bytes: u64) -> Duration {
        Duration::from_micros((bytes as u128 * 1_000_000 / self.bytes_per_second() as u128) as u64)
    }
}

/// One direction of a link.
pub struct Link {
    config: LinkConfig,
    rng: SplitMix64,
    /// When all bytes in the socket will be on the wire.
    busy_until: Moment,
    on_the_wire: VecDeque<(Moment, Vec<u8>)>,
    /// Swallows everything without a word, as a link does whose far end lost power.
    pub dead: bool,
    pub bytes_delivered: u64,
}

impl Link {
    fn new(config: LinkConfig, seed: u64) -> Link {
        let (busy_until, on_the_wire) = (Moment(0), VecDeque::new());
        Link { config, rng: SplitMix64(seed), busy_until, on_the_wire, dead: false, bytes_delivered: 0 }
    }

    fn backlog(&self, now: Moment) -> usize {
        let micros = self.busy_until.since(now).as_micros();
        (micros * self.config.bytes_per_second() as u128 / 1_000_000) as usize
    }

    /// Bytes the socket takes now; whole segments only.
    fn room(&self, now: Moment) -> usize {
        let room = self.config.socket_bytes.saturating_sub(self.backlog(now));
        if room < SEGMENT_BYTES { 0 } else { room }
    }

    /// When the socket takes a segment again.
    fn ready(&self) -> Moment {
        let excess = self.config.time((self.config.socket_bytes - SEGMENT_BYTES) as u64);
        // a microsecond more against rounding
        Moment(self.busy_until.0.saturating_sub(excess.as_micros() as u64) + 1)
    }

    fn send(&mut self, now: Moment, bytes: &[u8]) {
        for segment in bytes.chunks(SEGMENT_BYTES) {
            self.busy_until = self.busy_until.max(now).after(self.config.time(segment.len() as u64));
            let lost = self.rng.below(1000) < self.config.loss_permille;
            let delay = self.config.round_trip / 2 + if lost { self.config.round_trip } else { Duration::ZERO };
            let earliest = self.on_the_wire.back().map_or(Moment(0), |(arrival, _)| *arrival);
            if !self.dead {
                self.on_the_wire.push_back((self.busy_until.after(delay).max(earliest), segment.to_vec()));
            }
        }
    }

    fn arrival(&self) -> Option<Moment> {
        self.on_the_wire.front().map(|(arrival, _)| *arrival)
    }

    fn receive(&mut self, now: Moment) -> Option<Vec<u8>> {
        if self.dead {
            self.on_the_wire.clear();
        }
        self.arrival().filter(|arrival| *arrival <= now)?;
        let (_, bytes) = self.on_the_wire.pop_front()?;
        self.bytes_delivered += bytes.len() as u64;
        Some(bytes)
    }
}

/// Both ends and the link between them.
pub struct Pair {
    pub now: Moment,
    pub client: ClientConnection,
    pub server: ServerConnection,
    pub up: Link,
    pub down: Link,
}

impl Pair {
    pub fn new(link: LinkConfig, seed: u64) -> Pair {
        Pair::with(link, seed, Moment(0), ClientConfig::default(), ServerConfig::default())
    }

    pub fn with(link: LinkConfig, seed: u64, now: Moment, client: ClientConfig, server: ServerConfig) -> Pair {
        Pair {
            now,
            client: ClientConnection::new(client, now),
            server: ServerConnection::new(server, now),
            up: Link::new(link, seed),
            down: Link::new(link, seed ^ 0x5555),
        }
    }

    /// A pair with the handshake behind it.
    pub fn ready(link: LinkConfig, seed: u64) -> Pair {
        let mut pair = Pair::new(link, seed);
        pair.settle();
        assert!(matches!(pair.client.poll_event(), Some(ClientEvent::Ready(_))));
        assert!(matches!(pair.server.poll_event(), Some(ServerEvent::Ready(_))));
        pair
    }

    /// Changes the link for what is sent from now on.
    pub fn set_link(&mut self, link: LinkConfig) {
        (self.up.config, self.down.config) = (link, link);
    }

    /// Moves what can move now, then time to the next moment at which something happens, but not
    /// beyond `until`. Whether there was such a moment before `until`.
    pub fn step(&mut self, until: Moment) -> bool {
        self.transmit();
        let wake = self.wake().filter(|wake| *wake < until);
        self.now = wake.unwrap_or(until).max(self.now);
        while let Some(bytes) = self.up.receive(self.now) {
            let _ = self.server.receive(self.now, &bytes);
        }
        while let Some(bytes) = self.down.receive(self.now) {
            let _ = self.client.receive(self.now, &bytes);
        }
        if self.client.deadline().is_some_and(|deadline| deadline <= self.now) {
            let _ = self.client.tick(self.now);
        }
        if self.server.deadline().is_some_and(|deadline| deadline <= self.now) {
            let _ = self.server.tick(self.now);
        }
        self.transmit();
        wake.is_some()
    }

    /// Steps until nothing is on the wire or waits to be sent.
    pub fn settle(&mut self) {
        loop {
            self.transmit();
            if self.up.on_the_wire.is_empty() && self.down.on_the_wire.is_empty() {
                return;
            }
            self.step(Moment(u64::MAX));
        }
    }

    /// Steps for `time`, polling nothing.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now.after(time);
        while self.step(until) {}
    }

    pub fn client_events(&mut self) -> Vec<ClientEvent> {
        std::iter::from_fn(|| self.client.poll_event()).collect()
    }

    pub fn server_events(&mut self) -> Vec<ServerEvent> {
        std::iter::from_fn(|| self.server.poll_event()).collect()
    }

    fn transmit(&mut self) {
        let mut out = Vec::new();
        let room = self.up.room(self.now);
        self.client.transmit(self.now, &mut out, room);
        self.up.send(self.now, &out);
        out.clear();
        let room = self.down.room(self.now);
        self.server.transmit(self.now, &mut out, room);
        self.down.send(self.now, &out);
    }

    /// The next moment at which something can happen.
    fn wake(&self) -> Option<Moment> {
        let ready = |link: &Link| (link.backlog(self.now) > 0).then(|| link.ready());
        let moments = [
            self.up.arrival(),
            self.down.arrival(),
            // an idle sender need not be woken; a busy one when its socket takes bytes again
            ready(&self.up).filter(|_| self.client.has_output()),
            ready(&self.down).filter(|_| self.server.queued_bytes() > 0),
            self.client.deadline(),
            self.server.deadline(),
        ];
        moments.into_iter().flatten().filter(|moment| *moment > self.now).min()
    }
}
