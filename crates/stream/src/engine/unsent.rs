//! The changes of one file that are not on the server.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use bytes::Bytes;
use units::Moment;

use super::dirty::Dirty;
use crate::overlay::Overlay;

/// Changes that no sync asks for are sent after this time, as kernels do with their pages.
const DIRTY_TIME: Duration = Duration::from_secs(30);

/// The same of attributes alone: longer than a program takes to set one after the other and to
/// rename the file, and less than others believe what they know of it.
const ATTRIBUTES_TIME: Duration = Duration::from_millis(100);

/// Changes of one file, from the first write to the answer for the last transaction.
///
/// Invariant: what was written lies in the overlay until the transaction that has it is answered. A
/// size is set only while something is unsent. Transactions are in the order in which they were
/// made.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Unsent {
    #[serde(skip)]
    overlay: Overlay,
    dirty: Option<Dirty>,
    /// Size of the file with what was changed here.
    size: Option<u64>,
    /// Cuts that the server does not know of, with the transaction that has each; 0: none yet.
    cuts: Vec<(u64, u64)>,
    /// Transactions that are not answered, in order.
    sealed: Vec<u64>,
}

impl Unsent {
    /// The writes of this device.
    pub fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// The same, to record how it changes, or to change it again as was recorded.
    pub fn overlay_mut(&mut self) -> &mut Overlay {
        &mut self.overlay
    }

    /// Takes the writes that another process has recorded.
    pub fn set_overlay(&mut self, overlay: Overlay) {
        self.overlay = overlay;
    }

    /// The clock of this process begins anew.
    pub fn resumed(&mut self, now: Moment) {
        self.dirty.iter_mut().for_each(|dirty| dirty.since = now);
    }

    /// Changes that no transaction has.
    pub fn dirty(&self) -> Option<&Dirty> {
        self.dirty.as_ref()
    }

    pub fn dirty_mut(&mut self) -> Option<&mut Dirty> {
        self.dirty.as_mut()
    }

    pub fn is_dirty(&self) -> bool {
        self.dirty.is_some()
    }

    /// The file takes changes from now on.
    pub fn begin(&mut self, dirty: Dirty) {
        self.dirty = Some(dirty);
    }

    /// Takes what no transaction has, but for what was written.
    pub fn take_dirty(&mut self) -> Option<Dirty> {
        self.dirty.take()
    }

    /// Whether nothing but attributes was changed since the last transaction.
    pub fn has_only_attributes(&self) -> bool {
        self.dirty.as_ref().is_some_and(Dirty::is_of_attributes) && self.overlay.open_bytes() == 0
    }

    /// When it is sent though nobody asks for that.
    pub fn write_back_due(&self) -> Option<Moment> {
        let time = if self.has_only_attributes() { ATTRIBUTES_TIME } else { DIRTY_TIME };
        self.dirty.as_ref().map(|dirty| dirty.since.after(time))
    }

    /// Size of the file with what was changed here.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// The least size to which the file was cut, if that is below this one.
    pub fn cut_below(&self, size: u64) -> u64 {
        self.cuts.iter().map(|(_, cut)| *cut).fold(size, u64::min)
    }

    /// Writes; the file has this size then.
    pub fn write(&mut self, offset: u64, bytes: Bytes, size: u64) {
        self.overlay.write(offset, bytes);
        self.size = Some(size);
    }

    /// Writes within a file without a name.
    pub fn write_within(&mut self, offset: u64, bytes: Bytes) {
        self.overlay.write(offset, bytes);
    }

    /// Cuts or extends.
    pub fn resize(&mut self, old: u64, size: u64, now_ns: i64) {
        self.size = Some(size);
        if let Some(dirty) = &mut self.dirty {
            dirty.resized(old, size, now_ns);
        }
        if size < old {
            self.overlay.cut(size);
            // One for all cuts that no transaction has.
            match self.cuts.iter_mut().find(|(mark, _)| *mark == 0) {
                Some((_, cut)) => *cut = size.min(*cut),
                None => self.cuts.push((0, size)),
            }
        }
    }

    /// Transactions that are not answered, in order.
    pub fn sealed(&self) -> &[u64] {
        &self.sealed
    }

    /// Extents that this transaction has from now on.
    pub fn seal(&mut self, first: u64) -> Vec<(u64, Bytes)> {
        self.overlay.seal(first)
    }

    /// Cuts that this transaction has from now on.
    pub fn seal_cuts(&mut self, first: u64) {
        for (mark, _) in self.cuts.iter_mut().filter(|(mark, _)| *mark == 0) {
            *mark = first;
        }
    }

    /// One more transaction of the file; it has these writes, which were sealed for another.
    pub fn push(&mut self, id: u64, first: u64, writes: &[(u64, Bytes)]) {
        for (offset, bytes) in writes.iter().filter(|_| id != first) {
            let end = offset + bytes.len() as u64;
            self.overlay.split(*offset);
            self.overlay.split(end);
            self.overlay.remark(*offset, end, first, id);
        }
        self.sealed.push(id);
    }

    /// The server has a transaction.
    pub fn committed(&mut self, id: u64) {
        self.refused(id);
        self.overlay.settle(id);
        self.cuts.retain(|(mark, _)| *mark != id);
    }

    /// A transaction was refused: what it wrote stays readable.
    pub fn refused(&mut self, id: u64) {
        self.sealed.retain(|other| *other != id);
    }

    /// The file is on the server as it is here.
    pub fn forget_size(&mut self) {
        self.size = None;
    }

    /// Nothing of it is to be sent any more: its transactions. Its cuts hold for ever, as does what
    /// was written.
    pub fn abandon(&mut self) -> Vec<u64> {
        self.dirty = None;
        let cut = self.cuts.drain(..).map(|(_, cut)| cut).min();
        self.cuts.extend(cut.map(|cut| (0, cut)));
        std::mem::take(&mut self.sealed)
    }
}
