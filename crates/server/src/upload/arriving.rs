//! The first step of an upload: superblock and metadata arrive, in whatever parts.

use image::format::SUPERBLOCK_BYTES;
use image::{Metadata, Superblock};
use store::Store;
use units::ImageId;

use super::staged::{Source, Staged, check_disk, invalid};
use super::{Announced, UploadService};
use crate::budget::Room;
use crate::error::Failure;

/// Parts the metadata may arrive in that do not touch each other.
const GAPS_MAX: usize = 1024;

/// An upload whose metadata is not complete.
pub(super) struct Arriving {
    upload: Box<dyn store::Upload>,
    /// What must arrive: the superblock, and the metadata to the end of the file.
    wanted: [(u64, u64); 2],
    arrived: Arrived,
}

impl Arriving {
    /// Makes the file.
    pub fn new(store: &dyn Store, announced: &Announced) -> Result<Arriving, Failure> {
        // First, because a store that cannot be written fails here, with the better message.
        let upload = store.create()?;
        check_disk(store, announced.metadata_bytes)?;
        let wanted = [(0, SUPERBLOCK_BYTES as u64), (announced.metadata_offset, announced.file_bytes)];
        Ok(Arriving { upload, wanted, arrived: Arrived::default() })
    }

    /// Takes a part.
    pub fn take(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let end = offset.saturating_add(bytes.len() as u64);
        if !self.wanted.iter().any(|(from, to)| *from <= offset && end <= *to) {
            return Err(Failure::bad_request(format!("bytes {offset} to {end} are neither superblock nor metadata")));
        }
        self.upload.write_at(offset, bytes)?;
        self.arrived.add(offset, end)
    }

    /// Whether all of it is here.
    pub fn is_complete(&self) -> bool {
        self.wanted.iter().all(|(start, end)| self.arrived.covers(*start, *end))
    }

    /// Reads what the superblock announces.
    pub fn complete(self, service: &UploadService, announced: &Announced) -> Result<Complete, Failure> {
        let source = Source { upload: &*self.upload, bytes: announced.file_bytes };
        let superblock = Superblock::read(&source, &service.limits).map_err(invalid)?;
        Ok(Complete { upload: self.upload, superblock })
    }
}

/// An upload whose metadata is complete and was not looked at yet.
pub(super) struct Complete {
    upload: Box<dyn store::Upload>,
    superblock: Superblock,
}

impl Complete {
    /// The image that it says it is.
    pub fn id(&self) -> ImageId {
        self.superblock.id
    }

    /// Memory that it takes while its metadata is validated.
    pub fn memory_bytes(&self) -> usize {
        self.held_bytes() + self.superblock.opening_memory_bytes() as usize
    }

    /// Memory that it takes from then on: metadata, a block, and the same as it is stored.
    fn held_bytes(&self) -> usize {
        let blocks = self.superblock.block_memory_bytes() + u64::from(self.superblock.block_bytes);
        (self.superblock.metadata_memory_bytes() + blocks) as usize
    }

    /// Validates the metadata, or goes on with an upload of the same image that was interrupted.
    /// `share` is the room for [`Complete::memory_bytes`].
    pub fn stage(self, service: &UploadService, announced: &Announced, share: Room) -> Result<Staged, Failure> {
        if let Some(staged) = service.interrupted.take(self.superblock.id) {
            return Ok(staged);
        }
        let source = Source { upload: &*self.upload, bytes: announced.file_bytes };
        let mut reserved = service.catalog.reserve_upload(share, &service.interrupted)?;
        let metadata = Metadata::open(&source, &service.limits).map_err(invalid)?;
        let blocks = self.superblock.block_memory_bytes() + u64::from(self.superblock.block_bytes);
        reserved.shrink_to(self.held_bytes().max(metadata.memory_bytes() + blocks as usize));
        Ok(Staged::new(self.upload, metadata, announced, reserved))
    }
}

/// Which bytes have arrived, as runs that do not touch.
#[derive(Default)]
struct Arrived {
    runs: std::collections::BTreeMap<u64, u64>,
}

impl Arrived {
    fn add(&mut self, mut start: u64, mut end: u64) -> Result<(), Failure> {
        // Runs that begin at or before `end` and reach `start` melt into the new one.
        while let Some((from, to)) = self.runs.range(..=end).next_back().map(|(from, to)| (*from, *to)) {
            if to < start {
                break;
            }
            self.runs.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.runs.insert(start, end);
        if self.runs.len() > GAPS_MAX {
            return Err(Failure::bad_request("the metadata of the upload comes in too many separate parts"));
        }
        Ok(())
    }

    fn covers(&self, start: u64, end: u64) -> bool {
        start >= end || self.runs.range(..=start).next_back().is_some_and(|(_, to)| *to >= end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Runs agree with a set of bytes.
        #[test]
        fn ref_arrived_agrees_with_a_set_of_bytes(parts in prop::collection::vec((0u64..60, 1u64..12), 0..30)) {
            let mut arrived = Arrived::default();
            let mut bytes = std::collections::BTreeSet::new();
            for (start, count) in parts {
                arrived.add(start, start + count).unwrap();
                bytes.extend(start..start + count);
                for (from, to) in [(0, 5), (10, 30), (start, start + count), (0, 72)] {
                    prop_assert_eq!(arrived.covers(from, to), (from..to).all(|byte| bytes.contains(&byte)));
                }
            }
        }
    }

    #[test]
    fn metadata_in_too_many_parts_is_refused() {
        let mut arrived = Arrived::default();
        let refused = (0..10_000u64).position(|part| arrived.add(part * 2, part * 2 + 1).is_err());
        assert_eq!(refused, Some(GAPS_MAX));
    }
}
