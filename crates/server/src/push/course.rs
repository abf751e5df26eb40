//! A course: what one program is sent of one file, the parts of the file with their shares of the link.

use std::sync::Arc;

use profile::flow::Stage;
use units::{InodeId, Token};
use volume::FileId;
use wire::ImageHandle;
use wire::volume::Share;

use super::shares::{Class, Part};
use crate::lock::locked;
use crate::volumes::{OpenVolume, Served};

/// Blocks travel together up to this many bytes if many wait, on the thinnest link: alone, each takes 3 % of it for heads of frames,
/// packets that are not full, and acknowledgements.
pub(super) const PIECE_BYTES_MANY: usize = 8192;

/// That is a piece's part of what waits.
const WAITING_PER_PIECE: usize = 8;

/// What one program is sent of one file.
pub(super) struct Course {
    pub volume: ImageHandle,
    pub open: Arc<OpenVolume>,
    pub token: Token,
    pub file: InodeId,
    pub id: FileId,
    /// The part of each stage, then that of all other blocks; only the last one while the device says what the file gets.
    pub parts: Vec<Part>,
    /// Stages of the profile, and bytes of its blocks.
    pub stages: Vec<Stage>,
    stage_block_bytes: u64,
    /// Bytes of blocks sent so far.
    pub sent_bytes: usize,
    /// When it was foreseen last.
    pub used: u64,
}

impl Course {
    pub fn new(volume: ImageHandle, open: Arc<OpenVolume>, token: Token, file: InodeId, id: FileId) -> Course {
        let (stage_block_bytes, stages) = {
            let profiles = locked(&open.served.profiles);
            profiles.stages(id).map_or((1, Vec::new()), |(bytes, stages)| (bytes, stages.to_vec()))
        };
        let others = if stages.is_empty() { Class::Profile } else { Class::Rest };
        let mut parts: Vec<Part> = stages.iter().map(|stage| Part::new(stage.share().into(), Vec::new())).collect();
        parts.push(Part::new(others, Vec::new()));
        Course { volume, open, token, file, id, parts, stages, stage_block_bytes, sent_bytes: 0, used: 0 }
    }

    /// Bytes of a piece of this part of which the heads are next to nothing, if so many blocks wait that they are no guesses. The first
    /// pieces are small: somebody waits for them.
    pub fn worth_bytes(&self, part: usize, block_bytes: usize) -> usize {
        let waiting = self.parts.get(part).map_or(0, Part::len) * block_bytes;
        (waiting / WAITING_PER_PIECE).min(PIECE_BYTES_MANY).min(self.sent_bytes)
    }

    /// Which part a block belongs to.
    fn part(&mut self, block: u32, served: &Served) -> Option<&mut Part> {
        let offset = u64::from(block) * u64::from(served.options.block_bytes);
        let block = u32::try_from(offset / self.stage_block_bytes.max(1)).unwrap_or(u32::MAX);
        let last = self.parts.len().saturating_sub(1);
        let stage = self.stages.iter().position(|stage| stage.holds(block)).unwrap_or(last);
        // Of a file with a share by the device there is only the last part.
        self.parts.get_mut(stage.min(last))
    }

    pub fn order(&mut self, block: u32, chance: f64, served: &Served) {
        if let Some(part) = self.part(block, served) {
            part.order(block, chance);
        }
    }

    pub fn add_far(&mut self, block: u32, served: &Served) {
        if let Some(part) = self.part(block, served) {
            part.add_far(block);
        }
    }

    /// The device says what the file gets, whatever its stages say; they keep their order.
    pub fn overrule(&mut self, share: Share) {
        let class = match share {
            Share::Rest => Class::Rest,
            Share::Percent(percent) => Class::Percent(percent.clamp(1, 100)),
            Share::Rate(rate) => Class::Rate(rate.max(1)),
        };
        let mut all = Part::new(class, Vec::new());
        self.parts.drain(..).for_each(|part| all.absorb(part));
        self.parts.push(all);
    }
}

/// The parts that may send: all with a share, and of each course the first one of the rest, since
/// stages are in the order of their priority.
pub(super) fn next_parts(courses: &mut [Course]) -> Vec<(usize, usize, &mut Part)> {
    let mut found = Vec::new();
    for (at, course) in courses.iter_mut().enumerate() {
        let mut rest = false;
        for (index, part) in course.parts.iter_mut().enumerate().filter(|(_, part)| !part.is_empty()) {
            if part.class == Class::Rest && std::mem::replace(&mut rest, true) {
                continue;
            }
            found.push((at, index, part));
        }
    }
    found
}
