//! Received frames: they become messages, then events. Each is checked against the limits.

use units::{Moment, RequestId, StreamId};

use super::push::PushQueue;
use super::{ServerConnection, ServerEvent, State};
use crate::decode;
use crate::error::WireError;
use crate::format::{ClientKind, FEATURE_HINTS, FEATURE_PIECES, FEATURE_TOKENS, FEATURE_VOLUMES, VERSION, VERSION_MIN};
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
                self.liveness.ping(now)?;
                self.outgoing.answer(&ServerMessage::Pong { nonce })?;
            }
            ClientMessage::Notice(notice) => self.take_notice(now, notice)?,
            ClientMessage::PutMeta { request, offset, bytes } => {
                if let Some(put) = self.requests.put_of_frame(request, "PutMeta")? {
                    put.meta(offset, bytes.len())?;
                    self.events.push(ServerEvent::PutMeta { request, offset, bytes });
                }
            }
            ClientMessage::PutBlock { request, block, bytes } => {
                if let Some(put) = self.requests.put_of_frame(request, "PutBlock")? {
                    put.block()?;
                    self.events.push(ServerEvent::PutBlock { request, block, bytes });
                }
            }
            ClientMessage::PutCommit { request } => {
                if let Some(put) = self.requests.put_of_frame(request, "PutCommit")? {
                    put.commit()?;
                    self.events.push(ServerEvent::PutCommit { request });
                }
            }
        }
        Ok(())
    }

    fn take_notice(&mut self, now: Moment, notice: Notice) -> Result<(), WireError> {
        match notice {
            Notice::Credit { stream, bytes } => {
                self.push.credit(now, stream, bytes)?;
                self.traffic.push_bytes_credited += u64::from(bytes);
                return Ok(());
            }
            Notice::StopPush { stream } => return self.take_stop(stream),
            Notice::RateLimit { bytes_per_second } => self.liveness.limit_rate(bytes_per_second),
            _ => {}
        }
        self.events.push(ServerEvent::Notice(notice));
        Ok(())
    }

    /// Only clients that stated a feature may send its messages.
    fn check_features(&self, message: &ClientMessage) -> Result<(), WireError> {
        let (feature, kind) = match message {
            ClientMessage::Notice(Notice::Hint { .. }) => (FEATURE_HINTS, "Hint"),
            ClientMessage::Notice(Notice::DeviceSpeed { .. }) => (FEATURE_PIECES, "DeviceSpeed"),
            ClientMessage::Request { ask: ask @ (Request::VolumeOpen { .. } | Request::Volume { .. }), .. } => {
                (FEATURE_VOLUMES, ask.name())
            }
            ClientMessage::Notice(Notice::FileClose { .. }) => (FEATURE_VOLUMES, "FileClose"),
            ClientMessage::Notice(Notice::FileShare { .. }) => (FEATURE_VOLUMES, "FileShare"),
            ClientMessage::Notice(Notice::Bearer(_)) => (FEATURE_TOKENS, "Bearer"),
            ClientMessage::Notice(Notice::RateLimit { .. }) => (FEATURE_VOLUMES, "RateLimit"),
            _ => return Ok(()),
        };
        let stated = self.hello.is_some_and(|hello| hello.features & feature != 0);
        if stated { Ok(()) } else { Err(WireError::WrongOrder { kind, when: "without the feature" }) }
    }

    fn take_hello(&mut self, mut hello: Hello) -> Result<(), WireError> {
        if hello.version < VERSION_MIN {
            return Err(WireError::Version { theirs: hello.version, min: VERSION_MIN, max: VERSION });
        }
        hello.version = hello.version.min(VERSION);
        hello.features &= self.config.features;
        let reply = HelloReply {
            version: hello.version,
            features: hello.features,
            frame_bytes_max: self.config.frame_bytes_max,
        };
        self.outgoing.answer(&ServerMessage::Hello(reply))?;
        self.push = PushQueue::new(self.config.window_bytes_max.min(u64::from(hello.push_bytes_max)));
        self.hello = Some(hello);
        self.liveness.hello();
        self.state = State::Ready;
        self.events.push(ServerEvent::Ready(hello));
        Ok(())
    }

    fn take_request(&mut self, request: RequestId, ask: Request) -> Result<(), WireError> {
        self.requests.add(request, &ask)?;
        self.events.push(ServerEvent::Request { request, ask });
        Ok(())
    }

    fn take_cancel(&mut self, request: RequestId) -> Result<(), WireError> {
        let in_work = self.requests.remove(request);
        let queued = self.outgoing.take_back(request);
        // a cancel that crossed the reply is no fault
        if in_work || queued {
            let reply = Reply::error(ErrorCode::Cancelled, "cancelled");
            self.outgoing.answer(&ServerMessage::Reply { request, reply })?;
        }
        if in_work {
            self.events.push(ServerEvent::Cancelled { request });
        }
        Ok(())
    }

    /// One that crossed its reply, or hurries what is waited for anyway, is no fault.
    fn take_hurry(&mut self, request: RequestId) {
        self.requests.hurry(request);
        self.outgoing.hurry(request);
    }

    fn take_stop(&mut self, stream: StreamId) -> Result<(), WireError> {
        if !self.push.was_started(stream) {
            return Err(WireError::UnknownStream { kind: "StopPush", stream });
        }
        if let Some((end, dropped)) = self.push.cancel(stream, PushEndReason::Stopped) {
            self.traffic.push_bytes_dropped += dropped as u64;
            self.outgoing.answer(&end)?;
            self.events.push(ServerEvent::PushStopped { stream });
        }
        Ok(())
    }
}
