//! The bundles of one image that can be pushed, and what making better ones would save.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use units::{ActionId, Moment};

use super::Bundle;
use super::policy::{Account, Forms, Grade, IdleTime, Start};
use crate::lock::locked;

/// Bundles by action. An old bundle stays until a new one is there.
#[derive(Default)]
pub(crate) struct Bundles {
    by_action: Mutex<HashMap<ActionId, Kept>>,
    /// Rate of the link of the device that asked last, in bytes a second; 0 if nobody knows.
    rate: AtomicU64,
}

#[derive(Default)]
struct Kept {
    bundle: Option<Arc<Bundle>>,
    /// The store was asked for a bundle.
    sought: bool,
    account: Account,
    /// Pages of the action at its last start.
    pages: u32,
    /// Starts of the action when it changed.
    uses: u64,
}

impl Kept {
    fn take_due(&mut self, idle: &mut IdleTime, now: Moment) -> Option<Forms> {
        let mut forms = self.account.due(self.pages, self.uses)?;
        if forms.grade == Grade::Best && !idle.take(now, self.pages) {
            forms = self.account.quick_due(self.pages, self.uses)?;
        }
        self.account = Account::default();
        Some(forms)
    }

    fn take_quick_due(&mut self) -> Option<Forms> {
        let forms = self.account.quick_due(self.pages, self.uses)?;
        self.account = Account::default();
        Some(forms)
    }
}

impl Bundles {
    /// How many there are, and the bytes of their pieces.
    pub fn count_and_bytes(&self) -> (usize, u64) {
        let by_action = locked(&self.by_action);
        let bundles = by_action.values().filter_map(|kept| kept.bundle.as_ref());
        bundles.fold((0, 0), |(count, bytes), bundle| (count + 1, bytes + bundle.body_bytes()))
    }

    /// The bundle of an action.
    pub fn get(&self, action: ActionId) -> Option<Arc<Bundle>> {
        locked(&self.by_action).get(&action)?.bundle.clone()
    }

    /// Replaces an older bundle. What starts would save is counted from here on.
    pub fn put(&self, action: ActionId, bundle: Arc<Bundle>) {
        locked(&self.by_action).insert(action, Kept { bundle: Some(bundle), sought: true, ..Kept::default() });
    }

    /// Whether the store was not asked for a bundle of the action yet.
    pub fn is_unsought(&self, action: ActionId) -> bool {
        locked(&self.by_action).get(&action).is_none_or(|kept| !kept.sought)
    }

    /// The store has no bundle of the action.
    pub fn not_found(&self, action: ActionId) {
        locked(&self.by_action).entry(action).or_default().sought = true;
    }

    /// The action is no more.
    pub fn forget(&self, action: ActionId) {
        locked(&self.by_action).remove(&action);
    }

    /// The bundle is damaged; returns its forms.
    pub fn discard(&self, action: ActionId) -> Option<Forms> {
        locked(&self.by_action).get_mut(&action)?.bundle.take().map(|bundle| bundle.forms)
    }

    /// A device asked for pages over a link of this rate, in bytes a second. Starts that are yet to
    /// come are taken to be like the last one.
    pub fn asked_over(&self, rate: Option<u64>) {
        self.rate.store(rate.unwrap_or(0), Ordering::Relaxed);
    }

    /// The rate of the link of the device that asked last, if it is known.
    pub fn rate(&self) -> Option<u64> {
        Some(self.rate.load(Ordering::Relaxed)).filter(|rate| *rate > 0)
    }

    /// A start was pushed pages of an action that has `pages` in all.
    pub fn charge(&self, action: ActionId, pages: u32, start: &Start) {
        let mut by_action = locked(&self.by_action);
        let kept = by_action.entry(action).or_default();
        kept.account.add(start);
        kept.pages = pages;
    }

    /// The action has changed: as often as it was started, it will be pushed so.
    pub fn foresee(&self, action: ActionId, pages: u32, uses: u64, start: &Start) {
        let mut by_action = locked(&self.by_action);
        let kept = by_action.entry(action).or_default();
        kept.account.foresee(start);
        (kept.pages, kept.uses) = (pages, uses);
    }

    /// The quick bundle of an action if it pays now. It is told once: what was saved so far is
    /// spent with it.
    pub fn take_quick_due(&self, action: ActionId) -> Option<Forms> {
        locked(&self.by_action).get_mut(&action)?.take_quick_due()
    }

    /// All bundles that pay now and that there is time for, each told once.
    pub fn take_all_due(&self, idle: &mut IdleTime, now: Moment) -> Vec<(ActionId, Forms)> {
        let mut by_action = locked(&self.by_action);
        by_action.iter_mut().filter_map(|(action, kept)| Some((*action, kept.take_due(idle, now)?))).collect()
    }
}
