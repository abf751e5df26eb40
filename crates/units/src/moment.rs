//! Time in pure crates: a number that the caller passes.

use std::time::Duration;

/// Microseconds since a start that only the caller knows. Pure crates take moments as parameters
/// and own no clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Moment(pub u64);

impl Moment {
    /// This moment plus `duration`, saturating.
    pub fn after(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(duration.as_micros().min(u64::MAX as u128) as u64))
    }

    /// Time from `earlier` to this moment; zero if `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}
