//! How a sequence begins: from a bundle, with the pages that it lacks beside it, or compressed
//! live; and what that cost.

use units::{ActionId, ImageId, PageId, Token};
use wire::ServerConnection;

use super::PagePusher;
use super::part::Part;
use super::sequence::{Pushing, Sequence, Source};
use crate::advice::Ordered;
use crate::bundle::Bundle;
use crate::handles::Handles;
use crate::lock::locked;
use crate::published::Published;

/// Programs pushed to at once on one connection. More than a small device starts at a time.
const SEQUENCES_MAX: usize = 16;

/// Bytes a second from which a link is fast: to wait for it takes less than to compress well.
const FAST_RATE: u64 = 64 << 20;

/// zstd level of live streams. Level 6 takes 7 % off the bytes, but a program waits for the
/// compressor: gcc, whose processes share pages and so are pushed live, started in 1.41 s with
/// level 6 and in 1.09 s with level 3 (the lab, WiFi).
const LIVE_LEVEL: i32 = 3;

/// The same over a fast link, where the compressor is what a program waits for. A page of python's
/// code and sources comes to 2.6 KB instead of 1.8, which are 11 microseconds more at the least
/// rate that is fast, takes 11 fewer to compress, and half of 3.6 to decode: even there it is no
/// slower.
const LIVE_LEVEL_FAST: i32 = -3;

/// Largest window of live streams: 1 MiB, so that an encoder takes about 5 MiB.
const LIVE_WINDOW_LOG_MAX: u8 = 20;

/// Smallest window worth compressing for; below it pieces are sent as they are.
const LIVE_WINDOW_LOG_MIN: u8 = 10;

/// Part of an action (in percent) that the device may have already and still be sent the whole
/// bundle.
const BUNDLE_SENT_PERCENT_MAX: usize = 25;

/// Pages of a bundle (in percent) that its action may have no more, so that they are pushed in
/// vain: the waste that we promise.
const BUNDLE_SURPLUS_PERCENT_MAX: usize = 15;

/// Pages of an action (in percent) that its bundle may lack: with more, one live stream is better
/// than two.
const BUNDLE_LACKING_PERCENT_MAX: usize = 50;

impl PagePusher {
    /// Begins a sequence; false if nothing can be pushed now.
    pub(super) fn begin(
        &mut self,
        wire: &ServerConnection,
        handles: &Handles,
        image: ImageId,
        token: Token,
        order: Ordered,
        cold: bool,
    ) -> bool {
        let Some(hello) = wire.hello().filter(|hello| hello.push_bytes_max > 0) else { return false };
        let Some((handle, image)) = handles.by_id(image) else { return false };
        let active = self.sequences.iter().filter(|sequence| !sequence.has_ended()).count();
        if active >= SEQUENCES_MAX || order.pages.is_empty() {
            return false;
        }
        // A program that starts over from its first page, which the device has dropped, starts
        // cold. One page lost in the middle of an action says nothing about the others.
        if cold && order.from <= 1 {
            self.device.forget(image.id);
        }
        let chosen = self.choose(&image, order, hello.window_log_max);
        if chosen.is_empty() || !self.device.own(self.owner.connection, image.id, token, &self.advice) {
            return false;
        }
        self.shared.metrics.pushes_started.one();
        for pushing in chosen {
            if matches!(pushing.source, Source::Bundle(_)) {
                self.shared.metrics.pushes_from_bundle.one();
            }
            self.numbers += 1;
            self.sequences.push(Sequence::new(self.numbers, token, handle, image.clone(), pushing));
        }
        self.forget_ended();
        true
    }

    /// A bundle if the push starts in the first segment, the device affords its window and has
    /// little of it, and it is still close to its action; with it what it lacks. Otherwise live
    /// compression. Nothing if too many streams are compressed already.
    fn choose(&self, image: &Published, mut order: Ordered, window_log_max: u8) -> Vec<Pushing> {
        // A run that follows an older revision does not know how long its action is.
        let mut bundled = order.total != u32::MAX && order.from < order.segment_pages;
        if let Some(bundle) = image.bundles.get(order.action).filter(|_| bundled) {
            let has = self.device.has(image.id, &bundle.pages).iter().filter(|has| **has).count();
            // Another bundle would not be sent either.
            bundled = has * 100 <= bundle.pages.len() * BUNDLE_SENT_PERCENT_MAX;
            let action = action_pages(image, order.action);
            let fits = bundle.window_log <= window_log_max && is_close(&bundle, &action);
            if let Some(held) = Part::held(&bundle, &order).filter(|_| bundled && fits) {
                let lacking = Part::lacking(&bundle, &order, &action);
                let lacking = lacking.and_then(|part| Some((self.live(window_log_max)?, part)));
                let chosen = [Some((Source::Bundle(bundle), held)), lacking].into_iter().flatten();
                return chosen.map(|(source, part)| Pushing::new(&order, source, part)).collect();
            }
        }
        let Some(source) = self.live(window_log_max) else { return Vec::new() };
        let all = Part::all(&mut order, bundled);
        vec![Pushing::new(&order, source, all)]
    }

    /// A stream that is compressed live, or not at all for a device without a window. `None` if
    /// there are too many.
    fn live(&self, window_log_max: u8) -> Option<Source> {
        if window_log_max < LIVE_WINDOW_LOG_MIN {
            return Some(Source::Stored);
        }
        let slot = self.pieces.try_encoder()?;
        Some(Source::Live { encoder: None, window_log: window_log_max.min(LIVE_WINDOW_LOG_MAX), _slot: slot })
    }

    /// A sequence is about to end: what a better bundle would have saved counts towards making one.
    pub(super) fn charge(&self, wire: &ServerConnection, at: usize) {
        let Some(sequence) = self.sequences.get(at).filter(|_| self.shared.bundler.is_some()) else { return };
        let Some(pushing) = sequence.pushing() else { return };
        let action = action_pages(&sequence.image, pushing.action);
        let start = pushing.start(&action, wire.push_rate());
        if let Some(start) = start.filter(|_| !action.is_empty()) {
            sequence.image.bundles.charge(pushing.action, action.len() as u32, &start);
        }
    }
}

/// The level of a live stream that begins now. `rate`: that of the link, in bytes a second, if it
/// is known.
pub(super) fn live_level(rate: Option<u64>) -> i32 {
    if rate.is_some_and(|rate| rate >= FAST_RATE) { LIVE_LEVEL_FAST } else { LIVE_LEVEL }
}

/// The pages of an action as they are now; none if it is no more.
fn action_pages(image: &Published, action: ActionId) -> Vec<PageId> {
    locked(&image.predictor).action(action).map(|action| action.pages.clone()).unwrap_or_default()
}

/// Whether a bundle is worth sending for an action that has these pages now.
fn is_close(bundle: &Bundle, action: &[PageId]) -> bool {
    let fit = bundle.fit(action);
    fit.surplus * 100 <= bundle.pages.len() * BUNDLE_SURPLUS_PERCENT_MAX
        && fit.lacking * 100 <= action.len() * BUNDLE_LACKING_PERCENT_MAX
}
