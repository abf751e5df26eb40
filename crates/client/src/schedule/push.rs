//! Pages that nobody asked for: pushes, blocks that left the cache, and the runs that go to the
//! kernel.
//!
//! The network thread announces the pages of a piece when it arrives; READs of them wait for the
//! piece instead of asking. The storer then digests the piece: pages that READs wait for answer
//! them, the first page of a segment stays here as a sentinel, the others are stored in runs. A
//! page with a READ in flight is never stored: the kernel holds it locked until the reply. A READ
//! that the daemon sees only after the store has begun is answered without the storer: from the
//! run, and what else it spans (a large read(2) makes one READ of up to 32 pages) from the server.

use std::sync::Arc;

use units::{InodeId, Moment, PageId, Token};

use super::holding::HeldKind;
use super::reads::Source;
use super::{Candidate, Pushes, Run, Schedule, StreamInfo};
use crate::command::StreamKey;
use crate::sink::StoreOutcome;

impl Schedule {
    /// A stream began.
    pub fn stream_started(&mut self, key: StreamKey, info: StreamInfo) {
        if !info.hinted {
            self.readahead.followers().pushed(info.token);
        }
        self.pushes.started(key, info);
    }

    /// Pushes and what they bring.
    pub fn pushes(&mut self) -> &mut Pushes {
        &mut self.pushes
    }

    /// A stream is over and all its pieces are digested: pages that were to come with it are
    /// demanded.
    pub fn stream_over(&mut self, now: Moment, key: StreamKey) {
        self.pushes.over(key);
        for page in self.reads.waiting_for_stream(key) {
            self.demand_again(now, page);
        }
    }

    /// A piece cannot be used: READs that waited for its pages ask for them.
    pub fn piece_lost(&mut self, now: Moment, pages: &[PageId], corrupt: bool) {
        if corrupt {
            self.requests.count_verify_failure();
        }
        for page in pages {
            self.pushes.arrived(*page);
            if self.reads.source(*page) == Some(Source::Arriving) && !self.pushes.is_arriving(*page) {
                self.demand_again(now, *page);
            }
        }
    }

    /// A piece is decoded and every page of it verified; `candidates` are its pages in order.
    /// Returns those to store. `opens_segment`: the first one is the first of its segment; if it
    /// was read before, it is not read again and does not tell whether the segment is used.
    pub fn piece_digested(
        &mut self,
        now: Moment,
        info: StreamInfo,
        candidates: Vec<Candidate>,
        raw: &[u8],
        opens_segment: bool,
    ) -> Vec<Candidate> {
        if info.hinted {
            self.hints.pages_came(now, &candidates, true);
            return self.pushes.hinted_digested(now, info.token, candidates, raw, &mut self.reads);
        }
        let is_read = |first: &Candidate| self.touches.has(info.token, first.page);
        let opens_segment = opens_segment && !candidates.first().is_some_and(is_read);
        let left = self.pushes.piece_digested(now, info, candidates, raw, opens_segment, &mut self.reads);
        if info.audit {
            // No room to see these pages being used. They are stored, and reported as if they had
            // been: an audit must never take a page off an action because it did not look.
            for candidate in &left {
                self.touches.note(now, info.token, candidate.page, false, &mut self.connections);
            }
        }
        left
    }

    /// Takes the next run off `candidates`, which must be sorted by page, and fills `run` with it.
    /// False when nothing is left. Pages that belong to a push (`keep_for` is its action) are held
    /// if the kernel does not know their inode; others are stored only if they were not stored
    /// before. From here until [`Schedule::store_ended`], READs of the run's pages are answered
    /// from it: a READ that comes while the kernel takes the run must find them.
    pub fn next_run(
        &mut self,
        candidates: &mut Vec<Candidate>,
        raw: &[u8],
        shared_run: &mut Arc<Run>,
        keep_for: Option<Token>,
        now: Moment,
    ) -> bool {
        self.page_cache.set_storing(None);
        if Arc::get_mut(shared_run).is_none() {
            *shared_run = Arc::default();
        }
        let Some(run) = Arc::get_mut(shared_run) else { return false };
        run.clear();
        let mut used = 0;
        for candidate in candidates.iter() {
            let (page, bytes) = (candidate.page, &raw[candidate.bytes.clone()]);
            let unknown = self.page_cache.is_unknown(page.inode);
            let busy = self.reads.is_in_flight(page) || self.pushes.holds(page);
            let again = keep_for.is_none() && !self.page_cache.lacks(&self.metadata, page);
            let skip = unknown || busy || again;
            if run.count > 0 && (skip || !run.takes(page)) {
                break;
            }
            used += 1;
            if keep_for.is_some() {
                self.pushes.arrived(page);
                if self.reads.fulfil(now, page, bytes) {
                    continue;
                }
            }
            if let Some(token) = keep_for.filter(|_| unknown && !busy) {
                self.pushes.hold(page, bytes, token, HeldKind::Orphan);
            }
            if !skip {
                run.push(page, bytes);
            }
        }
        candidates.drain(..used);
        let more = run.count > 0;
        self.page_cache.set_storing(more.then_some(&*shared_run));
        more
    }

    /// The kernel's answer to a run. `keep_for`: hold what the kernel did not take, for this
    /// action.
    pub fn store_ended(&mut self, run: &Run, outcome: StoreOutcome, keep_for: Option<Token>) {
        self.page_cache.store_ended(&self.metadata, run, outcome);
        let Some(token) = keep_for.filter(|_| outcome != StoreOutcome::Stored) else { return };
        for page in run.pages().filter(|page| !self.reads.is_in_flight(*page)) {
            if let Some(bytes) = run.page(page) {
                self.pushes.hold(page, bytes, token, HeldKind::Orphan);
            }
        }
    }

    /// The kernel knows an inode now, and what was held because it did not may be stored another
    /// time; or it cannot be made to know it.
    pub fn looked_up(&mut self, inode: InodeId, known: bool) {
        self.page_cache.looked_up(inode, known);
    }
}
