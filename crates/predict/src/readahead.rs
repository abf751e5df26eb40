//! Baseline: the Linux kernel's readahead, a sequential window per file.
//!
//! A read that continues the last one doubles the window, from 4 to 32 pages, and orders that many
//! pages ahead. The first page of the newest window is the mark: a touch of it orders the next
//! window, so a sequential reader never waits. Any other read is random and closes the window. This
//! is the policy of the kernel (mm/readahead.c), but per file of a token, because a predictor does
//! not see open files.

use std::collections::{BTreeMap, HashMap};

use units::{InodeId, Moment, PageId, Token};

use crate::{Ended, Phase, Predictor, PushOrder, Verdict};

/// First window: the kernel's usual start for a 128 KiB maximum.
const WINDOW_FIRST: u32 = 4;
/// Largest window: 32 pages are the kernel's default 128 KiB.
const WINDOW_MAX: u32 = 32;
/// Files tracked over all tokens if nothing else is said.
const FILES_MAX: usize = 65536;

/// About what a file takes that is tracked, bytes.
const FILE_MEMORY_BYTES: usize = 128;

/// The kernel's readahead as a [`Predictor`].
pub struct LinuxReadahead {
    file_pages: Box<dyn Fn(InodeId) -> u32 + Send + Sync>,
    files: HashMap<(Token, InodeId), Window>,
    files_max: usize,
    /// Files by their last touch.
    oldest: BTreeMap<u64, (Token, InodeId)>,
    touches: u64,
    ordered: Ordered,
}

#[derive(Default)]
struct Window {
    last: u32,
    touched: u64,
    window: u32,
    /// The touch of this page orders the next window.
    mark: u32,
    /// End of the pages ordered.
    through: u32,
}

/// The pages of the last order, for predictors without actions.
#[derive(Debug, Default)]
pub(crate) struct Ordered {
    token: Token,
    pages: Vec<PageId>,
    number: u32,
}

impl Ordered {
    /// Keeps `pages` and gives the order for them, or none if there are no pages.
    pub fn put(&mut self, token: Token, pages: Vec<PageId>) -> Option<PushOrder> {
        self.token = token;
        self.pages = pages;
        self.number = self.number.wrapping_add(1);
        let through = self.pages.len() as u32;
        let (action, revision) = (Default::default(), self.number);
        let order = PushOrder { action, revision, from: 0, through, begins: false, audit: false };
        (through > 0).then_some(order)
    }

    pub fn pages(&self, token: Token, order: &PushOrder) -> &[PageId] {
        if token != self.token || order.revision != self.number {
            return &[];
        }
        self.pages.get(order.from as usize..order.through as usize).unwrap_or(&[])
    }
}

impl LinuxReadahead {
    /// A predictor that asks `file_pages` how many pages a file has, so that it orders none beyond.
    pub fn new(file_pages: impl Fn(InodeId) -> u32 + Send + Sync + 'static) -> LinuxReadahead {
        LinuxReadahead {
            file_pages: Box::new(file_pages),
            files: HashMap::new(),
            files_max: FILES_MAX,
            oldest: BTreeMap::new(),
            touches: 0,
            ordered: Ordered::default(),
        }
    }

    /// The same with `bytes` of memory: of files of all tokens the one touched longest ago makes
    /// room.
    pub fn within(self, bytes: usize) -> LinuxReadahead {
        LinuxReadahead { files_max: (bytes / FILE_MEMORY_BYTES).max(1), ..self }
    }

    /// Moves the window of a file for a touch of page `index`; the span to order.
    fn slide(window: &mut Window, new: bool, index: u32, file_pages: u32) -> (u32, u32) {
        let last = std::mem::replace(&mut window.last, index);
        let sequential = if new { index == 0 } else { index == last || index == last.wrapping_add(1) };
        if window.window > 0 && index == window.mark {
            // The program reached the newest window: order the one after it.
            window.window = (window.window * 2).min(WINDOW_MAX);
            let from = window.through;
            window.mark = from;
            window.through = from.saturating_add(window.window).min(file_pages);
            return (from, window.through);
        }
        if window.window > 0 && index < window.through && index > last {
            return (0, 0);
        }
        if !sequential {
            *window = Window { last: index, touched: window.touched, ..Window::default() };
            return (0, 0);
        }
        window.window = (window.window * 2).clamp(WINDOW_FIRST, WINDOW_MAX);
        let from = index.saturating_add(1);
        window.mark = from;
        window.through = from.saturating_add(window.window).min(file_pages);
        (from, window.through)
    }
}

impl Predictor for LinuxReadahead {
    fn touch(&mut self, token: Token, page: PageId, _now: Moment) -> Verdict {
        self.touches += 1;
        let key = (token, page.inode);
        let new = !self.files.contains_key(&key);
        if new
            && self.files.len() >= self.files_max
            && let Some((_, oldest)) = self.oldest.pop_first()
        {
            self.files.remove(&oldest);
        }
        let window = self.files.entry(key).or_default();
        self.oldest.remove(&window.touched);
        window.touched = self.touches;
        self.oldest.insert(self.touches, key);
        let (from, through) = LinuxReadahead::slide(window, new, page.index, (self.file_pages)(page.inode));
        let pages = (from..through).map(|index| PageId::new(page.inode, index)).collect();
        Verdict { phase: Phase::Generate, push: self.ordered.put(token, pages), cancel: false, hold: None }
    }

    fn end(&mut self, token: Token, _now: Moment) -> Ended {
        self.oldest.retain(|_, key| key.0 != token);
        self.files.retain(|key, _| key.0 != token);
        Ended { token, action: None, changed: false }
    }

    fn expire(&mut self, _now: Moment) -> Vec<Ended> {
        Vec::new()
    }

    fn pages(&self, token: Token, order: &PushOrder) -> &[PageId] {
        self.ordered.pages(token, order)
    }
}
