//! The connection to the server, as the engine knows it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use connection::{Connected, LinkEstimate, Tag, Unanswered, VolumeMessage};
use units::{Moment, StreamId};
use wire::volume::VolumeReply;
use wire::{ImageHandle, Notice, Reply, Request};

use super::file::File;
use super::requests::{AskFor, Asked, Requests};
use crate::estimate;

/// The connection to the server, and what is under way over it.
///
/// Invariant: the volume is open, and requests and push streams are under way, only while there is
/// a connection. Messages are for the connection on which they were made, and keep their order.
pub(super) struct Link {
    /// Of the present connection, if there is one.
    generation: Option<u64>,
    /// Where it leads, if others on the way can read and change what is sent.
    exposed_to: Option<SocketAddr>,
    /// The volume is open on it.
    volume: Option<ImageHandle>,
    /// When to try to open it again.
    again: Option<Moment>,
    /// Why the volume is not open, for people.
    reason: String,
    /// Since when there is none.
    away: Moment,
    connections: u64,
    incoming: LinkEstimate,
    outgoing: LinkEstimate,
    received: u64,
    streams: BTreeSet<StreamId>,
    requests: Requests,
    messages: Vec<(u64, VolumeMessage)>,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            generation: None,
            exposed_to: None,
            volume: None,
            again: None,
            reason: String::new(),
            away: Moment(0),
            connections: 0,
            incoming: LinkEstimate::new(estimate::SAMPLE_BYTES_MIN),
            outgoing: LinkEstimate::new(estimate::SAMPLE_BYTES_MIN),
            received: 0,
            streams: BTreeSet::new(),
            requests: Requests::default(),
            messages: Vec::new(),
        }
    }
}

impl Link {
    /// A connection is there.
    pub fn connected(&mut self, generation: u64, connected: &Connected) {
        self.generation = Some(generation);
        self.exposed_to = connected.is_exposed().then_some(connected.address);
        self.connections += 1;
    }

    /// The connection is gone.
    pub fn lost(&mut self, now: Moment) {
        self.generation = None;
        if self.volume.take().is_some() {
            self.away = now;
        }
        self.again = None;
        self.streams.clear();
        self.requests.clear();
    }

    /// Connections so far.
    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// Where the connection leads, if others on the way can read and change what is sent.
    pub fn exposed_to(&self) -> Option<SocketAddr> {
        self.exposed_to
    }

    /// The volume is open on the present connection.
    pub fn opened(&mut self, volume: ImageHandle) {
        self.volume = Some(volume);
        self.reason.clear();
        self.again = None;
    }

    /// From now on it is as if the server were away.
    pub fn close(&mut self) {
        self.volume = None;
    }

    /// The volume on the present connection.
    pub fn volume(&self) -> Option<ImageHandle> {
        self.volume
    }

    /// Whether the volume is open on the present connection.
    pub fn is_open(&self) -> bool {
        self.volume.is_some()
    }

    /// Since when the server is away, if it is.
    pub fn away(&self) -> Moment {
        self.away
    }

    /// Whether there is a connection on which the volume is not open yet.
    pub fn needs_volume(&self) -> bool {
        self.generation.is_some() && self.volume.is_none()
    }

    /// Opens the volume again at this moment.
    pub fn open_again_at(&mut self, again: Moment) {
        self.again = Some(again);
    }

    /// Whether the volume is to be opened again by now; true once.
    pub fn take_again(&mut self, now: Moment) -> bool {
        let is_due = self.again.is_some_and(|again| now >= again);
        self.again = self.again.filter(|_| !is_due);
        is_due
    }

    /// When something is to be tried or asked again.
    pub fn due(&self) -> Option<Moment> {
        self.again.into_iter().chain(self.requests.due()).min()
    }

    /// Why the volume is not open, for people.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    pub fn set_reason(&mut self, reason: impl Into<String>) {
        self.reason = reason.into();
    }

    /// The estimate of the direction from the server.
    pub fn incoming(&self) -> &LinkEstimate {
        &self.incoming
    }

    /// The estimate of the direction to the server.
    pub fn outgoing(&self) -> &LinkEstimate {
        &self.outgoing
    }

    /// A transaction of so many bytes was answered.
    pub fn committed(&mut self, sent: Moment, now: Moment, bytes: u64) {
        self.outgoing.sample(sent, now, bytes, true);
    }

    /// Bytes received so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Pushed bytes came.
    pub fn pushed(&mut self, bytes: u32) {
        self.received += u64::from(bytes);
    }

    pub fn stream_started(&mut self, stream: StreamId) {
        self.streams.insert(stream);
    }

    pub fn stream_ended(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
    }

    pub fn has_stream(&self, stream: StreamId) -> bool {
        self.streams.contains(&stream)
    }

    /// The stream that brings this block next, and until when it is waited for; `None`: it has to
    /// be asked for.
    pub fn expects(&self, file: &File, index: u32, now: Moment) -> Option<(StreamId, Moment)> {
        let arrival = file.table.arrival().filter(|arrival| self.streams.contains(&arrival.stream))?;
        arrival.expects(index, now).map(|until| (arrival.stream, until))
    }

    /// Tells the server something if the volume is open.
    pub fn notify(&mut self, notice: Notice) {
        if let (Some(generation), Some(_)) = (self.generation, self.volume) {
            self.messages.push((generation, VolumeMessage::Notice(notice)));
        }
    }

    /// Asks the server something if there is a connection.
    pub fn ask(&mut self, what: AskFor, ask: Request, time: Duration, now: Moment) {
        let Some(generation) = self.generation else { return };
        let pipelined = !self.requests.is_idle() || !self.streams.is_empty();
        let tag = self.requests.send(Asked { what, sent: now, received: self.received, pipelined });
        self.messages.push((generation, VolumeMessage::Request { tag: Tag(tag), ask, time }));
    }

    /// A request was answered, or not: what it was for, and when it was sent.
    pub fn answered(&mut self, tag: Tag, answer: &Result<Reply, Unanswered>, now: Moment) -> Option<(AskFor, Moment)> {
        let asked = self.requests.take(tag.0)?;
        if let Ok(Reply::Volume(VolumeReply::Blocks { bytes, .. })) = answer {
            self.received += bytes.len() as u64;
        }
        let bytes = self.received.saturating_sub(asked.received);
        if answer.is_ok() && !matches!(asked.what, AskFor::Commit(_)) {
            self.incoming.sample(asked.sent, now, bytes, asked.pipelined);
        }
        Some((asked.what, asked.sent))
    }

    /// The server had no time for a request: it is sent again later.
    pub fn ask_later(&mut self, what: AskFor, now: Moment) {
        self.requests.postpone(what, now);
    }

    /// Requests that were put off and are due.
    pub fn take_postponed(&mut self, now: Moment) -> Vec<AskFor> {
        self.requests.take_due(now)
    }

    /// Messages to be sent, each for the connection of a generation.
    pub fn take_messages(&mut self) -> Vec<(u64, VolumeMessage)> {
        std::mem::take(&mut self.messages)
    }
}
