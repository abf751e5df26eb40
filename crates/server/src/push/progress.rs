//! The ordered pages of an action, and how many of them are queued, being built, or still to come.

use units::PageId;

/// Ordered pages that are looked through for one that is demanded: more than the largest window
/// holds.
const LOOK_PAGES_MAX: usize = 4096;

/// Positions in an action are counted from 0. What is held are the pages from `base` on.
///
/// Invariant: `base <= queued_through <= next <= base + pages.len()`, and the last one is no more
/// than `u32::MAX`. The pages from `queued_through` to `next` are the piece that is being built;
/// there is none if the two are equal.
#[derive(Debug)]
pub(super) struct Progress {
    base: u32,
    pages: Vec<PageId>,
    /// The pages after `pages`, as far as the Provider knows them.
    coming: Vec<PageId>,
    queued_through: u32,
    next: u32,
    /// Position up to which blocks were read ahead.
    ahead: u32,
    /// Pages of the whole action.
    total: u32,
}

impl Progress {
    /// Pages from position `base` on, of an action of `total`. More than there are positions are
    /// cut off.
    pub fn new(base: u32, mut pages: Vec<PageId>, coming: Vec<PageId>, total: u32) -> Progress {
        pages.truncate((u32::MAX - base) as usize);
        Progress { base, pages, coming, queued_through: base, next: base, ahead: base, total }
    }

    /// Position behind the last ordered page.
    pub fn through(&self) -> u32 {
        self.base.saturating_add(u32::try_from(self.pages.len()).unwrap_or(u32::MAX))
    }

    /// Position behind what is queued or being built.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Position behind what is queued.
    pub fn queued_through(&self) -> u32 {
        self.queued_through
    }

    /// Pages that were queued since the beginning, or since the last [`Progress::append`].
    pub fn queued_pages(&self) -> u32 {
        self.queued_through.saturating_sub(self.base)
    }

    /// Ordered pages that are not queued yet.
    pub fn waiting_pages(&self) -> usize {
        self.through().saturating_sub(self.queued_through) as usize
    }

    /// Whether a piece is being built.
    pub fn is_building(&self) -> bool {
        self.queued_through < self.next
    }

    /// Whether `page` is in the piece that is being built.
    pub fn builds(&self, page: PageId) -> bool {
        self.range(self.queued_through, self.next).contains(&page)
    }

    /// Whether all pages of the action are queued.
    pub fn is_complete(&self) -> bool {
        self.queued_through >= self.total
    }

    /// The pages at these positions, as far as they are held.
    fn range(&self, from: u32, through: u32) -> &[PageId] {
        let index = |position: u32| position.checked_sub(self.base).map(|index| index as usize);
        index(from).zip(index(through)).and_then(|(from, through)| self.pages.get(from..through)).unwrap_or(&[])
    }

    /// Adds pages whose first is at position `from`; those that are known already are left out.
    /// False if a gap would be left that `before`, the page ahead of them, does not fill, or they
    /// lie before all that is held.
    pub fn extend(&mut self, from: u32, pages: &[PageId], coming: &[PageId], before: Option<PageId>) -> bool {
        if from < self.base || from.checked_add(pages.len() as u32).is_none() {
            return false;
        }
        match (from.checked_sub(self.through()), before) {
            // The page between was demanded just now: it is not pushed again unless it is part of a
            // bundle's piece.
            (Some(1), Some(before)) => self.pages.push(before),
            (Some(gap), _) if gap > 0 => return false,
            _ => {}
        }
        let known = self.through().saturating_sub(from) as usize;
        self.pages.extend(pages.iter().skip(known));
        // An order that says nothing new is one from before.
        if from.saturating_add(pages.len() as u32) == self.through() {
            self.coming = coming.to_vec();
        }
        true
    }

    /// Forgets the pages from `position` on that are not queued or being built.
    pub fn hold(&mut self, position: u32) {
        let kept = position.max(self.next).saturating_sub(self.base) as usize;
        if kept < self.pages.len() {
            self.pages.truncate(kept);
            self.coming.clear();
        }
    }

    /// Adds pages behind the last one of the action, which grows. False if positions have run out,
    /// after 16 TiB without a break.
    pub fn append(&mut self, pages: &[PageId]) -> bool {
        let added = u32::try_from(pages.len()).ok();
        let grown = added.and_then(|added| self.total.checked_add(added).filter(|_| self.through() < u32::MAX - added));
        let Some(total) = grown else { return false };
        // What is queued already is not looked at again.
        let queued = self.queued_through.saturating_sub(self.base) as usize;
        self.pages.drain(..queued.min(self.pages.len()));
        self.base = self.queued_through;
        self.pages.extend_from_slice(pages);
        self.total = total;
        true
    }

    /// Position behind the next piece, if one can be built now: pieces end at multiples of
    /// `piece_pages`, the last one where the action does. Unless pieces have to be `whole`, one
    /// ends where the order does.
    pub fn piece_end(&self, piece_pages: u32, whole: bool) -> Option<u32> {
        let piece_pages = piece_pages.max(1);
        let end = (self.next / piece_pages).saturating_add(1).saturating_mul(piece_pages).min(self.total);
        let through = end.min(self.through());
        (!self.is_building() && self.next < through && (!whole || through == end)).then_some(through)
    }

    /// Begins the piece that ends at `through`; its pages.
    pub fn begin_piece(&mut self, through: u32) -> Vec<PageId> {
        self.next = through.clamp(self.next, self.through());
        self.range(self.queued_through, self.next).to_vec()
    }

    /// The piece that was begun is queued, or had nothing in it that must be sent.
    pub fn finish_piece(&mut self) {
        self.queued_through = self.next;
    }

    /// Pages at the next `span` positions to send, without those it gave before.
    pub fn take_ahead(&mut self, span: u32) -> Vec<PageId> {
        let from = self.ahead.max(self.next);
        let through = self.next.saturating_add(span);
        let known = self.pages.iter().chain(&self.coming);
        let skipped = from.saturating_sub(self.base) as usize;
        let pages: Vec<PageId> = known.skip(skipped).take(through.saturating_sub(from) as usize).copied().collect();
        self.ahead = from.saturating_add(pages.len() as u32);
        pages
    }

    /// How many pages behind what is queued `page` lies; `None` if it is not ordered, queued
    /// already, or far ahead.
    pub fn find(&self, page: PageId) -> Option<u32> {
        let ahead = self.range(self.queued_through, self.through());
        let index = ahead.iter().take(LOOK_PAGES_MAX).position(|ordered| *ordered == page)?;
        Some(index as u32)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use units::InodeId;

    use super::*;

    fn pages(range: std::ops::Range<u32>) -> Vec<PageId> {
        range.map(|index| PageId::new(InodeId(2), index)).collect()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Extend { from: u32, count: u32, before: bool },
        Append(u32),
        Begin { piece_pages: u32, whole: bool },
        Finish,
        Ahead(u32),
        Hold(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let near_end = prop_oneof![0u32..200, u32::MAX - 100..=u32::MAX];
        prop_oneof![
            (near_end, 0u32..80, any::<bool>()).prop_map(|(from, count, before)| Step::Extend { from, count, before }),
            (0u32..80).prop_map(Step::Append),
            (0u32..40, any::<bool>()).prop_map(|(piece_pages, whole)| Step::Begin { piece_pages, whole }),
            Just(Step::Finish),
            (0u32..200).prop_map(Step::Ahead),
            prop_oneof![0u32..200, u32::MAX - 100..=u32::MAX].prop_map(Step::Hold),
        ]
    }

    proptest! {
        #[test]
        fn prop_positions_stay_in_their_order_whatever_is_ordered(
            base in prop_oneof![0u32..100, u32::MAX - 300..=u32::MAX],
            count in 0u32..100,
            steps in proptest::collection::vec(step(), 0..60),
        ) {
            let count = count.min(u32::MAX - base);
            let mut progress = Progress::new(base, pages(0..count), pages(0..3), base + count);
            for step in steps {
                match step {
                    Step::Extend { from, count, before } => {
                        let before = before.then_some(PageId::new(InodeId(3), 0));
                        progress.extend(from, &pages(0..count), &pages(0..5), before);
                    }
                    Step::Append(count) => {
                        progress.append(&pages(0..count));
                    }
                    Step::Begin { piece_pages, whole } => {
                        if let Some(end) = progress.piece_end(piece_pages, whole) {
                            let from = progress.next();
                            prop_assert_eq!(progress.begin_piece(end).len(), (end - from) as usize);
                            prop_assert!(progress.is_building() && end > from);
                            prop_assert!(progress.piece_end(piece_pages, whole).is_none(), "one piece at a time");
                        }
                    }
                    Step::Finish => progress.finish_piece(),
                    Step::Hold(position) => {
                        progress.hold(position);
                        prop_assert!(progress.through() <= position.max(progress.next()));
                    }
                    Step::Ahead(span) => prop_assert!(progress.take_ahead(span).len() <= span as usize),
                }
                let Progress { base, pages, queued_through, next, .. } = &progress;
                prop_assert!(base <= queued_through && queued_through <= next);
                prop_assert!(u64::from(*next) <= u64::from(*base) + pages.len() as u64);
                prop_assert!(u64::from(*base) + pages.len() as u64 <= u64::from(u32::MAX));
                prop_assert_eq!(progress.is_building(), queued_through < next);
                progress.find(PageId::new(InodeId(2), 7));
                progress.builds(PageId::new(InodeId(2), 7));
            }
        }
    }
}
