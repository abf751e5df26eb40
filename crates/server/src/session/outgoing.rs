//! Bytes on their way to the socket.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};
use units::Moment;
use wire::{Output, ServerConnection};

use super::rates::Allowance;
use super::throttle::Throttle;

/// Bytes handed to the socket at a time: what the link takes in a millisecond, so that a demand
/// reply waits behind little, and within these bounds.
const WRITE_BYTES: std::ops::RangeInclusive<usize> = 16 << 10..=256 << 10;

/// The same of a LAN whose rate was not measured: a decoded block, as a rule.
const NEAR_BYTES: usize = 72 << 10;

/// Fewer bytes are cheaper to copy than to hand over by themselves.
const SHARED_BYTES_MIN: usize = 8 << 10;

/// Parts of one write: those of 256 KiB in pieces of a bundle, as a rule.
pub(super) const WRITE_PARTS: usize = 16;

/// What the wire gave out and the socket has not taken.
///
/// Invariant: what is there is still to be written, in this order. The wire is asked for more when
/// all is written, and only as far as the rate limits of the device and of its principal allow.
#[derive(Default)]
pub(super) struct Outgoing {
    parts: Parts,
    /// What was written may lie in the stream's own buffer, if it encrypts.
    is_unflushed: bool,
    throttle: Throttle,
}

/// Bytes in order: what is small lies together, the rest is shared with those who have it.
///
/// Invariant: no part is empty. `small` comes behind all `parts`.
#[derive(Default)]
struct Parts {
    parts: VecDeque<Bytes>,
    small: BytesMut,
}

impl Output for Parts {
    fn copy(&mut self, bytes: &[u8]) {
        self.small.extend_from_slice(bytes);
    }

    fn share(&mut self, bytes: Bytes) {
        if bytes.len() < SHARED_BYTES_MIN {
            return self.copy(&bytes);
        }
        if !self.small.is_empty() {
            self.parts.push_back(self.small.split().freeze());
        }
        self.parts.push_back(bytes);
    }
}

impl Parts {
    fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.small.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let small = Some(&self.small[..]).filter(|small| !small.is_empty());
        self.parts.iter().map(|part| &part[..]).chain(small)
    }

    /// Drops so many bytes from the front; there are no fewer.
    fn advance(&mut self, mut bytes: usize) {
        while let Some(part) = self.parts.front_mut().filter(|_| bytes > 0) {
            let step = bytes.min(part.len());
            part.advance(step);
            bytes -= step;
            if part.is_empty() {
                self.parts.pop_front();
            }
        }
        self.small.advance(bytes);
    }
}

impl Outgoing {
    /// Limits what leaves; 0 for no limit.
    pub fn limit(&mut self, bytes_per_second: u64, now: Moment) {
        self.throttle.set(bytes_per_second, now);
    }

    /// Asks the wire for bytes if all were written. The moment at which more may leave if none may
    /// now.
    ///
    /// A near device waits for whole blocks, which are best sent at once. `allowance` is what the
    /// client's principal allows.
    pub fn fill(
        &mut self,
        wire: &mut ServerConnection,
        now: Moment,
        is_near: bool,
        allowance: &mut Allowance,
    ) -> Option<Moment> {
        let mut opens = None;
        if self.parts.is_empty() {
            let per_millisecond = wire.push_rate().map_or(0, |rate| rate as usize / 1000);
            let least = if is_near { NEAR_BYTES } else { *WRITE_BYTES.start() };
            let wanted = per_millisecond.clamp(least, *WRITE_BYTES.end()).min(allowance.bytes());
            let allowed = self.throttle.allowed(now, wanted);
            if allowed > 0 {
                let bytes = wire.transmit(now, &mut self.parts, allowed);
                self.throttle.spend(bytes);
                allowance.spend(bytes);
            } else {
                opens = self.throttle.opens(now);
            }
        }
        if self.parts.is_empty() {
            // Most connections are idle most of the time.
            self.parts = Parts::default();
        }
        opens
    }

    /// Whether there is something to write or to flush.
    pub fn has_work(&self) -> bool {
        !self.parts.is_empty() || self.is_unflushed
    }

    /// The first parts of what is to be written, as many as there is room for; returns their
    /// number.
    pub fn unwritten<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(self.parts.iter()) {
            *slice = IoSlice::new(part);
            count += 1;
        }
        count
    }

    /// The socket took so many bytes; none if it was flushed.
    pub fn wrote(&mut self, bytes: usize) {
        self.parts.advance(bytes);
        self.is_unflushed = bytes > 0;
    }

    /// All that is still to be written at the end of the connection.
    pub fn finish(&mut self, wire: &mut ServerConnection, now: Moment) -> Vec<u8> {
        wire.transmit(now, &mut self.parts, usize::MAX);
        let parts = std::mem::take(&mut self.parts);
        parts.iter().collect::<Vec<_>>().concat()
    }
}

#[cfg(test)]
mod tests {
    use units::{Rng, SplitMix64};

    use super::*;

    #[test]
    fn parts_are_written_in_order_however_little_the_socket_takes() {
        let mut rng = SplitMix64(3);
        for _ in 0..200 {
            let (mut parts, mut expected) = (Parts::default(), Vec::new());
            for _ in 0..rng.below(12) {
                let length = [7, SHARED_BYTES_MIN - 1, SHARED_BYTES_MIN, 3 * SHARED_BYTES_MIN][rng.below(4) as usize];
                let bytes: Vec<u8> = (0..length).map(|_| rng.below(256) as u8).collect();
                expected.extend_from_slice(&bytes);
                match rng.below(2) {
                    0 => parts.copy(&bytes),
                    _ => parts.share(bytes.into()),
                }
            }
            let mut outgoing = Outgoing { parts, ..Outgoing::default() };
            let mut written = Vec::new();
            while outgoing.has_work() {
                let mut slices = [IoSlice::new(&[]); 3];
                let count = outgoing.unwritten(&mut slices);
                let mut offered: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                offered.truncate(1 + rng.below(offered.len().max(1) as u64) as usize);
                outgoing.wrote(offered.len());
                written.extend(offered);
            }
            assert!(written == expected);
        }
    }

    #[test]
    fn bulk_bytes_are_not_copied() {
        let (bulk, mut parts) = (Bytes::from(vec![1; SHARED_BYTES_MIN]), Parts::default());
        parts.copy(b"head");
        parts.share(bulk.clone());
        parts.copy(b"hash");
        let found: Vec<&[u8]> = parts.iter().collect();
        assert_eq!((found.len(), found[1].as_ptr()), (3, bulk.as_ptr()));
    }
}
