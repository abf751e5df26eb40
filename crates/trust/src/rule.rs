//! Rules that tests switch off, to show that they would notice.

/// A check of the workflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    RootOldKeys,
    RootOwnKeys,
    RootVersion,
    Threshold,
    DistinctKeys,
    TimestampVersion,
    TimestampExpiry,
    SnapshotVersion,
    SnapshotListed,
    TargetsListed,
    Listing,
    Fork,
    Expiry,
    Pattern,
    RotatedKeys,
}

/// Whether the rule holds: always, but in tests that switch one off.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn holds(_rule: Rule) -> bool {
    true
}

#[cfg(test)]
pub(crate) use self::switch::{holds, without};

#[cfg(test)]
mod switch {
    use std::cell::Cell;

    use super::Rule;

    thread_local! {
        static OFF: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    pub(crate) fn holds(rule: Rule) -> bool {
        OFF.get() != Some(rule)
    }

    /// Runs `work` on this thread with `rule` switched off.
    pub(crate) fn without<T>(rule: Rule, work: impl FnOnce() -> T) -> T {
        OFF.set(Some(rule));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        OFF.set(None);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
