//! The connections of a session as the schedule sees them, and the commands for their threads.

use std::collections::HashMap;

use units::{Moment, PageId, Token};

use crate::command::{Command, ConnectionIndex};
use crate::counters::TransferCounters;
use crate::link::{FirstAnswers, Link};

/// Tokens whose connection is remembered: more than run at once. If there are more, some change
/// theirs, which costs a push.
const HOMES_MAX: usize = 4096;

/// Connections, the commands that wait to be sent to their threads, and the estimate of the link
/// that they share.
///
/// Invariants:
/// - A command is added only for a connection that is up, except `Close`.
/// - All commands of a token go to one connection while it is up, so the server sees them in order;
///   only if more tokens than [`HOMES_MAX`] run at once, some go to another one.
pub(crate) struct Connections {
    states: Vec<ConnectionState>,
    /// The one of them that leads to the device cache, if there is one: the last.
    cache: Option<ConnectionIndex>,
    /// The connections that tokens have.
    homes: HashMap<Token, ConnectionIndex>,
    commands: Vec<(ConnectionIndex, Command)>,
    link: Link,
    /// There is a server, and a link to estimate; false for a local file.
    remote: bool,
    counters: TransferCounters,
}

#[derive(Clone, Copy, Debug, Default)]
struct ConnectionState {
    up: bool,
    bytes_received: u64,
}

/// When a request was sent, for the estimate of the link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub connection: ConnectionIndex,
    at: Moment,
    /// Bytes the connection had received by then.
    received_before: u64,
    /// Other answers were under way.
    pipelined: bool,
}

impl Connections {
    /// So many connections, all down. If `has_cache`, the last one leads to the device cache, which
    /// is never lost.
    pub fn new(count: usize, remote: bool, has_cache: bool) -> Connections {
        Connections {
            states: vec![ConnectionState::default(); count],
            cache: count.checked_sub(1).filter(|_| has_cache),
            homes: HashMap::new(),
            commands: Vec::new(),
            link: Link::default(),
            remote,
            counters: TransferCounters::default(),
        }
    }

    pub fn counters(&self) -> TransferCounters {
        self.counters
    }

    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Times of the first answers, for the estimate of the link.
    pub fn opened(&mut self, answers: FirstAnswers) {
        self.link.opened(answers);
    }

    pub fn is_any_up(&self) -> bool {
        self.servers().iter().any(|state| state.up)
    }

    /// Connections to servers.
    fn servers(&self) -> &[ConnectionState] {
        &self.states[..self.cache.unwrap_or(self.states.len())]
    }

    /// The connection to the device cache.
    pub fn cache(&self) -> Option<ConnectionIndex> {
        self.cache
    }

    /// A connection is up; `again`: it was lost before.
    pub fn up(&mut self, connection: ConnectionIndex, again: bool) {
        self.states[connection].up = true;
        self.counters.reconnects += u64::from(again);
    }

    pub fn down(&mut self, connection: ConnectionIndex) {
        self.states[connection].up = false;
    }

    /// A connection received bytes and sent some.
    pub fn moved(&mut self, connection: ConnectionIndex, received: u64, sent: u64) {
        self.states[connection].bytes_received += received;
        self.counters.bytes_received += received;
        self.counters.bytes_sent += sent;
    }

    /// The connection of a token: the one that it had last if that is up, or the next that is. A
    /// program that starts while only the first is up stays there, where the server pushes to it.
    pub fn of(&mut self, token: Token) -> Option<ConnectionIndex> {
        let count = self.servers().len();
        let own = self.homes.get(&token).copied().unwrap_or((token.0 % count as u128) as usize);
        let found = (0..count).map(|i| (own + i) % count).find(|connection| self.states[*connection].up)?;
        if self.homes.len() >= HOMES_MAX && !self.homes.contains_key(&token) {
            self.homes.clear();
        }
        self.homes.insert(token, found);
        Some(found)
    }

    /// A token ended: a server is told, and the device cache.
    pub fn end(&mut self, token: Token, is_untold: bool) {
        if let Some(connection) = self.of(token).filter(|_| self.remote) {
            self.command(connection, Command::TokenEnd { token, is_untold });
        }
        self.end_cached(token, is_untold);
        self.homes.remove(&token);
    }

    /// Tells the device cache alone that a token ended.
    pub fn end_cached(&mut self, token: Token, is_untold: bool) {
        if let Some(cache) = self.cache {
            self.command(cache, Command::TokenEnd { token, is_untold });
        }
    }

    /// Adds a command for a connection that is up.
    pub fn command(&mut self, connection: ConnectionIndex, command: Command) {
        self.commands.push((connection, command));
    }

    /// Reports pages that a token touched. Without a connection they are dropped: the server
    /// will have forgotten the action by the next one.
    pub fn touch(&mut self, token: Token, pages: Vec<PageId>) {
        if let Some(connection) = self.of(token).filter(|_| !pages.is_empty()) {
            self.counters.pages_touched += pages.len() as u64;
            self.command(connection, Command::Touch { token, pages });
        }
    }

    /// Tells the device cache of a page that a token touched.
    pub fn touch_cache(&mut self, token: Token, page: PageId) {
        if let Some(cache) = self.cache {
            self.command(cache, Command::Touch { token, pages: vec![page] });
        }
    }

    /// All connections are to end.
    pub fn close(&mut self) {
        self.commands.extend((0..self.states.len()).map(|connection| (connection, Command::Close)));
    }

    pub fn take_commands(&mut self) -> Vec<(ConnectionIndex, Command)> {
        std::mem::take(&mut self.commands)
    }

    /// A request is sent now; `pipelined`: others wait for their answers on this connection.
    pub fn sending(&self, now: Moment, connection: ConnectionIndex, pipelined: bool) -> Sent {
        Sent { connection, at: now, received_before: self.states[connection].bytes_received, pipelined }
    }

    /// The answer to a request came.
    pub fn answered(&mut self, now: Moment, sent: Sent) {
        if self.remote && self.cache != Some(sent.connection) {
            let received = self.states[sent.connection].bytes_received.saturating_sub(sent.received_before);
            self.link.sample(sent.at, now, received, sent.pipelined);
        }
    }

    #[cfg(test)]
    pub fn is_up(&self, connection: ConnectionIndex) -> bool {
        self.states[connection].up
    }

    /// A sample for the estimate of the link, as an answer would give it.
    #[cfg(test)]
    pub fn sample(&mut self, elapsed: std::time::Duration, bytes: u64) {
        self.link.sample(Moment(0), Moment(0).after(elapsed), bytes, false);
    }
}
