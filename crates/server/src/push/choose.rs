//! How a sequence begins: from a bundle, with the pages that it lacks beside it, or compressed
//! live; and what that cost.

use units::{ActionId, ImageId, PAGE_BYTES, PageId, Token};
use wire::ServerConnection;
use wire::format::{FEATURE_PIECES, HINT_ACTION};

use super::PagePusher;
use super::bundled::{Bundled, FAST_PAGE_BYTES, FAST_PAGE_NANOS};
use super::part::Part;
use super::sequence::{Pushing, Sequence, Source};
use crate::advice::Ordered;
use crate::bundle::Bundle;
use crate::bundle::policy::{LIVE_PAGE_BYTES, LIVE_PAGE_NANOS};
use crate::handles::Handles;
use crate::lock::locked;
use crate::published::Published;
use crate::speed::{PushCodec, Speed};

/// Programs pushed to at once on one connection. More than a small device starts at a time.
const SEQUENCES_MAX: usize = 16;

/// zstd level of live streams. Level 6 takes 7 % off the bytes, but a program waits for the
/// compressor: gcc, whose processes share pages and so were pushed live, started in 1.41 s with
/// level 6 and in 1.09 s with level 3 (the lab, WiFi).
pub(super) const LIVE_LEVEL: i32 = 3;

/// Largest window of live streams: 1 MiB, so that an encoder takes about 5 MiB.
const LIVE_WINDOW_LOG_MAX: u8 = 20;

/// Smallest window worth compressing for; below it pieces are sent as they are.
const LIVE_WINDOW_LOG_MIN: u8 = 10;

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
        let takes = Takes { pieces: hello.features & FEATURE_PIECES != 0, window_log_max: hello.window_log_max };
        let chosen = self.choose(&image, order, takes, &self.speed(wire));
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

    /// The bundle if it is still close to its action and has what is ordered, from there on, with
    /// what it lacks beside it. Otherwise, and if that would take longer because the device has
    /// much of it, live compression. Nothing if too many streams are compressed already.
    fn choose(&self, image: &Published, mut order: Ordered, takes: Takes, speed: &Speed) -> Vec<Pushing> {
        let bundled = takes.pieces && order.action != HINT_ACTION;
        if let Some(bundle) = image.bundles.get(order.action).filter(|_| bundled) {
            let action = action_pages(image, order.action);
            let held = Part::held(&bundle, &order).filter(|_| is_close(&bundle, &action));
            if let Some((start, held)) = held {
                let source = Bundled::new(bundle.clone(), start, bundle.window_log <= takes.window_log_max);
                if self.is_better_bundled(image, &source, takes, speed) {
                    let lacking = Part::lacking(&bundle, &order, &action);
                    let lacking = lacking.and_then(|part| Some((self.live(takes, speed)?, part)));
                    let chosen = [Some((Source::Bundle(source), held)), lacking].into_iter().flatten();
                    return chosen.map(|(source, part)| Pushing::new(&order, source, part)).collect();
                }
            }
        }
        let Some(source) = self.live(takes, speed) else { return Vec::new() };
        let all = Part::all(&mut order, bundled);
        vec![Pushing::new(&order, source, all)]
    }

    /// Whether the bundle brings what the device lacks sooner than a live stream does, which leaves
    /// out each page that the device has.
    fn is_better_bundled(&self, image: &Published, bundled: &Bundled, takes: Takes, speed: &Speed) -> bool {
        if prefers_independent(takes, speed) {
            return true;
        }
        let lacks = |pages: &[PageId]| self.device.lacks(image, pages);
        bundled.nanos(&lacks, speed) <= bundled.live_nanos(&lacks, speed)
    }

    /// A stream that is compressed live, or not at all for an old device without a window. `None`
    /// if there are too many.
    fn live(&self, takes: Takes, speed: &Speed) -> Option<Source> {
        if prefers_independent(takes, speed) {
            return Some(Source::Independent);
        }
        if takes.window_log_max < LIVE_WINDOW_LOG_MIN {
            return Some(Source::Stored);
        }
        let Some(slot) = self.pieces.try_encoder() else { return takes.pieces.then_some(Source::Independent) };
        let window_log = takes.window_log_max.min(LIVE_WINDOW_LOG_MAX);
        Some(Source::Live { encoder: None, window_log, _slot: slot })
    }

    /// Whether something is on its way to a token, or will be.
    pub fn pushes_to(&self, wire: &ServerConnection, image: ImageId, token: Token) -> bool {
        let sends = wire.queued_push_bytes() + wire.in_flight_push_bytes() as usize > 0;
        let comes = |sequence: &Sequence| !sequence.is_unwanted() && (sends || !sequence.has_ended());
        self.sequences.iter().any(|sequence| sequence.is_for(image, token) && comes(sequence))
    }

    /// Whether a push of a token has sent `page`, of what is remembered. A demand of it that comes
    /// then may have crossed it on its way.
    pub fn has_pushed(&self, image: ImageId, token: Token, page: PageId) -> bool {
        let mine = self.sequences.iter().filter(|sequence| sequence.is_for(image, token) && !sequence.is_unwanted());
        mine.flat_map(|sequence| sequence.queued()).any(|pages| pages.contains(&page))
    }

    /// What a byte costs the device now.
    pub(super) fn speed(&self, wire: &ServerConnection) -> Speed {
        self.device.speed(wire.push_path().map(|(rate, _)| rate))
    }

    /// A sequence is about to end: what a better bundle would have saved counts towards making one.
    pub(super) fn charge(&self, wire: &ServerConnection, at: usize) {
        let Some(sequence) = self.sequences.get(at).filter(|_| self.shared.bundler.is_some()) else { return };
        let Some(pushing) = sequence.pushing() else { return };
        if let Some(rate) = wire.push_rate() {
            self.device.note(|known| known.carried(rate));
        }
        let action = action_pages(&sequence.image, pushing.action);
        let start = pushing.start(&action, wire.push_rate());
        if let Some(start) = start.filter(|_| !action.is_empty()) {
            sequence.image.bundles.charge(pushing.action, action.len() as u32, &start);
        }
    }
}

/// What a device takes.
#[derive(Clone, Copy)]
pub(super) struct Takes {
    /// Pieces that say how they are encoded.
    pieces: bool,
    /// Largest zstd window, as a power of two.
    window_log_max: u8,
}

/// Whether pieces are better compressed each by itself, in LZ4, than as one zstd stream.
fn prefers_independent(takes: Takes, speed: &Speed) -> bool {
    let raw_bytes = PAGE_BYTES as u64;
    let fast = speed.nanos(PushCodec::Lz4, FAST_PAGE_BYTES, raw_bytes) + FAST_PAGE_NANOS;
    let zstd = speed.nanos(PushCodec::Zstd, LIVE_PAGE_BYTES, raw_bytes) + LIVE_PAGE_NANOS;
    takes.pieces && (fast < zstd || takes.window_log_max < LIVE_WINDOW_LOG_MIN)
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
