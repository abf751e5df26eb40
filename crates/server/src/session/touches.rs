//! Touches, hints and ends of programs, on their way to the pushes.

use std::sync::Arc;

use units::{PageId, Token};
use wire::ImageHandle;

use super::Session;
use super::block_touches::Touched;
use super::pushes::{ANONYMOUS, Link, Pushes};
use crate::advice::Advice;
use crate::volumes::OpenVolume;

impl Session {
    /// The pushes, and what they need of the connection; `None` before the client's Hello.
    pub(super) fn pushes(&mut self) -> Option<(&mut Pushes, Link<'_>)> {
        let Session { pushes, wire, handles, client, .. } = self;
        pushes.as_mut().map(|pushes| (pushes, Link { wire, handles, reader: client.reader() }))
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
        if let Some((pushes, mut link)) = self.pushes() {
            pushes.touched(&mut link, &image, token, &pages);
        }
    }

    /// Takes up some of the touches of data blocks that wait.
    pub(super) fn touch_some_blocks(&mut self) {
        if let Some(Touched { volume, open, token, blocks }) = self.touches.take_some() {
            self.touch_blocks(volume, open, token, &blocks);
        }
    }

    pub(super) fn touch_blocks(&mut self, volume: ImageHandle, open: Arc<OpenVolume>, token: Token, blocks: &[PageId]) {
        if let Some(pushes) = &mut self.pushes {
            pushes.touch_blocks(&mut self.wire, self.client.reader(), Touched { volume, open, token, blocks });
        }
    }

    pub(super) fn take_hint(&mut self, handle: ImageHandle, token: Token, mut pages: Vec<PageId>) {
        self.shared.metrics.hints.one();
        let (volume, image) = (self.handles.volume(handle).cloned(), self.handles.get(handle));
        let Some((pushes, link)) = self.pushes() else { return };
        let taken = if let Some(open) = volume {
            pushes.blocks().hint(handle, &open, token, &pages)
        } else if let Some(image) = image {
            pages.retain(|page| image.is_stored(*page));
            pushes.hint(&link, &image, token, pages)
        } else {
            // A hint for an image that was never opened is of no use to anybody.
            0
        };
        self.shared.metrics.pages_hinted.add(taken as u64);
    }

    pub(super) fn take_token_end(&mut self, handle: ImageHandle, token: Token) {
        let (volume, image) = (self.handles.volume(handle).cloned(), self.handles.get(handle));
        let Some((pushes, mut link)) = self.pushes().filter(|_| token != ANONYMOUS) else { return };
        if let Some(open) = volume {
            pushes.end_blocks(link.wire, handle, &open, token);
        } else if let Some(image) = image {
            pushes.end_program(&mut link, &image, token);
        }
    }

    pub(super) fn advise(&mut self, advice: Advice) {
        if let Some((pushes, mut link)) = self.pushes() {
            pushes.advise(&mut link, advice);
        }
    }
}
