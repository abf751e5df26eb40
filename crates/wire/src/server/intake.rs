//! What comes in from the client: frames into messages, messages into events, each checked against the limits.

use units::{Moment, RequestId, StreamId};

use super::push::PushQueue;
use super::put::Put;
use super::{Asked, ServerConnection, ServerEvent, State};
use crate::decode;
use crate::error::WireError;
use crate::format::{
    ClientKind, FEATURE_HINTS, FEATURE_VOLUMES, FEATURES, PUTS_MAX, REQUESTS_MAX, VERSION, VERSION_MIN,
};
use crate::inbox::Arrived;
use crate::message::{
    ClientMessage, ErrorCode, Hello, HelloReply, Notice, PushEndReason, Reply, Request, ServerMessage,
};

impl ServerConnection {
    pub(super) fn take_frames(&mut self, now: Moment, mut bytes: &[u8]) -> Result<(), WireError> {
        loop {
            let hello_only = matches!(self.state, State::Hello);
            let accepted = self.config.frame_bytes_max as usize;
            let arrived = self.inbox.next(now, &mut bytes, |number| {
                let kind = ClientKind::from_u8(number).ok_or(WireError::UnknownKind { kind: number })?;
                if hello_only != (kind == ClientKind::Hello) {
                    let when = if hello_only { "before Hello" } else { "twice" };
                    return Err(WireError::WrongOrder { kind: kind.name(), when });
                }
                Ok((kind.name(), kind.payload_bytes_max().min(accepted)))
            })?;
            let Some(Arrived { kind, payload }) = arrived else { return Ok(()) };
            self.traffic.frames_received += 1;
            let kind = ClientKind::from_u8(kind).ok_or(WireError::UnknownKind { kind })?;
            let message = decode::client(kind, payload)?;
            self.take_message(now, message)?;
        }
    }

    fn take_message(&mut self, now: Moment, message: ClientMessage) -> Result<(), WireError> {
        self.check_features(&message)?;
        match message {
            ClientMessage::Hello(hello) => return self.take_hello(hello),
            ClientMessage::Request { request, ask } => return self.take_request(request, ask),
            ClientMessage::Cancel { request } => self.take_cancel(request)?,
            ClientMessage::Hurry { request } => self.take_hurry(request),
            ClientMessage::Ping { nonce } => {
                self.pings.take(now)?;
                self.answer(ServerMessage::Pong { nonce })?;
            }
            ClientMessage::Notice(Notice::Touch { image, token, pages }) => {
                self.add_event(ServerEvent::Touch { image, token, pages });
            }
            ClientMessage::Notice(Notice::Hint { image, token, pages }) => {
                self.add_event(ServerEvent::Hint { image, token, pages });
            }
            ClientMessage::Notice(Notice::TokenEnd { image, token }) => {
                self.add_event(ServerEvent::TokenEnd { image, token })
            }
            ClientMessage::Notice(Notice::Credit { stream, bytes }) => {
                self.push.credit(now, stream, bytes)?;
                self.traffic.push_bytes_credited += u64::from(bytes);
            }
            ClientMessage::Notice(Notice::StopPush { stream }) => self.take_stop(stream)?,
            ClientMessage::PutMeta { request, offset, bytes } => {
                if let Some(put) = self.put_in_flight(request, "PutMeta")? {
                    put.meta(offset, bytes.len())?;
                    self.add_event(ServerEvent::PutMeta { request, offset, bytes });
                }
            }
            ClientMessage::PutBlock { request, block, bytes } => {
                if let Some(put) = self.put_in_flight(request, "PutBlock")? {
                    put.block()?;
                    self.add_event(ServerEvent::PutBlock { request, block, bytes });
                }
            }
            ClientMessage::PutCommit { request } => {
                if let Some(put) = self.put_in_flight(request, "PutCommit")? {
                    put.commit()?;
                    self.add_event(ServerEvent::PutCommit { request });
                }
            }
            ClientMessage::Notice(Notice::FileClose { volume, file }) => {
                self.add_event(ServerEvent::FileClose { volume, file })
            }
            ClientMessage::Notice(Notice::FileShare { volume, file, share }) => {
                self.add_event(ServerEvent::FileShare { volume, file, share });
            }
            ClientMessage::Notice(Notice::RateLimit { bytes_per_second }) => {
                self.rate_limit = bytes_per_second;
                self.add_event(ServerEvent::RateLimit { bytes_per_second });
            }
        }
        Ok(())
    }

    /// What belongs to a feature is said only by clients that stated it.
    fn check_features(&self, message: &ClientMessage) -> Result<(), WireError> {
        let (feature, kind) = match message {
            ClientMessage::Notice(Notice::Hint { .. }) => (FEATURE_HINTS, "Hint"),
            ClientMessage::Request { ask: ask @ (Request::VolumeOpen { .. } | Request::Volume { .. }), .. } => {
                (FEATURE_VOLUMES, ask.name())
            }
            ClientMessage::Notice(Notice::FileClose { .. }) => (FEATURE_VOLUMES, "FileClose"),
            ClientMessage::Notice(Notice::FileShare { .. }) => (FEATURE_VOLUMES, "FileShare"),
            ClientMessage::Notice(Notice::RateLimit { .. }) => (FEATURE_VOLUMES, "RateLimit"),
            _ => return Ok(()),
        };
        let stated = self.hello.is_some_and(|hello| hello.features & feature != 0);
        if stated { Ok(()) } else { Err(WireError::WrongOrder { kind, when: "without the feature" }) }
    }

    pub(super) fn add_event(&mut self, event: ServerEvent) {
        self.event_bytes += event.memory_bytes();
        self.events.push_back(event);
    }

    fn take_hello(&mut self, mut hello: Hello) -> Result<(), WireError> {
        if hello.version < VERSION_MIN {
            return Err(WireError::Version { theirs: hello.version, min: VERSION_MIN, max: VERSION });
        }
        hello.version = hello.version.min(VERSION);
        hello.features &= FEATURES;
        let reply = HelloReply {
            version: hello.version,
            features: hello.features,
            frame_bytes_max: self.config.frame_bytes_max,
        };
        self.answer(ServerMessage::Hello(reply))?;
        self.push = PushQueue::new(self.config.window_bytes_max.min(u64::from(hello.push_bytes_max)));
        self.hello = Some(hello);
        self.state = State::Ready;
        self.add_event(ServerEvent::Ready(hello));
        Ok(())
    }

    fn take_request(&mut self, request: RequestId, ask: Request) -> Result<(), WireError> {
        if self.asked.contains_key(&request) {
            return Err(WireError::RequestNumber { request });
        }
        if self.asked.len() >= REQUESTS_MAX {
            return Err(WireError::TooMany { what: "requests in flight", max: REQUESTS_MAX as u64 });
        }
        let put = match &ask {
            Request::PutOpen { file_bytes, metadata_bytes, .. } => Some(Put::new(*file_bytes, *metadata_bytes)),
            _ => None,
        };
        let puts = self.asked.values().filter(|asked| asked.put.is_some()).count();
        if put.is_some() && puts >= PUTS_MAX {
            return Err(WireError::TooMany { what: "puts in flight", max: PUTS_MAX as u64 });
        }
        self.puts_ended.retain(|ended| *ended != request);
        let changes = if let Request::Volume { ask, .. } = &ask { ask.changes() } else { 0 };
        self.asked.insert(request, Asked { ask: ask.without_data(), changes, put, progress: None });
        self.add_event(ServerEvent::Request { request, ask });
        Ok(())
    }

    fn take_cancel(&mut self, request: RequestId) -> Result<(), WireError> {
        let in_work = self.asked.contains_key(&request);
        let queued = self.replies.remove(request) | self.speculative.remove(request);
        // a cancel that crossed the reply is no fault
        if in_work || queued {
            let reply = Reply::error(ErrorCode::Cancelled, "cancelled");
            self.answer(ServerMessage::Reply { request, reply })?;
        }
        if in_work {
            self.retire(request);
            self.add_event(ServerEvent::Cancelled { request });
        }
        Ok(())
    }

    /// One that crossed its reply, or hurries what is waited for anyway, is no fault.
    fn take_hurry(&mut self, request: RequestId) {
        if let Some(asked) = self.asked.get_mut(&request)
            && let Request::PullBlock { speculative, .. } = &mut asked.ask
        {
            *speculative = false;
        }
        if let Some(frame) = self.speculative.take(request) {
            self.replies.push(Some(request), frame);
        }
    }

    fn take_stop(&mut self, stream: StreamId) -> Result<(), WireError> {
        if !self.push.was_started(stream) {
            return Err(WireError::UnknownStream { kind: "StopPush", stream });
        }
        if let Some((end, dropped)) = self.push.cancel(stream, PushEndReason::Stopped) {
            self.traffic.push_bytes_dropped += dropped as u64;
            self.answer(end)?;
            self.add_event(ServerEvent::PushStopped { stream });
        }
        Ok(())
    }

    /// The put a frame belongs to; `None` if it ended lately and the frame was on its way.
    fn put_in_flight(&mut self, request: RequestId, kind: &'static str) -> Result<Option<&mut Put>, WireError> {
        match self.asked.get_mut(&request).and_then(|asked| asked.put.as_mut()) {
            Some(put) => Ok(Some(put)),
            None if self.puts_ended.contains(&request) => Ok(None),
            None => Err(WireError::UnknownRequest { kind, request }),
        }
    }
}
