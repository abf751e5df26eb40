//! Hinted pages in the simulation.

use super::*;

impl Sim {
    pub(super) fn hint(&mut self) {
        let (first, step) = (self.pick(101) as u32, 1 + self.pick(3));
        let pages: Vec<PageId> =
            (first..first + 20).step_by(step).map(|index| PageId::new(self.tree.big(), index)).collect();
        self.schedule.hint(self.now, &pages);
        self.settle();
    }

    /// A server that pushes what was hinted, or one that has never heard of hints.
    pub(super) fn obey_hint(&mut self, connection: ConnectionIndex, token: Token, pages: &[PageId]) {
        if self.pick(2) == 0 {
            self.schedule.pull_hinted(self.now, pages);
            return self.settle();
        }
        self.streams_begun += 1;
        let key = StreamKey { connection, generation: self.generation, stream: StreamId(self.streams_begun) };
        let info = StreamInfo { token, audit: false, hinted: true };
        self.schedule.stream_started(key, info);
        self.streams.push((key, info));
        self.schedule.pushes().piece_received(pages.iter().copied());
        self.pieces.push_back((key, info, pages.to_vec()));
    }

    /// The storer takes up the next block with hinted pages.
    pub(super) fn store_hinted(&mut self) {
        let Some(block) = self.hinted.pop_front() else { return };
        let mut raw = Vec::new();
        let mut candidates = block.candidates(&self.tree.metadata, &mut raw);
        if !block.bytes.is_verified() {
            retain_good(&self.tree.metadata, &mut candidates, &raw);
        }
        if let Some(token) = self.schedule.hinted_arriving(self.now, &candidates) {
            self.store(candidates, &raw, Some(token));
        }
        self.schedule.hinted_stored(self.now, block.block);
        self.settle();
    }
}
