//! What the good devices measured, as their process hands it to the bench.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use report::statistic::quantile;
use serde::{Deserialize, Serialize};

/// The share of operations that may take longer than the value that the bench compares.
const SHARE: f64 = 0.99;

/// The operations of one kind of all good devices.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Timing {
    /// Of each, from when it was due; one that failed counts as having taken its deadline.
    pub seconds: Vec<f64>,
    /// How many failed.
    pub failures: usize,
    /// Why, and how often.
    pub reasons: BTreeMap<String, usize>,
}

/// By name of the operation.
pub(super) type Timings = BTreeMap<String, Timing>;

impl Timing {
    /// Adds what another thread measured.
    pub fn merge(&mut self, other: Timing) {
        self.seconds.extend(other.seconds);
        self.failures += other.failures;
        for (reason, count) in other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
    }

    /// What all but one in a hundred keep to, seconds.
    pub fn slow(&self) -> Option<f64> {
        self.quantile(SHARE)
    }

    /// What half of them keep to, seconds: other work of the machine hardly moves it.
    pub fn usual(&self) -> Option<f64> {
        self.quantile(0.5)
    }

    fn quantile(&self, share: f64) -> Option<f64> {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        quantile(&sorted, share)
    }
}

/// Writes a result for the bench, whole or not at all.
pub(super) fn hand_over<T: Serialize>(path: &Path, result: &T) -> anyhow::Result<()> {
    let unfinished = path.with_extension("new");
    let written = std::fs::write(&unfinished, serde_json::to_vec(result)?);
    written
        .and_then(|()| std::fs::rename(&unfinished, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slow_ones_of_all_threads_count() {
        let mut all = Timing::default();
        for thread in 0..2 {
            let mut some =
                Timing { seconds: (0..100).map(|at| f64::from(at + 100 * thread)).collect(), ..Timing::default() };
            some.failures = 1;
            some.reasons.insert("busy".into(), 1);
            all.merge(some);
        }
        assert_eq!(all.slow(), Some(197.0));
        assert_eq!((all.failures, all.reasons["busy"]), (2, 2));
        assert_eq!(Timing::default().slow(), None);
    }
}
