//! Hints of a client, on their way to the pusher. The Predictor hears nothing of them.

use units::{PageId, Token};
use wire::ImageHandle;

use super::Session;

impl Session {
    pub(super) fn take_hint(&mut self, handle: ImageHandle, token: Token, mut pages: Vec<PageId>) {
        self.shared.metrics.hints.one();
        if let Some(open) = self.handles.volume(handle).cloned() {
            return self.hint_blocks(handle, &open, token, &pages);
        }
        // A hint for an image that was never opened is of no use to anybody.
        let (Some(image), Some(pusher)) = (self.handles.get(handle), &mut self.pusher) else { return };
        pages.retain(|page| image.is_stored(*page));
        let taken = pusher.hint(&self.wire, &self.handles, &image, token, pages);
        self.shared.metrics.pages_hinted.add(taken as u64);
    }
}
