//! Touches of blocks and credit for pushed bytes, which wait so that they leave together.
//!
//! On a thin link each packet costs an acknowledgement on the way that is full.

use std::time::Duration;

use units::{Moment, StreamId, Token};

/// Touches that wait are sent after this time.
pub(super) const TOUCH_TIME: Duration = Duration::from_millis(10);

/// Touches that wait at most; then they are sent.
const TOUCHES_MAX: usize = 512;

/// Credit that waits at most; then it is given, so that it never slows a fast link.
const CREDIT_BYTES_MAX: u64 = 16 << 10;

/// A block of a file that an action touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Touch {
    /// The file, as the engine knows it.
    pub file: u64,
    pub token: Token,
    pub index: u32,
}

/// What waits to be told to the server.
///
/// Invariant: touches leave in the order in which they were added, all at once and with all credit.
/// A time is set only while something waits.
#[derive(Debug, Default)]
pub(super) struct Touches {
    touches: Vec<Touch>,
    credits: Vec<(StreamId, u32)>,
    due: Option<Moment>,
}

impl Touches {
    /// When they are to be sent.
    pub fn due(&self) -> Option<Moment> {
        self.due
    }

    pub fn add(&mut self, touch: Touch) {
        self.touches.push(touch);
    }

    /// Whether so many wait that they are to be sent now.
    pub fn is_full(&self) -> bool {
        self.touches.len() >= TOUCHES_MAX
    }

    /// Adds pushed bytes to give back; true if so many wait that they are to be given now.
    pub fn add_credit(&mut self, stream: StreamId, bytes: u32) -> bool {
        self.credits.push((stream, bytes));
        let waiting: u64 = self.credits.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
        waiting >= CREDIT_BYTES_MAX
    }

    /// Sends what waits at this moment at the latest.
    pub fn send_by(&mut self, due: Option<Moment>) {
        if !self.touches.is_empty() || !self.credits.is_empty() {
            self.due = [self.due, due].into_iter().flatten().min();
        }
    }

    /// Takes all credit and all touches.
    pub fn take(&mut self) -> (Vec<(StreamId, u32)>, Vec<Touch>) {
        let Touches { touches, credits, .. } = std::mem::take(self);
        (credits, touches)
    }
}
