//! What is pushed on a connection.

use std::sync::Arc;
use std::time::Duration;

use predict::{Predictor, PushOrder, Reader, Verdict};
use profile::Teacher;
use tokio::sync::mpsc::UnboundedSender;
use units::{ImageId, PageId, RequestId, StreamId, Token};
use wire::{ImageHandle, ServerConnection};

use super::block_touches::Touched;
use crate::advice::{Advice, Ordered};
use crate::device::Device;
use crate::done::{Built, DoneSender};
use crate::error::Failure;
use crate::handles::Handles;
use crate::lock::locked;
use crate::peer::Owner;
use crate::proofs::Proven;
use crate::published::Published;
use crate::push::{BlockPusher, PagePusher};
use crate::shared::Shared;
use crate::speed::{NEAR, NEAR_RATE};
use crate::volumes::{Foreseen, OpenVolume};

/// Demands of a connection that wait for a piece; further ones are answered by themselves.
const POSTPONED_MAX: usize = 64;

/// Touches given to the predictor under one lock: some ten microseconds.
const TOUCHES_AT_ONCE: usize = 32;

/// The token of reads that belong to no program: a client's readahead, and readers it cannot tell.
/// They mix whatever runs on the device, so nothing is learned from them and nothing predicted for
/// them.
pub(super) const ANONYMOUS: Token = Token(0);

/// The other parts of a connection that a push needs.
pub(super) struct Link<'a> {
    pub wire: &'a mut ServerConnection,
    pub handles: &'a Handles,
    /// Whose touches they are.
    pub reader: Reader,
}

/// The pushes of a connection whose device has said who it is, and what they follow from: the
/// pages and blocks that its programs touch.
///
/// Invariant: a demand is postponed only while a piece of data blocks is being built. When it is
/// built, all of them are taken. The record of the device has what was sent or demanded here.
pub(super) struct Pushes {
    shared: Arc<Shared>,
    owner: Owner,
    device: Arc<Device>,
    pages: PagePusher,
    blocks: BlockPusher,
    postponed: Vec<Postponed>,
    is_near: bool,
}

/// A demand whose block is being built into a piece.
pub(super) struct Postponed {
    pub request: RequestId,
    pub volume: ImageHandle,
    pub token: Token,
    pub blocks: Vec<PageId>,
}

impl Pushes {
    pub fn new(
        shared: &Arc<Shared>,
        device: Arc<Device>,
        owner: Owner,
        done: &DoneSender,
        advice: &UnboundedSender<Box<Advice>>,
    ) -> Pushes {
        Pushes {
            pages: PagePusher::new(shared.clone(), device.clone(), owner, done.clone(), advice.clone()),
            blocks: BlockPusher::new(shared.clone(), owner, done.clone()),
            shared: shared.clone(),
            owner,
            device,
            postponed: Vec::new(),
            is_near: false,
        }
    }

    /// The device says how near it is, in microseconds, and what it decodes, in KiB a second.
    pub fn told_speed(&mut self, round_trip: u32, zstd: u32, lz4: u32) {
        if round_trip > 0 {
            self.is_near = Duration::from_micros(round_trip.into()) < NEAR;
        }
        self.device.note(|known| known.told(round_trip, zstd, lz4));
    }

    /// Whether the device is so near that decoding takes it longer than the link takes, as it said
    /// on this connection: another one of its address may be far away.
    pub fn is_near(&self) -> bool {
        self.is_near
    }

    /// What predictors, which all devices tell their touches, call a token of this device.
    pub fn run_of(&self, token: Token) -> Token {
        self.device.scoped(token)
    }

    /// The pushes of data blocks.
    pub fn blocks(&mut self) -> &mut BlockPusher {
        &mut self.blocks
    }

    /// A stream of pages that brings `page` so soon that it is not worth answering a demand with
    /// `answer_bytes`.
    pub fn page_on_the_way(
        &self,
        wire: &ServerConnection,
        image: ImageHandle,
        page: PageId,
        answer_bytes: usize,
    ) -> Option<StreamId> {
        self.pages.on_the_way(wire, image, page, answer_bytes)
    }

    /// Whether a push brings what a program needs beside `page`, which it has touched; or, without
    /// a page, what it will need next.
    pub fn foresees(&self, wire: &ServerConnection, image: &Published, token: Token, page: Option<PageId>) -> bool {
        if token == ANONYMOUS || !self.pages.pushes_to(wire, image.id, token) {
            return false;
        }
        let (predictor, run) = (locked(&image.predictor), self.run_of(token));
        page.map_or_else(|| predictor.is_in_step(run), |page| predictor.foresees(run, page))
    }

    /// Whether a push of the program has sent `page`.
    pub fn has_pushed(&self, image: &Published, token: Token, page: PageId) -> bool {
        self.pages.has_pushed(image.id, token, page)
    }

    /// Sends the chunk hashes of what is about to be answered with, if the device takes them so.
    pub fn prove(
        &mut self,
        link: &mut Link<'_>,
        image: (ImageHandle, &Published),
        of: Proven<'_>,
    ) -> Result<(), Failure> {
        self.pages.prove(link.wire, image.0, image.1, of)
    }

    /// Queues a piece of pages that was built.
    pub fn built(&mut self, wire: &mut ServerConnection, built: Built) {
        self.pages.built(wire, built);
    }

    /// Builds pieces while the wire has room and no more than `bytes_max` are queued.
    pub fn pump(&mut self, wire: &mut ServerConnection, bytes_max: usize) {
        let presses = self.blocks.presses(wire);
        self.pages.pump(wire, bytes_max, presses);
        self.blocks.pump(wire, bytes_max);
    }

    /// The client does not want a stream.
    pub fn stopped(&mut self, stream: StreamId) {
        self.pages.stopped(stream);
        self.blocks.stopped(stream);
    }

    /// A demand of pages is answered: what the device has, and what follows from the touch. Whether
    /// the device had the first one before.
    pub fn demanded(
        &mut self,
        link: &mut Link<'_>,
        image: &Arc<Published>,
        token: Token,
        pages: &[PageId],
        force: bool,
    ) -> bool {
        let mut dropped = false;
        if let Some(touched) = pages.first().copied().filter(|_| token != ANONYMOUS) {
            // A forced demand follows a push that ended early; it says nothing about what the
            // device lost.
            if force {
                self.device.not_sent(image.id, pages);
            } else {
                dropped = self.device.demanded(image.id, touched);
            }
            self.touch(link, image, token, touched, dropped);
        }
        self.device.sent(image.id, pages);
        image.bundles.asked_over(self.is_near.then_some(NEAR_RATE));
        dropped
    }

    /// Tells the predictor of a touch and acts on what it says.
    pub fn touch(&mut self, link: &mut Link<'_>, image: &Arc<Published>, token: Token, page: PageId, cold: bool) {
        if !self.learns_from(token) {
            return;
        }
        self.pages.touched(link.wire, image.id, page);
        let (now, run) = (self.shared.now(), self.run_of(token));
        let advice = {
            let mut predictor = locked(&image.predictor);
            let verdict = predictor.touch(link.reader, run, page, now);
            advice_of(&predictor, image.id, (token, run), verdict, cold, self.pages_ahead())
        };
        self.route(link, advice);
    }

    /// The device has touched `pages` without a demand.
    pub fn touched(&mut self, link: &mut Link<'_>, image: &Published, token: Token, pages: &[PageId]) {
        self.device.sent(image.id, pages);
        if !self.learns_from(token) {
            return;
        }
        let (now, run) = (self.shared.now(), self.run_of(token));
        for some in pages.chunks(TOUCHES_AT_ONCE) {
            let advice: Vec<Advice> = {
                let mut predictor = locked(&image.predictor);
                let advice = some.iter().filter_map(|page| {
                    let verdict = predictor.touch(link.reader, run, *page, now);
                    advice_of(&predictor, image.id, (token, run), verdict, false, self.pages_ahead())
                });
                advice.collect()
            };
            advice.into_iter().for_each(|advice| self.route(link, Some(advice)));
        }
    }

    /// The device asks for pages in advance. Nothing is learned from that. How many are taken.
    pub fn hint(&mut self, link: &Link<'_>, image: &Published, token: Token, pages: Vec<PageId>) -> usize {
        self.pages.hint(link.wire, link.handles, image, token, pages)
    }

    /// A program that uses the image ended.
    pub fn end_program(&mut self, link: &mut Link<'_>, image: &Published, token: Token) {
        if self.shared.config.learning.enabled {
            locked(&image.predictor).end(self.run_of(token), self.shared.now());
        }
        self.route(link, Some(Advice::ended(image.id, token)));
    }

    /// Acts on advice for a token that this connection pushes to.
    pub fn advise(&mut self, link: &mut Link<'_>, advice: Advice) {
        self.pages.advise(link.wire, link.handles, advice);
    }

    /// Gives advice to the connection that pushes to the token: usually this one.
    fn route(&mut self, link: &mut Link<'_>, advice: Option<Advice>) {
        let Some(advice) = advice else { return };
        if let Some(advice) = self.device.route(self.owner.connection, advice.image, advice.token, advice) {
            self.advise(link, advice);
        }
    }

    fn learns_from(&self, token: Token) -> bool {
        self.shared.config.learning.enabled && token != ANONYMOUS
    }

    fn pages_ahead(&self) -> u32 {
        self.shared.config.learning.pages_ahead()
    }

    /// Tells the predictors of a volume of a few touches, and acts on what follows.
    pub fn touch_blocks(&mut self, wire: &mut ServerConnection, reader: Reader, touched: Touched<&[PageId]>) {
        let Touched { volume, open, token, blocks } = touched;
        if !self.learns_from(token) {
            return;
        }
        let (now, run) = (self.shared.now(), self.run_of(token));
        // Its memory counts against its machine.
        let owner = Reader { teacher: Teacher(self.owner.peer.number().0), ..reader };
        let ids: Vec<_> = {
            let files = locked(&open.files);
            blocks.iter().map(|block| files.get(block.inode).map(|(_, id)| id)).collect()
        };
        let foreseen: Vec<Foreseen> = {
            let mut profiles = locked(&open.served.profiles);
            let known = blocks.iter().zip(ids).filter_map(|(block, id)| Some((block, id?)));
            known.map(|(block, id)| profiles.touch(owner, run, id, block.index, now)).collect()
        };
        self.blocks.touched();
        for foreseen in foreseen.into_iter().filter(|foreseen| *foreseen != Foreseen::default()) {
            self.blocks.foreseen(wire, volume, &open, token, foreseen);
        }
    }

    /// A program that uses the volume ended.
    pub fn end_blocks(&mut self, wire: &mut ServerConnection, volume: ImageHandle, open: &OpenVolume, token: Token) {
        locked(&open.served.profiles).end(self.run_of(token), self.shared.now());
        self.blocks.ended(wire, volume, token);
    }

    /// Keeps a demand until the piece is built that brings its first block. False if there is no
    /// such piece.
    pub fn postpone(&mut self, request: RequestId, volume: ImageHandle, token: Token, blocks: &[PageId]) -> bool {
        let is_building = |block: &PageId| self.blocks.is_building(volume, *block);
        if self.postponed.len() >= POSTPONED_MAX || !blocks.first().is_some_and(is_building) {
            return false;
        }
        self.postponed.push(Postponed { request, volume, token, blocks: blocks.to_vec() });
        true
    }

    /// The demands that waited for a piece.
    pub fn take_postponed(&mut self) -> Vec<Postponed> {
        std::mem::take(&mut self.postponed)
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
        // The run may follow an older revision than the set has; then the length of its action is
        // not known any more.
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
    (verdict.cancel || verdict.hold.is_some() || order.is_some()).then_some(Advice {
        image,
        token,
        cancel: verdict.cancel,
        hold: verdict.hold,
        ended: false,
        cold,
        order,
    })
}

/// The page before an order that extends a sequence. In paper mode it was demanded just now and
/// ordered by nobody.
fn page_before(predictor: &predict::ActionPredictor, run: Token, order: &PushOrder) -> Option<PageId> {
    let from = order.from.checked_sub(1).filter(|_| !order.begins)?;
    predictor.pages(run, &PushOrder { from, through: order.from, ..*order }).first().copied()
}
