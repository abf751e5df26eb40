//! Push streams, and pushed pages that the kernel has not got.

use std::collections::HashMap;
use std::sync::Arc;

use units::{Moment, PageId, Token};

use super::holding::{Held, HeldKind, HoldingArea};
use super::reads::Reads;
use super::run::Candidate;
use super::tally::Tally;
use crate::allocator::Allocator;
use crate::command::StreamKey;
use crate::config::Config;
use crate::counters::PushCounters;

/// A push stream that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamInfo {
    pub token: Token,
    pub audit: bool,
    /// It carries hinted pages.
    pub hinted: bool,
}

/// Pushed pages from their arrival until they are used, stored or dropped.
///
/// Invariants:
/// - A page is arriving from the receipt of its piece until the storer has answered READs with it,
///   held it, or taken it into a run. READs of it wait for that instead of asking the server.
/// - Each page of a push that is no hint is counted as hit, as wasted, or lies undecided in the
///   holding area (itself, or behind the sentinel of its segment).
pub(crate) struct Pushes {
    pool: Arc<Allocator>,
    streams: HashMap<StreamKey, StreamInfo>,
    arriving: Tally<PageId>,
    holding: HoldingArea,
    counters: PushCounters,
}

impl Pushes {
    pub fn new(pool: Arc<Allocator>, config: &Config) -> Pushes {
        Pushes {
            pool,
            streams: HashMap::new(),
            arriving: Tally::default(),
            holding: HoldingArea::new(config.holding.common_bytes, config.holding.audit_bytes),
            counters: PushCounters::default(),
        }
    }

    pub fn counters(&self) -> PushCounters {
        self.counters
    }

    /// The storer refused a stream: there are no chunk hashes to verify it.
    pub fn count_refused(&mut self) {
        self.counters.pushes_refused += 1;
    }

    pub fn started(&mut self, key: StreamKey, info: StreamInfo) {
        self.streams.insert(key, info);
    }

    pub fn over(&mut self, key: StreamKey) {
        self.streams.remove(&key);
    }

    pub fn has_stream(&self, key: StreamKey) -> bool {
        self.streams.contains_key(&key)
    }

    pub fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Whether an audit run is on: it must see every touch, so nothing is stored behind its back.
    pub fn is_auditing(&self) -> bool {
        self.streams.values().any(|info| info.audit) || self.holding.has_audit_pages()
    }

    /// A piece was received; the storer has it next.
    pub fn piece_received(&mut self, pages: impl IntoIterator<Item = PageId>) {
        pages.into_iter().for_each(|page| {
            self.arriving.add(page);
        });
    }

    /// A page is not arriving any more, in one of its pieces.
    pub fn arrived(&mut self, page: PageId) {
        self.arriving.take_off(&page);
    }

    pub fn is_arriving(&self, page: PageId) -> bool {
        self.arriving.contains(&page)
    }

    pub fn holds(&self, page: PageId) -> bool {
        self.holding.contains(page)
    }

    /// Whether a page is held or arriving.
    pub fn brings(&self, page: PageId) -> bool {
        self.is_arriving(page) || self.holds(page)
    }

    /// A READ wants a page that may be held. The page leaves: the kernel keeps it from then on.
    pub fn take_held(&mut self, page: PageId) -> Option<Held> {
        let held = self.holding.take(page)?;
        self.counters.pages_push_hit += held.judged_pages();
        Some(held)
    }

    /// Holds a page that came for an action.
    pub fn hold(&mut self, page: PageId, bytes: &[u8], token: Token, kind: HeldKind) {
        self.counters.pages_held += 1;
        let held = Held { buffer: self.pool.page_of(bytes), token, kind };
        for gone in self.holding.hold(page, held) {
            self.counters.pages_wasted += gone.judged_pages();
        }
    }

    /// An action ended: its pages that are held are dropped.
    pub fn end(&mut self, token: Token) {
        for gone in self.holding.end(token) {
            self.counters.pages_wasted += gone.judged_pages();
        }
    }

    /// A piece of a learned action is decoded and verified. READs take what they wait for,
    /// sentinels and audit pages are held. Returns the pages to store; they are arriving until they
    /// are taken into a run, so a READ in between waits for that.
    ///
    /// `opens_segment`: the first page of the piece is the first of its segment.
    pub(super) fn piece_digested(
        &mut self,
        now: Moment,
        info: StreamInfo,
        candidates: Vec<Candidate>,
        raw: &[u8],
        opens_segment: bool,
        reads: &mut Reads,
    ) -> Vec<Candidate> {
        self.counters.pages_pushed += candidates.len() as u64;
        let first = candidates.first().map(|candidate| candidate.page);
        let mut left = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let page = candidate.page;
            if reads.fulfil(now, page, &raw[candidate.bytes.clone()]) {
                self.arrived(page);
                self.counters.pages_push_hit += 1;
            } else if reads.is_in_flight(page) || self.holds(page) {
                // Answered by other means an instant ago, or held already: this copy is of no use.
                self.arrived(page);
                self.counters.pages_wasted += 1;
            } else if info.audit && self.holding.has_audit_room() {
                self.arrived(page);
                self.hold(page, &raw[candidate.bytes], info.token, HeldKind::Audit);
            } else {
                left.push(candidate);
            }
        }
        let sentinel = !info.audit && opens_segment && left.first().map(|candidate| candidate.page) == first;
        if sentinel && !left.is_empty() {
            let segment_pages = left.len() as u32;
            let sentinel = left.remove(0);
            self.arrived(sentinel.page);
            self.hold(sentinel.page, &raw[sentinel.bytes], info.token, HeldKind::Sentinel { segment_pages });
        } else {
            // Without room to hold it, an audit page counts as used. Of other segments the first
            // page was answered, or came with an earlier piece: the segment is in use.
            self.counters.pages_push_hit += left.len() as u64;
        }
        left
    }

    /// As [`Pushes::piece_digested`], for a piece of hinted pages. They need no sentinel: nothing
    /// is learned from their use.
    pub(super) fn hinted_digested(
        &mut self,
        now: Moment,
        token: Token,
        candidates: Vec<Candidate>,
        raw: &[u8],
        reads: &mut Reads,
    ) -> Vec<Candidate> {
        let auditing = self.is_auditing();
        let mut left = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let page = candidate.page;
            if reads.fulfil(now, page, &raw[candidate.bytes.clone()]) || reads.is_in_flight(page) || self.holds(page) {
                self.arrived(page);
            } else if auditing {
                self.arrived(page);
                self.hold(page, &raw[candidate.bytes], token, HeldKind::Orphan);
            } else {
                left.push(candidate);
            }
        }
        left
    }
}

#[cfg(test)]
impl Pushes {
    /// Pushed pages whose use is not decided yet.
    pub fn undecided_pages(&self) -> u64 {
        self.holding.undecided_pages()
    }

    pub fn is_nothing_arriving(&self) -> bool {
        self.arriving.is_empty()
    }
}
