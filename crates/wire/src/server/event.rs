//! The events of a server's connection.

use std::collections::VecDeque;

use bytes::Bytes;
use units::{BlockId, RequestId, StreamId};

use crate::error::WireError;
use crate::format::{EVENT_BYTES_MAX, EVENTS_MAX};
use crate::message::{Hello, Notice, Request};

/// An event that the server must handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// The handshake is over; the client's side of it, with the version and features both speak.
    Ready(Hello),
    /// A request; it wants one [`crate::ServerConnection::reply`].
    Request {
        /// Its number.
        request: RequestId,
        /// The request.
        ask: Request,
    },
    /// The client cancelled a request. It is answered already; work on it may stop.
    Cancelled {
        /// Its number.
        request: RequestId,
    },
    /// A message without an answer. Never [`Notice::Credit`] or [`Notice::StopPush`], on which the
    /// connection acts itself.
    Notice(Notice),
    /// The client does not want the stream. Its queued frames are dropped, and it has ended.
    PushStopped {
        /// The stream.
        stream: StreamId,
    },
    /// Part of the superblock or metadata of an upload. The range lies within the stated file.
    PutMeta {
        /// Number of the put.
        request: RequestId,
        /// First byte, in the image file.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// A block of an upload. There are no more than the server asked for. Whether it asked for this
    /// one is not checked.
    PutBlock {
        /// Number of the put.
        request: RequestId,
        /// The block.
        block: BlockId,
        /// Its stored bytes.
        bytes: Bytes,
    },
    /// Everything that was asked for was sent.
    PutCommit {
        /// Number of the put.
        request: RequestId,
    },
    /// The connection is closed. The bytes that are left to transmit tell the client why.
    Closed(WireError),
}

impl ServerEvent {
    /// Memory that the event takes, roughly.
    fn memory_bytes(&self) -> usize {
        let heap = match self {
            ServerEvent::PutMeta { bytes, .. } | ServerEvent::PutBlock { bytes, .. } => bytes.len(),
            ServerEvent::Notice(Notice::Touch { pages, .. } | Notice::Hint { pages, .. }) => {
                size_of_val(pages.as_slice())
            }
            ServerEvent::Notice(Notice::Bearer(bearer)) => bearer.reveal().len(),
            ServerEvent::Request { ask, .. } => ask.memory_bytes(),
            _ => 0,
        };
        size_of::<ServerEvent>() + heap
    }
}

/// Room for events that is kept while there are none.
const EVENTS_KEPT: usize = 16;

/// Events that the server has not taken. `bytes` is the memory of all of them.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: VecDeque<ServerEvent>,
    bytes: usize,
}

impl Events {
    pub fn push(&mut self, event: ServerEvent) {
        self.bytes += event.memory_bytes();
        self.queue.push_back(event);
    }

    pub fn pop(&mut self) -> Option<ServerEvent> {
        let event = self.queue.pop_front();
        self.bytes -= event.as_ref().map_or(0, ServerEvent::memory_bytes);
        if self.queue.is_empty() && self.queue.capacity() > EVENTS_KEPT {
            self.queue = VecDeque::new();
        }
        event
    }

    /// Whether the events are few and small.
    pub fn has_room(&self) -> bool {
        self.queue.len() < EVENTS_MAX && self.bytes < EVENT_BYTES_MAX
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }
}
