//! Requests to the server: those under way, and those that are put off.

use std::collections::HashMap;
use std::time::Duration;

use units::Moment;

/// A server that has no time, or whose volume has stopped, is asked again after this time: not at
/// the speed of the link.
pub(super) const BUSY_TIME: Duration = Duration::from_millis(100);

/// The purpose of a request.
pub(super) enum AskFor {
    Volume,
    Want(u64),
    File(u64),
    Blocks { file: u64, indexes: Vec<u32> },
    Commit(u64),
    Lock(u64),
    Device,
}

/// A request under way.
pub(super) struct Asked {
    pub what: AskFor,
    pub sent: Moment,
    /// Bytes that the connection had received before it was sent.
    pub received: u64,
    /// Other answers or pushes were on their way.
    pub pipelined: bool,
}

/// The requests of one connection.
///
/// Invariant: a tag is used once. A request is under way, put off, or answered, never two of these.
#[derive(Default)]
pub(super) struct Requests {
    under_way: HashMap<u64, Asked>,
    /// Requests that the server had no time for, and when they are sent again.
    postponed: Vec<(Moment, AskFor)>,
    last_tag: u64,
}

impl Requests {
    /// Whether none is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// A request is sent: its tag.
    pub fn send(&mut self, asked: Asked) -> u64 {
        self.last_tag += 1;
        self.under_way.insert(self.last_tag, asked);
        self.last_tag
    }

    /// The request with this tag was answered, or not.
    pub fn take(&mut self, tag: u64) -> Option<Asked> {
        self.under_way.remove(&tag)
    }

    /// The server had no time for a request.
    pub fn postpone(&mut self, what: AskFor, now: Moment) {
        self.postponed.push((now.after(BUSY_TIME), what));
    }

    /// When the next one that was put off is due.
    pub fn due(&self) -> Option<Moment> {
        self.postponed.iter().map(|(again, _)| *again).min()
    }

    /// Those that were put off and are due, in order.
    pub fn take_due(&mut self, now: Moment) -> Vec<AskFor> {
        let (due, later) = std::mem::take(&mut self.postponed).into_iter().partition(|(again, _)| *again <= now);
        self.postponed = later;
        let due: Vec<(Moment, AskFor)> = due;
        due.into_iter().map(|(_, what)| what).collect()
    }

    /// The connection is gone, and with it all requests.
    pub fn clear(&mut self) {
        self.under_way.clear();
        self.postponed.clear();
    }
}
