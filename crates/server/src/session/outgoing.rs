//! Bytes on their way to the socket.

use units::Moment;
use wire::ServerConnection;

use super::throttle::Throttle;

/// Bytes handed to the socket at a time: what the link takes in a millisecond, so that a demand
/// reply waits behind little, and within these bounds.
const WRITE_BYTES: std::ops::RangeInclusive<usize> = 16 << 10..=256 << 10;

/// The same of a LAN whose rate was not measured: a decoded block, as a rule.
const NEAR_BYTES: usize = 72 << 10;

/// What the wire gave out and the socket has not taken.
///
/// Invariant: the bytes from `written` on are still to be written, in this order. The wire is asked
/// for more when all are, and only as far as the device's rate limit allows.
#[derive(Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    written: usize,
    /// What was written may lie in the stream's own buffer, if it encrypts.
    is_unflushed: bool,
    throttle: Throttle,
}

impl Outgoing {
    /// Limits what leaves; 0 for no limit.
    pub fn limit(&mut self, bytes_per_second: u64, now: Moment) {
        self.throttle.set(bytes_per_second, now);
    }

    /// Asks the wire for bytes if all were written. The moment at which more may leave if none may
    /// now.
    ///
    /// A near device waits for whole blocks, which are best sent at once.
    pub fn fill(&mut self, wire: &mut ServerConnection, now: Moment, is_near: bool) -> Option<Moment> {
        let mut opens = None;
        if self.written == self.bytes.len() {
            self.bytes.clear();
            self.written = 0;
            let per_millisecond = wire.push_rate().map_or(0, |rate| rate as usize / 1000);
            let least = if is_near { NEAR_BYTES } else { *WRITE_BYTES.start() };
            let wanted = per_millisecond.clamp(least, *WRITE_BYTES.end());
            let allowed = self.throttle.allowed(now, wanted);
            if allowed > 0 {
                // Grown step by step it would be copied as often.
                self.bytes.reserve(allowed.min(wire.queued_bytes()));
                self.throttle.spend(wire.transmit(now, &mut self.bytes, allowed));
            } else {
                opens = self.throttle.opens(now);
            }
        }
        if self.bytes.is_empty() {
            // Most connections are idle most of the time.
            self.bytes = Vec::new();
        }
        opens
    }

    /// Whether there is something to write or to flush.
    pub fn has_work(&self) -> bool {
        self.written < self.bytes.len() || self.is_unflushed
    }

    /// The bytes to write.
    pub fn unwritten(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// The socket took so many bytes; none if it was flushed.
    pub fn wrote(&mut self, bytes: usize) {
        self.written += bytes;
        self.is_unflushed = bytes > 0;
    }

    /// All that is still to be written at the end of the connection.
    pub fn finish(&mut self, wire: &mut ServerConnection, now: Moment) -> Vec<u8> {
        wire.transmit(now, &mut self.bytes, usize::MAX);
        self.bytes.split_off(self.written)
    }
}
