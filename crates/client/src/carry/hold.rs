//! What of a live connection belongs to the passenger: its requests and its push streams.

use std::collections::{HashMap, HashSet, VecDeque};

use units::{Moment, RequestId, StreamId};
use wire::{ClientConnection, ClientEvent, PushEncoding, Refused};

use super::{Errand, Passenger, Tag, Unanswered};

/// Errands that wait for room in the connection's queues before requests are refused: four times those that may be in flight.
const BACKLOG_MAX: usize = 4096;

/// The passenger's part of one connection. Gone with it.
#[derive(Default)]
pub(crate) struct Hold {
    asked: HashMap<RequestId, Tag>,
    streams: HashSet<StreamId>,
    backlog: VecDeque<Errand>,
}

impl Hold {
    /// Runs an errand, or keeps it until there is room. Errands never overtake each other.
    pub fn run(&mut self, machine: &mut ClientConnection, passenger: &dyn Passenger, now: Moment, errand: Errand) {
        self.backlog.push_back(errand);
        self.run_waiting(machine, passenger, now);
        // Only what gets an answer may be refused: a credit that is dropped would stop the pushes.
        if self.backlog.len() > BACKLOG_MAX
            && let Some(Errand::Ask { tag, .. }) = self.backlog.back()
        {
            let tag = *tag;
            self.backlog.pop_back();
            passenger.answered(tag, Err(Unanswered::Refused));
        }
    }

    /// Runs what had to wait, as far as there is room.
    pub fn run_waiting(&mut self, machine: &mut ClientConnection, passenger: &dyn Passenger, now: Moment) {
        while let Some(errand) = self.backlog.front() {
            match self.attempt(machine, now, errand) {
                // Before the handshake is over, or with full queues, all wait.
                Err(Refused::Full { .. } | Refused::NotReady) => return,
                Err(Refused::Closed) => return,
                Err(_) => {
                    if let Some(Errand::Ask { tag, .. }) = self.backlog.pop_front() {
                        passenger.answered(tag, Err(Unanswered::Refused));
                    }
                }
                Ok(asked) => {
                    self.asked.extend(asked);
                    self.backlog.pop_front();
                }
            }
        }
    }

    fn attempt(
        &self,
        machine: &mut ClientConnection,
        now: Moment,
        errand: &Errand,
    ) -> Result<Option<(RequestId, Tag)>, Refused> {
        match errand.clone() {
            Errand::Ask { tag, ask, time } => {
                let request = machine.request_until(now, ask, now.after(time))?;
                return Ok(Some((request, tag)));
            }
            Errand::Touch { volume, token, blocks } => {
                let parts = blocks.chunks(wire::format::TOUCH_PAGES_MAX);
                parts.into_iter().try_for_each(|blocks| machine.touch(volume, token, blocks.to_vec()))
            }
            Errand::Hint { volume, token, blocks } => machine.hint(volume, token, blocks),
            Errand::TokenEnd { volume, token } => machine.token_end(volume, token),
            Errand::Credit { stream, bytes } => machine.credit(stream, bytes),
            Errand::StopPush { stream } => machine.stop_push(stream),
            Errand::FileClose { volume, file } => machine.file_close(volume, file),
            Errand::FileShare { volume, file, share } => machine.file_share(volume, file, share),
            Errand::RateLimit { bytes_per_second } => machine.rate_limit(bytes_per_second),
        }?;
        Ok(None)
    }

    /// Hands an event to the passenger if it is his; gives it back if not.
    pub fn take(&mut self, event: ClientEvent, passenger: &dyn Passenger) -> Option<ClientEvent> {
        match event {
            ClientEvent::Reply { request, reply } => match self.asked.remove(&request) {
                Some(tag) => passenger.answered(tag, Ok(reply)),
                None => return Some(ClientEvent::Reply { request, reply }),
            },
            ClientEvent::Expired { request } => match self.asked.remove(&request) {
                Some(tag) => passenger.answered(tag, Err(Unanswered::Expired)),
                None => return Some(event),
            },
            ClientEvent::PushStart { stream, push } if push.encoding == PushEncoding::Volume => {
                self.streams.insert(stream);
                passenger.push_started(stream, push);
            }
            ClientEvent::Push { piece, credit } if self.streams.contains(&piece.stream) => {
                passenger.pushed(piece, credit);
            }
            ClientEvent::PushEnd { stream, reason } if self.streams.remove(&stream) => {
                passenger.push_ended(stream, reason);
            }
            other => return Some(other),
        }
        None
    }
}
