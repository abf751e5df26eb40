//! The holding area: verified pages that stay in the daemon although nobody waits for them.
//!
//! There are three kinds. A *sentinel* is the first page of a pushed segment. The other pages go
//! into the page cache, where their use is invisible; the READ of the sentinel tells that the
//! segment is in use. *Audit* pages are whole segments kept back in an audit run, so that every
//! first touch is seen. *Orphans* are pages that the kernel did not take, because it does not know
//! their inode or refused them. Sentinels and orphans share one budget, audit pages have their own.
//! When a budget is used up, its oldest pages leave.

use std::collections::{BTreeMap, HashMap};

use units::{PAGE_BYTES, PageId, Token};

use crate::allocator::PageBuffer;

/// Why a page is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldKind {
    /// First page of a segment whose other pages went to the kernel.
    Sentinel {
        /// Pages of the segment whose use is judged by this one, itself included.
        segment_pages: u32,
    },
    /// Part of an audit run.
    Audit,
    /// The kernel could not take it.
    Orphan,
}

/// A page in the holding area.
#[derive(Debug)]
pub(crate) struct Held {
    pub buffer: PageBuffer,
    /// The running action whose push brought it.
    pub token: Token,
    pub kind: HeldKind,
}

/// The holding area.
///
/// Invariants:
/// - A page is held once, and listed in the order of the budget of its kind.
/// - No budget has more pages than its bound.
#[derive(Debug)]
pub(crate) struct HoldingArea {
    common: Budget,
    audit: Budget,
    entries: HashMap<u64, (u64, Held)>,
    clock: u64,
}

/// Pages of one budget, oldest first.
#[derive(Debug)]
struct Budget {
    pages_max: usize,
    order: BTreeMap<u64, u64>,
}

impl Held {
    /// Pushed pages whose use is judged by this one.
    pub fn judged_pages(&self) -> u64 {
        match self.kind {
            HeldKind::Sentinel { segment_pages } => segment_pages.into(),
            HeldKind::Audit => 1,
            // Its segment's sentinel judges it.
            HeldKind::Orphan => 0,
        }
    }
}

impl HoldingArea {
    /// An empty area: `common_bytes` for sentinels and orphans together, `audit_bytes` for audit
    /// pages.
    pub fn new(common_bytes: usize, audit_bytes: usize) -> HoldingArea {
        let budget = |bytes: usize| Budget { pages_max: bytes / PAGE_BYTES, order: BTreeMap::new() };
        HoldingArea { common: budget(common_bytes), audit: budget(audit_bytes), entries: HashMap::new(), clock: 0 }
    }

    /// Whether another audit page fits without pushing one out.
    pub fn has_audit_room(&self) -> bool {
        self.audit.order.len() < self.audit.pages_max
    }

    /// Whether any page of an audit run is held: its run goes on, even when its stream is over.
    pub fn has_audit_pages(&self) -> bool {
        !self.audit.order.is_empty()
    }

    pub fn contains(&self, page: PageId) -> bool {
        self.entries.contains_key(&page.to_u64())
    }

    /// Pushed pages whose use is not judged yet.
    #[cfg(test)]
    pub fn undecided_pages(&self) -> u64 {
        self.entries.values().map(|(_, held)| held.judged_pages()).sum()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Holds a page. Returns what left for it: an older copy of the same page, the oldest pages of
    /// the budget, or the page itself if its budget is nothing.
    pub fn hold(&mut self, page: PageId, held: Held) -> Vec<Held> {
        let mut gone: Vec<Held> = self.take(page).into_iter().collect();
        let budget = match held.kind {
            HeldKind::Audit => &mut self.audit,
            HeldKind::Sentinel { .. } | HeldKind::Orphan => &mut self.common,
        };
        if budget.pages_max == 0 {
            gone.push(held);
            return gone;
        }
        while budget.order.len() >= budget.pages_max {
            let Some((_, oldest)) = budget.order.pop_first() else { break };
            gone.extend(self.entries.remove(&oldest).map(|(_, held)| held));
        }
        self.clock += 1;
        budget.order.insert(self.clock, page.to_u64());
        self.entries.insert(page.to_u64(), (self.clock, held));
        gone
    }

    /// Takes a page out: its caller passes it on to the kernel, which keeps it from then on.
    pub fn take(&mut self, page: PageId) -> Option<Held> {
        let (at, held) = self.entries.remove(&page.to_u64())?;
        match held.kind {
            HeldKind::Audit => self.audit.order.remove(&at),
            HeldKind::Sentinel { .. } | HeldKind::Orphan => self.common.order.remove(&at),
        };
        Some(held)
    }

    /// Lets go of all pages of a running action that ended.
    pub fn end(&mut self, token: Token) -> Vec<Held> {
        let pages: Vec<u64> =
            self.entries.iter().filter(|(_, (_, held))| held.token == token).map(|(page, _)| *page).collect();
        pages.into_iter().filter_map(|page| self.take(PageId::from_u64(page))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Allocator;
    use proptest::prelude::*;
    use units::InodeId;

    const COMMON_PAGES: usize = 3;
    const AUDIT_PAGES: usize = 2;

    /// The same area as a list, oldest first.
    #[derive(Default)]
    struct Model(Vec<(u32, bool, u128)>);

    impl Model {
        fn take(&mut self, page: u32) -> Option<(u32, bool, u128)> {
            let at = self.0.iter().position(|held| held.0 == page)?;
            Some(self.0.remove(at))
        }

        fn hold(&mut self, page: u32, audit: bool, token: u128) -> usize {
            let before = self.0.len() + 1;
            self.take(page);
            let budget = if audit { AUDIT_PAGES } else { COMMON_PAGES };
            if self.0.iter().filter(|held| held.1 == audit).count() == budget {
                let oldest = self.0.iter().position(|held| held.1 == audit).unwrap();
                self.0.remove(oldest);
            }
            self.0.push((page, audit, token));
            before - self.0.len()
        }
    }

    #[test]
    fn no_budget_holds_nothing() {
        let allocator = Allocator::start().unwrap();
        let mut area = HoldingArea::new(0, PAGE_BYTES);
        let held = Held { buffer: allocator.page(), token: Token(1), kind: HeldKind::Orphan };
        assert_eq!(area.hold(PageId::default(), held).len(), 1);
        assert_eq!(area.len(), 0);
        assert!(area.has_audit_room());
    }

    proptest! {
        #[test]
        fn ref_holding_behaves_like_a_list(
            steps in prop::collection::vec((0u8..4, 0u32..8, any::<bool>(), 0u128..3), 1..200)
        ) {
            let allocator = Allocator::start().unwrap();
            let mut area = HoldingArea::new(COMMON_PAGES * PAGE_BYTES, AUDIT_PAGES * PAGE_BYTES);
            let mut model = Model::default();
            for (step, index, audit, token) in steps {
                let page = PageId::new(InodeId(1), index);
                match step {
                    0 => {
                        let found = area.take(page).map(|held| (held.buffer[0], held.token.0));
                        prop_assert_eq!(found, model.take(index).map(|held| (held.0 as u8, held.2)));
                    }
                    1 => {
                        let before = model.0.len();
                        model.0.retain(|held| held.2 != token);
                        prop_assert_eq!(area.end(Token(token)).len(), before - model.0.len());
                    }
                    _ => {
                        let mut buffer = allocator.page();
                        buffer[0] = index as u8;
                        let kind = if audit { HeldKind::Audit } else { HeldKind::Sentinel { segment_pages: 1 } };
                        let gone = area.hold(page, Held { buffer, token: Token(token), kind });
                        prop_assert_eq!(gone.len(), model.hold(index, audit, token));
                    }
                }
                prop_assert_eq!(area.len(), model.0.len());
                prop_assert_eq!(area.common.order.len() + area.audit.order.len(), area.len());
            }
        }
    }
}
