//! What waits to be pushed to one connection of the files that it has open.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use units::{InodeId, Moment, Token};
use volume::FileId;
use wire::ImageHandle;
use wire::volume::Share;

use super::file_push::{FilePush, Target};
use super::shares::{Clock, Part};
use crate::budget::Room;
use crate::volumes::OpenVolume;

/// Files of programs that are pushed on one connection; the one that was foreseen longest ago goes.
const FILE_PUSHES_MAX: usize = 128;

/// What waits takes no memory of [`Devices`](crate::device::Devices) up to this.
const FREE_BYTES: usize = 3 << 10;

/// Steps in which memory is taken beyond that.
const STEP_BYTES: usize = 16 << 10;

/// The files that programs are sent, and whose turn it is.
///
/// Invariant: each program has one entry for a file, there are at most [`FILE_PUSHES_MAX`], and
/// all of a file have the share that the device gave it.
pub(super) struct FilePushes {
    all: Vec<FilePush>,
    /// What the device said of files.
    shares: HashMap<(ImageHandle, InodeId), Share>,
    clock: Clock,
    uses: u64,
    /// Memory of what waits.
    memory: Room,
}

impl FilePushes {
    /// None; what waits takes more memory like `memory`.
    pub fn new(memory: Room) -> FilePushes {
        FilePushes { all: Vec::new(), shares: HashMap::new(), clock: Clock::default(), uses: 0, memory }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn get(&self, at: usize) -> Option<&FilePush> {
        self.all.get(at)
    }

    pub fn get_mut(&mut self, at: usize) -> Option<&mut FilePush> {
        self.all.get_mut(at)
    }

    /// The one of a program in a file, begun if need be.
    pub fn open(&mut self, target: Target, open: &Arc<OpenVolume>) -> &mut FilePush {
        self.uses += 1;
        let at = match self.all.iter().position(|push| same(push, target)) {
            Some(at) => at,
            None => {
                if self.all.len() >= FILE_PUSHES_MAX
                    && let Some(oldest) = (0..self.all.len()).min_by_key(|at| self.all[*at].used)
                {
                    self.all.remove(oldest);
                }
                let mut push = FilePush::new(target, open.clone());
                if let Some(share) = self.shares.get(&(target.volume, target.file)) {
                    push.overrule(*share);
                }
                self.all.push(push);
                self.all.len() - 1
            }
        };
        self.all[at].used = self.uses;
        &mut self.all[at]
    }

    /// The one of a program in a file.
    pub fn find(&self, target: Target) -> Option<&FilePush> {
        self.all.iter().find(|push| same(push, target))
    }

    /// The volume's number of a file.
    pub fn id_of(&self, volume: ImageHandle, file: InodeId) -> Option<FileId> {
        self.all.iter().find(|push| push.is_of(volume, file)).map(|push| push.target().id)
    }

    /// What a program needed soon it does not any more. Returns its files that have stages: those
    /// are background, and stay.
    pub fn forget_near(&mut self, volume: ImageHandle, token: Token) -> HashSet<InodeId> {
        let mine = self.all.iter_mut().filter(|push| push.is_for(volume, token));
        let staged = mine.filter_map(|push| {
            push.forget_near();
            push.has_stages().then_some(push.target().file)
        });
        staged.collect()
    }

    /// The device says what a file gets of the link.
    pub fn share(&mut self, volume: ImageHandle, file: InodeId, share: Share) {
        self.shares.insert((volume, file), share);
        self.all.iter_mut().filter(|push| push.is_of(volume, file)).for_each(|push| push.overrule(share));
    }

    /// Whether the device said what a file gets.
    pub fn has_share(&self, volume: ImageHandle, file: InodeId) -> bool {
        self.shares.contains_key(&(volume, file))
    }

    /// Nothing is sent of a file that is not open any more.
    pub fn close_file(&mut self, volume: ImageHandle, file: InodeId) {
        self.all.retain(|push| !push.is_of(volume, file));
        self.shares.remove(&(volume, file));
    }

    /// Nothing is sent to a program any more.
    pub fn end_program(&mut self, volume: ImageHandle, token: Token) {
        self.all.retain(|push| !push.is_for(volume, token));
    }

    /// Nothing is sent to a program of a file any more.
    pub fn remove(&mut self, target: Target) {
        self.all.retain(|push| !same(push, target));
    }

    /// Whether blocks wait that are needed soon and have a share of the link.
    pub fn press(&self) -> bool {
        self.all.iter().any(FilePush::presses)
    }

    /// Which file, and which part of it, sends now.
    pub fn choose(&mut self, now: Moment) -> Option<(usize, usize)> {
        let mut parts = next_parts(&mut self.all);
        let mut open: Vec<&mut Part> = parts.iter_mut().map(|(_, part)| &mut **part).collect();
        let chosen = self.clock.choose(&mut open, now)?;
        parts.get(chosen).map(|(of, _)| *of)
    }

    /// That part sends so many bytes.
    pub fn charge(&mut self, chosen: (usize, usize), bytes: usize) {
        let mut parts = next_parts(&mut self.all);
        let index = parts.iter().position(|(of, _)| *of == chosen);
        let mut open: Vec<&mut Part> = parts.iter_mut().map(|(_, part)| &mut **part).collect();
        if let Some(index) = index {
            self.clock.charge(&mut open, index, bytes);
        }
        if let Some(push) = self.all.get_mut(chosen.0) {
            push.sent(bytes);
        }
    }

    /// Whether there is memory for `bytes` more of what waits.
    pub fn take_memory(&mut self, bytes: usize) -> bool {
        let needed = self.needed_bytes(bytes);
        self.memory.shrink_to(needed);
        let room = self.memory.try_more(needed - self.memory.amount());
        let found = room.is_some();
        room.into_iter().for_each(|room| self.memory.merge(room));
        found
    }

    /// Gives back the memory of what does not wait any more.
    pub fn release_memory(&mut self) {
        self.memory.shrink_to(self.needed_bytes(0));
    }

    /// Memory for what waits and `more` bytes.
    fn needed_bytes(&self, more: usize) -> usize {
        let waiting: usize = self.all.iter().map(FilePush::memory_bytes).sum();
        (waiting + more).saturating_sub(FREE_BYTES).next_multiple_of(STEP_BYTES)
    }
}

/// Whether it is of this program and this file, under the device's number.
fn same(push: &FilePush, target: Target) -> bool {
    push.is_for(target.volume, target.token) && push.target().file == target.file
}

/// The parts that may send, each with its file and its number in it.
fn next_parts(all: &mut [FilePush]) -> Vec<((usize, usize), &mut Part)> {
    let parts = all
        .iter_mut()
        .enumerate()
        .flat_map(|(at, push)| push.next_parts().map(move |(index, part)| ((at, index), part)));
    parts.collect()
}
