//! The open push streams of a client, and how many bytes the server may still send before it gets
//! credit.

use std::collections::BTreeMap;

use units::StreamId;

use crate::error::{Refused, WireError};
use crate::format::STREAMS_MAX;

/// Push streams of one connection.
#[derive(Debug)]
pub(crate) struct Streams {
    push_bytes_max: u64,
    streams: BTreeMap<StreamId, Stream>,
    last: u32,
    live: usize,
    uncredited: u64,
}

#[derive(Debug, Default)]
struct Stream {
    /// It carries blocks of a volume.
    volume: bool,
    /// The client asked for the end: what still comes is dropped.
    stopped: bool,
    ended: bool,
    /// Received and not taken by the caller.
    uncredited: u64,
    /// Taken by the caller and not told to the server.
    credit: u64,
}

impl Streams {
    pub fn new(push_bytes_max: u32) -> Streams {
        Streams { push_bytes_max: u64::from(push_bytes_max), streams: BTreeMap::new(), last: 0, live: 0, uncredited: 0 }
    }

    /// A stream of a volume or an image begins.
    pub fn start(&mut self, stream: StreamId, volume: bool) -> Result<(), WireError> {
        if self.push_bytes_max == 0 {
            return Err(WireError::WrongOrder { kind: "PushStart", when: "for a device that wants no push" });
        }
        if stream.0.checked_sub(1) != Some(self.last) {
            return Err(WireError::UnknownStream { kind: "PushStart", stream });
        }
        if self.live >= STREAMS_MAX {
            return Err(WireError::TooMany { what: "push streams", max: STREAMS_MAX as u64 });
        }
        self.last = stream.0;
        self.live += 1;
        self.streams.insert(stream, Stream { volume, ..Stream::default() });
        Ok(())
    }

    /// A piece of `bytes` bytes came, in a frame for those of volumes or of images; whether the
    /// caller is to see it.
    pub fn piece(&mut self, stream: StreamId, volume: bool, bytes: u64) -> Result<bool, WireError> {
        let kind = if volume { "VolumePush" } else { "Push" };
        let state = self.streams.get_mut(&stream).filter(|state| !state.ended && state.volume == volume);
        let state = state.ok_or(WireError::UnknownStream { kind, stream })?;
        // the server may send while less than the limit is under way, so one piece may exceed it
        if self.uncredited >= self.push_bytes_max {
            return Err(WireError::TooMany { what: "uncredited push bytes", max: self.push_bytes_max });
        }
        if state.stopped {
            state.credit += bytes;
            return Ok(false);
        }
        state.uncredited += bytes;
        self.uncredited += bytes;
        Ok(true)
    }

    pub fn end(&mut self, stream: StreamId) -> Result<(), WireError> {
        let state = self.streams.get_mut(&stream).filter(|state| !state.ended);
        state.ok_or(WireError::UnknownStream { kind: "PushEnd", stream })?.ended = true;
        self.live -= 1;
        self.forget(stream);
        Ok(())
    }

    /// The caller took `bytes` of a stream.
    pub fn credit(&mut self, stream: StreamId, bytes: u32) -> Result<(), Refused> {
        let state = self.streams.get_mut(&stream).ok_or(Refused::UnknownStream(stream))?;
        let (found, max) = (u64::from(bytes), state.uncredited);
        if found > max {
            return Err(Refused::Limit { what: "credited push bytes", found, min: 0, max });
        }
        state.uncredited -= found;
        state.credit += found;
        self.uncredited -= found;
        Ok(())
    }

    /// The caller does not want the stream; whether the server must be told.
    pub fn stop(&mut self, stream: StreamId) -> bool {
        let state = self.streams.get_mut(&stream).filter(|state| !state.ended && !state.stopped);
        state.map(|state| state.stopped = true).is_some()
    }

    /// The next credit to tell the server.
    pub fn take_credit(&mut self) -> Option<(StreamId, u32)> {
        let (stream, state) = self.streams.iter_mut().find(|(_, state)| state.credit > 0)?;
        let (stream, bytes) = (*stream, state.credit.min(u64::from(u32::MAX)));
        state.credit -= bytes;
        self.forget(stream);
        Some((stream, bytes as u32))
    }

    /// Whether [`Streams::take_credit`] has something to tell.
    pub fn has_credit(&self) -> bool {
        self.streams.values().any(|state| state.credit > 0)
    }

    /// Whether the number was given to a stream, open or not.
    pub fn was_started(&self, stream: StreamId) -> bool {
        (1..=self.last).contains(&stream.0)
    }

    /// Drops the record of a stream that ended and was credited in full.
    fn forget(&mut self, stream: StreamId) {
        if self.streams.get(&stream).is_some_and(|state| state.ended && state.uncredited == 0 && state.credit == 0) {
            self.streams.remove(&stream);
        }
    }
}
