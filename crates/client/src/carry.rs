//! Carrying frames of volumes: who wants something of a volume need not know whose connection it goes over.
//!
//! Two carriers exist: a lane of an image's session, so that a program and its data share one connection and one order of
//! importance, and [`Networker`], a connection of its own. Both keep a connection alive and tell the passenger when it comes
//! and goes; what was in flight then is the passenger's to repeat.

mod hold;
mod networker;

use std::net::SocketAddr;
use std::time::Duration;

use units::{InodeId, Moment, PageId, StreamId, Token};
use wire::volume::Share;
use wire::{ImageHandle, PushEndReason, PushHeader, PushPiece, Reply, Request};

pub(crate) use hold::Hold;
pub use networker::Networker;

/// Names a request for its passenger; chosen by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

/// What a passenger wants of its carrier. Everything belongs to one connection, by its generation: what speaks of an earlier one
/// is dropped, and requests of it get no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Errand {
    /// A request, with the time its answer may take. Exactly one [`Passenger::answered`] follows, or [`Passenger::lost`].
    Ask {
        /// Comes back with the answer.
        tag: Tag,
        /// What is asked: [`Request::VolumeOpen`] or [`Request::Volume`].
        ask: Request,
        /// Time for the answer beyond what the link needs for what is in flight.
        time: Duration,
    },
    /// First touches that needed no network.
    Touch {
        /// The volume.
        volume: ImageHandle,
        /// The running action.
        token: Token,
        /// Blocks of open files.
        blocks: Vec<PageId>,
    },
    /// Blocks that will be needed soon.
    Hint {
        /// The volume.
        volume: ImageHandle,
        /// Names the stream.
        token: Token,
        /// Blocks of open files, in this order; at most 1024.
        blocks: Vec<PageId>,
    },
    /// A running action ended.
    TokenEnd {
        /// The volume.
        volume: ImageHandle,
        /// The running action.
        token: Token,
    },
    /// Pushed bytes were taken care of.
    Credit {
        /// The stream.
        stream: StreamId,
        /// As many as [`Passenger::pushed`] said.
        bytes: u32,
    },
    /// A push stream is not wanted.
    StopPush {
        /// The stream.
        stream: StreamId,
    },
    /// A file is not open any more.
    FileClose {
        /// The volume.
        volume: ImageHandle,
        /// The file.
        file: InodeId,
    },
    /// The share of the link of what is pushed of a file.
    FileShare {
        /// The volume.
        volume: ImageHandle,
        /// The file.
        file: InodeId,
        /// Its share.
        share: Share,
    },
    /// Caps what the server sends, bytes per second; 0 for no limit.
    RateLimit {
        /// The limit.
        bytes_per_second: u64,
    },
}

/// Why a request was not answered by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// No answer came in time, though the connection lives.
    Expired,
    /// The request breaks a limit of the protocol and was never sent.
    Refused,
}

/// What a passenger is told of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Features that both sides speak.
    pub features: u64,
    /// The address that the connection leads to: a name may have many, and other ones tomorrow.
    pub address: SocketAddr,
    /// It is encrypted, and the server's certificate was checked.
    pub encrypted: bool,
}

impl Connected {
    /// Whether others may be on the way, who can read and change what is sent. Only an address that the kernel never sends to
    /// a network is none of theirs; the text of a host proves nothing.
    pub fn is_exposed(&self) -> bool {
        !self.encrypted && !self.address.ip().to_canonical().is_loopback()
    }
}

/// Brings errands to a server. No call blocks, and none calls the passenger back.
pub trait Carrier: Send + Sync {
    /// Takes an errand for the connection of this generation.
    fn send(&self, generation: u64, errand: Errand);

    /// The present moment, on the clock of all calls to the passenger.
    fn now(&self) -> Moment;
}

/// Who is carried. Called from the thread of the connection, in the order in which things happened; no call may block.
pub trait Passenger: Send + Sync {
    /// A connection is up. Generations grow.
    fn connected(&self, generation: u64, connected: Connected);

    /// The connection is gone; another one is being tried for. `reason` is for people. Also said when the first
    /// connection cannot be had.
    fn lost(&self, reason: &str);

    /// The answer to a request.
    fn answered(&self, tag: Tag, answer: Result<Reply, Unanswered>);

    /// A push stream of a volume begins. Streams of images are not shown.
    fn push_started(&self, stream: StreamId, push: PushHeader);

    /// A piece of such a stream; `credit` is to be given back.
    fn pushed(&self, piece: PushPiece, credit: u32);

    /// Such a stream ended.
    fn push_ended(&self, stream: StreamId, reason: PushEndReason);

    /// The carrier ended: nothing comes any more.
    fn closed(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_encrypted_connections_are_not_exposed() {
        let exposed = |address: &str, encrypted| {
            let address = SocketAddr::new(address.parse().unwrap(), 7327);
            Connected { features: 0, address, encrypted }.is_exposed()
        };
        for own in ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"] {
            assert!(!exposed(own, false), "{own}");
        }
        for other in
            ["10.0.0.1", "192.168.1.9", "203.0.113.5", "0.0.0.0", "fe80::1", "2001:db8::1", "::ffff:10.0.0.1", "::"]
        {
            assert!(exposed(other, false), "{other}");
            assert!(!exposed(other, true), "{other}");
        }
    }
}
