//! One token: its positions in files, and the order that it follows.

use std::collections::{HashMap, HashSet, VecDeque};

use units::{InodeId, Moment, PageId};

use crate::{PushOrder, Reader, SURE};

/// Pages that are known to be with the token, beside those of its order: 32 MiB of pages, in about
/// 130 KB of memory. Beyond, all are forgotten and the next order begins a sequence, of which the
/// caller skips the pages that it sent.
const HAD_MAX: usize = 8192;

/// Pages of an order that were passed and are still kept: dropping them costs a move of all others.
const PASSED_MAX: u32 = 4096;

/// Where a token is in a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct FilePosition {
    pub inode: InodeId,
    /// Page from which what follows is expanded.
    pub at: u32,
    /// Page touched last.
    pub touched: u32,
}

/// A token's run through files.
///
/// Invariants: `order` begins at position `base`; `positions` has its pages and their positions.
/// `progress` is at most the last of them.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Whose it is, and whether anything is learned of it.
    pub reader: Reader,
    /// Key in the table of tokens by their last touch.
    pub touch_number: u64,
    /// Moment of the last touch.
    pub at: Moment,
    /// Memory that it took when it was weighed last, bytes.
    pub memory_bytes: usize,
    /// Positions in files, that of the last touch first.
    pub files: VecDeque<FilePosition>,
    /// Number of the sequence: the revision of its orders.
    pub sequence: u32,
    /// Segments to stay ahead by.
    pub lookahead: u32,
    /// Furthest position of the sequence known to be touched.
    pub progress: u32,
    /// The sequence has begun: an order of it was given.
    pub begun: bool,
    /// Pages of the sequence from position `base` on, that of the touch that began it included.
    order: Vec<PageId>,
    base: u32,
    positions: HashMap<PageId, u32>,
    /// How likely pages of the sequence are needed, where that is open.
    chances: HashMap<PageId, f64>,
    /// Pages that were touched, or passed in an order.
    had: HashSet<PageId>,
}

impl Run {
    /// It knows what follows: an order was made, though perhaps an empty one.
    pub fn is_following(&self) -> bool {
        !self.order.is_empty()
    }

    /// Pages were ordered that it has not come to.
    pub fn is_ahead(&self) -> bool {
        self.through() > self.progress + 1
    }

    /// Position behind the sequence as ordered so far.
    pub fn through(&self) -> u32 {
        self.base + self.order.len() as u32
    }

    /// How likely a page of the sequence is needed, 0 to 1.
    pub fn chance(&self, page: PageId) -> f64 {
        self.chances.get(&page).copied().unwrap_or(1.0)
    }

    pub fn position(&self, page: PageId) -> Option<u32> {
        self.positions.get(&page).copied()
    }

    /// Whether the page is with the token, or ordered.
    pub fn has(&self, page: PageId) -> bool {
        self.had.contains(&page) || self.positions.contains_key(&page)
    }

    pub fn pages(&self, order: &PushOrder) -> &[PageId] {
        if order.revision != self.sequence {
            return &[];
        }
        let span = order.from.checked_sub(self.base).zip(order.through.checked_sub(self.base));
        span.and_then(|(from, through)| self.order.get(from as usize..through as usize)).unwrap_or(&[])
    }

    /// Notes a touch: the position in its file comes first.
    pub fn touched(&mut self, page: PageId, files_max: usize) {
        if self.had.len() >= HAD_MAX {
            self.had.clear();
            self.begun = false;
        }
        self.had.insert(page);
        let known = self.files.iter().position(|file| file.inode == page.inode);
        let file = known.and_then(|known| self.files.remove(known));
        let at = file.map_or(page.index, |file| file.at);
        self.files.push_front(FilePosition { inode: page.inode, at, touched: page.index });
        self.files.truncate(files_max);
    }

    /// The touch just noted lies at `position` of the sequence.
    pub fn reach(&mut self, position: u32, page: PageId) {
        self.progress = position;
        self.go_to(page);
        if self.progress - self.base > PASSED_MAX {
            for passed in self.order.drain(..(self.progress - self.base) as usize) {
                self.positions.remove(&passed);
                self.chances.remove(&passed);
                self.had.insert(passed);
            }
            self.base = self.progress;
        }
    }

    /// Begins a sequence with the touch just noted. Pages that the one before had passed are with
    /// the token; pages that it had only ordered may be ordered again.
    pub fn begin(&mut self, sequence: u32, lookahead: u32, page: PageId) {
        let passed = (self.progress + u32::from(self.is_following())).saturating_sub(self.base) as usize;
        self.had.extend(self.order.drain(..).take(passed));
        self.positions = HashMap::from([(page, 0)]);
        self.chances.clear();
        self.order = vec![page];
        (self.sequence, self.lookahead, self.progress, self.base, self.begun) = (sequence, lookahead, 0, 0, false);
        self.go_to(page);
    }

    /// Adds pages, each with how likely it is needed.
    pub fn extend(&mut self, pages: Vec<(PageId, f64)>) {
        let from = self.through();
        self.positions.extend(pages.iter().zip(from..).map(|((page, _), position)| (*page, position)));
        self.chances.extend(pages.iter().filter(|(_, chance)| *chance < SURE).copied());
        self.order.extend(pages.into_iter().map(|(page, _)| page));
    }

    /// Notes what memory it takes.
    pub fn weigh(&mut self) {
        // Seven of eight slots of a table are used at most, each with a byte beside it.
        let table = |entries: usize, entry_bytes: usize| entries * 8 / 7 * (entry_bytes + 1);
        self.memory_bytes = 2 * size_of::<Run>()
            + self.files.capacity() * size_of::<FilePosition>()
            + self.order.capacity() * size_of::<PageId>()
            + table(self.positions.capacity(), size_of::<(PageId, u32)>())
            + table(self.chances.capacity(), size_of::<(PageId, f64)>())
            + table(self.had.capacity(), size_of::<PageId>());
    }

    fn go_to(&mut self, page: PageId) {
        if let Some(file) = self.files.front_mut() {
            file.at = page.index;
        }
    }
}
