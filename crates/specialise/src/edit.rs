//! Edits: how the bytes of a function change, and where its instructions lie afterwards.

use std::ops::Range;

use crate::arch::Architecture;

/// How the bytes of an atom change. Offsets count from the start of its section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edit {
    /// Removed ranges, sorted by start, without overlap.
    pub cut: Vec<Range<u64>>,
    /// Replaced bytes with their offsets, sorted.
    pub patches: Vec<(u64, u8)>,
    /// Ranges that are filled with traps.
    pub filled: Vec<Range<u64>>,
    /// Inserted bytes, sorted by offset.
    pub inserted: Vec<Insertion>,
}

/// Inserted bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Insertion {
    /// The offset before which they are inserted.
    pub at: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The number of the counter that they write, if they write one.
    pub counter: Option<u64>,
}

impl Edit {
    /// The new offset of a branch target: before the bytes that are inserted there.
    pub fn moved(&self, offset: u64) -> u64 {
        self.shifted(offset, offset)
    }

    /// The new offset of a byte: behind the bytes that are inserted there.
    pub fn moved_byte(&self, offset: u64) -> u64 {
        self.shifted(offset, offset.saturating_add(1))
    }

    /// The new offset, with the bytes that are inserted before `limit`.
    fn shifted(&self, offset: u64, limit: u64) -> u64 {
        let cut = self.cut.iter().take_while(|range| range.start < offset);
        let cut: u64 = cut.map(|range| range.end.min(offset) - range.start).sum();
        let inserted = self.inserted.iter().take_while(|insertion| insertion.at < limit);
        offset - cut + inserted.map(|insertion| insertion.bytes.len() as u64).sum::<u64>()
    }

    /// The length afterwards of an atom with `bytes`.
    pub fn length(&self, bytes: u64) -> u64 {
        bytes - self.bytes() + self.inserted.iter().map(|insertion| insertion.bytes.len() as u64).sum::<u64>()
    }

    /// The edited bytes of an atom that starts at `start`.
    pub fn applied(&self, arch: &dyn Architecture, bytes: &[u8], start: u64) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for (at, byte) in &self.patches {
            if let Some(patched) = bytes.get_mut((at - start) as usize) {
                *patched = *byte;
            }
        }
        for range in &self.filled {
            if let Some(filled) = bytes.get_mut((range.start - start) as usize..(range.end - start) as usize) {
                arch.fill_trap(filled);
            }
        }
        let mut cuts = self.cut.iter().peekable();
        let mut insertions = self.inserted.iter().peekable();
        let mut applied = Vec::with_capacity(self.length(bytes.len() as u64) as usize);
        for (at, byte) in (start..).zip(bytes) {
            while let Some(insertion) = insertions.next_if(|insertion| insertion.at <= at) {
                applied.extend_from_slice(&insertion.bytes);
            }
            while cuts.next_if(|cut| cut.end <= at).is_some() {}
            if cuts.peek().is_none_or(|cut| at < cut.start) {
                applied.push(byte);
            }
        }
        applied
    }

    /// Whether a byte is removed.
    pub fn is_cut(&self, offset: u64) -> bool {
        self.cut.iter().any(|range| range.contains(&offset))
    }

    /// How many bytes are removed.
    pub fn bytes(&self) -> u64 {
        self.cut.iter().map(|range| range.end - range.start).sum()
    }
}
