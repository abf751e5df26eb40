//! Pages nobody asked for: what a push brings, what an evicted block leaves, and the runs that go to the kernel.
//!
//! The network thread announces the pages of a piece when it arrives; READs of them wait for the piece instead of
//! asking. The storer then digests the piece: pages that READs wait for answer them, the first page of a segment stays
//! here as a sentinel, the others are stored in runs. A page with a READ in flight is never stored: the kernel holds it
//! locked until the reply. A READ that the daemon sees only after the store has begun is answered without the storer:
//! from the run, and what else it spans (a large read(2) makes one READ of up to 32 pages) from the server.

use std::ops::Range;
use std::sync::Arc;

use super::{Pages, Schedule, Source};
use crate::block_cache::Evicted;
use crate::command::StreamKey;
use crate::holding::{Held, HeldKind};
use crate::place::Place;
use crate::sink::StoreOutcome;
use image::Metadata;
use units::{InodeId, Moment, PAGE_BYTES, PageId, SEGMENT_PAGES_MAX, Token};

/// Inodes remembered as unknown to the kernel, 4 bytes each.
const UNKNOWN_INODES_MAX: usize = 4096;

/// A push stream that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamInfo {
    pub token: Token,
    pub audit: bool,
    /// It carries what was hinted.
    pub hinted: bool,
}

/// Consecutive pages of one file on their way into the page cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    pub inode: InodeId,
    pub first: u32,
    pub count: u32,
    pub bytes: Vec<u8>,
}

/// A verified page that may be stored: where its bytes lie in the piece or block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub page: PageId,
    pub bytes: Range<usize>,
}

impl Run {
    /// The bytes of a page of the run.
    pub fn page(&self, page: PageId) -> Option<&[u8]> {
        let index =
            page.index.checked_sub(self.first).filter(|index| page.inode == self.inode && *index < self.count)?;
        let start = index as usize * PAGE_BYTES;
        self.bytes.get(start..self.bytes.len().min(start + PAGE_BYTES))
    }
}

impl Schedule {
    /// A stream began.
    pub fn stream_started(&mut self, key: StreamKey, info: StreamInfo) {
        self.streams.insert(key, info);
    }

    /// A stream is over and all its pieces are digested: pages that were to come with it are demanded.
    pub fn stream_over(&mut self, now: Moment, key: StreamKey) {
        self.streams.remove(&key);
        let left = self
            .waits
            .iter()
            .filter(|(_, wait)| matches!(wait.source, Source::OnTheWay { stream, .. } if stream == key));
        let left: Vec<PageId> = left.map(|(page, _)| PageId::from_u64(*page)).collect();
        left.into_iter().for_each(|page| self.demand_again(now, page));
    }

    /// A piece was received; the storer has it next.
    pub fn piece_arriving(&mut self, pages: &[PageId]) {
        for page in pages {
            *self.arriving.entry(page.to_u64()).or_default() += 1;
        }
    }

    /// A piece cannot be used: READs that waited for its pages ask for them.
    pub fn piece_lost(&mut self, now: Moment, pages: &[PageId], corrupt: bool) {
        self.counters.verify_failures += u64::from(corrupt);
        for page in pages {
            self.arrived(*page);
            let arriving = self.arriving.contains_key(&page.to_u64());
            let waits = self.waits.get(&page.to_u64()).is_some_and(|wait| wait.source == Source::Arriving);
            if waits && !arriving {
                self.demand_again(now, *page);
            }
        }
    }

    /// A piece is decoded and every page of it verified; `candidates` are its pages in order. Returns those to store.
    ///
    /// `opens_segment`: the first page of the piece is the first of its segment.
    pub fn piece_digested(
        &mut self,
        now: Moment,
        info: StreamInfo,
        candidates: Vec<Candidate>,
        raw: &[u8],
        opens_segment: bool,
    ) -> Vec<Candidate> {
        if info.hinted {
            return self.hinted_piece(now, info.token, candidates, raw);
        }
        self.counters.pages_pushed += candidates.len() as u64;
        let first = candidates.first().map(|candidate| candidate.page);
        let mut left = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let page = candidate.page;
            if self.fulfil(now, page, &raw[candidate.bytes.clone()]) {
                self.arrived(page);
                self.counters.pages_push_hit += 1;
            } else if self.in_flight.contains_key(&page.to_u64()) || self.holding.contains(page) {
                // Answered by other means an instant ago, or held already: this copy is of no use.
                self.arrived(page);
                self.counters.pages_wasted += 1;
            } else if info.audit && self.holding.has_audit_room() {
                self.arrived(page);
                self.hold(page, &raw[candidate.bytes], info.token, HeldKind::Audit);
            } else {
                if info.audit {
                    // No room to see this page being used. It is stored, and reported as if it had been: an audit must
                    // never take a page off an action because it did not look.
                    self.note_touch(now, info.token, page, false);
                }
                // It counts as arriving until `next_run` takes it: a READ in between waits for that, not for the server.
                left.push(candidate);
            }
        }
        if info.audit {
            self.counters.pages_push_hit += left.len() as u64;
            return left;
        }
        if opens_segment && left.first().is_some_and(|candidate| Some(candidate.page) == first) {
            let segment_pages = left.len() as u32;
            let sentinel = left.remove(0);
            self.arrived(sentinel.page);
            let kind = HeldKind::Sentinel { segment_pages };
            self.hold(sentinel.page, &raw[sentinel.bytes], info.token, kind);
        } else {
            // The first page was answered, or came with an earlier piece: the segment is in use.
            self.counters.pages_push_hit += left.len() as u64;
        }
        left
    }

    pub(super) fn arrived(&mut self, page: PageId) {
        if let Some(count) = self.arriving.get_mut(&page.to_u64()) {
            *count -= 1;
            if *count == 0 {
                self.arriving.remove(&page.to_u64());
            }
        }
    }

    pub(super) fn hold(&mut self, page: PageId, bytes: &[u8], token: Token, kind: HeldKind) {
        let mut buffer = self.pool.page();
        buffer[..bytes.len()].copy_from_slice(bytes);
        self.counters.pages_held += 1;
        for gone in self.holding.hold(page, Held { buffer, token, kind }) {
            self.judge_wasted(&gone);
        }
    }

    pub(super) fn judge_used(&mut self, held: &Held) {
        self.counters.pages_push_hit += held.judged_pages();
    }

    pub(super) fn judge_wasted(&mut self, held: &Held) {
        self.counters.pages_wasted += held.judged_pages();
    }

    /// Whether an audit run is on: it must see every touch, so nothing is stored behind its back.
    pub fn is_auditing(&self) -> bool {
        self.streams.values().any(|info| info.audit) || self.holding.has_audit_pages()
    }

    /// Takes the next run off `candidates`, which must be sorted by page, and fills `run` with it. False when nothing is
    /// left. Pages that belong to a push (`keep_for` is its action) are held if the kernel does not know their inode;
    /// others are stored only if they were not stored before. From here until [`Schedule::store_ended`], READs of the
    /// run's pages are answered from it: a READ that comes while the kernel takes the run must find them.
    pub fn next_run(
        &mut self,
        candidates: &mut Vec<Candidate>,
        raw: &[u8],
        shared_run: &mut Arc<Run>,
        keep_for: Option<Token>,
        now: Moment,
    ) -> bool {
        self.storing = None;
        if Arc::get_mut(shared_run).is_none() {
            *shared_run = Arc::default();
        }
        let Some(run) = Arc::get_mut(shared_run) else { return false };
        (run.count, run.first) = (0, 0);
        run.bytes.clear();
        let mut used = 0;
        for candidate in candidates.iter() {
            let page = candidate.page;
            let follows = run.count > 0
                && page.inode == run.inode
                && run.first + run.count == page.index
                && (run.count as usize) < SEGMENT_PAGES_MAX
                && run.bytes.len() == run.count as usize * PAGE_BYTES;
            let unknown = self.unknown_inodes.contains(&page.inode);
            let busy = self.in_flight.contains_key(&page.to_u64()) || self.holding.contains(page);
            let again = keep_for.is_none()
                && Place::of(&self.metadata, page).is_none_or(|place| place.is_hole() || self.was_stored(&place));
            if run.count > 0 && (unknown || busy || again || !follows) {
                break;
            }
            used += 1;
            if keep_for.is_some() {
                self.arrived(page);
                if self.fulfil(now, page, &raw[candidate.bytes.clone()]) {
                    continue;
                }
            }
            if let Some(token) = keep_for.filter(|_| unknown && !busy) {
                self.hold(page, &raw[candidate.bytes.clone()], token, HeldKind::Orphan);
            }
            if unknown || busy || again {
                continue;
            }
            if run.count == 0 {
                (run.inode, run.first) = (page.inode, page.index);
            }
            run.bytes.extend_from_slice(&raw[candidate.bytes.clone()]);
            run.count += 1;
        }
        candidates.drain(..used);
        let more = run.count > 0;
        self.storing = more.then(|| Arc::clone(shared_run));
        more
    }

    /// Whether the store that is under way has to wait for a READ of these pages: the kernel locks all pages of a READ
    /// until its reply. Such a READ must not wait in turn for anything that the storer brings.
    pub(super) fn holds_up_store(&self, pages: Pages) -> bool {
        self.storing.as_ref().is_some_and(|run| pages.iter().any(|page| run.page(page).is_some()))
    }

    /// The same for any READ that waits for `page`.
    pub(super) fn wait_holds_up_store(&self, page: PageId) -> bool {
        let Some(wait) = self.waits.get(&page.to_u64()) else { return false };
        let mut reads = wait.readers.iter().filter_map(|(id, _)| self.reads.get(id));
        reads.any(|read| self.holds_up_store(read.pages))
    }

    /// The kernel's answer to a run. `keep_for`: hold what the kernel did not take, for this action.
    pub fn store_ended(&mut self, run: &Run, outcome: StoreOutcome, keep_for: Option<Token>) {
        self.storing = None;
        let pages = (0..run.count).map(|i| PageId::new(run.inode, run.first + i));
        match outcome {
            StoreOutcome::Stored => {
                self.counters.pages_stored += u64::from(run.count);
                pages.for_each(|page| self.mark_stored(page));
                return;
            }
            StoreOutcome::UnknownInode => {}
            StoreOutcome::Failed => self.counters.store_failures += 1,
        }
        let Some(token) = keep_for else { return };
        for page in pages {
            if let Some(bytes) = run.page(page).filter(|_| !self.in_flight.contains_key(&page.to_u64())) {
                self.hold(page, bytes, token, HeldKind::Orphan);
            }
        }
    }

    /// The kernel cannot be made to know an inode.
    pub fn inode_unknown(&mut self, inode: InodeId) {
        if self.unknown_inodes.len() >= UNKNOWN_INODES_MAX {
            self.unknown_inodes.clear();
        }
        self.unknown_inodes.insert(inode);
    }

    /// The kernel knows an inode now; what was held because it did not may be stored another time.
    pub fn inode_known(&mut self, inode: InodeId) {
        self.counters.looked_up += 1;
        self.unknown_inodes.remove(&inode);
    }

    fn mark_stored(&mut self, page: PageId) {
        let chunk = Place::of(&self.metadata, page).and_then(|place| place.first_chunk());
        if let Some(word) = chunk.and_then(|chunk| self.stored.get_mut(chunk.0 as usize / 64)) {
            *word |= 1 << (chunk.map_or(0, |chunk| chunk.0) % 64);
        }
    }

    /// Whether the kernel was given this page by a store. Pages with the same contents share the mark, which at worst
    /// makes the server send a block that a push carries too.
    pub(super) fn was_stored(&self, place: &Place) -> bool {
        let Some(chunk) = place.first_chunk() else { return false };
        self.stored.get(chunk.0 as usize / 64).is_some_and(|word| word >> (chunk.0 % 64) & 1 == 1)
    }
}

/// Whole pages of a block that left the cache which nobody took: what the kernel may have for the asking.
pub(crate) fn evicted_candidates(metadata: &Metadata, gone: &Evicted) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for chunk in metadata.block_chunks(gone.block) {
        let (Some(page), Some(lies)) = (metadata.chunk_owner(chunk), metadata.chunk(chunk)) else { continue };
        let Some(place) = Place::of(metadata, page) else { continue };
        let (start, bytes) = (lies.offset as usize, lies.bytes as usize);
        // A page of several chunks, or with a hole in it, is not worth the trouble.
        let whole = place.first_chunk() == Some(chunk) && bytes == place.bytes();
        if whole && !gone.taken.any(start, bytes) {
            candidates.push(Candidate { page, bytes: start..start + bytes });
        }
    }
    candidates.sort_by_key(|candidate| candidate.page);
    candidates
}
