//! A kernel that remembers what is stored into its page cache.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Condvar, Mutex};

use units::{InodeId, PAGE_BYTES, PageId};

use super::HANG;
use crate::{PageSink, StoreOutcome};

#[derive(Default)]
pub(crate) struct FakeSink {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    pages: BTreeMap<PageId, Vec<u8>>,
    calls: Vec<(PageId, usize)>,
    unknown: HashSet<InodeId>,
    /// Unknown inodes stay so.
    refuses_look_up: bool,
    /// Stores wait until this is over.
    stuck: bool,
}

impl FakeSink {
    pub fn forget(&self, inode: InodeId, refuses_look_up: bool) {
        let mut state = self.state.lock().unwrap();
        state.unknown.insert(inode);
        state.refuses_look_up = refuses_look_up;
    }

    pub fn stick(&self, stuck: bool) {
        self.state.lock().unwrap().stuck = stuck;
        self.changed.notify_all();
    }

    /// Waits until the kernel was offered this page (the call may still be stuck).
    pub fn wait_offered(&self, page: PageId) {
        let offered = |state: &State| {
            let inside = |(first, count): &(PageId, usize)| {
                first.inode == page.inode && (first.index..first.index + *count as u32).contains(&page.index)
            };
            state.calls.iter().any(inside)
        };
        self.wait(offered, "a page was never offered to the kernel");
    }

    pub fn wait_stored(&self, page: PageId) {
        self.wait(|state| state.pages.contains_key(&page), "a page was never stored");
    }

    pub fn page(&self, page: PageId) -> Option<Vec<u8>> {
        self.state.lock().unwrap().pages.get(&page).cloned()
    }

    pub fn pages(&self) -> Vec<PageId> {
        self.state.lock().unwrap().pages.keys().copied().collect()
    }

    fn wait(&self, ready: impl Fn(&State) -> bool, message: &str) {
        let state = self.state.lock().unwrap();
        let (_state, waited) = self.changed.wait_timeout_while(state, HANG, |state| !ready(state)).unwrap();
        assert!(!waited.timed_out(), "{message}");
    }
}

impl PageSink for FakeSink {
    fn store(&self, inode: InodeId, first_page: u32, bytes: &[u8]) -> StoreOutcome {
        let mut state = self.state.lock().unwrap();
        let first = PageId::new(inode, first_page);
        state.calls.push((first, bytes.len().div_ceil(PAGE_BYTES)));
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.stuck).unwrap();
        if state.unknown.contains(&inode) {
            return StoreOutcome::UnknownInode;
        }
        for (i, page) in bytes.chunks(PAGE_BYTES).enumerate() {
            state.pages.insert(PageId::new(inode, first_page + i as u32), page.to_vec());
        }
        self.changed.notify_all();
        StoreOutcome::Stored
    }

    fn look_up(&self, inode: InodeId) -> bool {
        let mut state = self.state.lock().unwrap();
        if !state.refuses_look_up {
            state.unknown.remove(&inode);
        }
        !state.refuses_look_up
    }
}
