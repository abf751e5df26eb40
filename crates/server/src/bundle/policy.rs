//! When a bundle is worth the processor time that it takes. Pure: it is told what starts cost and
//! says what to make.
//!
//! A bundle pays if later starts save more than it costs. Nobody knows how many will come; the best
//! guess is as many as have come since the last bundle was made. So an [`Account`] adds up what
//! each start would have saved with a fresh bundle, and a bundle is made once the sum exceeds its
//! cost. This is the rule of the ski rental problem (Karlin et al., "Competitive Snoopy Caching",
//! 1988): whatever programs do, all bundles together cost at most a multiple of what starts without
//! them have cost. An action that changes a little at every start loses little each time, so its
//! bundle waits long. An action that a new version of a program changed altogether pays for a new
//! bundle with its next start.
//!
//! The guess is too low for a bundle that was made of the first run. A later run, of which more is
//! seen, finds more pages, and every one after that is pushed them live: a seventh of its pages
//! (Java, node), or a quarter (gcc). So when an action changes, what its next start would save with
//! a quick bundle counts for as many starts as it has had in all, up to [`STARTS_MAX`].
//!
//! A program that has settled, whose last start was pushed its whole action out of the bundle and
//! nothing else, will start so again, and can wait for its best bundle. That one is made in time
//! that nobody else wants ([`build`](crate::bundle::build)), which is worth a fraction
//! ([`IDLE_DISCOUNT`]). So all bundles together cost at most so many times more than the rule
//! allows. What the best ones take is bounded besides, as a share of all time ([`IdleTime`]). Over
//! fast links, where pieces go in LZ4 or as they are, the best bundle saves next to nothing, and is
//! not made at any price.
//!
//! Units: nanoseconds of processor time, bytes on the link, pages, starts. A byte is worth the time
//! that it takes of the device's link and its decoder, times [`WAIT_WORTH`], because a program
//! waits for it.

use std::time::Duration;

use units::{Moment, PAGE_BYTES};

use crate::speed::{PushCodec, Speed};

/// A nanosecond for which a program waits is worth so many of a processor in the background, which
/// are idle on most servers.
const WAIT_WORTH: u64 = 8;

/// Most starts that a changed action is expected to have. All bundles together cost at most so many
/// times more than what starts without them have cost.
const STARTS_MAX: u64 = 4;

/// Processor time that nobody else wants costs this part of other. A start over WiFi then pays for
/// the best bundle of an action that has settled; at the full price three do.
const IDLE_DISCOUNT: i64 = 4;

/// Processor time of a page that is compressed for one start: its share of a decoded block, copies,
/// and zstd level 3.
pub(crate) const LIVE_PAGE_NANOS: u64 = 25_000;

/// What a page compressed like that comes to on average, in bytes.
pub(crate) const LIVE_PAGE_BYTES: u64 = 1_600;

/// Processor time of a page out of a bundle: reading it and its share of a hash.
const BUNDLE_PAGE_NANOS: u64 = 1_000;

/// How hard a bundle is compressed, in zstd and in LZ4-HC. Measured on the pages of a start of
/// python (release build, one core of 3 GHz).
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
            Grade::Quick => 140_000,
            Grade::Best => 1_600_000,
        }
    }

    /// The same of a whole bundle of so many pages.
    pub fn build_nanos(self, pages: u32) -> u64 {
        u64::from(pages) * self.build_page_nanos()
    }

    /// The level of LZ4-HC.
    pub fn lz4_level(self) -> i32 {
        match self {
            Grade::Quick => 9,
            Grade::Best => 12,
        }
    }

    /// What a page comes to on average, in bytes.
    pub fn page_bytes(self, codec: PushCodec) -> u64 {
        match (self, codec) {
            (Grade::Quick, PushCodec::Zstd) => 1_490,
            (Grade::Best, PushCodec::Zstd) => 1_280,
            (Grade::Quick, PushCodec::Lz4) => 1_950,
            (Grade::Best, PushCodec::Lz4) => 1_920,
            (_, PushCodec::Stored) => PAGE_BYTES as u64,
        }
    }
}

/// In which codecs a bundle has its pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forms {
    /// How hard they are compressed.
    pub grade: Grade,
    /// They are there uncompressed, too.
    pub stored: bool,
}

impl Forms {
    /// What a device waits for a page, in nanoseconds: it is sent in the codec that takes least.
    fn page_nanos(self, speed: &Speed) -> u64 {
        let codecs = PushCodec::ALL.into_iter().filter(|codec| *codec != PushCodec::Stored || self.stored);
        let nanos = |codec| speed.nanos(codec, self.grade.page_bytes(codec), PAGE_BYTES as u64);
        codecs.map(nanos).min().unwrap_or(0)
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
    /// What that bundle has.
    pub held: Option<Forms>,
}

impl Start {
    /// The run that taught an action of so many pages, or starts before this server came up:
    /// without a bundle, over a link of this rate if it is known.
    pub fn unseen(pages: u32, rate: Option<u64>) -> Start {
        Start { rate, live_pages: pages, ..Start::default() }
    }

    /// Whether its link is so fast that pages are best not compressed.
    fn prefers_stored(&self) -> bool {
        Speed::of_link(self.rate).prefers_stored()
    }

    /// What this start would have saved with a fresh bundle of `grade`, in nanoseconds of
    /// background processor time.
    fn saving_nanos(&self, grade: Grade) -> i64 {
        let speed = Speed::of_link(self.rate);
        let worth = |nanos: u64| nanos.saturating_mul(WAIT_WORTH);
        let bundled = |forms: Forms| (BUNDLE_PAGE_NANOS + worth(forms.page_nanos(&speed))) as i64;
        // For the compressor it waits, too.
        let live = speed.nanos(PushCodec::Zstd, LIVE_PAGE_BYTES, PAGE_BYTES as u64).saturating_add(LIVE_PAGE_NANOS);
        let live = worth(live) as i64;
        let held = self.held.map_or(live, bundled);
        let fresh = bundled(Forms { grade, stored: self.prefers_stored() });
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
    /// What the next start would save with a quick bundle, as far as the last one tells.
    foreseen: i64,
    /// One of the starts would have been best pushed uncompressed.
    stored: bool,
    /// Pages that the last start was pushed out of a bundle, if it was pushed nothing else.
    held_alone: u32,
}

impl Account {
    /// Adds a start.
    pub fn add(&mut self, start: &Start) {
        for (saved, grade) in self.saved.iter_mut().zip(Grade::ALL) {
            *saved = saved.saturating_add(start.saving_nanos(grade));
        }
        self.stored |= start.prefers_stored();
        let is_held = start.held.is_some() && start.live_pages == 0 && start.surplus_pages == 0;
        self.held_alone = if is_held { start.held_pages } else { 0 };
    }

    /// The action has changed: its next starts will be pushed so.
    pub fn foresee(&mut self, start: &Start) {
        self.foreseen = start.saving_nanos(Grade::Quick);
        self.held_alone = 0;
    }

    /// The bundle to make now of an action with so many pages that was started `uses` times: of
    /// those that pay, the one that pays most.
    pub fn due(&self, pages: u32, uses: u64) -> Option<Forms> {
        self.due_of(&Grade::ALL, pages, uses)
    }

    /// The same if there is no time for the best one.
    pub fn quick_due(&self, pages: u32, uses: u64) -> Option<Forms> {
        self.due_of(&[Grade::Quick], pages, uses)
    }

    fn due_of(&self, grades: &[Grade], pages: u32, uses: u64) -> Option<Forms> {
        let grade = self.due_grade(grades, pages, uses)?;
        Some(Forms { grade, stored: self.stored })
    }

    /// What a bundle of `grade` costs now of an action with so many pages.
    fn cost(&self, grade: Grade, pages: u32) -> i64 {
        let nanos = grade.build_nanos(pages) as i64;
        let has_settled = pages > 0 && self.held_alone >= pages;
        if grade == Grade::Best && has_settled { nanos / IDLE_DISCOUNT } else { nanos }
    }

    fn due_grade(&self, grades: &[Grade], pages: u32, uses: u64) -> Option<Grade> {
        let cost = |grade| self.cost(grade, pages);
        let profit = |grade: Grade| (self.saved[grade as usize].saturating_sub(cost(grade)), grade);
        let best = grades.iter().copied().map(profit).max_by_key(|(profit, _)| *profit)?;
        if best.0 >= 0 {
            return (pages > 0).then_some(best.1);
        }
        let expected = self.foreseen.saturating_mul(uses.min(STARTS_MAX) as i64);
        (pages > 0 && expected > 0 && expected >= cost(Grade::Quick)).then_some(Grade::Quick)
    }
}

/// Part of the time of one processor (percent) that the best bundles take in the long run.
const IDLE_PERCENT: u64 = 5;

/// What may be saved up of it: the best bundle of the largest action takes 105 seconds.
const IDLE_SAVED_MAX: Duration = Duration::from_secs(120);

/// Processor time that the best bundles of all images may take.
#[derive(Debug)]
pub(crate) struct IdleTime {
    left: Duration,
    at: Moment,
}

impl IdleTime {
    /// All that can be saved up is there.
    pub fn new() -> IdleTime {
        IdleTime { left: IDLE_SAVED_MAX, at: Moment(0) }
    }

    /// Takes the time that a bundle of so many pages takes, if it is there at `now`.
    pub fn take(&mut self, now: Moment, pages: u32) -> bool {
        let earned = now.since(self.at).as_nanos() as u64 / 100 * IDLE_PERCENT;
        self.at = now;
        self.left = self.left.saturating_add(Duration::from_nanos(earned)).min(IDLE_SAVED_MAX);
        let left = self.left.checked_sub(Duration::from_nanos(Grade::Best.build_nanos(pages)));
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }
}

#[cfg(test)]
mod tests;
