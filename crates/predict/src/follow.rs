//! The state of a token that follows an action: its progress, its orders, its misses.

use std::collections::HashMap;
use std::sync::Arc;

use profile::Extra;
use units::{InodeId, PageId};

use crate::Config;
use crate::action_pages::ActionPages;
use crate::siblings::{Siblings, Turn};

/// Positions to push: from, through.
pub(crate) type Span = (u32, u32);

/// Touches of an action that was left which bring the run back to it. One can be a page that both
/// share.
pub(crate) const RETURN_HITS: u32 = 2;

/// So many extras are kept of any action; of longer ones, as many as they have pages. A set takes
/// far fewer, and this is what bounds a run that leaves an action and comes back for ever.
const EXTRAS_MIN: usize = 64;

/// Segments ahead of the furthest touch from which on another touch is not the next step of a run:
/// runs of one program differ by less.
const STEP_SEGMENTS: u32 = 4;

/// Most misses of a detour, in segments: python misses 52 pages when it compiles the largest of its
/// modules.
const DETOUR_SEGMENTS: usize = 2;

/// Places that are noted away from where a run is.
const PLACES_MAX: usize = 4;

/// A token that follows an action.
///
/// Invariants: `progress` is a position of the action, `through` is after it and at most its
/// length. `extras` ends with `misses`, unless it is full.
#[derive(Debug)]
pub(crate) struct Follow {
    pub action: Arc<ActionPages>,
    /// Furthest position known to be touched.
    pub progress: u32,
    /// Position up to which pages were ordered.
    pub through: u32,
    /// Segments to stay ahead by (streaming).
    pub lookahead: u32,
    /// Other actions that begin alike, of which the run may be (streaming).
    pub siblings: Siblings,
    /// Position that the run began with, or moved to.
    pub start: u32,
    /// Positions away from there that were touched lately, the newest last.
    places: Vec<u32>,
    /// The run was found in the middle of the action by a single miss: the device has the pages
    /// between two misses.
    pub found: bool,
    /// This run does not speak for the action: it was left before its half, or it took over in the
    /// middle of another variant of the same first page, which is the one to begin with.
    pub uncredited: bool,
    /// The run is an audit: no more is pushed ahead than the device can hold back.
    pub audited: bool,
    /// The current sequence has begun: pages were ordered.
    pub begun: bool,
    /// A touch after the one that matched lay in the action.
    pub confirmed: bool,
    /// Touches that moved it forward (streaming).
    pub hits: u32,
    /// Pages outside the action since the last hit, the newest last.
    pub misses: Vec<PageId>,
    /// Pages outside the action, each with the page reached before it.
    pub extras: Vec<Extra>,
}

impl Follow {
    pub fn new(action: Arc<ActionPages>, progress: u32, lookahead: u32) -> Follow {
        assert!(progress < action.len(), "progress is a position of the action");
        Follow {
            action,
            progress,
            through: progress + 1,
            lookahead,
            siblings: Siblings::default(),
            start: 0,
            places: Vec::new(),
            found: false,
            uncredited: false,
            audited: false,
            begun: false,
            confirmed: false,
            hits: 0,
            misses: Vec::new(),
            extras: Vec::new(),
        }
    }

    /// Orders up to the end of the segment that lies `ahead` segments after the one of `progress`.
    /// Where siblings part, what only this one has may be in vain: of that no more is ordered than
    /// the part of what was touched that may be wasted.
    pub fn order(&mut self, ahead: u32, config: &Config) -> Option<Span> {
        let ahead_max = if self.audited { config.lookahead_audit.max(1) } else { u32::MAX };
        let mut target = segment_end(self.progress, ahead.min(ahead_max), config).min(self.action.len());
        let touched = self.progress.saturating_sub(self.start);
        let unsure = u64::from(touched) * u64::from(config.waste_percent) / 100;
        let reach = self.siblings.reach(&self.action, self.progress, unsure as u32, target);
        if reach < target {
            // Whole segments, and always the next one.
            let whole = reach / config.segment_pages * config.segment_pages;
            target = target.min(whole.max(segment_end(self.progress, 1, config)));
        }
        if target <= self.through {
            return None;
        }
        let from = std::mem::replace(&mut self.through, target);
        Some((from, target))
    }

    /// Whether the run may come to `position` next, or was there, and is not rather in a sibling.
    /// Only the first touches of a segment that was pushed are seen. So pages before them may have
    /// been touched, but not those that were not ordered, nor those between the start of a segment
    /// and a touch in its middle: had they come, so had the page that was asked for.
    pub fn is_step(&self, position: u32, config: &Config) -> bool {
        let is_close = (self.start..=self.progress.saturating_add(near(config))).contains(&position);
        let segment = position / config.segment_pages * config.segment_pages;
        let passed = self.through.min(segment).max(self.progress + 1)..position;
        let is_of_sibling = || self.siblings.have_next(&self.action, self.through, passed, near(config));
        self.found || is_close && !is_of_sibling()
    }

    /// A touch at `position` in streaming mode. One behind the progress says only that the run is
    /// still here.
    pub fn stream(&mut self, position: u32, config: &Config) -> Option<Span> {
        if position <= self.progress {
            self.misses.clear();
            return None;
        }
        let segments_before = self.progress / config.segment_pages;
        let jumped = position > self.through;
        self.advance(position);
        if self.found && jumped {
            // The device needed nothing of what was skipped, and will hardly need much of what
            // follows.
            self.lookahead = config.lookahead_found;
            self.through = position + 1;
            self.begun = false;
        } else if position / config.segment_pages > segments_before {
            self.lookahead = self.lookahead.saturating_mul(2).clamp(1, config.lookahead_max);
        }
        self.order(self.lookahead, config)
    }

    fn advance(&mut self, position: u32) {
        self.progress = position;
        self.confirmed = true;
        self.hits += 1;
        self.misses.clear();
    }

    /// Whether a touch away from where the run is lies close to another one: the run goes on there.
    pub fn is_near_place(&self, position: u32, config: &Config) -> bool {
        self.places.iter().any(|place| place.abs_diff(position) <= near(config))
    }

    /// Whether the last touch away from where the run is was this one: a page that was demanded can
    /// be reported again.
    pub fn is_last_place(&self, position: u32) -> bool {
        self.places.last() == Some(&position)
    }

    /// A touch away from where the run is. The first one says that the run may not need what comes
    /// next: no more is pushed than the next segment. At one close to another one the run goes on.
    pub fn stray(&mut self, position: u32, config: &Config) {
        let moves = self.is_near_place(position, config);
        let place = if moves { self.progress } else { position };
        if self.places.len() == PLACES_MAX {
            self.places.remove(0);
        }
        self.places.push(place);
        self.lookahead = config.lookahead_found;
        if moves {
            self.advance(position);
            self.start = position;
            self.through = position + 1;
            self.begun = false;
        } else {
            self.misses.clear();
            self.through = self.through.min(segment_end(self.progress, self.lookahead, config));
        }
    }

    /// The run touched `page`, a step of it or not. Says whether it is rather of a sibling.
    pub fn turns(&mut self, page: PageId, is_step: bool, config: &Config) -> Option<Turn> {
        self.siblings.touched(page, is_step, (&self.action, self.through), near(config))
    }

    /// The run is rather of a sibling, in which it has come to `position`.
    pub fn turned(self, Turn { sibling, position }: Turn, config: &Config) -> Follow {
        let (action, siblings) = self.siblings.turn(sibling, self.action, self.progress);
        let extras = self.extras.into_iter().filter(|extra| action.position(extra.page).is_none()).collect();
        let follow = Follow::new(action, position, self.lookahead.min(config.lookahead_first));
        Follow { siblings, extras, hits: self.hits + 1, confirmed: true, audited: self.audited, ..follow }
    }

    /// A touch at `position` in paper mode, at or before the end of the pushed pages: the next
    /// segment is due when the touch passes a match point. Match points are SEG_MAX-2 in the first
    /// segment and the first page of each later one.
    pub fn pace(&mut self, position: u32, config: &Config) -> Option<Span> {
        if position <= self.progress {
            return None;
        }
        let before = std::mem::replace(&mut self.progress, position);
        let segment = position / config.segment_pages;
        let point = if segment == 0 { third_match(config) } else { Some(segment * config.segment_pages) };
        match point {
            // Segments too short for a third match are pushed when their own first page is asked
            // for.
            Some(point) if before < point && position >= point && third_match(config).is_some() => {
                self.order(1, config)
            }
            _ => None,
        }
    }

    /// Records a page outside the action.
    pub fn miss(&mut self, page: PageId) {
        self.misses.push(page);
        let after = self.action.pages.get(self.progress as usize);
        if let Some(after) = after.filter(|_| self.extras.len() < self.action.pages.len().max(EXTRAS_MIN)) {
            self.extras.push(Extra { after: *after, page });
        }
    }

    /// What a run that did not move away from its start has touched, as far as it is known: the
    /// action up to the end of the segment that it has come to, and its extras where they belong.
    pub fn path(&self, config: &Config) -> Vec<PageId> {
        let mut extras: HashMap<PageId, Vec<PageId>> = HashMap::new();
        for extra in &self.extras {
            extras.entry(extra.after).or_default().push(extra.page);
        }
        let end = segment_end(self.progress, 0, config).min(self.action.len());
        let pages = self.action.pages[..end as usize].iter();
        pages.flat_map(|page| std::iter::once(*page).chain(extras.remove(page).unwrap_or_default())).collect()
    }

    /// Whether the misses since the last hit are so few, and lie in so few files, of which one is
    /// new, that the run may go on behind them. A program that is a single file, and does something
    /// else, misses pages of that file only.
    pub fn is_detour(&self, config: &Config) -> bool {
        let mut files: Vec<InodeId> = self.misses.iter().map(|page| page.inode).collect();
        files.sort_unstable();
        files.dedup();
        let is_new = |file: &InodeId| self.action.pages.iter().all(|page| page.inode != *file);
        files.len() <= config.detour_files
            && self.misses.len() <= DETOUR_SEGMENTS * config.segment_pages as usize
            && files.iter().any(is_new)
    }

    /// Takes the misses since the last hit out of the extras: they belong to something else.
    pub fn take_misses(&mut self) -> Vec<PageId> {
        while self.extras.last().is_some_and(|extra| self.misses.contains(&extra.page)) {
            self.extras.pop();
        }
        std::mem::take(&mut self.misses)
    }

    /// The run began with the action, and has missed nothing since its last hit.
    pub fn is_from_start(&self) -> bool {
        !self.found && self.start == 0 && self.misses.is_empty()
    }

    /// Everything was ordered.
    pub fn all_ordered(&self) -> bool {
        self.through == self.action.len()
    }

    /// The run was in it for more than a moment, so it is worth coming back to.
    pub fn proven(&self) -> bool {
        self.hits >= RETURN_HITS
    }

    /// The program has come to the last segment, and everything was ordered.
    pub fn at_end(&self, config: &Config) -> bool {
        self.all_ordered() && self.progress / config.segment_pages == (self.action.len() - 1) / config.segment_pages
    }
}

/// Position behind the segment that lies `ahead` segments after the one of `position`.
fn segment_end(position: u32, ahead: u32, config: &Config) -> u32 {
    (position / config.segment_pages).saturating_add(1).saturating_add(ahead).saturating_mul(config.segment_pages)
}

/// Positions that a run may skip and still be where it was.
pub(crate) fn near(config: &Config) -> u32 {
    STEP_SEGMENTS.saturating_mul(config.segment_pages)
}

/// Index of the third match in the first segment, SEG_MAX-2 counted from 1, if the segment is long
/// enough that it differs from the second.
pub(crate) fn third_match(config: &Config) -> Option<u32> {
    config.segment_pages.checked_sub(3).filter(|index| *index > 1)
}
