//! One sequence: what one running program is being pushed, and for a while after its end what it
//! was sent.

use std::collections::VecDeque;
use std::sync::Arc;

use codec::StreamEncoder;
use units::{ActionId, ImageId, PAGE_BYTES, PageId, SEGMENT_PAGES_MAX, SegmentIndex, StreamId, Token};
use wire::{ImageHandle, PushEncoding, PushHeader};

use super::bundled::Bundled;
use super::part::Part;
use super::progress::Progress;
use crate::advice::Ordered;
use crate::budget::Room;
use crate::bundle::policy::Start;
use crate::published::Published;
use crate::speed::{PushCodec, Speed};

/// What a page of a piece that is not made yet is expected to come to: compressed to about a half.
pub(crate) const PAGE_BYTES_EXPECTED: usize = PAGE_BYTES / 2;

/// Push frames in flight or queued of one stream that are remembered for a cancel.
const QUEUED_MAX: usize = 128;

/// Where the pieces of a sequence come from.
pub(super) enum Source {
    Bundle(Bundled),
    /// Each piece by itself: in LZ4, or uncompressed if the link is fast.
    Independent,
    /// The encoder is made with the first piece, and away while one is being built.
    Live {
        encoder: Option<Box<StreamEncoder>>,
        window_log: u8,
        _slot: Room,
    },
    Stored,
}

/// How the pages of a piece are compressed.
pub(super) enum LiveCoding {
    /// Not at all.
    Stored,
    /// By themselves, in LZ4 or uncompressed. The bytes say which.
    Independent(PushCodec),
    /// They begin a zstd stream.
    First { window_log: u8 },
    /// They go on with one.
    Next(Box<StreamEncoder>),
}

impl Source {
    /// How the next piece that no bundle has is compressed. An encoder goes with it.
    pub fn take_coding(&mut self, speed: &Speed) -> LiveCoding {
        match self {
            Source::Live { encoder, window_log, .. } => {
                encoder.take().map_or(LiveCoding::First { window_log: *window_log }, LiveCoding::Next)
            }
            Source::Bundle(_) | Source::Independent if speed.prefers_stored() => {
                LiveCoding::Independent(PushCodec::Stored)
            }
            Source::Bundle(_) | Source::Independent => LiveCoding::Independent(PushCodec::Lz4),
            Source::Stored => LiveCoding::Stored,
        }
    }
}

/// One sequence. Its stream and the pages sent on it outlive what is left to send, since the device
/// may still ask for them.
pub(super) struct Sequence {
    pub number: u64,
    pub token: Token,
    pub handle: ImageHandle,
    pub image: Arc<Published>,
    /// Set with the first piece.
    stream: Option<StreamId>,
    /// Pages of the pieces queued lately: a cancel drops some of them.
    queued: VecDeque<Vec<PageId>>,
    state: State,
}

enum State {
    Pushing(Box<Pushing>),
    /// All was queued, or nothing more is to come.
    Ended,
    /// The client stopped it: what would extend it is not wanted either.
    Unwanted,
}

impl Sequence {
    pub fn new(number: u64, token: Token, handle: ImageHandle, image: Arc<Published>, pushing: Pushing) -> Sequence {
        let state = State::Pushing(Box::new(pushing));
        Sequence { number, token, handle, image, stream: None, queued: VecDeque::new(), state }
    }

    /// What is left to send; `None` once the sequence has ended.
    pub fn pushing(&self) -> Option<&Pushing> {
        match &self.state {
            State::Pushing(pushing) => Some(pushing),
            State::Ended | State::Unwanted => None,
        }
    }

    /// The same, to change it.
    pub fn pushing_mut(&mut self) -> Option<&mut Pushing> {
        match &mut self.state {
            State::Pushing(pushing) => Some(pushing),
            State::Ended | State::Unwanted => None,
        }
    }

    /// Nothing more is built: what is left to send goes, with a piece that is being built. False if
    /// it had ended already.
    pub fn end(&mut self) -> bool {
        let goes = matches!(self.state, State::Pushing(_));
        if goes {
            self.state = State::Ended;
        }
        goes
    }

    /// The client stopped it.
    pub fn set_unwanted(&mut self) {
        self.state = State::Unwanted;
    }

    pub fn has_ended(&self) -> bool {
        self.pushing().is_none()
    }

    pub fn is_unwanted(&self) -> bool {
        matches!(self.state, State::Unwanted)
    }

    /// Whether it is for this program.
    pub fn is_for(&self, image: ImageId, token: Token) -> bool {
        self.token == token && self.image.id == image
    }

    pub fn stream(&self) -> Option<StreamId> {
        self.stream
    }

    pub fn set_stream(&mut self, stream: StreamId) {
        self.stream = Some(stream);
    }

    /// How its stream begins; `None` once it has ended.
    pub fn header(&self) -> Option<PushHeader> {
        let Pushing { action, audit, source, .. } = self.pushing()?;
        let (encoding, window_log) = match source {
            Source::Bundle(bundled) => (PushEncoding::Pieces, bundled.window_log()),
            Source::Independent => (PushEncoding::Pieces, 0),
            Source::Live { window_log, .. } => (PushEncoding::ZstdStream, *window_log),
            Source::Stored => (PushEncoding::Stored, 0),
        };
        let (image, token) = (self.handle, self.token);
        Some(PushHeader { image, token, action: *action, encoding, window_log, audit: *audit })
    }

    /// A piece of these pages was queued.
    pub fn remember(&mut self, pages: Vec<PageId>) {
        if self.queued.len() >= QUEUED_MAX {
            self.queued.pop_front();
        }
        self.queued.push_back(pages);
    }

    /// Pages of the pieces queued lately, the oldest piece first.
    pub fn queued(&self) -> &VecDeque<Vec<PageId>> {
        &self.queued
    }

    /// Whether a piece is being built for it.
    pub fn is_building(&self) -> bool {
        self.pushing().is_some_and(|pushing| pushing.progress.is_building())
    }

    /// Whether the page is in the piece that is being built.
    pub fn builds(&self, page: PageId) -> bool {
        self.pushing().is_some_and(|pushing| pushing.progress.builds(page))
    }
}

/// What is left to send of a sequence.
pub(super) struct Pushing {
    pub action: ActionId,
    revision: u32,
    audit: bool,
    /// At least 1.
    segment_pages: u32,
    pub source: Source,
    part: Part,
    pub progress: Progress,
}

impl Pushing {
    /// This part of what `order` says.
    pub fn new(order: &Ordered, source: Source, (part, progress): (Part, Progress)) -> Pushing {
        let (action, revision, audit) = (order.action, order.revision, order.audit);
        let segment_pages = order.segment_pages.max(1);
        Pushing { action, revision, audit, segment_pages, source, part, progress }
    }

    /// Takes an order that goes on where this one ends, or one page behind that. False if it does
    /// not fit.
    pub fn extend(&mut self, order: &Ordered) -> bool {
        self.action == order.action && self.revision == order.revision && self.part.extend(&mut self.progress, order)
    }

    /// Sends nothing from this position of the action on until an order says so. What is queued or
    /// being built goes.
    pub fn hold(&mut self, position: u32) {
        self.part.hold(&mut self.progress, position);
    }

    /// What it cost to push as much of it as was queued, if a bundle makes a difference to that.
    /// `action`: the pages of the action now; `rate`: that of the link, in bytes a second.
    pub fn start(&self, action: &[PageId], rate: Option<u64>) -> Option<Start> {
        let queued = self.progress.queued_pages();
        let live = Start { rate, live_pages: queued, ..Start::default() };
        match (&self.part, &self.source) {
            (Part::All { bundled: true } | Part::Lacking(..), Source::Live { .. } | Source::Independent) => Some(live),
            (Part::Held(bundle, _), _) => {
                let surplus = u32::try_from(bundle.fit(action).surplus).unwrap_or(u32::MAX).min(queued);
                let held = Some(bundle.forms);
                Some(Start { rate, held, surplus_pages: surplus, held_pages: queued - surplus, live_pages: 0 })
            }
            _ => None,
        }
    }

    /// Position behind the next piece, if one can be built now.
    pub fn piece_end(&self) -> Option<u32> {
        match &self.source {
            Source::Bundle(bundled) => self.progress.piece_end(bundled.bundle.piece_pages, true),
            _ => self.progress.piece_end(self.segment_pages.min(SEGMENT_PAGES_MAX as u32), false),
        }
    }

    /// The segment of the piece that is being built.
    pub fn segment(&self) -> SegmentIndex {
        // `next` lies behind the piece, so the page before it tells the segment.
        SegmentIndex(self.progress.next().saturating_sub(1) / self.segment_pages)
    }

    /// Pages at the next `span` positions to send, without those it gave before: the Provider reads
    /// their blocks. A bundle needs none.
    pub fn take_ahead(&mut self, span: u32) -> Vec<PageId> {
        match self.source {
            Source::Bundle(_) => Vec::new(),
            _ => self.progress.take_ahead(span),
        }
    }

    /// Bytes to be pushed until `page` has left, if it is ordered, its piece is not queued yet, and
    /// it is not far ahead; a guess where pieces are not made yet.
    pub fn bytes_until(&self, page: PageId) -> Option<usize> {
        let index = self.progress.find(page)?;
        Some(match &self.source {
            Source::Bundle(bundled) => {
                let queued = self.progress.queued_through();
                let position = queued.saturating_add(index);
                let pieces = bundled.bundle.piece_pages.max(1);
                if !bundled.is_wanted(position) {
                    return None;
                }
                bundled.bundle.bytes_of(queued / pieces..=position / pieces)
            }
            Source::Live { .. } | Source::Independent => PAGE_BYTES_EXPECTED * (index as usize + 1),
            Source::Stored => PAGE_BYTES * (index as usize + 1),
        })
    }
}
