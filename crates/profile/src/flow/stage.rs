//! Stages: parts of a file with their own share of the link, so that the first scene comes fast and
//! later ones in the background.

use std::collections::HashSet;

use super::error::StageFault;
use super::format::{RANGES_MAX, RATE_MAX, STAGE_NAME_BYTES_MAX, STAGES_MAX};
use super::{FlowError, Layout};

/// What a stage gets of the link while it has blocks to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// What the stages before it leave.
    #[default]
    Rest,
    /// Percent of the link, 1 to 100.
    Percent(u8),
    /// Bytes per second, 1 to [`RATE_MAX`].
    Rate(u64),
}

/// Blocks `first ..= last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRange {
    /// First block.
    pub first: u32,
    /// Last block.
    pub last: u32,
}

/// A named part of a file. A stage does not make its blocks used: it says how fast those that are
/// come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    name: String,
    ranges: Vec<BlockRange>,
    share: Share,
}

impl Stage {
    /// A stage of `ranges`, which are sorted and joined where they touch.
    ///
    /// # Errors
    /// A name, range or share that cannot be.
    pub fn new(name: &str, ranges: &[BlockRange], share: Share) -> Result<Stage, FlowError> {
        let failed = |fault| FlowError::Stage { name: name.chars().take(STAGE_NAME_BYTES_MAX).collect(), fault };
        let unfit = |letter: char| letter == '"' || letter.is_control();
        if name.is_empty() || name.len() > STAGE_NAME_BYTES_MAX || name.contains(unfit) {
            return Err(failed(StageFault::Name));
        }
        if let Some(BlockRange { first, last }) = ranges.iter().find(|range| range.first > range.last) {
            return Err(failed(StageFault::Range { first: *first, last: *last }));
        }
        if ranges.is_empty() {
            return Err(failed(StageFault::Empty));
        }
        let valid = match share {
            Share::Rest => true,
            Share::Percent(percent) => (1..=100).contains(&percent),
            Share::Rate(rate) => (1..=RATE_MAX).contains(&rate),
        };
        if !valid {
            return Err(failed(StageFault::Share));
        }
        Ok(Stage { name: name.to_string(), ranges: join(ranges), share })
    }

    /// Its name: 1 to 64 bytes without quotes and control characters.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its blocks in file order, with a gap between any two ranges.
    pub fn ranges(&self) -> &[BlockRange] {
        &self.ranges
    }

    /// What it gets of the link.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Whether `block` belongs to it.
    pub fn holds(&self, block: u32) -> bool {
        let position = self.ranges.partition_point(|range| range.last < block);
        self.ranges.get(position).is_some_and(|range| range.first <= block)
    }

    /// Takes out the blocks from `end` on.
    pub(super) fn cut(&mut self, end: u32) {
        self.ranges.retain(|range| range.first < end);
        if let Some(range) = self.ranges.last_mut() {
            range.last = range.last.min(end - 1);
        }
    }
}

fn join(ranges: &[BlockRange]) -> Vec<BlockRange> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut joined: Vec<BlockRange> = Vec::new();
    for range in sorted {
        match joined.last_mut() {
            Some(before) if range.first <= before.last.saturating_add(1) => before.last = before.last.max(range.last),
            _ => joined.push(range),
        }
    }
    joined
}

/// The rules that stages have together.
pub(super) fn check(stages: &[Stage], layout: &Layout) -> Result<(), FlowError> {
    let failed = |stage: &Stage, fault| Err(FlowError::Stage { name: stage.name.clone(), fault });
    let mut names = HashSet::new();
    let mut all: Vec<(BlockRange, usize)> = Vec::new();
    let mut percent = 0;
    for (position, stage) in stages.iter().enumerate() {
        if !names.insert(&stage.name) {
            return failed(stage, StageFault::NameTaken);
        }
        all.extend(stage.ranges.iter().map(|range| (*range, position)));
        if position >= STAGES_MAX || all.len() > RANGES_MAX {
            return failed(stage, StageFault::Limit);
        }
        if let Some(range) = stage.ranges.iter().find(|range| range.last >= layout.blocks()) {
            return failed(stage, StageFault::Range { first: range.first, last: range.last });
        }
        if let Share::Percent(share) = stage.share {
            percent += u32::from(share);
        }
        if percent > 100 {
            return failed(stage, StageFault::Shares { percent });
        }
    }
    all.sort_unstable();
    match all.windows(2).find(|pair| pair[1].0.first <= pair[0].0.last) {
        Some(pair) => failed(&stages[pair[0].1.max(pair[1].1)], StageFault::Overlap { block: pair[1].0.first }),
        None => Ok(()),
    }
}
