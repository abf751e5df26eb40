//! Hints: pages that a device wants pushed because it knows what a program will need.
//!
//! They become a sequence of their own, whose action nobody learned. Nothing is predicted or
//! learned here. A connection has one such sequence at a time, because it holds an encoder. Further
//! hints extend it, and it is complete when all pages are queued.
//!
//! A hint makes the server do no more than demands for the same pages would. Pieces of up to 32
//! pages are built one at a time, behind all answers, and only while the in-flight window has room,
//! which the client opens by credit. The list of pages that wait is bounded. The device decides
//! what it needs: pages that it was sent before are pushed again, as they would be demanded again.
//! The record of what was sent only keeps a page from being pushed twice for one hint.

use units::{PageId, SEGMENT_PAGES_MAX, Token};
use wire::ServerConnection;
use wire::format::{HINT_ACTION, HINT_PAGES_WAITING_MAX};

use super::PagePusher;
use super::sequence::{Pushing, Sequence};
use crate::advice::Ordered;
use crate::handles::Handles;
use crate::published::Published;

impl PagePusher {
    /// Orders `pages`, all of them stored in `image`, behind what was hinted before. Returns how
    /// many were taken: fewer if too many wait, none if another token is being hinted for, or
    /// nothing can be pushed now.
    pub fn hint(
        &mut self,
        wire: &ServerConnection,
        handles: &Handles,
        image: &Published,
        token: Token,
        mut pages: Vec<PageId>,
    ) -> usize {
        let mut hinted =
            self.sequences.iter_mut().filter(|sequence| sequence.pushing().is_some_and(Pushing::is_hinted));
        let current = hinted.next();
        let pushing = current.as_deref().and_then(Sequence::pushing);
        let waiting = pushing.map_or(0, |pushing| pushing.progress.waiting_pages());
        pages.truncate(HINT_PAGES_WAITING_MAX.saturating_sub(waiting));
        let taken = match current {
            _ if pages.is_empty() => false,
            Some(sequence) => {
                let mine = sequence.is_for(image.id, token);
                mine && sequence.pushing_mut().is_some_and(|pushing| pushing.progress.append(&pages))
            }
            None => self.begin(wire, handles, image.id, token, ordered(pages.clone()), false),
        };
        if !taken {
            return 0;
        }
        self.device.not_sent(image.id, &pages);
        pages.len()
    }
}

/// The order that begins a sequence of hinted pages.
fn ordered(pages: Vec<PageId>) -> Ordered {
    Ordered {
        action: HINT_ACTION,
        revision: 0,
        begins: true,
        from: 0,
        total: pages.len() as u32,
        pages,
        coming: Vec::new(),
        before: None,
        segment_pages: SEGMENT_PAGES_MAX as u32,
        audit: false,
    }
}

impl Pushing {
    /// Whether it was made for hints.
    fn is_hinted(&self) -> bool {
        self.action == HINT_ACTION
    }
}
