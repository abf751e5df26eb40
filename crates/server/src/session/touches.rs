//! Touches: what the Predictor learns from them, and its advice on its way to the pusher.

use std::sync::Arc;

use predict::{Predictor, PushOrder, Verdict};
use units::{ImageId, PageId, Token};
use wire::ImageHandle;

use super::Session;
use super::pushes::Pushes;
use crate::advice::{Advice, Ordered};
use crate::device::Device;
use crate::lock::locked;
use crate::published::Published;

/// Touches given to the predictor under one lock: some ten microseconds.
const TOUCHES_AT_ONCE: usize = 32;

/// The token of reads that belong to no program: a client's readahead, and readers it cannot tell. They mix whatever
/// runs on the device, so nothing is learned from them and nothing predicted for them.
pub(super) const ANONYMOUS: Token = Token(0);

impl Session {
    /// Bookkeeping of a demand: what the device has, and what the Predictor makes of the page that was touched.
    pub(super) fn demanded(&mut self, image: &Arc<Published>, token: Token, pages: &[PageId], force: bool) {
        if let Some(touched) = pages.first().copied().filter(|_| token != ANONYMOUS) {
            let mut cold = false;
            if let Some(device) = self.device() {
                // A forced demand follows a push that ended early; it says nothing about what the device lost.
                cold = if force {
                    device.not_sent(image.id, pages);
                    false
                } else {
                    device.demanded(image.id, touched)
                };
            }
            self.touch(image, token, touched, cold);
        }
        if let Some(device) = self.device() {
            device.sent(image.id, pages);
        }
    }

    /// Tells the Predictor of a touch and acts on what it says.
    pub(super) fn touch(&mut self, image: &Arc<Published>, token: Token, page: PageId, cold: bool) {
        if !self.shared.config.learning.enabled || token == ANONYMOUS {
            return;
        }
        if let Some(pushes) = &mut self.pushes {
            pushes.pages_mut().touched(&self.wire, image.id, page);
        }
        let now = self.shared.now();
        let advice = {
            let mut predictor = locked(&image.predictor);
            let run = self.run_of(token);
            let verdict = predictor.touch(run, page, now);
            advice_of(&predictor, image.id, (token, run), verdict, cold, self.shared.config.learning.pages_ahead())
        };
        self.route(advice);
    }

    pub(super) fn take_touches(&mut self, handle: ImageHandle, token: Token, pages: &[PageId]) {
        if let Some(open) = self.handles.volume(handle).cloned() {
            self.shared.metrics.pages_touched.add(pages.len() as u64);
            return self.touches.add(handle, open, token, pages, self.shared.now());
        }
        // A touch of an image that was never opened is of no use to anybody.
        let Some(image) = self.handles.get(handle) else { return };
        let pages: Vec<PageId> = pages.iter().copied().filter(|page| image.has_page(*page)).collect();
        self.shared.metrics.pages_touched.add(pages.len() as u64);
        if let Some(device) = self.device() {
            device.sent(image.id, &pages);
        }
        if !self.shared.config.learning.enabled || token == ANONYMOUS {
            return;
        }
        let (now, run) = (self.shared.now(), self.run_of(token));
        for some in pages.chunks(TOUCHES_AT_ONCE) {
            let advice: Vec<Advice> = {
                let mut predictor = locked(&image.predictor);
                some.iter()
                    .filter_map(|page| {
                        let verdict = predictor.touch(run, *page, now);
                        advice_of(
                            &predictor,
                            image.id,
                            (token, run),
                            verdict,
                            false,
                            self.shared.config.learning.pages_ahead(),
                        )
                    })
                    .collect()
            };
            advice.into_iter().for_each(|advice| self.route(Some(advice)));
        }
    }

    /// Pages that the client asks for in advance. Nothing is learned from them.
    pub(super) fn take_hint(&mut self, handle: ImageHandle, token: Token, mut pages: Vec<PageId>) {
        self.shared.metrics.hints.one();
        if let Some(open) = self.handles.volume(handle).cloned() {
            return self.hint_blocks(handle, &open, token, &pages);
        }
        // A hint for an image that was never opened is of no use to anybody.
        let (Some(image), Some(pushes)) = (self.handles.get(handle), &mut self.pushes) else { return };
        pages.retain(|page| image.is_stored(*page));
        let taken = pushes.pages_mut().hint(&self.wire, &self.handles, &image, token, pages);
        self.shared.metrics.pages_hinted.add(taken as u64);
    }

    pub(super) fn take_token_end(&mut self, handle: ImageHandle, token: Token) {
        if token == ANONYMOUS {
            return;
        }
        if let Some(open) = self.handles.volume(handle).cloned() {
            return self.end_blocks(handle, &open, token);
        }
        let Some(image) = self.handles.get(handle) else { return };
        if self.shared.config.learning.enabled {
            let now = self.shared.now();
            locked(&image.predictor).end(self.run_of(token), now);
        }
        self.route(Some(Advice::ended(image.id, token)));
    }

    /// The device, once it has said who it is.
    fn device(&self) -> Option<&Device> {
        self.pushes.as_ref().map(Pushes::device)
    }

    /// What predictors, which all devices tell their touches, call a token of this device.
    pub(super) fn run_of(&self, token: Token) -> Token {
        self.device().map_or(token, |device| device.scoped(token))
    }

    /// Gives advice to the connection that pushes to the token: usually this one.
    fn route(&mut self, advice: Option<Advice>) {
        let (Some(advice), Some(device)) = (advice, self.device()) else { return };
        if let Some(advice) = device.route(self.client.owner().connection, advice.image, advice.token, advice) {
            self.advise(advice);
        }
    }

    pub(super) fn advise(&mut self, advice: Advice) {
        if let Some(pushes) = &mut self.pushes {
            pushes.pages_mut().advise(&mut self.wire, &self.handles, advice);
        }
    }
}

/// What the verdict on a touch asks this side to do, if anything. A token goes by another name in
/// the predictor.
fn advice_of(
    predictor: &predict::ActionPredictor,
    image: ImageId,
    (token, run): (Token, Token),
    verdict: Verdict,
    cold: bool,
    pages_ahead: u32,
) -> Option<Advice> {
    let order = verdict.push.map(|order| {
        // The run may follow an older revision than the set has; then the length of its action is not known any more.
        let current = predictor.action(order.action).filter(|action| action.revision == order.revision);
        let total = current.map_or(u32::MAX, |action| action.pages.len() as u32);
        let coming_through = order.through.saturating_add(pages_ahead).min(total);
        Ordered {
            action: order.action,
            revision: order.revision,
            begins: order.begins,
            from: order.from,
            pages: predictor.pages(run, &order).to_vec(),
            coming: predictor.pages(run, &PushOrder { from: order.through, through: coming_through, ..order }).to_vec(),
            before: page_before(predictor, run, &order),
            total,
            segment_pages: predictor.config().segment_pages,
            audit: order.audit,
        }
    });
    (verdict.cancel || order.is_some()).then_some(Advice {
        image,
        token,
        cancel: verdict.cancel,
        ended: false,
        cold,
        order,
    })
}

/// The page before an order that extends a sequence. In paper mode it was demanded just now and ordered by nobody.
fn page_before(predictor: &predict::ActionPredictor, run: Token, order: &PushOrder) -> Option<PageId> {
    let from = order.from.checked_sub(1).filter(|_| !order.begins)?;
    predictor.pages(run, &PushOrder { from, through: order.from, ..*order }).first().copied()
}
