//! Tests of the whole client against a server that runs in this process and can be told to
//! misbehave.

mod ablation;
mod cached;
mod decoded;
mod demand;
mod early;
pub(crate) mod fake_server;
pub(crate) mod fake_sink;
mod flips;
mod hints;
mod hostile;
mod http;
mod loss;
mod open;
mod pin;
mod proofs;
mod push;
mod real_server;
#[cfg(feature = "tls")]
mod renewal;
mod signed;
mod start;
#[cfg(feature = "tls")]
mod tls;
pub(crate) mod tree;
mod untold;
mod upload;
mod volumes;
mod web_server;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use units::{InodeId, PAGE_BYTES, Token};

use crate::{Config, Granularity, ReadError, Session};
use connection::Target;
use fake_server::FakeServer;

/// No test waits so long unless something hangs.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// A READ under way.
pub(crate) struct Pending(Receiver<Result<Vec<u8>, ReadError>>);

impl Pending {
    pub fn wait(self) -> Result<Vec<u8>, ReadError> {
        self.0.recv_timeout(HANG).expect("a READ was never answered")
    }

    pub fn is_pending(&self) -> bool {
        matches!(self.0.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty))
    }
}

pub(crate) fn read(session: &Session, token: u128, inode: InodeId, offset: u64, bytes: u32) -> Pending {
    let (sender, receiver) = channel();
    let done = Box::new(move |outcome: Result<&[u8], ReadError>| {
        let _ = sender.send(outcome.map(<[u8]>::to_vec));
    });
    session.read(Token(token), inode, offset, bytes, done);
    Pending(receiver)
}

/// A READ of one page.
pub(crate) fn read_page(session: &Session, token: u128, inode: InodeId, index: u32) -> Pending {
    read(session, token, inode, u64::from(index) * PAGE_BYTES as u64, PAGE_BYTES as u32)
}

/// A session with one connection that asks for blocks and reads nothing ahead, so that a test knows
/// what is asked.
pub(crate) fn plain() -> Config {
    Config {
        connections: 1,
        readahead_blocks: 0,
        granularity: Granularity::Block,
        whole_metadata_bytes: 0,
        // Servers of tests are as near as can be, and are to look like others.
        near_round_trip: Duration::ZERO,
        ..Config::default()
    }
}

/// The same that waits for the first answers so many milliseconds.
pub(crate) fn with_open_deadline(milliseconds: u64) -> Config {
    let mut config = plain();
    config.connection.open_deadline = Duration::from_millis(milliseconds);
    config
}

pub(crate) fn open(server: &FakeServer, config: Config) -> Arc<Session> {
    Session::open(&Target::parse(&server.url("app")).unwrap(), config).unwrap()
}
