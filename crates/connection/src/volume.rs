//! Frames of volumes on a connection. The volume client need not know whose connection it is.
//!
//! There are two kinds. A connection of an image's session serves a program and its data with one
//! order of priorities. A [`DedicatedConnection`](crate::DedicatedConnection) serves volumes alone.
//! Both are made again when they are lost, and tell the [`VolumeHandler`] of it. The handler
//! repeats the requests that were in flight.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use units::{Moment, StreamId};
use wire::{Notice, PushEndReason, PushHeader, PushPiece, Reply, Request};

/// Names a request; chosen by the [`VolumeHandler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

/// A message of a volume client. A message belongs to one connection, by its generation: a message
/// for an earlier one is dropped, and a request among them gets no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeMessage {
    /// A request. Exactly one [`VolumeHandler::answered`] follows, or [`VolumeHandler::lost`].
    Request {
        /// Comes back with the answer.
        tag: Tag,
        /// The request: [`Request::VolumeOpen`] or [`Request::Volume`].
        ask: Request,
        /// Time for the answer, beyond the time that the link needs for bytes in flight.
        time: Duration,
    },
    /// A message without an answer.
    Notice(Notice),
}

/// Why a request was not answered by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// No answer came in time, though the connection lives.
    Expired,
    /// The request breaks a limit of the protocol and was never sent.
    Refused,
}

/// Facts about a connection, for a [`VolumeHandler`].
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
    /// Whether others on the way can read and change messages. Only an address that
    /// the kernel never sends to a network is none of theirs; the text of a host proves nothing.
    pub fn is_exposed(&self) -> bool {
        !self.encrypted && !self.address.ip().to_canonical().is_loopback()
    }
}

/// Sends messages of a volume client. No call blocks, and none calls the handler back.
pub trait VolumeConnection: Send + Sync {
    /// Sends on the connection of this generation.
    fn send(&self, generation: u64, message: VolumeMessage);

    /// The present moment, on the clock of all calls to the handler.
    fn now(&self) -> Moment;
}

/// Something whose connection frames of volumes may use too.
pub trait Attach {
    /// Tells `handler` of the connection from now on. `None` if there is no connection to a Runnel
    /// server, or it has a handler already.
    fn attach_volumes(&self, handler: Arc<dyn VolumeHandler>) -> Option<Arc<dyn VolumeConnection>>;
}

/// The volume client, as a connection sees it. Called from the thread of the connection, in the
/// order in which things happened; no call may block.
pub trait VolumeHandler: Send + Sync {
    /// A connection is up. Generations grow.
    fn connected(&self, generation: u64, connected: Connected);

    /// There is no connection; another one is being tried for. `reason` is for people. Also said
    /// when none can be had.
    fn lost(&self, reason: &str);

    /// The answer to a request.
    fn answered(&self, tag: Tag, answer: Result<Reply, Unanswered>);

    /// A push stream of a volume begins. Streams of images are not shown.
    fn push_started(&self, stream: StreamId, push: PushHeader);

    /// A piece of such a stream; `credit` is to be given back.
    fn pushed(&self, piece: PushPiece, credit: u32);

    /// Such a stream ended.
    fn push_ended(&self, stream: StreamId, reason: PushEndReason);

    /// Nothing comes any more.
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
