//! Hints to the server: which blocks will be needed soon, and the share of the link that a file
//! gets.

use units::{PageId, Token};
use wire::Notice;
use wire::volume::Share;

use super::reader::Reader;
use crate::Handle;

/// Blocks of one hint.
const HINT_BLOCKS_MAX: usize = wire::format::HINT_PAGES_MAX;

/// The stream of hints; of no running action.
const HINT_TOKEN: Token = Token(0x7ead_0001);

impl Reader<'_> {
    pub fn hint(&mut self, handle: Handle, ranges: &[(u64, u64)]) {
        let block = u64::from(self.session.block_bytes());
        let (Some(open), Some(volume)) = (self.files.handle(handle), self.session.link.volume()) else { return };
        let Some(file) = self.files.get(&open.file).filter(|_| self.session.options().hints) else { return };
        let Some(number) = file.numbering.number() else { return };
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
                    && file.table.get(index).is_none()
                    && !file.table.present().is_hole(index)
                {
                    blocks.push(PageId::new(number, index));
                }
            }
        }
        for blocks in blocks.chunks(HINT_BLOCKS_MAX) {
            self.session.link.notify(Notice::Hint { image: volume, token: HINT_TOKEN, pages: blocks.to_vec() });
        }
    }

    pub fn share(&mut self, handle: Handle, share: Share) {
        let Some(open) = self.files.handle(handle) else { return };
        let Some(file) = self.files.get_mut(&open.file) else { return };
        file.numbering.set_share(share);
        if let (Some(number), Some(volume)) = (file.numbering.number(), self.session.link.volume()) {
            self.session.link.notify(Notice::FileShare { volume, file: number, share });
        }
    }
}
