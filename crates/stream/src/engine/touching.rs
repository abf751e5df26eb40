//! What the server is told of blocks besides requests: touches, in their order, since it pushes by them; credit for pieces; hints; shares
//! of the link. On a thin link each packet costs an acknowledgement on the way that is full: what belongs together leaves together.

use units::{InodeId, Moment, PageId, StreamId, Token};
use wire::Notice;

use super::file::Block;
use super::{Engine, TOUCH_TIME};
use crate::Share;
use crate::call::Handle;

/// Touches that wait at most; then they are sent.
const TOUCHES_MAX: usize = 512;

/// Credit that waits at most; then it is given, so that it never holds a fast link up.
const CREDIT_BYTES_MAX: u64 = 16 << 10;

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
                self.touches.push((key, token, *index));
                file.touched = Some((token, *index));
            }
            // What is waited for is told with the credit for it.
            let comes = match file.blocks.get(index) {
                Some(Block::OnTheWay { until, .. }) => *until,
                _ => self.time.now.after(TOUCH_TIME),
            };
            due = Some(due.map_or(comes, |due: Moment| due.min(comes)));
            // Of blocks that came together the last one is told at once, with all before it.
            let next = index.checked_add(1);
            let more = next.and_then(|next| file.blocks.get(&next));
            let comes = next.is_some_and(|next| self.link.expects(file, next, self.time.now).is_some());
            at_once |= *fresh && !comes && !matches!(more, Some(Block::Memory { fresh: true, .. }));
        }
        if let Some(first) = first {
            // In order: what was touched before the request must be told before.
            file.touched = Some((token, first));
            at_once = true;
        }
        if at_once || self.touches.len() >= TOUCHES_MAX {
            self.send_touches();
        }
        let Some(first) = first else {
            self.note_touches_due(due);
            return;
        };
        let Some(file) = self.files.get_mut(&key) else { return };
        let here = here.iter().filter(|(index, _)| *index > first);
        let mut rest: Vec<u32> = here.chain(more).map(|(index, _)| *index).collect();
        rest.sort_unstable();
        for index in rest {
            self.touches.push((key, token, index));
            file.touched = Some((token, index));
        }
        self.note_touches_due(Some(self.time.now.after(TOUCH_TIME)));
    }

    fn note_touches_due(&mut self, due: Option<Moment>) {
        if !self.touches.is_empty() || !self.credits.is_empty() {
            self.touches_due = [self.touches_due, due].into_iter().flatten().min();
        }
    }

    /// Notes that a piece was taken: its bytes are given back with the touches that most often follow.
    pub(super) fn note_credit(&mut self, stream: StreamId, bytes: u32) {
        self.credits.push((stream, bytes));
        let waiting: u64 = self.credits.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
        if waiting >= CREDIT_BYTES_MAX {
            self.send_touches();
        } else {
            self.note_touches_due(Some(self.time.now.after(TOUCH_TIME)));
        }
    }

    /// Sends touches and credit that wait.
    pub(super) fn send_touches(&mut self) {
        self.touches_due = None;
        for (stream, bytes) in std::mem::take(&mut self.credits) {
            self.notify(Notice::Credit { stream, bytes });
        }
        let touches = std::mem::take(&mut self.touches);
        let Some(volume) = self.link.volume else { return };
        let numbered = touches.into_iter().filter_map(|(key, token, index)| {
            let number: InodeId = self.files.get(&key)?.number?;
            Some((token, PageId::new(number, index)))
        });
        let numbered: Vec<(Token, PageId)> = numbered.collect();
        let runs = numbered.chunk_by(|a, b| a.0 == b.0);
        for run in runs.flat_map(|run| run.chunks(wire::format::TOUCH_PAGES_MAX)) {
            let blocks = run.iter().map(|(_, block)| *block).collect();
            self.notify(Notice::Touch { image: volume, token: run[0].0, pages: blocks });
        }
    }

    pub(super) fn hint(&mut self, handle: Handle, ranges: &[(u64, u64)]) {
        let block = u64::from(self.block_bytes());
        let (Some(open), Some(volume)) = (self.handles.get(&handle), self.link.volume) else { return };
        let Some(file) = self.files.get(&open.file).filter(|_| self.options.hints) else { return };
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
            self.notify(Notice::Hint { image: volume, token: HINT_TOKEN, pages: blocks.to_vec() });
        }
    }

    pub(super) fn share(&mut self, handle: Handle, share: Share) {
        let Some(open) = self.handles.get(&handle) else { return };
        let Some(file) = self.files.get_mut(&open.file) else { return };
        file.share = Some(share);
        if let (Some(number), Some(volume)) = (file.number, self.link.volume) {
            self.notify(Notice::FileShare { volume, file: number, share });
        }
    }
}
