//! What a guest reports: one JSON line per measured run, kept in the results file and read by the
//! report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::plan::Row;

/// What starts a line of the guest's console that is meant for the lab.
pub const LINE_MARK: &str = "@lab ";

/// Magnitude beyond which a value is no measurement: no time, size or count comes near it.
const VALUE_MAX: f64 = 1e30;

/// Magnitude below which a value is zero.
const VALUE_MIN: f64 = 1e-30;

/// `value` as far as it can be a measurement; then ratios and sums of values are finite too.
pub fn measurement(value: f64) -> Option<f64> {
    match value.abs() {
        magnitude if magnitude < VALUE_MIN => Some(0.0),
        magnitude if magnitude <= VALUE_MAX => Some(value),
        // Also what is no number.
        _ => None,
    }
}

/// One run of a row of the plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The row it belongs to.
    #[serde(flatten)]
    pub row: Row,
    /// Number of the run within its row, from 1.
    pub run: u32,
    /// Measured values by name. Times are seconds of the guest's clock, sizes bytes; what cannot be
    /// told is absent.
    pub values: BTreeMap<String, f64>,
    /// Measured series by name, for example the latency of every page in the order of its touch.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub series: BTreeMap<String, Vec<f64>>,
}

/// A line of the guest's console, after [`LINE_MARK`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The guest is up; says which kernel it runs.
    Up {
        /// Release of the kernel.
        kernel: String,
    },
    /// A row is being measured.
    Begin {
        /// The row.
        row: Row,
    },
    /// A run was measured.
    Record {
        /// The run.
        record: Record,
    },
    /// A row could not be measured; the next one is tried.
    Failed {
        /// The row.
        row: Row,
        /// Why.
        reason: String,
    },
    /// Every row was tried.
    Done,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_measured_is_a_measurement() {
        for value in [0.0, -1.5, 1e-9, 1e18] {
            assert_eq!(measurement(value), Some(value));
        }
        assert_eq!((measurement(5e-324), measurement(-1e-300)), (Some(0.0), Some(0.0)));
        for value in [f64::NAN, f64::INFINITY, 1.7e308, -1e308] {
            assert_eq!(measurement(value), None, "{value}");
        }
    }
}
