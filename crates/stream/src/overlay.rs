//! The overlay of a file: extents that were written here and are not on the server yet, over its
//! blocks. Offsets and lengths are in bytes.
//!
//! Each extent is marked with the transaction that has it, or is open. A later write goes over
//! earlier extents; transactions keep their own bytes. When a transaction is committed, its extents
//! go away, since the blocks hold the same then.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Mark of extents that no transaction has yet.
const OPEN: u64 = 0;

/// Small writes that follow each other are gathered into extents of at most so many bytes.
const GATHERED_BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
enum Piece {
    /// May still grow at its end.
    Growing(Vec<u8>),
    Fixed(Bytes),
}

#[derive(Debug)]
struct Extent {
    piece: Piece,
    mark: u64,
}

/// One change of an overlay. All of them in their order make the same overlay again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Step {
    Write { offset: u64, bytes: Bytes },
    Cut { size: u64 },
    Seal { mark: u64 },
    Split { at: u64 },
    Remark { start: u64, end: u64, from: u64, to: u64 },
    Settle { mark: u64 },
}

/// The extents of one file, by where they begin; none overlap.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    extents: BTreeMap<u64, Extent>,
    open_bytes: u64,
    /// Bytes of all extents, open or not.
    bytes: u64,
    /// The steps since they were taken last, if somebody takes them.
    steps: Option<Vec<Step>>,
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Growing(bytes) => bytes.len(),
            Piece::Fixed(bytes) => bytes.len(),
        }
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Piece::Growing(bytes) => bytes,
            Piece::Fixed(bytes) => bytes,
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Piece::Growing(bytes) => bytes.into(),
            Piece::Fixed(bytes) => bytes,
        }
    }
}

impl Overlay {
    /// Bytes of open extents.
    pub fn open_bytes(&self) -> u64 {
        self.open_bytes
    }

    /// Bytes of all extents.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps its steps from now on.
    pub fn keep_steps(&mut self) {
        self.steps.get_or_insert_default();
    }

    /// The steps since the last call.
    pub fn take_steps(&mut self) -> Vec<Step> {
        self.steps.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Steps that make this overlay from nothing, in place of all that were kept.
    pub fn all_steps(&mut self) -> Vec<Step> {
        self.take_steps();
        let mut marks: Vec<u64> = self.extents.values().map(|extent| extent.mark).collect();
        marks.sort_unstable();
        marks.dedup();
        // What is open goes last, since a seal is of all that is open.
        let open = usize::from(marks.first() == Some(&OPEN));
        marks.rotate_left(open);
        let mut steps = Vec::new();
        for mark in marks {
            for (offset, extent) in self.extents.iter().filter(|(_, extent)| extent.mark == mark) {
                let bytes = match &extent.piece {
                    Piece::Growing(bytes) => Bytes::copy_from_slice(bytes),
                    Piece::Fixed(bytes) => bytes.clone(),
                };
                steps.push(Step::Write { offset: *offset, bytes });
            }
            if mark != OPEN {
                steps.push(Step::Seal { mark });
            }
        }
        steps
    }

    /// Does a step again.
    pub fn repeat(&mut self, step: Step) {
        match step {
            Step::Write { offset, bytes } => self.write(offset, bytes),
            Step::Cut { size } => self.cut(size),
            Step::Seal { mark } => drop(self.seal(mark)),
            Step::Split { at } => self.split(at),
            Step::Remark { start, end, from, to } => self.remark(start, end, from, to),
            Step::Settle { mark } => self.settle(mark),
        }
    }

    fn note(&mut self, step: impl FnOnce() -> Step) {
        if let Some(steps) = &mut self.steps {
            steps.push(step());
        }
    }

    /// Writes over what is there. `offset + bytes` does not overflow.
    pub fn write(&mut self, offset: u64, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.note(|| Step::Write { offset, bytes: bytes.clone() });
        let end = offset + bytes.len() as u64;
        self.clear(offset, end);
        self.open_bytes += bytes.len() as u64;
        self.bytes += bytes.len() as u64;
        if let Some((start, extent)) = self.extents.range_mut(..offset).next_back()
            && extent.mark == OPEN
            && start + extent.piece.len() as u64 == offset
            && extent.piece.len() + bytes.len() <= GATHERED_BYTES_MAX
        {
            let piece = std::mem::replace(&mut extent.piece, Piece::Fixed(Bytes::new()));
            let mut gathered = match piece {
                Piece::Growing(gathered) => gathered,
                Piece::Fixed(fixed) => fixed.to_vec(),
            };
            gathered.extend_from_slice(&bytes);
            extent.piece = Piece::Growing(gathered);
            return;
        }
        self.extents.insert(offset, Extent { piece: Piece::Fixed(bytes), mark: OPEN });
    }

    /// Removes everything from `size` on.
    pub fn cut(&mut self, size: u64) {
        self.note(|| Step::Cut { size });
        self.clear(size, u64::MAX);
    }

    /// Whether all of a range was written here.
    pub fn covers(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        if let Some((from, extent)) = self.extents.range(..=start).next_back() {
            at = at.max(from + extent.piece.len() as u64);
        }
        for (from, extent) in self.extents.range(start..end) {
            if *from > at {
                break;
            }
            at = at.max(from + extent.piece.len() as u64);
        }
        at >= end
    }

    /// The next extent that reaches behind `at`: where it begins, at least `at`, and its end.
    pub fn extent_after(&self, at: u64) -> Option<(u64, u64)> {
        let before = self.extents.range(..=at).next_back();
        let mut found = before.into_iter().chain(self.extents.range(at.saturating_add(1)..));
        let reaches = |(from, extent): (&u64, &Extent)| (*from, *from + extent.piece.len() as u64);
        found.by_ref().map(reaches).find(|(_, end)| *end > at).map(|(from, end)| (from.max(at), end))
    }

    /// Writes the part of the extents that lies in the range beginning at `start` over `out`.
    pub fn copy_into(&self, start: u64, out: &mut [u8]) {
        let end = start + out.len() as u64;
        let before = self.extents.range(..start).next_back();
        for (from, extent) in before.into_iter().chain(self.extents.range(start..end)) {
            let until = (from + extent.piece.len() as u64).min(end);
            let begin = (*from).max(start);
            if begin < until {
                let source = &extent.piece.as_slice()[(begin - from) as usize..(until - from) as usize];
                out[(begin - start) as usize..(until - start) as usize].copy_from_slice(source);
            }
        }
    }

    /// The open extents in order of their offsets, which belong to the transaction `mark` from now
    /// on.
    pub fn seal(&mut self, mark: u64) -> Vec<(u64, Bytes)> {
        debug_assert_ne!(mark, OPEN);
        self.note(|| Step::Seal { mark });
        self.open_bytes = 0;
        let open = self.extents.iter_mut().filter(|(_, extent)| extent.mark == OPEN);
        open.map(|(offset, extent)| {
            let bytes = std::mem::replace(&mut extent.piece, Piece::Fixed(Bytes::new())).into_bytes();
            extent.piece = Piece::Fixed(bytes.clone());
            extent.mark = mark;
            (*offset, bytes)
        })
        .collect()
    }

    /// A transaction has these bytes instead of the one that they were sealed for.
    pub fn remark(&mut self, start: u64, end: u64, from: u64, to: u64) {
        self.note(|| Step::Remark { start, end, from, to });
        for (_, extent) in self.extents.range_mut(start..end).filter(|(_, extent)| extent.mark == from) {
            extent.mark = to;
        }
    }

    /// Splits what covers an offset, so that an extent begins there.
    pub fn split(&mut self, at: u64) {
        self.note(|| Step::Split { at });
        self.split_at(at);
    }

    fn split_at(&mut self, at: u64) {
        let Some((start, extent)) = self.extents.range(..at).next_back() else { return };
        let start = *start;
        if start + extent.piece.len() as u64 <= at {
            return;
        }
        let Some(extent) = self.extents.remove(&start) else { return };
        let mut head = extent.piece.into_bytes();
        let tail = head.split_off((at - start) as usize);
        self.extents.insert(start, Extent { piece: Piece::Fixed(head), mark: extent.mark });
        self.extents.insert(at, Extent { piece: Piece::Fixed(tail), mark: extent.mark });
    }

    /// A transaction is committed: the blocks hold what it wrote.
    pub fn settle(&mut self, mark: u64) {
        self.note(|| Step::Settle { mark });
        let bytes = &mut self.bytes;
        self.extents.retain(|_, extent| {
            let stays = extent.mark != mark;
            *bytes -= if stays { 0 } else { extent.piece.len() as u64 };
            stays
        });
    }

    /// Whether anything is left.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    fn clear(&mut self, start: u64, end: u64) {
        self.split_at(start);
        if end != u64::MAX {
            self.split_at(end);
        }
        let gone: Vec<u64> = self.extents.range(start..end).map(|(from, _)| *from).collect();
        for from in gone {
            if let Some(extent) = self.extents.remove(&from) {
                let bytes = extent.piece.len() as u64;
                self.bytes -= bytes;
                self.open_bytes -= if extent.mark == OPEN { bytes } else { 0 };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use units::{Rng, SplitMix64};

    use super::*;

    /// What an overlay holds, by where it begins: pieces that are open may be gathered otherwise.
    fn held(overlay: &Overlay) -> (Vec<Option<(u8, u64)>>, u64, u64) {
        let mut cells = vec![None; 400];
        for (from, extent) in &overlay.extents {
            let bytes = extent.piece.as_slice();
            bytes.iter().enumerate().for_each(|(i, byte)| cells[*from as usize + i] = Some((*byte, extent.mark)));
        }
        (cells, overlay.open_bytes, overlay.bytes)
    }

    #[test]
    fn steps_make_the_same_overlay() {
        let mut rng = SplitMix64(8);
        for _ in 0..300 {
            let (mut overlay, mut again, mut mark) = (Overlay::default(), Overlay::default(), 0);
            overlay.keep_steps();
            for _ in 0..40 {
                let (at, len) = (rng.below(300), 1 + rng.below(99));
                match rng.below(9) {
                    0..5 => overlay.write(at, (0..len).map(|_| rng.next_u64() as u8).collect()),
                    5 => overlay.cut(at),
                    6 => {
                        mark += 1;
                        overlay.seal(mark);
                    }
                    7 if mark > 1 => {
                        overlay.split(at);
                        overlay.split(at + len);
                        overlay.remark(at, at + len, mark, mark - 1);
                    }
                    _ if mark > 0 => overlay.settle(1 + rng.below(mark)),
                    _ => {}
                }
                if rng.below(8) == 0 {
                    again = Overlay::default();
                    overlay.all_steps().into_iter().for_each(|step| again.repeat(step));
                } else {
                    overlay.take_steps().into_iter().for_each(|step| again.repeat(step));
                }
                assert_eq!(held(&again), held(&overlay));
            }
        }
    }

    /// Against plain arrays of bytes and marks.
    #[test]
    fn ref_overlay() {
        let mut rng = SplitMix64(7);
        for _ in 0..300 {
            let mut overlay = Overlay::default();
            let mut model: Vec<Option<(u8, u64)>> = vec![None; 400];
            let mut mark = 0;
            for _ in 0..40 {
                let at = rng.below(300) as usize;
                let len = 1 + rng.below(99) as usize;
                match rng.below(8) {
                    0..5 => {
                        let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
                        (0..len).for_each(|i| model[at + i] = Some((bytes[i], OPEN)));
                        overlay.write(at as u64, bytes.into());
                    }
                    5 => {
                        overlay.cut(at as u64);
                        model[at..].fill(None);
                    }
                    6 => {
                        mark += 1;
                        let sealed = overlay.seal(mark);
                        let mut copy = vec![None; 400];
                        for (from, bytes) in &sealed {
                            bytes.iter().enumerate().for_each(|(i, byte)| copy[*from as usize + i] = Some(*byte));
                        }
                        for (i, cell) in model.iter_mut().enumerate() {
                            let open = cell.filter(|(_, mark)| *mark == OPEN);
                            assert_eq!(open.map(|(byte, _)| byte), copy[i]);
                            *cell = open.map(|(byte, _)| (byte, mark)).or(*cell);
                        }
                    }
                    _ if mark > 0 => {
                        let which = 1 + rng.below(mark);
                        overlay.settle(which);
                        model.iter_mut().for_each(|cell| *cell = cell.filter(|(_, mark)| *mark != which));
                    }
                    _ => {}
                }
                let mut out = vec![0; 400];
                overlay.copy_into(0, &mut out);
                let flat: Vec<u8> = model.iter().map(|cell| cell.map_or(0, |(byte, _)| byte)).collect();
                assert_eq!(out, flat);
                let mut part = vec![0; len];
                overlay.copy_into(at as u64, &mut part);
                assert_eq!(part, flat[at..at + len]);
                let covered = model[at..at + len].iter().all(Option::is_some);
                assert_eq!(overlay.covers(at as u64, (at + len) as u64), covered);
                let next = (at..400).find(|index| model[*index].is_some());
                assert_eq!(overlay.extent_after(at as u64).map(|(from, _)| from as usize), next);
                let open = model.iter().flatten().filter(|(_, mark)| *mark == OPEN).count();
                assert_eq!(overlay.open_bytes(), open as u64);
                assert_eq!(overlay.bytes(), model.iter().flatten().count() as u64);
            }
        }
    }
}
