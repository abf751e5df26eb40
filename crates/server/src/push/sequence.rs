//! What one running program is being pushed: pages of one action, where they come from, and how far it has got.

use std::collections::VecDeque;
use std::sync::Arc;

use codec::StreamEncoder;
use tokio::sync::OwnedSemaphorePermit;
use units::{ActionId, PAGE_BYTES, PageId, SEGMENT_PAGES_MAX, StreamId, Token};
use wire::ImageHandle;

use super::Ordered;
use crate::bundle::Bundle;
use crate::published::Published;

/// What a page of a piece that is not made yet is expected to come to: compressed to about a half.
pub(crate) const PAGE_BYTES_EXPECTED: usize = PAGE_BYTES / 2;

/// Ordered pages that are looked through for one that is demanded: more than the largest window holds.
const LOOK_PAGES_MAX: usize = 4096;

/// Where the pieces of a sequence come from.
pub(super) enum Source {
    Bundle(Arc<Bundle>),
    /// The encoder is away while a piece is being built.
    Live {
        encoder: Option<Box<StreamEncoder>>,
        window_log: u8,
        _slot: OwnedSemaphorePermit,
    },
    Stored,
}

/// One sequence.
pub(super) struct Sequence {
    pub number: u64,
    pub token: Token,
    pub handle: ImageHandle,
    pub image: Arc<Published>,
    pub action: ActionId,
    pub revision: u32,
    pub audit: bool,
    pub total: u32,
    pub segment_pages: u32,
    /// Position of the first of `pages`.
    pub base: u32,
    pub pages: Vec<PageId>,
    /// The pages after `pages`, as far as the Provider knows them.
    pub coming: Vec<PageId>,
    /// Next position to send.
    pub next: u32,
    /// Position up to which pieces were queued: those from here to `next` are being built.
    pub queued_through: u32,
    /// Position up to which blocks were read ahead.
    pub ahead: u32,
    pub source: Source,
    pub building: bool,
    /// Set with the first piece.
    pub stream: Option<StreamId>,
    /// All was queued, or the client stopped it.
    pub ended: bool,
    /// The client stopped it: what would extend it is not wanted either.
    pub unwanted: bool,
    /// Pages of the pieces queued lately: a cancel drops some of them.
    pub queued: VecDeque<Vec<PageId>>,
}

impl Sequence {
    pub fn through(&self) -> u32 {
        self.base + self.pages.len() as u32
    }

    /// Takes an order that goes on where this sequence ends, or one page behind that. False if it does not fit.
    pub fn extend(&mut self, order: &Ordered) -> bool {
        if self.action != order.action || self.revision != order.revision || order.from < self.base {
            return false;
        }
        match (order.from.checked_sub(self.through()), order.before) {
            // The page between was demanded just now: it is not pushed again unless it is part of a bundle's piece.
            (Some(1), Some(before)) => self.pages.push(before),
            (Some(gap), _) if gap > 0 => return false,
            _ => {}
        }
        let known = (self.through() - order.from) as usize;
        self.pages.extend(order.pages.iter().skip(known));
        // An order that says nothing new is one from before.
        if order.through() == self.through() {
            self.coming.clone_from(&order.coming);
        }
        true
    }

    /// Pages at the next `span` positions to send, without those it gave before: the Provider reads their blocks. A bundle
    /// needs none.
    pub fn take_ahead(&mut self, span: u32) -> Vec<PageId> {
        if matches!(self.source, Source::Bundle(_)) {
            return Vec::new();
        }
        let known = self.pages.iter().chain(&self.coming);
        let from = self.ahead.max(self.next);
        let through = self.next.saturating_add(span);
        let skipped = (from - self.base) as usize;
        let pages: Vec<PageId> = known.skip(skipped).take(through.saturating_sub(from) as usize).copied().collect();
        self.ahead = from + pages.len() as u32;
        pages
    }

    /// Bytes to be pushed until `page` has left, if it is ordered, its piece is not queued yet, and it is not far ahead; a
    /// guess where pieces are not made yet.
    pub fn bytes_until(&self, page: PageId) -> Option<usize> {
        let ahead = self.pages.get((self.queued_through - self.base) as usize..)?;
        let index = ahead.iter().take(LOOK_PAGES_MAX).position(|ordered| *ordered == page)?;
        Some(match &self.source {
            Source::Bundle(bundle) => {
                let position = self.queued_through + index as u32;
                bundle.bytes_of(self.queued_through / bundle.piece_pages..=position / bundle.piece_pages)
            }
            Source::Live { .. } => PAGE_BYTES_EXPECTED * (index + 1),
            Source::Stored => PAGE_BYTES * (index + 1),
        })
    }

    /// Whether the page is in the piece that is being built.
    pub fn is_building(&self, page: PageId) -> bool {
        self.building && self.page_range(self.queued_through, self.next).contains(&page)
    }

    pub fn page_range(&self, from: u32, through: u32) -> &[PageId] {
        &self.pages[(from - self.base) as usize..(through - self.base) as usize]
    }

    /// Positions of the next piece, if all of it is ordered.
    pub fn next_piece(&self) -> Option<(u32, u32)> {
        let piece_pages = match &self.source {
            Source::Bundle(bundle) => bundle.piece_pages,
            _ => self.segment_pages.min(SEGMENT_PAGES_MAX as u32),
        };
        let end = ((self.next / piece_pages + 1) * piece_pages).min(self.total);
        let whole = matches!(self.source, Source::Bundle(_));
        let through = end.min(self.through());
        (self.next < through && (!whole || through == end)).then_some((self.next, through))
    }
}
