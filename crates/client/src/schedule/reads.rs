//! READs under way, and the pages that they wait for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use image::Metadata;
use units::{BlockId, InodeId, Moment, PageId, Token};

use super::answer::{Answer, Finished, Pages, Slot, Span};
use super::requests::Requests;
use super::tally::Tally;
use crate::allocator::{Allocator, PageBuffer};
use crate::block_cache::BlockBytes;
use crate::command::{StreamKey, Wanted};
use crate::counters::ReadCounters;
use crate::error::ReadError;
use crate::page_parts::PageParts;
use crate::sink::Done;

/// READs that wait together. The kernel keeps one per faulting thread, far fewer than this.
const READS_MAX: usize = 64 << 10;

/// The READ, by number, and the slot of its answer that waits for a page.
pub(super) type Reader = (u64, u32);

/// READs from their arrival to their reply.
///
/// Invariants:
/// - Every slot of an open READ is filled, or the wait of its page lists the READ as a reader. A
///   reader whose READ has failed stays in the list and is skipped.
/// - One wait exists per page, however many READs want it.
/// - A page is in flight from the arrival of the first READ of it until the last reply. Such a page
///   must not be stored: the kernel holds it locked.
/// - `stalled` counts the sealed open READs of each token.
/// - Every READ is finished exactly once.
pub(super) struct Reads {
    pool: Arc<Allocator>,
    /// Time after which a READ fails.
    soft: Option<Duration>,
    /// In order of their arrival.
    open: BTreeMap<u64, Read>,
    begun: u64,
    waits: BTreeMap<u64, Wait>,
    in_flight: Tally<PageId>,
    stalled: Tally<Token>,
    /// When the first page that is on its way is overdue; may be early.
    overdue_at: Option<Moment>,
    finished: Vec<Finished>,
    counters: ReadCounters,
}

/// A READ that is under way.
struct Read {
    token: Token,
    pages: Pages,
    answer: Answer,
    missing: u32,
    since: Moment,
    done: Done,
    /// All of its pages were looked at: the READ is finished as soon as none is missing.
    sealed: bool,
}

/// A page that at least one READ waits for.
struct Wait {
    token: Token,
    readers: Vec<Reader>,
    /// Blocks that arrived while others of the same page are still missing.
    blocks: Vec<(BlockId, BlockBytes)>,
    source: Source,
}

/// A page that was put together from its blocks.
pub(super) enum Assembled {
    /// The page, for this token.
    Page(Token, PageBuffer),
    /// It does not match the image: a server decoded these blocks wrongly.
    Wrong(Token, Vec<BlockId>),
    /// The blocks do not hold it.
    Broken,
}

/// Where a page that is waited for should come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A request was made.
    Demand,
    /// The server says that this stream brings it.
    OnTheWay { stream: StreamKey, force_at: Moment },
    /// It lies in a piece that the storer has not digested yet.
    Arriving,
}

impl Reads {
    pub fn new(pool: Arc<Allocator>, soft: Option<Duration>) -> Reads {
        Reads {
            pool,
            soft,
            open: BTreeMap::new(),
            begun: 0,
            waits: BTreeMap::new(),
            in_flight: Tally::default(),
            stalled: Tally::default(),
            overdue_at: None,
            finished: Vec::new(),
            counters: ReadCounters::default(),
        }
    }

    pub fn counters(&self) -> ReadCounters {
        self.counters
    }

    pub fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    /// Whether no READ waits.
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.open.len() >= READS_MAX
    }

    /// A READ that cannot be begun.
    pub fn refuse(&mut self, inode: InodeId, done: Done, error: ReadError) {
        self.counters.reads += 1;
        self.counters.read_errors += 1;
        self.finished.push(Finished { done, outcome: Err(error), pages: Pages::none(inode) });
    }

    /// A READ that its caller answers begins, or has failed.
    pub fn begin_elsewhere(&mut self, planned: &Result<Span, ReadError>) {
        self.counters.reads += 1;
        match planned {
            Err(_) => self.counters.read_errors += 1,
            Ok(span) => {
                for page in span.pages.iter() {
                    self.in_flight.add(page);
                }
            }
        }
    }

    /// Its caller has answered it.
    pub fn end_elsewhere(&mut self, pages: Pages, error: Option<ReadError>) {
        self.counters.read_errors += u64::from(error.is_some());
        self.replied(pages);
    }

    /// Begins a READ. Each of its pages is then filled or waited for, and the READ is sealed.
    pub fn begin(&mut self, now: Moment, token: Token, (pages, answer): (Pages, Answer), done: Done) -> u64 {
        self.counters.reads += 1;
        for page in pages.iter() {
            self.in_flight.add(page);
        }
        self.begun += 1;
        let read = Read { token, pages, answer, missing: pages.count, since: now, done, sealed: false };
        self.open.insert(self.begun, read);
        self.begun
    }

    /// Fills one page of a READ.
    pub fn fill(&mut self, now: Moment, (id, slot): Reader, content: Slot) {
        let Some(read) = self.open.get_mut(&id) else { return };
        read.answer.fill(slot, content);
        read.missing -= 1;
        if read.missing == 0 && read.sealed {
            self.close(now, id, None);
        }
    }

    /// All pages of a READ were looked at. If it has to wait, returns whether it is the only READ
    /// of its token that waits.
    pub fn seal(&mut self, now: Moment, id: u64) -> Option<bool> {
        let read = self.open.get_mut(&id)?;
        read.sealed = true;
        let only = self.stalled.add(read.token) == 1;
        if read.missing == 0 {
            self.close(now, id, None);
            return None;
        }
        self.counters.stalls += 1;
        Some(only)
    }

    /// Ends a READ with its answer, or with an error.
    fn close(&mut self, now: Moment, id: u64, error: Option<ReadError>) {
        let Some(read) = self.open.remove(&id) else { return };
        self.counters.stall_micros += now.since(read.since).as_micros() as u64;
        if read.sealed {
            self.stalled.take_off(&read.token);
        }
        self.counters.read_errors += u64::from(error.is_some());
        let outcome = error.map_or(Ok(read.answer), Err);
        self.finished.push(Finished { done: read.done, outcome, pages: read.pages });
    }

    /// Ends one READ with an error.
    pub fn fail(&mut self, now: Moment, id: u64, error: ReadError) {
        self.close(now, id, Some(error));
    }

    /// Ends all READs with an error.
    pub fn fail_all(&mut self, now: Moment, error: ReadError) {
        let ids: Vec<u64> = self.open.keys().copied().collect();
        ids.into_iter().for_each(|id| self.close(now, id, Some(error)));
    }

    /// If the server has the image no more, fails the READs that wait for what the device cache
    /// lacks.
    pub fn fail_lacking(&mut self, now: Moment, requests: &Requests, is_gone: bool) {
        let waits = self.waits.keys().filter(|_| is_gone).map(|page| PageId::from_u64(*page));
        for page in waits.filter(|page| !requests.has_page(*page)).collect::<Vec<_>>() {
            self.fail_page(now, page, ReadError::Protocol);
        }
    }

    /// Forgets the waits of all pages; their READs have failed.
    pub fn clear_waits(&mut self) {
        self.waits.clear();
    }

    /// The reply to a READ was handed to the kernel: its pages may be stored again.
    pub fn replied(&mut self, pages: Pages) {
        pages.iter().for_each(|page| self.in_flight.take_off(&page));
    }

    /// Whether the kernel has not got the reply to a READ of this page yet.
    pub fn is_in_flight(&self, page: PageId) -> bool {
        self.in_flight.contains(&page)
    }

    /// Adds a reader to a page that is waited for already. Returns where that page comes from.
    pub fn join(&mut self, page: PageId, reader: Reader) -> Option<Source> {
        let wait = self.waits.get_mut(&page.to_u64())?;
        wait.readers.push(reader);
        Some(wait.source)
    }

    /// Begins to wait for a page.
    pub fn wait(&mut self, page: PageId, token: Token, reader: Reader, source: Source) {
        self.counters.late_pushes += u64::from(source != Source::Demand);
        let wait = Wait { token, readers: vec![reader], blocks: Vec::new(), source };
        self.waits.insert(page.to_u64(), wait);
    }

    pub fn source(&self, page: PageId) -> Option<Source> {
        self.waits.get(&page.to_u64()).map(|wait| wait.source)
    }

    /// A page that was demanded comes with a push instead.
    pub fn expect(&mut self, page: PageId, source: Source) {
        let Some(wait) = self.waits.get_mut(&page.to_u64()) else { return };
        wait.source = source;
        self.counters.late_pushes += 1;
        if let Source::OnTheWay { force_at, .. } = source {
            self.overdue_at = earliest(self.overdue_at, force_at);
        }
    }

    /// A page that is waited for is demanded from now on. Returns the token that waits for it.
    pub fn demand(&mut self, page: PageId) -> Option<Token> {
        let wait = self.waits.get_mut(&page.to_u64())?;
        wait.source = Source::Demand;
        Some(wait.token)
    }

    /// The pages of all READs that wait for a page.
    pub fn readers(&self, page: PageId) -> impl Iterator<Item = Pages> {
        let readers = self.waits.get(&page.to_u64()).into_iter().flat_map(|wait| &wait.readers);
        readers.filter_map(|(id, _)| self.open.get(id)).map(|read| read.pages)
    }

    /// Pages that wait for this stream, in order.
    pub fn waiting_for_stream(&self, key: StreamKey) -> Vec<PageId> {
        let from_stream = |wait: &Wait| matches!(wait.source, Source::OnTheWay { stream, .. } if stream == key);
        let pages = self.waits.iter().filter(|(_, wait)| from_stream(wait));
        pages.map(|(page, _)| PageId::from_u64(*page)).collect()
    }

    /// Pages that wait and have a part in the block, in order.
    pub fn waiting_for_block(&self, metadata: &Metadata, block: BlockId) -> Vec<PageId> {
        let waiting = self.waits.keys().map(|page| PageId::from_u64(*page));
        let has_part = |page: &PageId| {
            let parts = PageParts::of(metadata, *page);
            parts.is_some_and(|parts| parts.iter(metadata).any(|part| part.block == block))
        };
        waiting.filter(has_part).collect()
    }

    /// Pages whose READs need the answer to a request.
    pub fn dependents(&self, metadata: &Metadata, wanted: &Wanted) -> Vec<PageId> {
        let demanded = |page: &PageId| self.source(*page) == Some(Source::Demand);
        match wanted {
            Wanted::Block { block, .. } => {
                self.waiting_for_block(metadata, *block).into_iter().filter(demanded).collect()
            }
            Wanted::Pages(pages) => pages.iter().copied().filter(demanded).collect(),
        }
    }

    /// The same, of the first program that waits for each.
    pub fn dependents_by_program(&self, metadata: &Metadata, wanted: &Wanted) -> BTreeMap<Token, Vec<PageId>> {
        let mut pages: BTreeMap<Token, Vec<PageId>> = BTreeMap::new();
        for page in self.dependents(metadata, wanted) {
            if let Some(wait) = self.waits.get(&page.to_u64()) {
                pages.entry(wait.token).or_default().push(page);
            }
        }
        pages
    }

    /// Whether a block was kept for a page.
    pub fn has_block(&self, page: PageId, block: BlockId) -> bool {
        self.waits.get(&page.to_u64()).is_some_and(|wait| wait.blocks.iter().any(|(kept, _)| *kept == block))
    }

    /// Keeps a block that a page needs, if the page is waited for: the cache may drop the block
    /// before the others of the page come.
    pub fn keep_block(&mut self, page: PageId, block: BlockId, bytes: &BlockBytes) {
        if let Some(wait) = self.waits.get_mut(&page.to_u64())
            && !wait.blocks.iter().any(|(kept, _)| *kept == block)
        {
            wait.blocks.push((block, BlockBytes::clone(bytes)));
        }
    }

    /// A page that is waited for, once all its blocks are kept.
    pub fn assemble(&mut self, metadata: &Metadata, page: PageId, parts: &PageParts) -> Option<Assembled> {
        let wait = self.waits.get_mut(&page.to_u64())?;
        let kept = |block| wait.blocks.iter().find(|(kept, _)| *kept == block).map(|(_, bytes)| &bytes[..]);
        if !parts.blocks(metadata).into_iter().all(|block| kept(block).is_some()) {
            return None;
        }
        let mut buffer = self.pool.page();
        let whole = parts.assemble(metadata, &mut buffer[..], kept);
        if !whole {
            return Some(Assembled::Broken);
        }
        let is_verified = wait.blocks.iter().all(|(_, bytes)| bytes.is_verified());
        if is_verified || metadata.verify_page(page, &buffer[..parts.bytes()]).is_ok() {
            return Some(Assembled::Page(wait.token, buffer));
        }
        let dropped = wait.blocks.extract_if(.., |(_, bytes)| !bytes.is_verified());
        Some(Assembled::Wrong(wait.token, dropped.map(|(block, _)| block).collect()))
    }

    /// A page of verified bytes arrived for whoever waits for it. False if nobody does.
    pub fn fulfil(&mut self, now: Moment, page: PageId, bytes: &[u8]) -> bool {
        let Some(wait) = self.waits.remove(&page.to_u64()) else { return false };
        for reader in wait.readers {
            let buffer = self.pool.page_of(bytes);
            self.fill(now, reader, Slot::Filled(buffer));
        }
        true
    }

    /// Pages arrived for whoever waits for them, as far as their bytes are good. Returns the
    /// others.
    pub fn fulfil_each(&mut self, now: Moment, pages: &[(PageId, Option<&[u8]>)]) -> Vec<PageId> {
        let mut bad = Vec::new();
        for (page, bytes) in pages {
            match bytes {
                Some(bytes) => drop(self.fulfil(now, *page, bytes)),
                None => bad.push(*page),
            }
        }
        bad
    }

    /// Gives up on a page: all its READs fail.
    pub fn fail_page(&mut self, now: Moment, page: PageId, error: ReadError) {
        let Some(wait) = self.waits.remove(&page.to_u64()) else { return };
        wait.readers.into_iter().for_each(|(id, _)| self.fail(now, id, error));
    }

    /// When [`Reads::expire`] is due; may be early.
    pub fn deadline(&self) -> Option<Moment> {
        let oldest = self.open.first_key_value().map(|(_, read)| read.since);
        let soft = self.soft.zip(oldest).map(|(time, since)| since.after(time));
        [soft, self.overdue_at].into_iter().flatten().min()
    }

    /// Fails READs that waited for too long. Returns the pages that should have come by themselves.
    pub fn expire(&mut self, now: Moment) -> Vec<PageId> {
        if let Some(time) = self.soft {
            while let Some((id, read)) = self.open.first_key_value()
                && now >= read.since.after(time)
            {
                let id = *id;
                self.fail(now, id, ReadError::Timeout);
            }
        }
        if self.overdue_at.is_none_or(|due| now < due) {
            return Vec::new();
        }
        let mut overdue = Vec::new();
        self.overdue_at = None;
        for (page, wait) in &self.waits {
            let Source::OnTheWay { force_at, .. } = wait.source else { continue };
            if now >= force_at {
                overdue.push(PageId::from_u64(*page));
            } else {
                self.overdue_at = earliest(self.overdue_at, force_at);
            }
        }
        overdue
    }
}

#[cfg(test)]
impl Reads {
    /// The number of the READ begun last.
    pub fn last(&self) -> u64 {
        self.begun
    }

    /// Whether a READ waits for nothing but demands.
    pub fn waits_for_demands_only(&self, id: u64) -> bool {
        let mine = |wait: &&Wait| wait.readers.iter().any(|(reader, _)| *reader == id);
        self.waits.values().filter(mine).all(|wait| wait.source == Source::Demand)
    }

    /// Panics if an invariant does not hold.
    pub fn check(&self) {
        for (id, read) in &self.open {
            let slots = self.waits.values().flat_map(|wait| &wait.readers).filter(|(reader, _)| reader == id);
            assert_eq!(slots.count(), read.missing as usize, "every missing page is waited for");
            assert!(read.sealed && read.missing > 0 && self.stalled.contains(&read.token));
            assert!(read.pages.iter().all(|page| self.in_flight.contains(&page)));
        }
    }

    /// Whether nothing is left of any READ.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.waits.is_empty() && self.in_flight.is_empty() && self.stalled.is_empty()
    }
}

fn earliest(one: Option<Moment>, other: Moment) -> Option<Moment> {
    Some(one.map_or(other, |one| one.min(other)))
}
