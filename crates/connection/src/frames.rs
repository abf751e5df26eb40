//! Requests and push streams of the volume client on one connection.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use units::{Moment, RequestId, StreamId};
use wire::{ClientEvent, PushEncoding, Refused};

use crate::connection::Connection;
use crate::volume::{Tag, Unanswered, VolumeHandler, VolumeMessage};

/// Messages that wait for room in the connection's queues before requests are refused: four times
/// the requests that may be in flight.
const BACKLOG_MAX: usize = 4096;

/// Frames of volumes on a connection that is made again when it is lost.
///
/// Invariants:
/// - Requests, streams and waiting messages are those of the connection of `generation`; they are
///   dropped when it is lost.
/// - Messages leave in the order in which they were given.
pub struct VolumeFrames {
    handler: Arc<dyn VolumeHandler>,
    /// The connection that the handler knows of.
    generation: Option<u64>,
    asked: HashMap<RequestId, Tag>,
    streams: HashSet<StreamId>,
    /// In their order.
    backlog: VecDeque<VolumeMessage>,
}

impl VolumeFrames {
    /// Frames of this volume client.
    pub fn new(handler: Arc<dyn VolumeHandler>) -> VolumeFrames {
        VolumeFrames {
            handler,
            generation: None,
            asked: HashMap::new(),
            streams: HashSet::new(),
            backlog: VecDeque::new(),
        }
    }

    /// A connection is up, with these features. Tells the handler, once for each connection.
    pub fn connected(&mut self, connection: &Connection, generation: u64, features: u64) {
        if self.generation.is_none() {
            self.generation = Some(generation);
            self.handler.connected(generation, connection.connected(features));
        }
    }

    /// The connection is gone, or none could be had.
    pub fn lost(&mut self, reason: &str) {
        self.generation = None;
        self.asked.clear();
        self.streams.clear();
        self.backlog.clear();
        self.handler.lost(reason);
    }

    /// There is no connection any more.
    pub fn closed(&self) {
        self.handler.closed();
    }

    /// Sends a message for the connection of this generation, or keeps it until there is room.
    /// Messages never overtake each other.
    pub fn send(&mut self, connection: &mut Connection, generation: u64, message: VolumeMessage) {
        if self.generation != Some(generation) {
            return;
        }
        self.backlog.push_back(message);
        self.send_waiting(connection);
        // Only what gets an answer may be refused: a credit that is dropped would stop the pushes.
        if self.backlog.len() > BACKLOG_MAX
            && let Some(VolumeMessage::Request { tag, .. }) = self.backlog.back()
        {
            let tag = *tag;
            self.backlog.pop_back();
            self.handler.answered(tag, Err(Unanswered::Refused));
        }
    }

    /// Sends what had to wait, as far as there is room.
    pub fn send_waiting(&mut self, connection: &mut Connection) {
        let now = connection.now();
        while let Some(message) = self.backlog.front() {
            match attempt(connection, now, message) {
                // Before the handshake is over, or with full queues, all wait.
                Err(Refused::Full { .. } | Refused::NotReady | Refused::Closed) => return,
                Err(_) => {
                    if let Some(VolumeMessage::Request { tag, .. }) = self.backlog.pop_front() {
                        self.handler.answered(tag, Err(Unanswered::Refused));
                    }
                }
                Ok(asked) => {
                    self.asked.extend(asked);
                    self.backlog.pop_front();
                }
            }
        }
    }

    /// Hands an event to the handler if it is of volumes; gives it back if not.
    pub fn take(&mut self, event: ClientEvent) -> Option<ClientEvent> {
        match event {
            ClientEvent::Reply { request, reply } => match self.asked.remove(&request) {
                Some(tag) => self.handler.answered(tag, Ok(reply)),
                None => return Some(ClientEvent::Reply { request, reply }),
            },
            ClientEvent::Expired { request } => match self.asked.remove(&request) {
                Some(tag) => self.handler.answered(tag, Err(Unanswered::Expired)),
                None => return Some(event),
            },
            ClientEvent::PushStart { stream, push } if push.encoding == PushEncoding::Volume => {
                self.streams.insert(stream);
                self.handler.push_started(stream, push);
            }
            ClientEvent::Push { piece, credit } if self.streams.contains(&piece.stream) => {
                self.handler.pushed(piece, credit);
            }
            ClientEvent::PushEnd { stream, reason } if self.streams.remove(&stream) => {
                self.handler.push_ended(stream, reason);
            }
            other => return Some(other),
        }
        None
    }
}

/// The request's number, if the message is one.
fn attempt(
    connection: &mut Connection,
    now: Moment,
    message: &VolumeMessage,
) -> Result<Option<(RequestId, Tag)>, Refused> {
    let machine = &mut connection.machine;
    match message.clone() {
        VolumeMessage::Request { tag, ask, time } => {
            let request = machine.request_until(now, ask, now.after(time))?;
            Ok(Some((request, tag)))
        }
        VolumeMessage::Notice(notice) => machine.notify(notice).map(|()| None),
    }
}
