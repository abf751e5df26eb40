//! What one program is sent of one file: the parts of the file with their shares of the link.

use std::sync::Arc;

use profile::flow::Stage;
use units::{InodeId, PageId, Token};
use volume::FileId;
use wire::ImageHandle;
use wire::volume::Share;

use super::shares::{Class, Part};
use crate::lock::locked;
use crate::volumes::OpenVolume;

/// Blocks travel together up to this many bytes if many wait, on the thinnest link: alone, each
/// takes 3 % of it for heads of frames, packets that are not full, and acknowledgements.
pub(super) const PIECE_BYTES_MANY: usize = 8192;

/// That is a piece's part of what waits.
const WAITING_PER_PIECE: usize = 8;

/// A program and a file that it has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub volume: ImageHandle,
    pub token: Token,
    /// The number that the device gave the file, and that of the volume.
    pub file: InodeId,
    pub id: FileId,
}

/// What one program is sent of one file.
///
/// Invariant: there is at least one part, the last one for blocks of no stage. It is the only one
/// while the device says what the file gets.
pub(super) struct FilePush {
    target: Target,
    open: Arc<OpenVolume>,
    parts: Vec<Part>,
    /// Stages of the profile, and bytes of its blocks.
    stages: Vec<Stage>,
    stage_block_bytes: u64,
    /// Bytes of blocks sent so far.
    sent_bytes: usize,
    /// When it was foreseen last.
    pub used: u64,
}

impl FilePush {
    pub fn new(target: Target, open: Arc<OpenVolume>) -> FilePush {
        let (stage_block_bytes, stages) = {
            let profiles = locked(&open.served.profiles);
            profiles.stages(target.id).map_or((1, Vec::new()), |(bytes, stages)| (bytes, stages.to_vec()))
        };
        let others = if stages.is_empty() { Class::Profile } else { Class::Rest };
        let mut parts: Vec<Part> = stages.iter().map(|stage| Part::new(stage.share().into(), Vec::new())).collect();
        parts.push(Part::new(others, Vec::new()));
        FilePush { target, open, parts, stages, stage_block_bytes, sent_bytes: 0, used: 0 }
    }

    pub fn target(&self) -> Target {
        self.target
    }

    pub fn open(&self) -> &Arc<OpenVolume> {
        &self.open
    }

    /// Bytes of a block of the volume.
    pub fn block_bytes(&self) -> u32 {
        self.open.served.options.block_bytes
    }

    /// Whether it is for this program.
    pub fn is_for(&self, volume: ImageHandle, token: Token) -> bool {
        self.target.volume == volume && self.target.token == token
    }

    /// Whether it is of this file.
    pub fn is_of(&self, volume: ImageHandle, file: InodeId) -> bool {
        self.target.volume == volume && self.target.file == file
    }

    /// Whether the profile of the file has stages.
    pub fn has_stages(&self) -> bool {
        !self.stages.is_empty()
    }

    /// Whether no block waits.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(Part::is_empty)
    }

    /// Whether blocks wait that are needed soon and have a share of the link.
    pub fn presses(&self) -> bool {
        self.parts.iter().any(|part| part.class != Class::Rest && part.has_near())
    }

    /// Memory of the blocks that wait, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.parts.iter().map(Part::memory_bytes).sum()
    }

    /// Bytes of a piece of this part of which the heads are next to nothing, if so many blocks wait
    /// that they are no guesses. The first pieces are small: somebody waits for them.
    pub fn worth_bytes(&self, part: usize) -> usize {
        let waiting = self.parts.get(part).map_or(0, Part::len) * self.block_bytes() as usize;
        (waiting / WAITING_PER_PIECE).min(PIECE_BYTES_MANY).min(self.sent_bytes)
    }

    /// So many bytes of it are sent now.
    pub fn sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes;
    }

    /// Adds a block that is needed soon.
    pub fn order(&mut self, block: u32, chance: f64) {
        if let Some(part) = self.part_of(block) {
            part.order(block, chance);
        }
    }

    /// Adds a block that is not needed soon.
    pub fn add_far(&mut self, block: u32) {
        if let Some(part) = self.part_of(block) {
            part.add_far(block);
        }
    }

    /// What was needed soon is not any more.
    pub fn forget_near(&mut self) {
        self.parts.iter_mut().for_each(Part::forget_near);
    }

    /// It gets what all others leave.
    pub fn set_background(&mut self) {
        self.parts.iter_mut().for_each(|part| part.class = Class::Rest);
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

    /// The next block of a part, and how likely it is needed.
    pub fn next(&self, part: usize) -> Option<(PageId, f64)> {
        let (block, chance) = self.parts.get(part)?.next()?;
        Some((PageId::new(self.target.file, block), chance))
    }

    /// Takes that block away.
    pub fn pop(&mut self, part: usize) {
        if let Some(part) = self.parts.get_mut(part) {
            part.pop();
        }
    }

    /// The parts that may send: all with a share, and the first one of the rest, since stages are
    /// in the order of their priority.
    pub fn next_parts(&mut self) -> impl Iterator<Item = (usize, &mut Part)> {
        let mut rest = false;
        self.parts.iter_mut().enumerate().filter(move |(_, part)| {
            !part.is_empty() && (part.class != Class::Rest || !std::mem::replace(&mut rest, true))
        })
    }

    /// Which part a block belongs to.
    fn part_of(&mut self, block: u32) -> Option<&mut Part> {
        let offset = u64::from(block) * u64::from(self.block_bytes());
        let block = u32::try_from(offset / self.stage_block_bytes.max(1)).unwrap_or(u32::MAX);
        let last = self.parts.len().saturating_sub(1);
        let stage = self.stages.iter().position(|stage| stage.holds(block)).unwrap_or(last);
        // A file whose share the device gave has only the last part.
        self.parts.get_mut(stage.min(last))
    }
}
