//! Received bytes into frames. Memory grows with the bytes that arrived, never with a length that
//! was only announced.

use std::time::Duration;

use bytes::Bytes;
use units::Moment;

use crate::error::WireError;
use crate::format::{FRAME_BYTES_PER_SECOND_MIN, FRAME_DEADLINE, FRAME_HEADER_BYTES};

/// The frame that is arriving.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    header: [u8; FRAME_HEADER_BYTES],
    header_bytes: usize,
    payload: Vec<u8>,
    deadline: Option<Moment>,
}

/// A complete frame.
pub(crate) struct Arrived {
    pub kind: u8,
    pub payload: Bytes,
}

impl Inbox {
    /// Takes the next complete frame off the front of `input`, or keeps all of it and returns
    /// `None`. `bytes_max` gives the largest payload of a kind, or the reason why the kind is not
    /// accepted.
    pub fn next(
        &mut self,
        now: Moment,
        input: &mut &[u8],
        bytes_max: impl FnOnce(u8) -> Result<(&'static str, usize), WireError>,
    ) -> Result<Option<Arrived>, WireError> {
        if input.is_empty() && self.header_bytes < FRAME_HEADER_BYTES {
            return Ok(None);
        }
        if self.header_bytes < FRAME_HEADER_BYTES {
            let taken = take(input, FRAME_HEADER_BYTES - self.header_bytes);
            self.header[self.header_bytes..][..taken.len()].copy_from_slice(taken);
            self.header_bytes += taken.len();
            self.deadline.get_or_insert(now.after(FRAME_DEADLINE));
            if self.header_bytes < FRAME_HEADER_BYTES {
                return Ok(None);
            }
            let (kind, max) = bytes_max(self.kind())?;
            let found = self.payload_bytes();
            if found > max {
                return Err(WireError::FrameTooLarge { kind, found: found as u64, max });
            }
            let transfer = Duration::from_secs(found as u64 / FRAME_BYTES_PER_SECOND_MIN);
            self.deadline = self.deadline.map(|deadline| deadline.after(transfer));
            self.payload = Vec::new();
        }
        let wanted = self.payload_bytes() - self.payload.len();
        let taken = take(input, wanted);
        if self.payload.len() + taken.len() > self.payload.capacity() {
            // Twice as much as before, but never more than the frame.
            let grown = self.payload.capacity().max(taken.len()).min(wanted);
            self.payload.reserve_exact(grown);
        }
        self.payload.extend_from_slice(taken);
        if self.payload.len() < self.payload_bytes() {
            return Ok(None);
        }
        let kind = self.kind();
        let payload = Bytes::from(std::mem::take(&mut self.payload));
        (self.header_bytes, self.deadline) = (0, None);
        Ok(Some(Arrived { kind, payload }))
    }

    /// When the frame that is arriving must be complete.
    pub fn deadline(&self) -> Option<Moment> {
        self.deadline
    }

    /// Memory that the frame that is arriving takes once it is whole, as far as its header is here.
    pub fn whole_bytes(&self) -> usize {
        if self.header_bytes == FRAME_HEADER_BYTES { self.payload_bytes() } else { 0 }
    }

    /// Bytes of the frame that is arriving that are still to come, as far as its header is here.
    pub fn missing_bytes(&self) -> usize {
        self.whole_bytes() - self.payload.len()
    }

    /// Memory held by the frame that is arriving.
    pub fn held_bytes(&self) -> usize {
        self.payload.capacity()
    }

    /// Bytes that fit into the memory held already.
    pub fn spare_bytes(&self) -> usize {
        self.payload.capacity() - self.payload.len()
    }

    /// An error if the frame that is arriving is overdue.
    pub fn check(&self, now: Moment) -> Result<(), WireError> {
        match self.deadline {
            Some(deadline) if now >= deadline => {
                Err(WireError::Deadline { what: "a frame that had begun was not completed", limit: FRAME_DEADLINE })
            }
            _ => Ok(()),
        }
    }

    fn kind(&self) -> u8 {
        self.header[4]
    }

    fn payload_bytes(&self) -> usize {
        u32::from_le_bytes([self.header[0], self.header[1], self.header[2], self.header[3]]) as usize
    }
}

/// Cuts at most `bytes_max` bytes off the front of `input`.
fn take<'a>(input: &mut &'a [u8], bytes_max: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(bytes_max.min(input.len()));
    *input = rest;
    taken
}
