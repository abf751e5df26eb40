//! Locks of byte ranges across devices, as fcntl(2) and flock(2) have them.
//!
//! Locks that the server gave are remembered, and claimed again on each connection: a server that
//! was started anew knows of none. It keeps those of a device that is away for a few seconds only,
//! so another device may have a lock by then. Such a lock is *lost*: every use of the file by its
//! owner fails until it unlocks, as on NFS.
//!
//! Two requests of one owner for one file are never under way together, since the server does
//! requests that come together in any order. Unlocking needs no answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use connection::Unanswered;
use serde::{Deserialize, Serialize};
use units::{LockKind, LockRange, LockRanges, Moment};
use wire::volume::{HeldLock, LockAsk, VolumeAsk, VolumeReply};
use wire::{ErrorCode, Reply};

use super::effects::Effects;
use super::files::Files;
use super::marks::Marks;
use super::requests::{AskFor, BUSY_TIME};
use super::session::{ANSWER_TIME, Session};
use crate::call::{Done, LockOwner, LockWish};
use crate::{ErrorKind, StreamError};

/// An owner of locks in a file.
pub(super) type LockHolder = (u64, LockOwner);

/// The locks of one owner in one file.
#[derive(Serialize, Deserialize)]
pub(super) struct Held {
    /// The file, as the server calls it.
    file: u64,
    pid: u32,
    ranges: LockRanges,
}

/// A request that is to be made or was made.
struct Step {
    holder: LockHolder,
    ask: LockAsk,
    /// Who waits for it.
    done: Option<Done<Option<HeldLock>>>,
    /// It claims what was given before.
    is_claim: bool,
    since: Moment,
}

/// The locks of this device.
///
/// Invariant: what an owner was given is held until it unlocks, or is lost. Two requests of one
/// owner for one file are never under way together.
#[derive(Default)]
pub(super) struct Locks {
    held: BTreeMap<LockHolder, Held>,
    /// Whose locks somebody else may have by now.
    lost: BTreeSet<LockHolder>,
    /// Requests that are to be sent, in order.
    waiting: VecDeque<Step>,
    /// Requests under way, by number.
    asked: BTreeMap<u64, Step>,
    /// The server had no time; nothing is asked before.
    paused_until: Moment,
    /// Owners whose locks changed since they were recorded last.
    pub marks: Marks<LockHolder>,
}

/// A range that was unlocked, and the server may not know it yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unlocking {
    holder: LockHolder,
    file: u64,
    range: (u64, u64),
}

impl Locks {
    /// Owners with locks.
    pub fn holders(&self) -> impl Iterator<Item = LockHolder> {
        self.held.keys().copied()
    }

    /// The locks of an owner.
    pub fn held(&self, holder: LockHolder) -> Option<&Held> {
        self.held.get(&holder)
    }

    /// Owners whose locks somebody else may have by now.
    pub fn lost(&self) -> &BTreeSet<LockHolder> {
        &self.lost
    }

    /// What was unlocked and may not be known to the server.
    pub fn unlocking(&self) -> Vec<Unlocking> {
        let unlocks = self.steps().filter(|step| step.ask.kind.is_none());
        let range = |step: &Step| (step.ask.start, step.ask.end);
        unlocks.map(|step| Unlocking { holder: step.holder, file: step.ask.file, range: range(step) }).collect()
    }

    /// Goes on with the locks that an earlier process had.
    pub fn resume(
        &mut self,
        held: BTreeMap<LockHolder, Held>,
        lost: BTreeSet<LockHolder>,
        unlocking: Vec<Unlocking>,
        now: Moment,
    ) {
        (self.held, self.lost) = (held, lost);
        for Unlocking { holder, file, range } in unlocking {
            self.release(holder, file, range, now);
        }
    }

    fn steps(&self) -> impl Iterator<Item = &Step> {
        self.waiting.iter().chain(self.asked.values())
    }

    /// Since when the first of those wait that can be told that it takes too long.
    pub fn waiting_since(&self) -> Option<Moment> {
        self.steps().filter(|step| step.done.is_some()).map(|step| step.since).min()
    }

    /// Ends waits that began `time` ago or earlier.
    pub fn time_out(&mut self, now: Moment, time: Duration, effects: &mut Effects) {
        for step in self.waiting.iter_mut().chain(self.asked.values_mut()) {
            if now >= step.since.after(time)
                && let Some(done) = step.done.take()
            {
                effects.finish(done, Err(StreamError::timeout(b"", time)));
            }
        }
        // A request that was not sent need not be; of the others the answer counts.
        self.waiting.retain(|step| step.done.is_some() || step.is_claim || step.ask.kind.is_none());
    }

    /// Ends all waits.
    pub fn fail(&mut self, error: &StreamError, effects: &mut Effects) {
        let steps = self.waiting.drain(..).chain(std::mem::take(&mut self.asked).into_values());
        steps.filter_map(|step| step.done).for_each(|done| effects.finish(done, Err(error.clone())));
    }

    /// The connection is gone: what was asked may be done, and is asked again.
    pub fn disconnected(&mut self) {
        for step in std::mem::take(&mut self.asked).into_values().rev() {
            self.waiting.push_front(step);
        }
        self.paused_until = Moment(0);
    }

    /// There is a new connection: all that was given is claimed, before anything else is asked.
    pub fn claim(&mut self, now: Moment) {
        self.waiting.retain(|step| !step.is_claim);
        for (holder, held) in self.held.iter().filter(|(_, held)| held.file != 0) {
            for range in held.ranges.as_slice() {
                let ask = ask(held.file, holder.1, held.pid, (range.start, range.end), Some(range.kind));
                self.waiting.push_front(Step { holder: *holder, ask, done: None, is_claim: true, since: now });
            }
        }
    }

    /// Whether it is not known yet which of the locks that were given hold on.
    pub fn is_claiming(&self) -> bool {
        self.steps().any(|step| step.is_claim)
    }

    /// The next one that may be asked. What is locked waits for what was unlocked of the same file
    /// before.
    fn next(&mut self) -> Option<Step> {
        let mut busy: BTreeSet<LockHolder> = self.asked.values().map(|step| step.holder).collect();
        let unlocking = self.asked.values().filter(|step| step.ask.kind.is_none());
        let mut unlocking: BTreeSet<u64> = unlocking.map(|step| step.holder.0).collect();
        let at = self.waiting.iter().position(|step| {
            let is_free = busy.insert(step.holder);
            match step.ask.kind {
                Some(_) => is_free && !unlocking.contains(&step.holder.0),
                None => {
                    unlocking.insert(step.holder.0);
                    is_free
                }
            }
        })?;
        self.waiting.remove(at)
    }

    /// Unlocks on the server.
    fn release(&mut self, holder: LockHolder, file: u64, range: (u64, u64), now: Moment) {
        let ask = ask(file, holder.1, 0, range, None);
        self.waiting.push_back(Step { holder, ask, done: None, is_claim: false, since: now });
    }

    /// The server gave what nobody waits for any more: the owner has what it had before.
    fn give_up(&mut self, holder: LockHolder, file: u64, (start, end): (u64, u64), now: Moment) {
        let Some(held) = self.held.get(&holder) else { return self.release(holder, file, (start, end), now) };
        for piece in held.ranges.pieces(start, end) {
            let ask = ask(file, holder.1, held.pid, (piece.start, piece.end), piece.kind);
            let is_claim = piece.kind.is_some();
            self.waiting.push_back(Step { holder, ask, done: None, is_claim, since: now });
        }
    }

    /// Notes what an owner has now.
    fn note(&mut self, holder: LockHolder, file: u64, pid: u32, (start, end): (u64, u64), kind: Option<LockKind>) {
        self.marks.add(holder);
        let held = self.held.entry(holder).or_insert_with(|| Held { file, pid, ranges: LockRanges::default() });
        held.ranges.set(start, end, kind);
        if held.ranges.as_slice().is_empty() {
            self.held.remove(&holder);
        }
    }

    /// Somebody else has a lock of this owner.
    pub fn lose(&mut self, holder: LockHolder, now: Moment) {
        self.waiting.retain(|step| !(step.is_claim && step.holder == holder));
        self.marks.add(holder);
        if let Some(held) = self.held.remove(&holder) {
            self.release(holder, held.file, (0, u64::MAX), now);
        }
        self.lost.insert(holder);
    }

    /// The lock of another owner here that excludes this one.
    fn excluding(&self, (file, owner): LockHolder, range: LockRange) -> Option<HeldLock> {
        let others = self
            .held
            .iter()
            .filter(|((of, other), _)| *of == file && *other != owner && other.is_flock == owner.is_flock);
        others.into_iter().find_map(|(_, held)| {
            let range = held.ranges.excluding(&range)?;
            Some(HeldLock { range, pid: held.pid, is_own: true })
        })
    }

    /// Locks a file that the server calls `id`, or tells what is in the way, once that has
    /// answered.
    pub fn lock(&mut self, holder: LockHolder, id: u64, wish: &LockWish, done: Done<Option<HeldLock>>, now: Moment) {
        let ask = ask(id, wish.owner, wish.pid, (wish.start, wish.end), wish.kind);
        let ask = LockAsk { test: wish.test, ..ask };
        self.waiting.push_back(Step { holder, ask, done: Some(done), is_claim: false, since: now });
    }

    /// The same of a file that no other device has, nor will have before it is synced: the lock
    /// that is in the way.
    pub fn lock_here(&mut self, holder: LockHolder, wish: &LockWish, kind: LockKind) -> Option<HeldLock> {
        let held = self.excluding(holder, LockRange { start: wish.start, end: wish.end, kind });
        if held.is_none() && !wish.test {
            self.note(holder, 0, wish.pid, (wish.start, wish.end), Some(kind));
        }
        held
    }

    /// Whether an owner has locks of a file for writing.
    pub fn has_exclusive(&self, holder: LockHolder) -> bool {
        let held = self.held.get(&holder).map_or(&[][..], |held| held.ranges.as_slice());
        held.iter().any(|range| range.kind == LockKind::Exclusive)
    }

    /// Unlocks; `id`: the file, as the server calls it, if it has it.
    pub fn unlock(&mut self, holder: LockHolder, id: Option<u64>, range: (u64, u64), now: Moment) {
        self.lost.remove(&holder);
        let known = self.held.get(&holder).map(|held| held.file);
        let under_way = self.steps().any(|step| step.holder == holder);
        let Some(file) = known.or(id).filter(|_| known.is_some() || under_way) else { return };
        self.note(holder, file, 0, range, None);
        if file != 0 {
            self.release(holder, file, range, now);
        }
    }

    /// The last handle of a file is gone, and all its locks with it.
    pub fn unlock_all(&mut self, key: u64, now: Moment) {
        let holders = self.held.keys().chain(&self.lost).filter(|(file, _)| *file == key);
        for holder in holders.copied().collect::<Vec<_>>() {
            self.unlock(holder, None, (0, u64::MAX), now);
        }
    }

    /// Whether the locks of a file still hold.
    ///
    /// # Errors
    /// Some were lost: what is done with the file is not protected as its owner thinks.
    pub fn check(&self, key: u64, files: &Files) -> Result<(), StreamError> {
        if self.lost.is_empty() || !self.lost.iter().any(|(file, _)| *file == key) {
            return Ok(());
        }
        Err(lost_lock(key, files))
    }

    /// Asks for what may be asked for.
    pub fn pump(&mut self, session: &mut Session) {
        if !session.link.is_open() || !session.is_proven() || session.now() < self.paused_until {
            return;
        }
        while let Some(step) = self.next() {
            let (id, ask) = (session.next_id(), VolumeAsk::Lock(step.ask));
            self.asked.insert(id, step);
            session.ask(AskFor::Lock(id), ask, ANSWER_TIME);
        }
    }

    /// The server answered: the owner whose locks somebody else has, if that is so.
    pub fn answered(
        &mut self,
        id: u64,
        answer: Result<Reply, Unanswered>,
        files: &Files,
        session: &mut Session,
    ) -> Option<LockHolder> {
        let Step { holder, ask, done, is_claim, since } = self.asked.remove(&id)?;
        let (now, range) = (session.now(), (ask.start, ask.end));
        let file = files.get(&holder.0);
        let error = match answer {
            Ok(Reply::Volume(VolumeReply::Locked(held))) => {
                let is_new = !ask.test && !is_claim && ask.kind.is_some() && held.is_none();
                let is_open = file.is_some_and(|file| file.handles > 0);
                match done {
                    // All that was locked of the file went with its last handle.
                    Some(done) if is_new && !is_open => {
                        self.give_up(holder, ask.file, range, now);
                        session.finish(done, Err(StreamError::bad_handle()));
                    }
                    Some(done) => {
                        if is_new {
                            self.note(holder, ask.file, ask.pid, range, ask.kind);
                        }
                        session.finish(done, Ok(held));
                    }
                    // The caller has given up.
                    None if is_new => self.give_up(holder, ask.file, range, now),
                    None if is_claim && held.is_some() => return Some(holder),
                    None => {}
                }
                return None;
            }
            Ok(Reply::Error { code: ErrorCode::Busy | ErrorCode::Cancelled | ErrorCode::Shutdown, .. })
            | Err(Unanswered::Expired | Unanswered::Refused) => {
                self.waiting.push_front(Step { holder, ask, done, is_claim, since });
                self.paused_until = now.after(BUSY_TIME);
                session.ask_later(AskFor::Lock(id));
                return None;
            }
            Ok(Reply::Error { code, text }) => {
                let path = file.map(|file| file.path.as_slice()).unwrap_or_default();
                StreamError::refused(code, path, &text)
            }
            Ok(_) => StreamError::nonsense(session.name().as_bytes(), "another kind of answer"),
        };
        match done {
            Some(done) => session.finish(done, Err(error)),
            None if is_claim => return Some(holder),
            None => {}
        }
        None
    }
}

fn ask(file: u64, owner: LockOwner, pid: u32, (start, end): (u64, u64), kind: Option<LockKind>) -> LockAsk {
    LockAsk { file, owner: owner.number, is_flock: owner.is_flock, test: false, start, end, kind, pid }
}

/// Why nothing is done with a file any more.
pub(super) fn lost_lock(key: u64, files: &Files) -> StreamError {
    let path = files.get(&key).map(|file| file.path.as_slice()).unwrap_or_default();
    let text =
        "a lock of it was lost while the server was away, and another device may have it; unlock it, and begin anew";
    StreamError::new(ErrorKind::Failed, path, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_waits_for_any_more_leaves_what_was_locked_before() {
        let (mut locks, holder) = (Locks::default(), (1, LockOwner { is_flock: false, number: 2 }));
        locks.note(holder, 7, 3, (10, 19), Some(LockKind::Shared));
        locks.give_up(holder, 7, (0, 14), Moment(5));
        locks.give_up((1, LockOwner { is_flock: true, number: 2 }), 7, (4, 5), Moment(5));
        let asked = locks.waiting.iter().map(|step| (step.ask.start, step.ask.end, step.ask.kind, step.is_claim));
        let shared = Some(LockKind::Shared);
        assert!(asked.eq([(0, 9, None, false), (10, 14, shared, true), (4, 5, None, false)]));
        assert!(locks.is_claiming());
    }
}
