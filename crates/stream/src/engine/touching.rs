//! What the server is told of blocks besides requests: touches, by which it pushes; credit for
//! pushed pieces; hints; shares of the link.

use units::{InodeId, Moment, PageId, StreamId, Token};
use wire::Notice;

use super::Engine;
use super::file::Block;
use super::touches::{TOUCH_TIME, Touch};
use crate::Share;
use crate::call::Handle;

/// Blocks of one hint.
const HINT_BLOCKS_MAX: usize = wire::format::HINT_PAGES_MAX;

/// The stream of hints; of no running action.
const HINT_TOKEN: Token = Token(0x7ead_0001);

impl Engine {
    /// Notes touches of blocks that were here; `first` is about to be asked for, `more` with it.
    pub(super) fn touch_blocks(
        &mut self,
        key: u64,
        token: Token,
        here: &[(u32, bool)],
        first: Option<u32>,
        more: &[(u32, bool)],
    ) {
        let Some(file) = self.files.get_mut(&key) else { return };
        let mut at_once = false;
        let mut due = None;
        let before = here.iter().filter(|(index, _)| first.is_none_or(|first| *index < first));
        for (index, fresh) in before {
            if file.touched != Some((token, *index)) {
                self.touches.add(Touch { file: key, token, index: *index });
                file.touched = Some((token, *index));
            }
            // What is waited for is told with the credit for it.
            let comes = match file.blocks.get(index) {
                Some(Block::OnTheWay { until, .. }) => *until,
                _ => self.session.now().after(TOUCH_TIME),
            };
            due = Some(due.map_or(comes, |due: Moment| due.min(comes)));
            // Of blocks that came together the last one is told at once, with all before it.
            let next = index.checked_add(1);
            let more = next.and_then(|next| file.blocks.get(&next));
            let comes = next.is_some_and(|next| self.session.link.expects(file, next, self.session.now()).is_some());
            at_once |= *fresh && !comes && !matches!(more, Some(Block::Memory { fresh: true, .. }));
        }
        if let Some(first) = first {
            // In order: what was touched before the request must be told before.
            file.touched = Some((token, first));
            at_once = true;
        }
        if at_once || self.touches.is_full() {
            self.send_touches();
        }
        let Some(first) = first else {
            self.touches.send_by(due);
            return;
        };
        let Some(file) = self.files.get_mut(&key) else { return };
        let here = here.iter().filter(|(index, _)| *index > first);
        let mut rest: Vec<u32> = here.chain(more).map(|(index, _)| *index).collect();
        rest.sort_unstable();
        for index in rest {
            self.touches.add(Touch { file: key, token, index });
            file.touched = Some((token, index));
        }
        self.touches.send_by(Some(self.session.now().after(TOUCH_TIME)));
    }

    /// Notes that a piece was taken: its bytes are given back with the touches that most often follow.
    pub(super) fn note_credit(&mut self, stream: StreamId, bytes: u32) {
        if self.touches.add_credit(stream, bytes) {
            self.send_touches();
        } else {
            self.touches.send_by(Some(self.session.now().after(TOUCH_TIME)));
        }
    }

    /// Sends touches and credit that wait.
    pub(super) fn send_touches(&mut self) {
        let (credits, touches) = self.touches.take();
        for (stream, bytes) in credits {
            self.session.link.notify(Notice::Credit { stream, bytes });
        }
        let Some(volume) = self.session.link.volume() else { return };
        let numbered = touches.into_iter().filter_map(|Touch { file, token, index }| {
            let number: InodeId = self.files.get(&file)?.number?;
            Some((token, PageId::new(number, index)))
        });
        let numbered: Vec<(Token, PageId)> = numbered.collect();
        let runs = numbered.chunk_by(|a, b| a.0 == b.0);
        for run in runs.flat_map(|run| run.chunks(wire::format::TOUCH_PAGES_MAX)) {
            let blocks = run.iter().map(|(_, block)| *block).collect();
            self.session.link.notify(Notice::Touch { image: volume, token: run[0].0, pages: blocks });
        }
    }

    pub(super) fn hint(&mut self, handle: Handle, ranges: &[(u64, u64)]) {
        let block = u64::from(self.session.block_bytes());
        let (Some(open), Some(volume)) = (self.files.handle(handle), self.session.link.volume()) else { return };
        let Some(file) = self.files.get(&open.file).filter(|_| self.session.options().hints) else { return };
        let Some(number) = file.number else { return };
        let mut blocks = Vec::new();
        for (offset, bytes) in ranges {
            let end = offset.saturating_add(*bytes).min(file.size);
            if *offset >= end {
                continue;
            }
            let (first, last) = (offset / block, (end - 1) / block);
            for index in first..=last.min(u64::from(u32::MAX)) {
                let index = index as u32;
                if blocks.len() < wire::format::HINT_PAGES_WAITING_MAX
                    && !file.blocks.contains_key(&index)
                    && !file.present.is_hole(index)
                {
                    blocks.push(PageId::new(number, index));
                }
            }
        }
        for blocks in blocks.chunks(HINT_BLOCKS_MAX) {
            self.session.link.notify(Notice::Hint { image: volume, token: HINT_TOKEN, pages: blocks.to_vec() });
        }
    }

    pub(super) fn share(&mut self, handle: Handle, share: Share) {
        let Some(open) = self.files.handle(handle) else { return };
        let Some(file) = self.files.get_mut(&open.file) else { return };
        file.share = Some(share);
        if let (Some(number), Some(volume)) = (file.number, self.session.link.volume()) {
            self.session.link.notify(Notice::FileShare { volume, file: number, share });
        }
    }
}
