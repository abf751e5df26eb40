//! The state of an upload on a connection: which frames may come next, and how many bytes.

use units::RequestId;

use crate::error::{Refused, WireError};
use crate::format::{NEED_RANGES_MAX, NEED_RANGES_TOTAL_MAX, PUT_HEAD_BYTES};
use crate::message::BlockRange;

/// One upload.
#[derive(Debug)]
pub(crate) struct Put {
    file_bytes: u64,
    /// Bytes of superblock and metadata that may still come.
    meta_left: u64,
    /// PutNeed was sent at least once.
    needed: bool,
    /// The last PutNeed was sent.
    complete: bool,
    ranges: usize,
    /// First block the next range may name.
    next_block: u32,
    blocks_left: u64,
    committed: bool,
    progress: u64,
    /// `progress` was not told to the client.
    untold: bool,
}

impl Put {
    pub fn new(file_bytes: u64, metadata_bytes: u64) -> Put {
        Put {
            file_bytes,
            meta_left: metadata_bytes.saturating_add(PUT_HEAD_BYTES),
            needed: false,
            complete: false,
            ranges: 0,
            next_block: 0,
            blocks_left: 0,
            committed: false,
            progress: 0,
            untold: false,
        }
    }

    /// The client sends part of the superblock or metadata.
    pub fn meta(&mut self, offset: u64, bytes: usize) -> Result<(), WireError> {
        let order = |when| Err(WireError::WrongOrder { kind: "PutMeta", when });
        if self.needed {
            return order("after PutNeed");
        }
        if offset.checked_add(bytes as u64).is_none_or(|end| end > self.file_bytes) {
            return order("beyond the end of the file");
        }
        match self.meta_left.checked_sub(bytes as u64) {
            Some(left) => self.meta_left = left,
            None => return order("beyond the stated metadata bytes"),
        }
        Ok(())
    }

    /// The client sends a block.
    pub fn block(&mut self) -> Result<(), WireError> {
        match self.blocks_left.checked_sub(1) {
            Some(left) if !self.committed => self.blocks_left = left,
            _ => return Err(WireError::WrongOrder { kind: "PutBlock", when: "for more blocks than were asked for" }),
        }
        Ok(())
    }

    /// The client is done.
    pub fn commit(&mut self) -> Result<(), WireError> {
        let order = |when| Err(WireError::WrongOrder { kind: "PutCommit", when });
        match (self.complete, self.blocks_left, self.committed) {
            (false, _, _) => order("before the last PutNeed"),
            (_, _, true) => order("twice"),
            (_, 0, _) => {
                self.committed = true;
                Ok(())
            }
            _ => order("while blocks are missing"),
        }
    }

    /// The server asks for blocks.
    pub fn need(&mut self, request: RequestId, ranges: &[BlockRange], last: bool) -> Result<(), Refused> {
        if self.complete {
            return Err(Refused::WrongReply(request));
        }
        let limit = |what, found: u64, min: u64, max: u64| Err(Refused::Limit { what, found, min, max });
        // only the last may be empty: an upload is not kept alive by frames that say nothing
        let ranges_min = usize::from(!last);
        if ranges.len() > NEED_RANGES_MAX || ranges.len() < ranges_min {
            return limit("ranges of a PutNeed", ranges.len() as u64, ranges_min as u64, NEED_RANGES_MAX as u64);
        }
        if self.ranges + ranges.len() > NEED_RANGES_TOTAL_MAX {
            return limit("ranges of a put", (self.ranges + ranges.len()) as u64, 0, NEED_RANGES_TOTAL_MAX as u64);
        }
        let mut next = self.next_block;
        for range in ranges {
            let end = range.first.0.checked_add(range.count);
            match end {
                Some(end) if range.first.0 >= next && range.count > 0 => next = end,
                _ => return limit("first block of a range", range.first.0.into(), next.into(), u32::MAX.into()),
            }
        }
        self.needed = true;
        self.complete = last;
        self.ranges += ranges.len();
        self.next_block = next;
        self.blocks_left += ranges.iter().map(|range| u64::from(range.count)).sum::<u64>();
        Ok(())
    }

    /// The server stored `bytes` in all. Only growth up to the file's length counts.
    pub fn progress(&mut self, bytes: u64) {
        if bytes > self.progress && bytes <= self.file_bytes {
            (self.progress, self.untold) = (bytes, true);
        }
    }

    /// Progress to tell the client. It is told late, so that a client that does not read makes no
    /// queue of it.
    pub fn take_progress(&mut self) -> Option<u64> {
        std::mem::take(&mut self.untold).then_some(self.progress)
    }

    /// Whether the server may report the end.
    pub fn is_committed(&self) -> bool {
        self.committed
    }
}
