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

/// How much of an action was ordered, where positions of a sequence are not those of the action.
#[derive(Clone, Copy)]
pub(super) struct Orders {
    /// Position in the action up to which its pages were ordered.
    through: u32,
    /// Pages of the action.
    total: u32,
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

    /// Position in `bundle` up to which it is wanted: all of it at the end of the action, where
    /// pages have come and gone before.
    fn held_through(&self, bundle: &Bundle) -> usize {
        if self.through >= self.total { bundle.pages.len() } else { bundle.pages.len().min(self.through as usize) }
    }
}

impl Part {
    /// The pages of a bundle, which is one stream from its first page on, even if the program is a
    /// page or two into it. `None` if the order has no end.
    pub fn held(bundle: &Arc<Bundle>, order: &Ordered) -> Option<(Part, Progress)> {
        let orders = Orders { through: order.through()?, total: order.total };
        let pages = bundle.pages.get(..orders.held_through(bundle))?;
        let progress = Progress::new(0, pages.to_vec(), Vec::new(), bundle.pages.len() as u32);
        Some((Part::Held(bundle.clone(), orders), progress))
    }

    /// The pages of an action from the order on that its bundle does not have; `None` if there are
    /// none.
    pub fn lacking(bundle: &Arc<Bundle>, order: &Ordered, action: &[PageId]) -> Option<(Part, Progress)> {
        let orders = Orders { through: order.through()?, total: order.total };
        let total = bundle.lacking(action.get(order.from as usize..)?).count() as u32;
        let progress = Progress::new(0, bundle.lacking(&order.pages).collect(), Vec::new(), total);
        (total > 0).then(|| (Part::Lacking(bundle.clone(), orders), progress))
    }

    /// All pages that are ordered.
    pub fn all(order: &mut Ordered, bundled: bool) -> (Part, Progress) {
        let (pages, coming) = (std::mem::take(&mut order.pages), std::mem::take(&mut order.coming));
        (Part::All { bundled }, Progress::new(order.from, pages, coming, order.total))
    }

    /// Takes an order that goes on where the last one ended, or one page behind that. False if it
    /// does not fit.
    pub fn extend(&mut self, progress: &mut Progress, order: &Ordered) -> bool {
        match self {
            Part::All { .. } => progress.extend(order.from, &order.pages, &order.coming, order.before),
            Part::Held(bundle, orders) => {
                let fits = orders.extend(order).is_some();
                let from = progress.through();
                let pages = bundle.pages.get(from as usize..orders.held_through(bundle)).unwrap_or_default();
                fits && progress.extend(from, pages, &[], None)
            }
            Part::Lacking(bundle, orders) => {
                let Some(pages) = orders.extend(order) else { return false };
                let pages: Vec<PageId> = bundle.lacking(&pages).collect();
                progress.extend(progress.through(), &pages, &[], None)
            }
        }
    }
}
