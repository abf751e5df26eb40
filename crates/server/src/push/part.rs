//! Which pages of an action a sequence has, and how orders for the action become orders for the
//! sequence.

use std::sync::Arc;

use units::PageId;

use super::progress::Progress;
use crate::advice::Ordered;
use crate::bundle::Bundle;

/// Which pages of an action a sequence is for.
pub(super) enum Part {
    /// All; its positions are the action's.
    All {
        /// A bundle would have served it.
        bundled: bool,
    },
    /// Those of a bundle, which may be older than the action; its positions are the bundle's. They
    /// are taken for the action's, too: from run to run an action changes little.
    Held(Arc<Bundle>, Orders),
    /// Those that the bundle beside it does not have; its positions count them.
    Lacking(Arc<Bundle>, Orders),
}

/// Pages of an order that are looked up in a bundle, to find where the order begins there. A bundle
/// that lacks so many in a row is of another program.
const LOOK_PAGES_MAX: usize = 64;

/// How much of an action was ordered, where positions of a sequence are not those of the action.
#[derive(Clone, Copy)]
pub(super) struct Orders {
    /// Position in the action up to which its pages were ordered.
    through: u32,
    /// Pages of the action; `u32::MAX` if nobody knows.
    total: u32,
    /// How far positions of the bundle lie behind those of the action.
    shift: i64,
}

impl Orders {
    /// Takes an order that goes on here, or one page behind; returns its new pages. `None` if it
    /// does not fit.
    fn extend(&mut self, order: &Ordered) -> Option<Vec<PageId>> {
        let known = self.through.saturating_sub(order.from) as usize;
        let before = match (order.from.saturating_sub(self.through), order.before) {
            (0, _) => None,
            (1, Some(before)) => Some(before),
            _ => return None,
        };
        self.through = self.through.max(order.through()?);
        Some(before.into_iter().chain(order.pages.iter().skip(known).copied()).collect())
    }

    /// Position in `bundle` up to which it is wanted: whole pieces, and all of it at the end of the
    /// action, where pages have come and gone before.
    fn held_through(&self, bundle: &Bundle) -> usize {
        let through = usize::try_from(i64::from(self.through) + self.shift).unwrap_or(0);
        let through = through.next_multiple_of(bundle.piece_pages.max(1) as usize);
        if self.through >= self.total { bundle.pages.len() } else { bundle.pages.len().min(through) }
    }
}

impl Part {
    /// The pages of a bundle from the restart point before the first one that is ordered, with the
    /// position of that one. `None` if the bundle does not have it, or the order has no end.
    pub fn held(bundle: &Arc<Bundle>, order: &Ordered) -> Option<(u32, (Part, Progress))> {
        let mut ordered = (order.from..).zip(&order.pages).take(LOOK_PAGES_MAX);
        let (at, start) = ordered.find_map(|(at, page)| Some((at, bundle.position(*page)?)))?;
        let (start, shift) = match order.from {
            // The page that began it was demanded just now. It is a page of the first piece.
            0 | 1 => (0, 0),
            _ => (start, i64::from(start) - i64::from(at)),
        };
        let orders = Orders { through: order.through()?, total: order.total, shift };
        let group_pages = bundle.piece_pages.saturating_mul(bundle.restart_pieces).max(1);
        let base = start / group_pages * group_pages;
        let pages = bundle.pages.get(base as usize..orders.held_through(bundle))?;
        let progress = Progress::new(base, pages.to_vec(), Vec::new(), bundle.pages.len() as u32);
        Some((start, (Part::Held(bundle.clone(), orders), progress)))
    }

    /// The pages of an action from the order on that its bundle does not have; `None` if there are
    /// none.
    pub fn lacking(bundle: &Arc<Bundle>, order: &Ordered, action: &[PageId]) -> Option<(Part, Progress)> {
        let orders = Orders { through: order.through()?, total: order.total, shift: 0 };
        let total = match order.total {
            // It ends with the program.
            u32::MAX => u32::MAX,
            _ => bundle.lacking(action.get(order.from as usize..)?).count() as u32,
        };
        let progress = Progress::new(0, bundle.lacking(&order.pages).collect(), Vec::new(), total);
        (total > 0).then(|| (Part::Lacking(bundle.clone(), orders), progress))
    }

    /// All pages that are ordered.
    pub fn all(order: &mut Ordered, bundled: bool) -> (Part, Progress) {
        let (pages, coming) = (std::mem::take(&mut order.pages), std::mem::take(&mut order.coming));
        (Part::All { bundled }, Progress::new(order.from, pages, coming, order.total))
    }

    /// Sends nothing from this position of the action on. Of pages beside a bundle there are too
    /// few to count.
    pub fn hold(&mut self, progress: &mut Progress, position: u32) {
        match self {
            Part::All { .. } => progress.hold(position),
            Part::Held(bundle, orders) => {
                orders.through = orders.through.min(position);
                progress.hold(u32::try_from(orders.held_through(bundle)).unwrap_or(u32::MAX));
            }
            Part::Lacking(..) => {}
        }
    }

    /// Takes an order that goes on where the last one ended, or one page behind that; of a bundle
    /// also one that goes on further behind. False if it does not fit.
    pub fn extend(&mut self, progress: &mut Progress, order: &Ordered) -> bool {
        match self {
            Part::All { .. } => progress.extend(order.from, &order.pages, &order.coming, order.before),
            Part::Held(bundle, orders) => {
                let Some(through) = order.through() else { return false };
                orders.through = orders.through.max(through);
                let from = progress.through();
                let pages = bundle.pages.get(from as usize..orders.held_through(bundle)).unwrap_or_default();
                progress.extend(from, pages, &[], None)
            }
            Part::Lacking(bundle, orders) => {
                let Some(pages) = orders.extend(order) else { return false };
                let pages: Vec<PageId> = bundle.lacking(&pages).collect();
                progress.extend(progress.through(), &pages, &[], None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use units::ActionId;

    use super::super::bundled::tests::bundle;
    use super::*;

    /// Pages of the action that the bundle was made of.
    fn order(bundle: &Bundle, from: u32, through: u32) -> Ordered {
        Ordered {
            action: ActionId(3),
            revision: 0,
            begins: from <= 1,
            from,
            pages: bundle.pages[from as usize..through as usize].to_vec(),
            coming: Vec::new(),
            before: None,
            total: bundle.pages.len() as u32,
            segment_pages: 32,
            audit: false,
        }
    }

    #[test]
    fn what_is_held_back_is_not_sent_until_an_order_goes_on_there() {
        let bundle = bundle();
        let (_, held) = Part::held(&bundle, &order(&bundle, 1, 500)).unwrap();
        let all = Part::all(&mut order(&bundle, 1, 500), true);
        for (mut part, mut progress) in [held, all] {
            progress.begin_piece(64);
            part.hold(&mut progress, 40);
            assert_eq!(progress.through(), 64, "the piece that is being built goes");
            part.hold(&mut progress, 300);
            assert_eq!(progress.through(), 64);
            assert!(part.extend(&mut progress, &order(&bundle, 40, 96)));
            assert_eq!(progress.through(), 96);
            part.hold(&mut progress, 96);
            assert_eq!(progress.through(), 96);
            assert!(part.extend(&mut progress, &order(&bundle, 96, 700)));
            assert_eq!(progress.through(), 700);
        }
    }
}
