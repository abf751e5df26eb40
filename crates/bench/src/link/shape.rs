//! The pure model of one direction of a link: bytes and `now` in, the time of arrival out. No
//! clock, no socket.

use std::time::Duration;

use units::{Rng, SplitMix64};

use super::{Link, SEGMENT_BYTES};

/// One direction of a link, shared by all its connections: a queue of bounded length before a line
/// of fixed rate.
#[derive(Clone, Debug)]
pub struct Lane {
    link: Link,
    /// When the line has sent everything that was admitted.
    free_at: Duration,
    random: SplitMix64,
    segments_lost: u64,
}

/// What one connection adds to a lane: TCP delivers in order, so nothing may overtake a chunk that
/// is late.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    /// No byte of this connection arrives before this time.
    pub not_before: Duration,
}

impl Lane {
    /// An idle lane. The same seed loses the same segments.
    pub fn new(link: &Link, seed: u64) -> Lane {
        Lane { link: link.clone(), free_at: Duration::ZERO, random: SplitMix64(seed), segments_lost: 0 }
    }

    /// Bytes admitted that the line has not sent yet.
    pub fn backlog_bytes(&self, now: Duration) -> u64 {
        let wait = self.free_at.saturating_sub(now);
        (wait.as_nanos() * self.link.rate as u128 / 8 / 1_000_000_000) as u64
    }

    /// True if the queue takes another chunk.
    pub fn has_room(&self, now: Duration) -> bool {
        self.backlog_bytes(now) < self.link.queue_bytes()
    }

    /// When the queue, full now, will take a chunk again.
    pub fn room_at(&self) -> Duration {
        // One byte less than the limit, and a nanosecond for the rounding of both divisions.
        self.free_at.saturating_sub(self.link.line_time(self.link.queue_bytes() - 1)) + Duration::from_nanos(1)
    }

    /// Segments lost so far.
    pub fn segments_lost(&self) -> u64 {
        self.segments_lost
    }

    /// Takes `bytes` of `flow` that were sent at `now`; returns when the last of them arrives.
    pub fn admit(&mut self, now: Duration, bytes: u64, flow: &mut Flow) -> Duration {
        let lost = self.draw_losses(bytes);
        self.free_at = self.free_at.max(now) + self.link.line_time(bytes + lost * SEGMENT_BYTES);
        let repeat = if lost > 0 { self.link.rtt } else { Duration::ZERO };
        let arrival = (self.free_at + self.link.rtt / 2 + repeat).max(flow.not_before);
        flow.not_before = arrival;
        arrival
    }

    fn draw_losses(&mut self, bytes: u64) -> u64 {
        if self.link.loss <= 0.0 {
            return 0;
        }
        // Probability as a threshold on 32 random bits: exact enough, and the same on every
        // machine.
        let threshold = (self.link.loss * 2f64.powi(32)) as u64;
        let segments = bytes.div_ceil(SEGMENT_BYTES);
        let lost = (0..segments).filter(|_| self.random.below(1 << 32) < threshold).count() as u64;
        self.segments_lost += lost;
        lost
    }
}
