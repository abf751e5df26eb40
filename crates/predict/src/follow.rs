//! The state of a token that follows an action: its progress, its orders, its misses.

use std::sync::Arc;

use profile::Extra;
use units::PageId;

use crate::Config;
use crate::action_pages::ActionPages;

/// Positions to push: from, through.
pub(crate) type Span = (u32, u32);

/// Touches of an action that was left which bring the run back to it. One can be a page that both
/// share.
pub(crate) const RETURN_HITS: u32 = 2;

/// So many extras are kept of any action; of longer ones, as many as they have pages. A set takes
/// far fewer, and this is what bounds a run that leaves an action and comes back for ever.
const EXTRAS_MIN: usize = 64;

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
    /// The run was found in the middle of the action by a single miss: the device has the pages
    /// between two misses.
    pub found: bool,
    /// This run does not speak for the action: it was left before its half, or it took over in the
    /// middle of another variant of the same first page, which is the one to begin with.
    pub uncredited: bool,
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
            found: false,
            uncredited: false,
            begun: false,
            confirmed: false,
            hits: 0,
            misses: Vec::new(),
            extras: Vec::new(),
        }
    }

    /// Orders up to the end of the segment that lies `ahead` segments after the one of `progress`.
    pub fn order(&mut self, ahead: u32, config: &Config) -> Option<Span> {
        let segment = self.progress / config.segment_pages;
        let target = (segment.saturating_add(1).saturating_add(ahead)).saturating_mul(config.segment_pages);
        let target = target.min(self.action.len());
        if target <= self.through {
            return None;
        }
        let from = std::mem::replace(&mut self.through, target);
        Some((from, target))
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
        self.progress = position;
        self.confirmed = true;
        self.hits += 1;
        self.misses.clear();
        if self.found && jumped {
            // The device needed nothing of what was skipped, and will hardly need much of what
            // follows.
            self.lookahead = config.lookahead_found;
            self.through = position + 1;
            self.begun = false;
        } else if position / config.segment_pages > segments_before {
            self.lookahead = self.lookahead.saturating_mul(2).min(config.lookahead_max);
        }
        self.order(self.lookahead, config)
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

    /// Takes the misses since the last hit out of the extras: they belong to something else.
    pub fn take_misses(&mut self) -> Vec<PageId> {
        while self.extras.last().is_some_and(|extra| self.misses.contains(&extra.page)) {
            self.extras.pop();
        }
        std::mem::take(&mut self.misses)
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

/// Index of the third match in the first segment, SEG_MAX-2 counted from 1, if the segment is long
/// enough that it differs from the second.
pub(crate) fn third_match(config: &Config) -> Option<u32> {
    config.segment_pages.checked_sub(3).filter(|index| *index > 1)
}
