//! Which block is sent next: the parts of files that wait to be pushed, and what each gets of the
//! link.
//!
//! Parts with a rate come first until they have it. Then the parts that have blocks to send divide
//! the link by weights, in bytes (weighted fair queueing, by the virtual time of each part):
//!
//! - a percentage is a weight;
//! - parts of files whose profile has no stages get what the percentages leave, and a tenth at
//!   least;
//! - `Rest` gets what all those leave: nothing while they have blocks and leave nothing.
//!
//! The link never idles while any part has blocks.

use std::collections::VecDeque;

use profile::flow::Share;
use units::Moment;

/// Blocks that are needed soon and wait, of one part; what is behind comes when a touch shows that
/// it is still needed.
const NEAR_MAX: usize = 8192;

/// Memory of a block that is needed soon, and of one that waits behind those, bytes.
pub(super) const NEAR_BYTES: usize = size_of::<(u32, f64)>();
pub(super) const FAR_BYTES: usize = size_of::<u32>();

/// Virtual time of one byte at weight 1.
const SCALE: u64 = 1000;

/// Least weight of parts without a share, percent.
const PROFILE_PERCENT_MIN: u64 = 10;

/// What a part gets of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Bytes per second, before all others.
    Rate(u64),
    /// Percent of the link.
    Percent(u8),
    /// What the percentages leave, a tenth at least.
    Profile,
    /// What all others leave.
    Rest,
}

impl From<Share> for Class {
    fn from(share: Share) -> Class {
        match share {
            Share::Rest => Class::Rest,
            Share::Percent(percent) => Class::Percent(percent),
            Share::Rate(rate) => Class::Rate(rate),
        }
    }
}

/// Blocks of one part of a file that wait.
#[derive(Debug)]
pub(super) struct Part {
    pub class: Class,
    /// Needed soon, in this order, each with how likely it is.
    near: VecDeque<(u32, f64)>,
    /// All others of the part.
    far: VecDeque<u32>,
    /// Virtual time: bytes sent over weight.
    used: u64,
    /// For a rate: bytes that it may send now, and since when.
    credit: i64,
    at: Moment,
}

impl Part {
    pub fn new(class: Class, far: Vec<u32>) -> Part {
        Part { class, near: VecDeque::new(), far: far.into(), used: 0, credit: 0, at: Moment(0) }
    }

    pub fn is_empty(&self) -> bool {
        self.near.is_empty() && self.far.is_empty()
    }

    /// Whether blocks wait that are needed soon.
    pub fn has_near(&self) -> bool {
        !self.near.is_empty()
    }

    /// Memory of what waits, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.near.len() * NEAR_BYTES + self.far.len() * FAR_BYTES
    }

    pub fn len(&self) -> usize {
        self.near.len() + self.far.len()
    }

    /// Adds a block behind those that are needed sooner.
    pub fn order(&mut self, block: u32, chance: f64) {
        if self.near.len() < NEAR_MAX {
            self.near.push_back((block, chance));
        }
    }

    /// What was needed soon is not any more.
    pub fn forget_near(&mut self) {
        self.near.clear();
    }

    /// The next block, and how likely it is needed.
    pub fn next(&self) -> Option<(u32, f64)> {
        self.near.front().copied().or_else(|| self.far.front().map(|block| (*block, 1.0)))
    }

    /// Takes the next block away.
    pub fn pop(&mut self) -> Option<u32> {
        self.near.pop_front().map(|(block, _)| block).or_else(|| self.far.pop_front())
    }

    /// Adds a block that is not needed soon.
    pub fn add_far(&mut self, block: u32) {
        self.far.push_back(block);
    }

    /// Takes over the blocks of another part.
    pub fn absorb(&mut self, other: Part) {
        self.near.extend(other.near);
        self.far.extend(other.far);
    }

    /// Fills what a rate may send: a quarter of a second at most.
    fn fill(&mut self, now: Moment) {
        if let Class::Rate(rate) = self.class {
            let added = u128::from(rate) * now.since(self.at).as_micros() / 1_000_000;
            if added > 0 {
                let most = i64::try_from(rate / 4).unwrap_or(i64::MAX).max(1);
                self.credit = self.credit.saturating_add(i64::try_from(added).unwrap_or(i64::MAX)).min(most);
                self.at = now;
            }
        }
    }
}

/// The virtual time of the link.
#[derive(Debug, Default)]
pub(super) struct Clock(u64);

impl Clock {
    /// Which of `parts`, each the next one of its file, sends now; empty ones never do.
    pub fn choose(&mut self, parts: &mut [&mut Part], now: Moment) -> Option<usize> {
        parts.iter_mut().for_each(|part| part.fill(now));
        let least = |wanted: &dyn Fn(&Part) -> bool| {
            let open = parts.iter().enumerate().filter(|(_, part)| !part.is_empty() && wanted(part));
            open.min_by_key(|(_, part)| part.used.max(self.0)).map(|(index, _)| index)
        };
        if let Some(index) = least(&|part| matches!(part.class, Class::Rate(_)) && part.credit > 0) {
            return Some(index);
        }
        let rest = self.weight(parts, Class::Rest) > 0;
        let shared = least(&|part| match part.class {
            Class::Percent(_) | Class::Profile => true,
            Class::Rest => rest,
            Class::Rate(_) => false,
        });
        shared.or_else(|| least(&|_| true))
    }

    /// Weight of each part of a class among those that have blocks to send, in thousandths.
    fn weight(&self, parts: &[&mut Part], class: Class) -> u64 {
        let open = || parts.iter().filter(|part| !part.is_empty());
        let count = |wanted: Class| open().filter(|part| part.class == wanted).count() as u64;
        let percent: u64 = open()
            .map(|part| match part.class {
                Class::Percent(percent) => percent.into(),
                _ => 0,
            })
            .sum();
        let left = 100u64.saturating_sub(percent);
        match class {
            Class::Percent(percent) => u64::from(percent) * 1000,
            Class::Profile => left.max(PROFILE_PERCENT_MIN) * 1000 / count(Class::Profile).max(1),
            Class::Rest if count(Class::Profile) > 0 => 0,
            Class::Rest => left * 1000 / count(Class::Rest).max(1),
            Class::Rate(_) => 0,
        }
    }

    /// `parts[index]` sends so many bytes.
    pub fn charge(&mut self, parts: &mut [&mut Part], index: usize, bytes: usize) {
        let Some(class) = parts.get(index).map(|part| part.class) else { return };
        let weight = self.weight(parts, class);
        let Some(part) = parts.get_mut(index) else { return };
        part.credit = part.credit.saturating_sub(bytes as i64);
        if let Some(time) = (bytes as u64 * SCALE * 1000).checked_div(weight) {
            // One that had nothing to send for a while does not catch up.
            self.0 = part.used.max(self.0);
            part.used = self.0.saturating_add(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 4096;

    /// Sends so many blocks; how many each part sent.
    fn sent(clock: &mut Clock, parts: &mut [Part], blocks: usize, micros_each: u64) -> Vec<usize> {
        let mut counts = vec![0; parts.len()];
        for number in 0..blocks as u64 {
            let mut open: Vec<&mut Part> = parts.iter_mut().collect();
            let Some(index) = clock.choose(&mut open, Moment(number * micros_each)) else { break };
            clock.charge(&mut open, index, BLOCK);
            assert!(parts[index].pop().is_some());
            counts[index] += 1;
        }
        counts
    }

    fn part(class: Class, blocks: u32) -> Part {
        Part::new(class, (0..blocks).collect())
    }

    #[test]
    fn percentages_hold_while_there_are_blocks_and_the_rest_gets_what_is_left() {
        let mut parts = [part(Class::Percent(50), 1000), part(Class::Percent(30), 1000), part(Class::Rest, 1000)];
        let mut clock = Clock::default();
        let counts = sent(&mut clock, &mut parts, 500, 1);
        assert!(counts[0].abs_diff(250) <= 2 && counts[1].abs_diff(150) <= 2, "{counts:?}");
        // The first is through: 30 percent of the link remain what they are, and the rest gets
        // more.
        parts[0] = part(Class::Percent(50), 0);
        let counts = sent(&mut clock, &mut parts, 500, 1);
        assert!(counts[1].abs_diff(150) <= 3 && counts[2].abs_diff(350) <= 3, "{counts:?}");
        // And a part that is alone gets all.
        let counts = sent(&mut clock, &mut [part(Class::Percent(1), 100)], 500, 1);
        assert_eq!(counts, [100]);
    }

    #[test]
    fn the_rest_waits_for_what_has_a_profile_and_for_full_shares() {
        let mut clock = Clock::default();
        let mut parts = [part(Class::Rest, 50), part(Class::Profile, 50), part(Class::Percent(100), 50)];
        let counts = sent(&mut clock, &mut parts, 55, 1);
        assert!(counts[0] == 0 && counts[1] >= 5 && counts[2] >= 45, "{counts:?}");
        let counts = sent(&mut clock, &mut parts, 45, 1);
        assert_eq!((counts[0], parts[1].len(), parts[2].len()), (0, 0, 0));
        assert_eq!(sent(&mut clock, &mut parts, 100, 1)[0], 50);
    }

    #[test]
    fn a_rate_comes_first_until_it_has_its_bytes() {
        let mut clock = Clock::default();
        // 40 blocks a second on a link that carries 100.
        let mut parts = [part(Class::Rate(40 * BLOCK as u64), 1000), part(Class::Profile, 1000)];
        let counts = sent(&mut clock, &mut parts, 500, 10_000);
        assert!(counts[0].abs_diff(200) <= 12, "{counts:?}");
        // What is left over goes to it when nothing else waits.
        let mut parts = [part(Class::Rate(1), 100), part(Class::Profile, 0)];
        assert_eq!(sent(&mut clock, &mut parts, 500, 1), [100, 0]);
    }
}
