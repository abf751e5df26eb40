//! Locks of fcntl(2) and flock(2) on a mounted volume. They hold across devices.
//!
//! Changes of a file are sent before one of its locks is requested or released, so that the next
//! owner reads them. The new owner of a lock reads the data of the others: the volume asks the
//! server for the file's version, and the kernel drops the pages of an older one before the lock is
//! answered.
//!
//! A lock that nobody waits for any more is released again.

use std::sync::Arc;
use std::time::Duration;

use fuse::{Errno, INodeNo, Lock, LockType, ReplyLock};
use stream::{Done, ErrorKind, Handle, HeldLock, LockOwner, LockWish, Opened, StreamError};
use units::{LockKind, LockPiece, LockRange};

use super::kept::Kept;
use super::locks::Attempt;
use super::state::State;
use crate::errno;

/// The kernel's end of a range that reaches to the end of the file.
const END: u64 = i64::MAX as u64;

/// A requested lock.
struct Ask {
    state: Arc<State>,
    number: INodeNo,
    handle: Handle,
    owner: LockOwner,
    range: LockRange,
    pid: u32,
    /// Whether it is waited for.
    waits: bool,
    reply: ReplyLock,
}

/// The kernel's lock as a request to the volume.
fn wish(lock: &Lock, test: bool) -> LockWish {
    let kind = match lock.kind {
        LockType::Read => Some(LockKind::Shared),
        LockType::Write => Some(LockKind::Exclusive),
        LockType::Unlock => None,
    };
    let end = if lock.end == END { u64::MAX } else { lock.end };
    let owner = LockOwner { is_flock: lock.is_flock, number: lock.owner };
    LockWish { owner, start: lock.start, end, kind, test, pid: lock.pid }
}

fn error_number(error: &StreamError) -> Errno {
    match error.kind() {
        ErrorKind::TooLarge => errno::NO_LOCKS,
        _ => errno::of_stream(error),
    }
}

/// Answers with the lock that conflicts with one. Processes of other devices have no number here.
pub(super) fn getlk(state: &Arc<State>, lock: &Lock, reply: ReplyLock) {
    let done: Done<Option<HeldLock>> = Box::new(move |held| match held {
        Ok(None) => reply.held(LockType::Unlock, 0, 0, 0),
        Ok(Some(HeldLock { range, pid, is_own })) => {
            let kind = match range.kind {
                LockKind::Shared => LockType::Read,
                LockKind::Exclusive => LockType::Write,
            };
            reply.held(kind, range.start.min(END), range.end.min(END), if is_own { pid } else { 0 });
        }
        Err(error) => reply.error(error_number(&error)),
    });
    let wish = wish(lock, true);
    if wish.kind.is_none() {
        return done(Ok(None));
    }
    state.volume.lock(Handle(lock.handle.0), wish, done);
}

/// Locks or unlocks.
pub(super) fn setlk(state: &Arc<State>, number: INodeNo, lock: &Lock, waits: bool, reply: ReplyLock) {
    let (handle, wish) = (Handle(lock.handle.0), wish(lock, false));
    let Some(kind) = wish.kind else { return give_back(state, number, handle, &wish, reply) };
    let range = LockRange { start: wish.start, end: wish.end, kind };
    let (state_of_ask, owner, pid) = (state.clone(), wish.owner, wish.pid);
    let ask = Ask { state: state_of_ask, number, handle, owner, range, pid, waits, reply };
    let synced: Done<()> = Box::new(move |synced| match synced {
        Ok(()) => Box::new(ask).send(Duration::ZERO),
        Err(error) => ask.reply.error(error_number(&error)),
    });
    state.volume.sync(handle, synced);
}

/// Unlocks, which always succeeds: fsync and close report changes that could not be sent.
fn give_back(state: &Arc<State>, number: INodeNo, handle: Handle, wish: &LockWish, reply: ReplyLock) {
    let (owner, piece) = (wish.owner, LockPiece { start: wish.start, end: wish.end, kind: None });
    if !state.kept().held.has(number, owner) {
        let _ = reply.done();
        return;
    }
    let unlocking = state.clone();
    let synced: Done<()> = Box::new(move |_| {
        set(&unlocking, number, handle, (owner, 0), piece);
        // The file is unlocked even if nobody gets the answer.
        let _ = reply.done();
    });
    state.volume.sync(handle, synced);
}

/// Releases all locks of an owner on a file.
fn unlock_all(state: &Arc<State>, number: INodeNo, handle: Handle, owner: LockOwner) {
    set(state, number, handle, (owner, 0), LockPiece { start: 0, end: u64::MAX, kind: None });
}

/// Releases a range, or weakens its lock.
fn set(state: &Arc<State>, number: INodeNo, handle: Handle, (owner, pid): (LockOwner, u32), piece: LockPiece) {
    let LockPiece { start, end, kind } = piece;
    // The descriptor may be closed by now; the lock is the file's.
    let open = state.kept().inodes.open_handle(number, handle);
    let wish = LockWish { owner, start, end, kind, test: false, pid };
    state.volume.lock(open, wish, Box::new(drop));
    // If this process dies before, the next one unlocks again, which changes nothing.
    state.kept().held.note(number, owner, handle, piece);
    state.locks.wake(number);
}

/// Whether a process has locked a file by fcntl(2).
pub(super) fn has(state: &State, number: INodeNo, process: u64) -> bool {
    state.kept().held.has(number, LockOwner { is_flock: false, number: process })
}

/// Releases the fcntl(2) locks of a process on a file, because it closes a descriptor.
pub(super) fn closing(state: &Arc<State>, number: INodeNo, handle: Handle, process: u64) {
    let owner = LockOwner { is_flock: false, number: process };
    if state.kept().held.has(number, owner) {
        unlock_all(state, number, handle, owner);
    }
}

/// Whether somebody has locked a file through this handle.
pub(super) fn is_used(state: &State, number: INodeNo, handle: Handle) -> bool {
    !state.kept().held.owners(number, handle).is_empty()
}

/// Releases all locks that were taken through an open file, because its last descriptor is closed:
/// those of flock(2), those of the open file instead of the process, and those of a thread that
/// waited while another one closed the descriptor.
pub(super) fn released(state: &Arc<State>, number: INodeNo, handle: Handle) {
    let owners = state.kept().held.owners(number, handle);
    owners.into_iter().for_each(|owner| unlock_all(state, number, handle, owner));
}

impl Attempt for Ask {
    fn number(&self) -> INodeNo {
        self.number
    }

    fn send(self: Box<Self>, pause: Duration) {
        if !self.reply.is_awaited() {
            let kept = self.state.kept();
            let before = kept.is_resumed().then(|| self.before(&kept));
            drop(kept);
            // An earlier daemon may have got it.
            before.into_iter().for_each(|before| self.take_back(before));
            return;
        }
        let LockRange { start, end, kind } = self.range;
        let wish = LockWish { owner: self.owner, start, end, kind: Some(kind), test: false, pid: self.pid };
        let (volume, handle) = (self.state.volume.clone(), self.handle);
        let done: Done<Option<HeldLock>> = Box::new(move |held| match held {
            Ok(None) => self.given(),
            Ok(Some(_)) if self.waits => self.state.clone().locks.retry(self, pause),
            Ok(Some(_)) => self.reply.error(errno::TRY_AGAIN),
            Err(error) => self.reply.error(error_number(&error)),
        });
        volume.lock(handle, wish, done);
    }

    fn fail(self: Box<Self>) {
        self.reply.error(errno::NO_LOCKS);
    }
}

impl Ask {
    /// How the range is locked without this request.
    fn before(&self, kept: &Kept) -> Vec<LockPiece> {
        let LockRange { start, end, .. } = self.range;
        let before = kept.before(self.reply.unique());
        before.unwrap_or_else(|| kept.held.pieces(self.number, self.owner, start, end))
    }

    /// The lock was granted. The waiting program continues once reads return the data that was
    /// written under earlier locks.
    fn given(self) {
        let LockRange { start, end, kind } = self.range;
        let mut kept = self.state.kept();
        let before = self.before(&kept);
        kept.held.note(self.number, self.owner, self.handle, LockPiece { start, end, kind: Some(kind) });
        kept.put_done(self.reply.unique(), before.clone());
        drop(kept);
        let (volume, handle) = (self.state.volume.clone(), self.handle);
        let done: Done<Opened> = Box::new(move |opened| match opened {
            Ok(opened) => self.looked(&opened, before),
            Err(error) => {
                self.take_back(before);
                self.reply.error(error_number(&error));
            }
        });
        volume.look_again(handle, done);
    }

    fn looked(self, opened: &Opened, before: Vec<LockPiece>) {
        let (state, number) = (self.state.clone(), self.number);
        let kept = state.kept();
        let (differs, is_doubtful) = (kept.inodes.differs(number, &opened.info), kept.inodes.is_doubtful(number));
        drop(kept);
        if differs {
            state.forget_attributes(number);
        }
        let drops = (!opened.unchanged || is_doubtful) && !state.settings.direct;
        if !drops && !state.locks.drops_pages(number) {
            return self.answer(before);
        }
        let dropping = state.clone();
        let job = Box::new(move |runs: bool| {
            if !runs {
                self.take_back(before);
                return self.reply.error(errno::NO_LOCKS);
            }
            if drops {
                dropping.drop_pages(number);
                dropping.kept().inodes.dropped(number);
            }
            self.answer(before);
        });
        // Not here: the kernel may wait for the answer to a READ, which this thread may have to
        // send.
        state.locks.drop_pages(number, job);
    }

    fn answer(self, before: Vec<LockPiece>) {
        let Ask { state, number, handle, owner, pid, reply, .. } = self;
        let unique = reply.unique();
        if !reply.done() {
            // A signal has ended the wait: restore the locks from before.
            restore(&state, number, handle, (owner, pid), before);
        }
        state.kept().answered(unique);
    }

    fn take_back(&self, before: Vec<LockPiece>) {
        restore(&self.state, self.number, self.handle, (self.owner, self.pid), before);
        self.state.kept().answered(self.reply.unique());
    }
}

/// Restores the locks that an owner had before a grant.
fn restore(state: &Arc<State>, number: INodeNo, handle: Handle, who: (LockOwner, u32), before: Vec<LockPiece>) {
    for piece in before {
        // Another thread may have closed the file meanwhile; nothing is to be locked again then.
        let has = state.kept().held.has(number, who.0);
        if has || piece.kind.is_none() {
            set(state, number, handle, who, piece);
        }
    }
}
