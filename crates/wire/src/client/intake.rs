//! Received frames: they become messages, then events. Each is checked against what was asked.

use units::{Moment, RequestId, StreamId};

use super::{ClientConnection, ClientEvent, State};
use crate::decode;
use crate::error::WireError;
use crate::format::{
    FEATURE_DECODED, FEATURE_LONE_PAGES, FEATURE_PIECES, FEATURE_PROOFS, FEATURE_START, FEATURE_TOKENS,
    FRAME_HEADER_BYTES, ServerKind, VERSION, VERSION_MIN,
};
use crate::inbox::Arrived;
use crate::message::{HelloReply, PushEncoding, PushHeader, PushPiece, Reply, Request, ServerMessage};

impl ClientConnection {
    pub(super) fn take_frames(&mut self, now: Moment, mut bytes: &[u8]) -> Result<(), WireError> {
        loop {
            let before_hello = matches!(self.state, State::Hello);
            let accepted = self.config.frame_bytes_max as usize;
            let arrived = self.inbox.next(now, &mut bytes, |number| {
                let kind = ServerKind::from_u8(number).ok_or(WireError::UnknownKind { kind: number })?;
                // an error may come at any time
                if before_hello != (kind == ServerKind::HelloReply) && kind != ServerKind::Error {
                    let when = if before_hello { "before HelloReply" } else { "twice" };
                    return Err(WireError::WrongOrder { kind: kind.name(), when });
                }
                Ok((kind.name(), kind.payload_bytes_max().min(accepted)))
            })?;
            let Some(Arrived { kind, payload }) = arrived else { return Ok(()) };
            self.traffic.frames_received += 1;
            let frame_bytes = FRAME_HEADER_BYTES + payload.len();
            let kind = ServerKind::from_u8(kind).ok_or(WireError::UnknownKind { kind })?;
            let message = decode::server(kind, payload)?;
            self.take_message(now, message, frame_bytes)?;
        }
    }

    fn take_message(&mut self, now: Moment, message: ServerMessage, frame_bytes: usize) -> Result<(), WireError> {
        match message {
            ServerMessage::Hello(hello) => self.take_hello(now, hello)?,
            ServerMessage::Reply { request: RequestId(0), reply: Reply::Error { code, text } } => {
                return Err(WireError::Peer { code, text });
            }
            ServerMessage::Reply { request, reply } => {
                self.traffic.reply_bytes += frame_bytes as u64;
                match reply {
                    Reply::Error { .. } => self.check_error(request, false)?,
                    Reply::Decoded { .. } => self.check_feature_of(ServerKind::Decoded, FEATURE_DECODED)?,
                    Reply::Pages { .. } if self.is_block(request) => {
                        self.check_feature_of(ServerKind::Pages, FEATURE_LONE_PAGES)?;
                    }
                    _ => {}
                }
                self.take_reply(request, reply)?;
            }
            ServerMessage::Pong { nonce } => self.liveness.pong(now, nonce)?,
            ServerMessage::Start { image, offset, bytes } => {
                self.check_feature_of(ServerKind::Start, FEATURE_START)?;
                self.events.push_back(ClientEvent::Start { image, offset, bytes });
            }
            ServerMessage::Hashes { image, proof } => {
                self.check_feature_of(ServerKind::Hashes, FEATURE_PROOFS)?;
                self.events.push_back(ClientEvent::Hashes { image, proof });
            }
            ServerMessage::PushStart { stream, push } => self.take_push_start(stream, push)?,
            ServerMessage::VolumeError { request, code, text } => {
                self.traffic.reply_bytes += frame_bytes as u64;
                self.check_error(request, true)?;
                self.take_reply(request, Reply::Error { code, text })?;
            }
            ServerMessage::Push(piece) => self.take_piece(piece, false, frame_bytes)?,
            ServerMessage::VolumePush(piece) => self.take_piece(piece, true, frame_bytes)?,
            ServerMessage::PushEnd { stream, reason } => {
                self.streams.end(stream)?;
                self.events.push_back(ClientEvent::PushEnd { stream, reason });
            }
            ServerMessage::PutNeed { request, ranges, last } => {
                let time = self.config.put_deadline;
                if let Some(pending) = self.requests.need(request, &ranges, last)? {
                    pending.put_off(now, time);
                    self.events.push_back(ClientEvent::PutNeed { request, ranges, last });
                }
            }
            ServerMessage::PutProgress { request, bytes } => {
                let time = self.config.put_deadline;
                if let Some(pending) = self.requests.progress(request, bytes)? {
                    pending.put_off(now, time);
                    self.events.push_back(ClientEvent::PutProgress { request, bytes });
                }
            }
        }
        Ok(())
    }

    fn take_hello(&mut self, now: Moment, hello: HelloReply) -> Result<(), WireError> {
        if !(VERSION_MIN..=VERSION).contains(&hello.version) {
            return Err(WireError::Version { theirs: hello.version, min: VERSION_MIN, max: VERSION });
        }
        // The server drops the connection at the Bearer that follows our Hello.
        if self.config.features & FEATURE_TOKENS & !hello.features != 0 {
            return Err(WireError::Lacks { what: "tokens" });
        }
        self.liveness.hello(now);
        let hello = HelloReply { features: hello.features & self.config.features, ..hello };
        self.state = State::Ready(hello);
        self.events.push_back(ClientEvent::Ready(hello));
        Ok(())
    }

    fn take_reply(&mut self, request: RequestId, reply: Reply) -> Result<(), WireError> {
        if matches!(self.state, State::Hello) {
            return Err(WireError::WrongOrder { kind: reply.name(), when: "before HelloReply" });
        }
        if let Reply::OnTheWay { stream } = &reply
            && !self.streams.was_started(*stream)
        {
            return Err(WireError::UnknownStream { kind: reply.name(), stream: *stream });
        }
        let pending = self.requests.answer(request, &reply)?;
        if pending.put.is_some() {
            // the upload is over, also if the server gave up on it early
            self.outgoing.drop_data(request);
        }
        if !pending.abandoned {
            self.events.push_back(ClientEvent::Reply { request, reply });
        }
        Ok(())
    }

    /// Requests to volumes fail with a frame that has a hash, others without: so a damaged number
    /// or code of an error cannot make a request to a volume fail. The answer to a cancel has none,
    /// and nobody waits for that one.
    fn check_error(&mut self, request: RequestId, hashed: bool) -> Result<(), WireError> {
        let pending = self.requests.get_mut(request).filter(|pending| !pending.abandoned);
        match pending {
            Some(pending) if pending.ask.is_of_volume() != hashed => {
                let found = if hashed { ServerKind::VolumeError } else { ServerKind::Error };
                Err(WireError::WrongReply { request, asked: pending.ask.name(), found: found.name() })
            }
            _ => Ok(()),
        }
    }

    /// Whether a request asks for a block, and its page would do.
    fn is_block(&mut self, request: RequestId) -> bool {
        let pending = self.requests.get_mut(request);
        pending.is_some_and(|pending| matches!(pending.ask, Request::PullBlock { force: false, .. }))
    }

    /// Nobody sends what was not asked for to a client that did not say that it takes it.
    fn check_feature_of(&self, kind: ServerKind, feature: u64) -> Result<(), WireError> {
        let agreed = self.hello().is_some_and(|hello| hello.features & feature != 0);
        let when = "without the feature";
        if agreed { Ok(()) } else { Err(WireError::WrongOrder { kind: kind.name(), when }) }
    }

    fn take_piece(&mut self, piece: PushPiece, volume: bool, frame_bytes: usize) -> Result<(), WireError> {
        self.traffic.push_bytes += frame_bytes as u64;
        if self.streams.piece(piece.stream, volume, frame_bytes as u64)? {
            self.events.push_back(ClientEvent::Push { piece, credit: frame_bytes as u32 });
        } else {
            self.traffic.push_bytes_dropped += frame_bytes as u64;
        }
        Ok(())
    }

    fn take_push_start(&mut self, stream: StreamId, push: PushHeader) -> Result<(), WireError> {
        if push.window_log > self.config.window_log_max {
            let max = u64::from(self.config.window_log_max);
            return Err(WireError::TooMany { what: "bits of window for a push stream", max });
        }
        if push.encoding == PushEncoding::Pieces && self.check_feature(FEATURE_PIECES, "pieces").is_err() {
            return Err(WireError::WrongOrder { kind: "PushStart", when: "in pieces, without the feature" });
        }
        self.streams.start(stream, push.encoding == PushEncoding::Volume)?;
        self.events.push_back(ClientEvent::PushStart { stream, push });
        Ok(())
    }
}
