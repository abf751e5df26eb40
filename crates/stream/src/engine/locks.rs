//! Locks of byte ranges across devices, as fcntl(2) and flock(2) have them.
//!
//! What the server gave is remembered, and claimed again on each connection: a server that was
//! started anew knows of no locks. It keeps those of a device that is away for a few seconds only,
//! so another device may have a lock by then. Such a lock is
//! *lost*: what its owner does with the file fails until it unlocks, as on NFS.
//!
//! Two requests of one owner for one file are never under way together, since the server does what
//! comes together in any order. To unlock needs no answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use connection::Unanswered;
use units::{LockKind, LockRange, LockRanges, Moment};
use wire::volume::{HeldLock, LeaseKind, LockAsk, VolumeAsk, VolumeReply};
use wire::{ErrorCode, Reply};

use super::Engine;
use super::effects::Effects;
use super::requests::{AskFor, BUSY_TIME};
use super::session::ANSWER_TIME;
use super::wants::{Waiting, Want};
use crate::call::{Done, Handle, LockOwner, LockWish, Opened};
use crate::names::check_path;
use crate::{ErrorKind, FileRef, StreamError};

/// An owner of locks in a file.
type Place = (u64, LockOwner);

/// What an owner was given.
struct Held {
    /// The file, as the server calls it.
    file: u64,
    pid: u32,
    ranges: LockRanges,
}

/// A request that is to be made or was made.
struct Step {
    place: Place,
    ask: LockAsk,
    /// Who waits for it.
    done: Option<Done<Option<HeldLock>>>,
    /// It claims what was given before.
    is_claim: bool,
    since: Moment,
}

/// The locks of this device.
#[derive(Default)]
pub(super) struct Locks {
    held: BTreeMap<Place, Held>,
    /// Whose locks somebody else may have by now.
    lost: BTreeSet<Place>,
    /// What is to be asked, in order.
    waiting: VecDeque<Step>,
    /// What was asked, by number.
    asked: BTreeMap<u64, Step>,
    /// The server had no time; nothing is asked before.
    paused_until: Moment,
}

impl Locks {
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
        // What was not asked need not be; of the others the answer counts.
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
        for (place, held) in self.held.iter().filter(|(_, held)| held.file != 0) {
            for range in held.ranges.as_slice() {
                let ask = ask(held.file, place.1, held.pid, (range.start, range.end), Some(range.kind));
                self.waiting.push_front(Step { place: *place, ask, done: None, is_claim: true, since: now });
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
        let mut busy: BTreeSet<Place> = self.asked.values().map(|step| step.place).collect();
        let unlocking = self.asked.values().filter(|step| step.ask.kind.is_none());
        let mut unlocking: BTreeSet<u64> = unlocking.map(|step| step.place.0).collect();
        let at = self.waiting.iter().position(|step| {
            let is_free = busy.insert(step.place);
            match step.ask.kind {
                Some(_) => is_free && !unlocking.contains(&step.place.0),
                None => {
                    unlocking.insert(step.place.0);
                    is_free
                }
            }
        })?;
        self.waiting.remove(at)
    }

    /// Unlocks on the server.
    fn release(&mut self, place: Place, file: u64, range: (u64, u64), now: Moment) {
        let ask = ask(file, place.1, 0, range, None);
        self.waiting.push_back(Step { place, ask, done: None, is_claim: false, since: now });
    }

    /// The server gave what nobody waits for any more: the owner has what it had before.
    fn give_up(&mut self, place: Place, file: u64, (start, end): (u64, u64), now: Moment) {
        let Some(held) = self.held.get(&place) else { return self.release(place, file, (start, end), now) };
        for piece in held.ranges.pieces(start, end) {
            let ask = ask(file, place.1, held.pid, (piece.start, piece.end), piece.kind);
            let is_claim = piece.kind.is_some();
            self.waiting.push_back(Step { place, ask, done: None, is_claim, since: now });
        }
    }

    /// Notes what an owner has now.
    fn note(&mut self, place: Place, file: u64, pid: u32, (start, end): (u64, u64), kind: Option<LockKind>) {
        let held = self.held.entry(place).or_insert_with(|| Held { file, pid, ranges: LockRanges::default() });
        held.ranges.set(start, end, kind);
        if held.ranges.as_slice().is_empty() {
            self.held.remove(&place);
        }
    }

    /// Somebody else has a lock of this owner.
    fn lose(&mut self, place: Place, now: Moment) {
        self.waiting.retain(|step| !(step.is_claim && step.place == place));
        if let Some(held) = self.held.remove(&place) {
            self.release(place, held.file, (0, u64::MAX), now);
        }
        self.lost.insert(place);
    }

    /// The lock of another owner here that excludes this one.
    fn excluding(&self, (file, owner): Place, range: LockRange) -> Option<HeldLock> {
        let others = self
            .held
            .iter()
            .filter(|((of, other), _)| *of == file && *other != owner && other.is_flock == owner.is_flock);
        others.into_iter().find_map(|(_, held)| {
            let range = held.ranges.excluding(&range)?;
            Some(HeldLock { range, pid: held.pid, is_own: true })
        })
    }
}

fn ask(file: u64, owner: LockOwner, pid: u32, (start, end): (u64, u64), kind: Option<LockKind>) -> LockAsk {
    LockAsk { file, owner: owner.number, is_flock: owner.is_flock, test: false, start, end, kind, pid }
}

impl Engine {
    pub(super) fn lock(&mut self, handle: Handle, wish: LockWish, done: Done<Option<HeldLock>>) {
        let file = self.files.handle(handle).map(|open| open.file);
        let Some((key, file)) = file.and_then(|key| Some((key, self.files.get(&key)?))) else {
            return self.session.finish(done, Err(StreamError::bad_handle()));
        };
        let (place, range) = ((key, wish.owner), (wish.start, wish.end));
        let (id, now) = (file.seen.map(|seen| seen.file), self.session.now());
        let Some(kind) = wish.kind else {
            self.unlock(place, id, range);
            self.session.finish(done, Ok(None));
            return self.pump_locks();
        };
        if let Err(error) = self.check_locks(key) {
            return self.session.finish(done, Err(error));
        }
        let Some(id) = id else {
            // A file that no other device has, nor will have before it is synced.
            let held = self.locks.excluding(place, LockRange { start: wish.start, end: wish.end, kind });
            if held.is_none() && !wish.test {
                self.locks.note(place, 0, wish.pid, range, Some(kind));
            }
            return self.session.finish(done, Ok(held));
        };
        let ask = LockAsk { test: wish.test, ..ask(id, wish.owner, wish.pid, range, Some(kind)) };
        self.locks.waiting.push_back(Step { place, ask, done: Some(done), is_claim: false, since: now });
        self.pump_locks();
    }

    fn unlock(&mut self, place: Place, id: Option<u64>, range: (u64, u64)) {
        self.locks.lost.remove(&place);
        let known = self.locks.held.get(&place).map(|held| held.file);
        let under_way = self.locks.steps().any(|step| step.place == place);
        let Some(file) = known.or(id).filter(|_| known.is_some() || under_way) else { return };
        self.locks.note(place, file, 0, range, None);
        if file != 0 {
            self.locks.release(place, file, range, self.session.now());
        }
    }

    /// The last handle of a file is gone, and all its locks with it.
    pub(super) fn unlock_all(&mut self, key: u64) {
        let places = self.locks.held.keys().chain(&self.locks.lost).filter(|(file, _)| *file == key);
        for place in places.copied().collect::<Vec<_>>() {
            self.unlock(place, None, (0, u64::MAX));
        }
    }

    /// Whether the locks of a file still hold.
    ///
    /// # Errors
    /// Some were lost: what is done with the file is not protected as its owner thinks.
    pub(super) fn check_locks(&self, key: u64) -> Result<(), StreamError> {
        if self.locks.lost.is_empty() || !self.locks.lost.iter().any(|(file, _)| *file == key) {
            return Ok(());
        }
        Err(self.lost_lock(key))
    }

    fn lost_lock(&self, key: u64) -> StreamError {
        let path = self.files.get(&key).map(|file| file.path.clone()).unwrap_or_default();
        let text = "a lock of it was lost while the server was away, and another device may have it; unlock it, and begin anew";
        StreamError::new(ErrorKind::Failed, &path, text)
    }

    /// Somebody else may have what an owner had locked. What was written to the file and never sent
    /// is lost with a lock for writing: who has it now may have read already.
    fn lose_locks(&mut self, place: Place) {
        let held = self.locks.held.get(&place).map_or(&[][..], |held| held.ranges.as_slice());
        let exclusive = held.iter().any(|range| range.kind == LockKind::Exclusive);
        self.locks.lose(place, self.session.now());
        if !exclusive {
            return;
        }
        self.seal(place.0);
        let sealed = self.files.get(&place.0).map(|file| file.sealed.as_slice()).unwrap_or_default();
        let unsent = sealed.iter().copied().find(|id| self.transactions.get(id).is_some_and(|txn| !txn.sent));
        if let Some(id) = unsent {
            self.refuse(id, &self.lost_lock(place.0));
        }
    }

    /// Asks for what may be asked for.
    pub(super) fn pump_locks(&mut self) {
        if !self.session.link.is_open() || !self.session.is_proven() || self.session.now() < self.locks.paused_until {
            return;
        }
        while let Some(step) = self.locks.next() {
            let (id, ask) = (self.session.next_id(), VolumeAsk::Lock(step.ask));
            self.locks.asked.insert(id, step);
            self.session.ask(AskFor::Lock(id), ask, ANSWER_TIME);
        }
    }

    pub(super) fn lock_answered(&mut self, id: u64, answer: Result<Reply, Unanswered>) {
        let Some(Step { place, ask, done, is_claim, since }) = self.locks.asked.remove(&id) else { return };
        let (now, range) = (self.session.now(), (ask.start, ask.end));
        let error = match answer {
            Ok(Reply::Volume(VolumeReply::Locked(held))) => {
                let is_new = !ask.test && !is_claim && ask.kind.is_some() && held.is_none();
                let is_open = self.files.get(&place.0).is_some_and(|file| file.handles > 0);
                match done {
                    // All that was locked of the file went with its last handle.
                    Some(done) if is_new && !is_open => {
                        self.locks.give_up(place, ask.file, range, now);
                        self.session.finish(done, Err(StreamError::bad_handle()));
                    }
                    Some(done) => {
                        if is_new {
                            self.locks.note(place, ask.file, ask.pid, range, ask.kind);
                        }
                        self.session.finish(done, Ok(held));
                    }
                    // Who wanted it has given up.
                    None if is_new => self.locks.give_up(place, ask.file, range, now),
                    None if is_claim && held.is_some() => self.lose_locks(place),
                    None => {}
                }
                return self.pump_locks();
            }
            Ok(Reply::Error { code: ErrorCode::Busy | ErrorCode::Cancelled | ErrorCode::Shutdown, .. })
            | Err(Unanswered::Expired | Unanswered::Refused) => {
                self.locks.waiting.push_front(Step { place, ask, done, is_claim, since });
                self.locks.paused_until = now.after(BUSY_TIME);
                return self.session.ask_later(AskFor::Lock(id));
            }
            Ok(Reply::Error { code, text }) => {
                let path = self.files.get(&place.0).map(|file| file.path.clone()).unwrap_or_default();
                StreamError::refused(code, &path, &text)
            }
            Ok(_) => StreamError::nonsense(self.session.name().as_bytes(), "another kind of answer"),
        };
        match done {
            Some(done) => self.session.finish(done, Err(error)),
            None if is_claim => self.lose_locks(place),
            None => {}
        }
        self.pump_locks();
    }

    /// What an open file is now on the server. Who has locked it wants to know what others did
    /// before.
    pub(super) fn look_again(&mut self, handle: Handle, done: Done<Opened>) {
        let Some(key) = self.files.handle(handle).map(|open| open.file) else {
            return self.session.finish(done, Err(StreamError::bad_handle()));
        };
        let Some(file) = self.files.get(&key) else { return };
        if file.gone || file.seen.is_none() || file.is_changed() {
            // With changes that were made after who locks it had it synced, the kernel's pages may
            // be of an older version.
            let opened = Opened { handle, info: file.info(), unchanged: file.gone || file.seen.is_none() };
            return self.session.finish(done, Ok(opened));
        }
        self.wait_for(Want::Look { handle, file: key, done });
    }

    /// Asks for [`Want::Look`], by a request of its own: one that is under way may have been
    /// answered before the lock was given.
    pub(super) fn pump_look(&mut self, id: u64, key: u64) {
        let Some(file) = self.files.get_mut(&key).filter(|file| !file.opening) else { return };
        let is_gone = file.gone;
        file.unsure |= !is_gone;
        if let Some(waiting) = self.calls.get_mut(&id) {
            waiting.asked = true;
        }
        match is_gone {
            true => self.looked_again(key),
            false => self.open_number(key),
        }
    }

    /// The server told what a file is now.
    pub(super) fn looked_again(&mut self, key: u64) {
        let Some(file) = self.files.get_mut(&key) else { return };
        let (info, unchanged) = (file.info(), file.kernel.is_some() && file.kernel == file.seen);
        file.kernel = file.seen;
        if !unchanged {
            // Who changed it may have made and removed files that belong to it, such as the journal
            // of a database.
            self.names.forget_all();
        }
        let of_it = |waiting: &Waiting| matches!(waiting.want, Want::Look { file, .. } if file == key && waiting.asked);
        for id in self.calls.which(of_it) {
            if let Some(Waiting { want: Want::Look { handle, done, .. }, .. }) = self.calls.remove(&id) {
                self.session.finish(done, Ok(Opened { handle, info, unchanged }));
            }
        }
    }
}

impl Engine {
    /// Takes a lease, or gives it back.
    pub(super) fn lease(&mut self, of: FileRef, kind: Option<LeaseKind>, duration: Duration, done: Done<Duration>) {
        let (path, file) = match of {
            FileRef::Path(path) | FileRef::File { path, .. } => (path, None),
            FileRef::Handle(handle) => {
                let file = self.files.opened(handle).map(|(_, file)| file);
                let Some(file) = file else {
                    return self.session.finish(done, Err(StreamError::bad_handle()));
                };
                (file.path.clone(), file.seen.map(|seen| seen.file))
            }
        };
        match check_path(&path) {
            Err(error) => self.session.finish(done, Err(error)),
            Ok(()) => {
                self.wait_for(Want::Lease { path, file, kind, duration, done });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_waits_for_any_more_leaves_what_was_locked_before() {
        let (mut locks, place) = (Locks::default(), (1, LockOwner { is_flock: false, number: 2 }));
        locks.note(place, 7, 3, (10, 19), Some(LockKind::Shared));
        locks.give_up(place, 7, (0, 14), Moment(5));
        locks.give_up((1, LockOwner { is_flock: true, number: 2 }), 7, (4, 5), Moment(5));
        let asked = locks.waiting.iter().map(|step| (step.ask.start, step.ask.end, step.ask.kind, step.is_claim));
        let shared = Some(LockKind::Shared);
        assert!(asked.eq([(0, 9, None, false), (10, 14, shared, true), (4, 5, None, false)]));
        assert!(locks.is_claiming());
    }
}
