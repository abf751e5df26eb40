//! The threads that are traced, and the address spaces that they run in.

use std::collections::{HashMap, HashSet};

use nix::unistd::{Pid, gettid};

use crate::breakpoint::space::{Known, Space};
use crate::breakpoint::table::SiteIndex;
use crate::memory::{Code, Memory};
use crate::process::State;
use crate::ptrace;

/// Number of a [`Space`].
type SpaceId = u32;

/// A thread that is traced.
#[derive(Clone, Copy, Debug)]
struct Thread {
    /// Its process.
    group: Pid,
    /// Its memory; none for the program's process before the first exec, and for memory that
    /// nobody may look into.
    space: Option<SpaceId>,
}

/// The traced threads of all processes that the program consists of.
///
/// Invariant: the space of a thread is in `spaces`, and each space is that of a thread at least.
#[derive(Debug)]
pub(super) struct Tree {
    threads: HashMap<Pid, Thread>,
    spaces: HashMap<SpaceId, Space>,
    next_space: SpaceId,
    /// Threads that were made but have not come to their first stop.
    unborn: HashSet<Pid>,
}

impl Tree {
    /// The process `program` with one thread, which has executed nothing yet.
    pub(super) fn new(program: Pid) -> Tree {
        let thread = Thread { group: program, space: None };
        let threads = HashMap::from([(program, thread)]);
        Tree { threads, spaces: HashMap::new(), next_space: 0, unborn: HashSet::new() }
    }

    pub(super) fn contains(&self, tid: Pid) -> bool {
        self.threads.contains_key(&tid)
    }

    pub(super) fn threads(&self) -> impl Iterator<Item = Pid> {
        self.threads.keys().copied()
    }

    /// The process of a thread.
    pub(super) fn group(&self, tid: Pid) -> Option<Pid> {
        self.threads.get(&tid).map(|thread| thread.group)
    }

    /// The memory of a thread.
    pub(super) fn space_mut(&mut self, tid: Pid) -> Option<&mut Space> {
        self.spaces.get_mut(&self.threads.get(&tid)?.space?)
    }

    fn space(&self, tid: Pid) -> Option<&Space> {
        self.spaces.get(&self.threads.get(&tid)?.space?)
    }

    /// Whether two threads are known to use the same memory.
    pub(super) fn shares_space(&self, tid: Pid, other: Pid) -> bool {
        let space = |tid: Pid| self.threads.get(&tid).and_then(|thread| thread.space);
        space(tid).is_some() && space(tid) == space(other)
    }

    /// A thread was made. It may have come to its first stop before.
    pub(super) fn made(&mut self, tid: Pid) {
        if !self.contains(tid) {
            self.unborn.insert(tid);
        }
    }

    /// Adds a thread of `group` if its memory is that of another thread; whether it is.
    pub(super) fn join(&mut self, tid: Pid, group: Pid) -> bool {
        self.unborn.remove(&tid);
        let space = self.shared_space(tid, group);
        if space.is_some() {
            self.threads.insert(tid, Thread { group, space });
        }
        space.is_some()
    }

    /// Adds a thread of `group` with memory of its own.
    pub(super) fn add(&mut self, tid: Pid, group: Pid, space: Option<Space>) {
        let space = space.map(|space| {
            self.next_space += 1;
            self.spaces.insert(self.next_space, space);
            self.next_space
        });
        self.threads.insert(tid, Thread { group, space });
    }

    /// The space of another thread of this process, or of a process with the same memory.
    fn shared_space(&self, tid: Pid, group: Pid) -> Option<SpaceId> {
        if let Some(thread) = self.threads.values().find(|thread| thread.group == group) {
            return thread.space;
        }
        let mut asked = Vec::new();
        for (other, thread) in &self.threads {
            let Some(space) = thread.space.filter(|space| !asked.contains(space)) else { continue };
            match ptrace::share_memory(tid, *other) {
                Some(true) => return Some(space),
                Some(false) => asked.push(space),
                // Dead, or the kernel does not know; another thread may.
                None => {}
            }
        }
        None
    }

    /// Drops a thread, and its memory if it was the last one there.
    pub(super) fn forget(&mut self, tid: Pid) {
        self.unborn.remove(&tid);
        let Some(Thread { space: Some(space), .. }) = self.threads.remove(&tid) else { return };
        if !self.threads.values().any(|thread| thread.space == Some(space)) {
            self.spaces.remove(&space);
        }
    }

    /// Drops all threads of a process.
    pub(super) fn forget_process(&mut self, group: Pid) {
        let threads = self.threads.iter().filter(|(_, thread)| thread.group == group);
        for tid in threads.map(|(tid, _)| *tid).collect::<Vec<Pid>>() {
            self.forget(tid);
        }
    }

    /// What is known of an address in a thread's memory; if nothing, in any memory: see `space`.
    pub(super) fn known(&self, tid: Pid, address: u64) -> Option<Known> {
        let known = self.space(tid).and_then(|space| space.known(address));
        known.or_else(|| self.spaces.values().find_map(|space| space.code_before(address)).map(Known::Removed))
    }

    /// Puts `code` back where a breakpoint stands that should not: a thread would hit it again and
    /// again.
    pub(super) fn restore(&self, tid: Pid, address: u64, code: &Code) {
        match self.space(tid) {
            Some(space) => space.restore(address, code),
            None => {
                let _ = Memory::open(tid).map(|memory| memory.restore(address, code));
            }
        }
    }

    /// Takes the breakpoints of one site out.
    pub(super) fn remove_site(&mut self, index: SiteIndex) {
        self.spaces.values_mut().for_each(|space| space.remove_site(index));
    }

    /// Takes all breakpoints out, and puts none in any more.
    pub(super) fn remove_all(&mut self) {
        self.spaces.values_mut().for_each(Space::remove_all);
    }

    /// Whether no thread is left to detach. Meant for the time when no thread is added any more.
    pub(super) fn is_released(&mut self) -> bool {
        // A leader that has ended and waits for its threads cannot be stopped. The end of any other
        // thread is reported.
        let is_dead =
            |(tid, thread): (&Pid, &Thread)| *tid == thread.group && State::read(*tid).is_ok_and(|state| state.is_dead);
        if !self.threads.iter().all(is_dead) {
            return false;
        }
        // One that came and went before its maker's event was seen stays in this set until now.
        let own = gettid().as_raw();
        self.unborn.retain(|tid| State::read(*tid).is_ok_and(|state| state.tracer == own));
        self.unborn.is_empty()
    }
}
