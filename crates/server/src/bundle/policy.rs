//! When a bundle is worth the processor time that it takes. Pure: it is told what starts cost and
//! says what to make.
//!
//! A bundle pays if later starts save more than it costs. Nobody knows how many will come; the best
//! guess is as many as have come since the last bundle was made. So an [`Account`] adds up what
//! each start would have saved with a fresh bundle, and a bundle is made once the sum exceeds its
//! cost. This is the rule of the ski rental problem (Karlin et al., "Competitive Snoopy Caching",
//! 1988): whatever programs do, all bundles together cost at most what starts without them have
//! cost. An action that changes a little at every start loses little each time, so its bundle waits
//! long. An action that a new version of a program changed altogether pays for a new bundle with
//! its next start.
//!
//! Units: nanoseconds of processor time, bytes on the link, pages, starts. A byte is worth the time
//! that it takes of the device's link, times [`WAIT_WORTH`], because a program waits for it.

/// A nanosecond for which a program waits is worth so many of a processor in the background, which
/// are idle on most servers.
const WAIT_WORTH: u64 = 8;

/// The link of a device that was not pushed to yet, in bytes a second: 25 Mbit/s.
const LINK_RATE: u64 = 3_125_000;

/// Slowest link that counts, in bytes a second. A rate this low is a link that stood still.
const LINK_RATE_MIN: u64 = 1_000;

/// Processor time of a page that is compressed for one start: its share of a decoded block, copies,
/// and zstd level 3.
const LIVE_PAGE_NANOS: u64 = 25_000;

/// What a page compressed like that comes to on average, in bytes.
const LIVE_PAGE_BYTES: u64 = 1_600;

/// Processor time of a page out of a bundle: reading it and its share of a hash.
const BUNDLE_PAGE_NANOS: u64 = 1_000;

/// How hard a bundle is compressed. Measured on the pages of a start of python (release build, one
/// core of 3 GHz).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grade {
    /// zstd level 6: 7 % fewer bytes than a live stream, for the processor time of two starts
    /// without a bundle.
    Quick,
    /// zstd level 19: 20 % fewer bytes for 25 times the processor time of `Quick`. Beyond 19 the
    /// encoder's memory grows tenfold.
    Best,
}

impl Grade {
    const ALL: [Grade; 2] = [Grade::Quick, Grade::Best];

    /// The zstd level.
    pub fn level(self) -> u8 {
        match self {
            Grade::Quick => 6,
            Grade::Best => 19,
        }
    }

    /// The grade of a bundle of this zstd level.
    pub fn of(level: u8) -> Grade {
        if level < Grade::Best.level() { Grade::Quick } else { Grade::Best }
    }

    /// Processor time of making a page of a bundle, in nanoseconds.
    pub fn build_page_nanos(self) -> u64 {
        match self {
            Grade::Quick => 52_000,
            Grade::Best => 1_250_000,
        }
    }

    fn page_bytes(self) -> u64 {
        match self {
            Grade::Quick => 1_490,
            Grade::Best => 1_280,
        }
    }
}

/// What one start was pushed of an action, or a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Start {
    /// Rate of the device's link in bytes a second, if it is known.
    pub rate: Option<u64>,
    /// Pages that were compressed for this start.
    pub live_pages: u32,
    /// Pages out of the bundle that the action has.
    pub held_pages: u32,
    /// Pages out of the bundle that the action has no more: they were sent in vain.
    pub surplus_pages: u32,
    /// Grade of that bundle.
    pub held: Option<Grade>,
}

impl Start {
    /// The run that taught an action of so many pages, or starts before this server came up:
    /// without a bundle, over a usual link.
    pub fn unseen(pages: u32) -> Start {
        Start { live_pages: pages, ..Start::default() }
    }

    /// What a page costs, in nanoseconds of background processor time.
    fn page_nanos(&self, processor_nanos: u64, bytes: u64) -> u64 {
        let rate = self.rate.unwrap_or(LINK_RATE).max(LINK_RATE_MIN);
        let waited = (u128::from(bytes) * 1_000_000_000 / u128::from(rate)) as u64;
        processor_nanos + waited * WAIT_WORTH
    }

    /// What this start would have saved with a fresh bundle of `grade`, in nanoseconds.
    fn saving_nanos(&self, grade: Grade) -> i64 {
        let bundled = |grade: Grade| self.page_nanos(BUNDLE_PAGE_NANOS, grade.page_bytes()) as i64;
        let live = self.page_nanos(LIVE_PAGE_NANOS, LIVE_PAGE_BYTES) as i64;
        let held = self.held.map_or(live, bundled);
        let fresh = bundled(grade);
        i64::from(self.live_pages) * (live - fresh)
            + i64::from(self.held_pages) * (held - fresh)
            + i64::from(self.surplus_pages) * held
    }
}

/// What the starts of one action would have saved since its bundle was made, or without one since
/// the action was known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// In nanoseconds, by grade.
    saved: [i64; Grade::ALL.len()],
}

impl Account {
    /// Adds a start.
    pub fn add(&mut self, start: &Start) {
        for (saved, grade) in self.saved.iter_mut().zip(Grade::ALL) {
            *saved = saved.saturating_add(start.saving_nanos(grade));
        }
    }

    /// The bundle to make now of an action with so many pages: of those that pay, the one that pays
    /// most.
    pub fn due(&self, pages: u32) -> Option<Grade> {
        let profit = |(saved, grade): (&i64, Grade)| {
            let cost = i64::from(pages).saturating_mul(grade.build_page_nanos() as i64);
            (saved.saturating_sub(cost), grade)
        };
        let best = self.saved.iter().zip(Grade::ALL).map(profit).max_by_key(|(profit, _)| *profit)?;
        (best.0 >= 0 && pages > 0).then_some(best.1)
    }
}

#[cfg(test)]
mod tests;
