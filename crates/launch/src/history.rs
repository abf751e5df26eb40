//! The history of a plan: how long each launch took, with the prefetch and without, and whether the
//! plan is worth it.
//!
//! Only cold launches count: a prefetch does not help a warm one, which so says nothing about its
//! worth. Every tenth cold launch runs without prefetch on purpose. A plan that gains under 3 %
//! (medians) is switched off. Its launches are still timed, and one in ten tries the plan again, so
//! that a plan that pays later (a slower disk, a larger program) comes back.

use std::time::Duration;

use profile::plan::LaunchPlan;
use serde::{Deserialize, Serialize};

use crate::warmth;

/// Launches kept: enough for two medians, old ones fall out as programs and disks change.
const LAUNCHES_MAX: usize = 48;

/// One cold launch in this many goes the other way, for comparison.
const COMPARE_EVERY: u64 = 10;

/// Cold launches of each kind before a verdict.
const WITH_MIN: usize = 4;
const WITHOUT_MIN: usize = 2;

/// Gain under which a plan is not worth its bytes.
const GAIN_MIN: f64 = 0.03;

/// How a launch was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Groups were prefetched.
    With,
    /// Nothing was done, for comparison or because the plan is off.
    Without,
    /// All was in memory already.
    Warm,
}

/// One launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// How.
    pub mode: Mode,
    /// Until the program rested or ended, microseconds.
    pub launch_us: u64,
    /// Bytes that were asked for ahead.
    pub bytes: u64,
}

impl Launch {
    pub(crate) fn new(mode: Mode, took: Duration, bytes: u64) -> Launch {
        Launch { mode, launch_us: took.as_micros().min(u128::from(u64::MAX)) as u64, bytes }
    }
}

/// Launches with a plan and without it, compared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Median of cold launches with prefetch, microseconds.
    pub with_us: u64,
    /// Median of cold launches without.
    pub without_us: u64,
    /// What the prefetch saves, as a share of a launch without; negative if it costs.
    pub gain: f64,
}

/// The launches of one plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// The program, and what an interpreter runs, for people.
    #[serde(default)]
    pub title: String,
    /// Launches so far, warm ones included.
    #[serde(default)]
    pub launches: u64,
    /// Cold launches so far.
    #[serde(default)]
    pub cold: u64,
    /// What the user decided; none: the comparison decides.
    #[serde(default)]
    pub forced: Option<bool>,
    /// The last launches, oldest first.
    #[serde(default)]
    pub recent: Vec<Launch>,
}

impl History {
    /// Whether the next launch, if it is a cold one, prefetches.
    pub fn wants(&self) -> bool {
        let usual = self.is_on();
        let compare = self.forced.is_none() && self.cold % COMPARE_EVERY == COMPARE_EVERY - 1;
        usual != compare
    }

    /// How the next launch of `plan` is to be done: looks at what memory holds.
    pub(crate) fn mode(&self, plan: &LaunchPlan) -> Mode {
        // The first cold group is enough to know: on a cold disk each question costs a seek.
        if plan.groups.iter().all(|group| warmth(plan, group).is_warm()) {
            return Mode::Warm;
        }
        if self.wants() { Mode::With } else { Mode::Without }
    }

    /// Whether the plan is on: as the user said, or as long as it is not shown to be useless.
    pub fn is_on(&self) -> bool {
        self.forced.unwrap_or_else(|| self.comparison().is_none_or(|found| found.gain >= GAIN_MIN))
    }

    /// Medians of recent cold launches; `None` while there are too few.
    pub fn comparison(&self) -> Option<Comparison> {
        let (with, without) = (self.times(Mode::With), self.times(Mode::Without));
        if with.len() < WITH_MIN || without.len() < WITHOUT_MIN {
            return None;
        }
        let (with_us, without_us) = (median(with)?, median(without)?);
        let gain = 1.0 - with_us as f64 / without_us.max(1) as f64;
        Some(Comparison { with_us, without_us, gain })
    }

    /// Adds a launch.
    pub fn enter(&mut self, launch: Launch) {
        self.launches = self.launches.saturating_add(1);
        if launch.mode == Mode::Warm {
            return;
        }
        self.cold = self.cold.saturating_add(1);
        self.recent.push(launch);
        if self.recent.len() > LAUNCHES_MAX {
            // The larger kind loses its oldest, so that enough of each kind stay for a verdict.
            let with = self.times(Mode::With).len();
            let most = if with * 2 > self.recent.len() { Mode::With } else { Mode::Without };
            let oldest = self.recent.iter().position(|kept| kept.mode == most).unwrap_or(0);
            self.recent.remove(oldest);
        }
    }

    fn times(&self, mode: Mode) -> Vec<u64> {
        self.recent.iter().filter(|launch| launch.mode == mode).map(|launch| launch.launch_us).collect()
    }
}

/// The middle value; of an even number, the mean of the two in the middle.
fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    let middle = values.len() / 2;
    let high = *values.get(middle)?;
    let low = values[middle - usize::from(values.len().is_multiple_of(2))];
    Some(low / 2 + high / 2 + (low % 2 + high % 2) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(with_us: &[u64], without_us: &[u64]) -> History {
        let mut history = History::default();
        for (mode, times) in [(Mode::With, with_us), (Mode::Without, without_us)] {
            for launch_us in times {
                history.enter(Launch { mode, launch_us: *launch_us, bytes: 1 });
            }
        }
        history
    }

    #[test]
    fn a_plan_is_switched_off_only_by_enough_launches_that_show_no_gain() {
        for (with, without, on) in [
            (&[100, 100, 100, 100][..], &[200, 200][..], true),
            (&[100, 100, 100, 100], &[102, 102], false),
            (&[100, 100, 100, 100], &[104, 104], true),
            (&[300, 300, 300, 300], &[100, 100], false),
            (&[300, 300, 300], &[100, 100], true),
            (&[300, 300, 300, 300], &[100], true),
            (&[100, 9000, 100, 100], &[200, 200], true),
        ] {
            assert_eq!(history(with, without).is_on(), on, "{with:?} {without:?}");
        }
    }

    #[test]
    fn every_tenth_cold_launch_goes_the_other_way() {
        let mut history = History::default();
        let mut wanted = Vec::new();
        for _ in 0..20 {
            wanted.push(history.wants());
            history.enter(Launch { mode: Mode::Warm, launch_us: 1, bytes: 0 });
            history.enter(Launch { mode: Mode::With, launch_us: 1, bytes: 0 });
        }
        let others: Vec<usize> = (0..20).filter(|n| !wanted[*n]).collect();
        assert_eq!((others, history.launches, history.cold), (vec![9, 19], 40, 20));
    }

    #[test]
    fn the_user_has_the_last_word() {
        let mut history = history(&[300; 4], &[100; 5]);
        assert!(history.wants(), "the tenth tries the plan again, though it is off");
        for said in [true, false] {
            history.forced = Some(said);
            assert_eq!((history.is_on(), history.wants()), (said, said));
        }
    }

    #[test]
    fn a_history_is_bounded_and_keeps_both_kinds() {
        let mut history = history(&[], &[5, 5, 5]);
        for launch_us in 0..1000 {
            history.enter(Launch { mode: Mode::With, launch_us, bytes: 0 });
        }
        assert_eq!(history.recent.len(), LAUNCHES_MAX);
        assert_eq!(history.times(Mode::Without), [5, 5, 5]);
        assert_eq!(history.times(Mode::With).last(), Some(&999));
        assert_eq!(median(vec![4, 1, 3]), Some(3));
        assert_eq!(median(vec![u64::MAX, u64::MAX]), Some(u64::MAX));
    }
}
