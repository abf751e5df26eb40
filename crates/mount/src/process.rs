//! The process start that a FUSE request belongs to.
//!
//! The kernel names the *thread* that made a request. SYSFLOW wants one random token per running
//! action, so that two instances of one program never disturb each other: here that is one token
//! per process start. A thread id leads to its process (`Tgid` of `/proc/<tid>/status`). Process id
//! and start time (field 22 of `/proc/<pid>/stat`) identify a start even when ids are reused. A
//! pidfd per process tells a watcher thread when the process has ended. Where there are no pidfds,
//! the watcher polls `/proc`.
//!
//! Hot path: one lock and one hash look-up per READ. Only a thread that was silent for more than
//! [`IDLE`] is checked again, since its id may belong to another process meanwhile.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use units::Token;

/// A thread silent for longer than this is looked up again: its id may belong to another process by
/// now. Linux hands out ids in turn, so a quicker reuse needs tens of thousands of process starts
/// within this time.
const IDLE: Duration = Duration::from_secs(1);

/// Threads remembered. Beyond it the map is emptied: the next READ of each thread costs two small
/// /proc reads.
const THREADS_MAX: usize = 4096;

/// Processes watched by pidfd: each costs a descriptor, and the usual limit is 1024 of them.
const WATCHED_MAX: usize = 512;

/// Processes remembered in all; the oldest end early beyond it, which costs only a new token for
/// them.
const PROCESSES_MAX: usize = 4096;

/// How often processes without a pidfd are looked for in /proc.
const SWEEP: Duration = Duration::from_secs(2);

/// One process start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Start {
    /// Process id (thread group).
    process: u32,
    /// Clock ticks after boot at which it started; 0 if unknown.
    ticks: u64,
}

struct Thread {
    token: Token,
    start: Start,
    /// Start of the thread itself, to tell a reused thread id.
    ticks: u64,
    used: Instant,
}

struct Process {
    token: Token,
    /// Readable once the process has ended; `None` where it is watched through /proc.
    exit: Option<Arc<OwnedFd>>,
    born: Instant,
}

#[derive(Default)]
struct State {
    threads: HashMap<u32, Thread>,
    processes: HashMap<Start, Process>,
    stopping: bool,
}

struct Shared {
    state: Mutex<State>,
    /// Wakes the watcher when there is a process more to watch, or when it is to stop.
    wake: Option<OwnedFd>,
    /// Stands in for `wake` where there are no event descriptors.
    changed: Condvar,
    /// Token of requests that belong to no process we can see: kernel threads, other pid
    /// namespaces.
    anonymous: Token,
    ended: Box<dyn Fn(Token) + Send + Sync>,
}

/// The map from threads to tokens, and the thread that watches for exits.
pub(crate) struct Processes {
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
}

impl Processes {
    /// An empty map. `ended` is called from the watcher thread once for each token whose process
    /// has ended.
    pub(crate) fn new(ended: impl Fn(Token) + Send + Sync + 'static) -> Processes {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok(),
            changed: Condvar::new(),
            anonymous: client::NO_TOKEN,
            ended: Box::new(ended),
        });
        let watched = shared.clone();
        // Without the thread, tokens simply live until the mount ends.
        let watcher = thread::Builder::new().name("runnel-exits".into()).spawn(move || watched.watch()).ok();
        Processes { shared, watcher }
    }

    /// The token of the process that thread `tid` belongs to; a new one for a process not seen
    /// before.
    pub(crate) fn token(&self, tid: u32) -> Token {
        if tid == 0 {
            return self.shared.anonymous;
        }
        let now = Instant::now();
        let mut state = self.shared.lock();
        if let Some(thread) = state.threads.get_mut(&tid) {
            let fresh = now.duration_since(thread.used) <= IDLE || start_ticks(tid) == Some(thread.ticks);
            if fresh {
                thread.used = now;
                return thread.token;
            }
        }
        drop(state);
        self.shared.resolve(tid, now)
    }

    /// Number of processes that have a token now.
    #[cfg(test)]
    fn live(&self) -> usize {
        self.shared.lock().processes.len()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.wake();
        if let Some(watcher) = self.watcher.take()
            && watcher.thread().id() != thread::current().id()
        {
            // A panic of the watcher has been printed already, and nothing is left to tell.
            let _ = watcher.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if let Some(wake) = &self.wake {
            // Full counters wake just as well.
            let _ = rustix::io::write(wake, &1u64.to_le_bytes());
        }
        self.changed.notify_all();
    }

    /// The slow path: asks /proc, then remembers.
    fn resolve(&self, tid: u32, now: Instant) -> Token {
        let Some(process) = thread_group(tid) else { return self.anonymous };
        // Opened before the start time is read: if the start time is right, so is the descriptor.
        let pid = Pid::from_raw(process as i32);
        let exit = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        let start = Start { process, ticks: start_ticks(process).unwrap_or(0) };
        let ticks = start_ticks(tid).unwrap_or(0);
        let mut state = self.lock();
        if state.threads.len() >= THREADS_MAX {
            state.threads.clear();
        }
        let (token, is_new) = match state.processes.get(&start) {
            Some(known) => (known.token, false),
            None => (random_token(), true),
        };
        state.threads.insert(tid, Thread { token, start, ticks, used: now });
        let mut dropped = None;
        if is_new {
            if state.processes.len() >= PROCESSES_MAX {
                dropped = state.forget_oldest();
            }
            let watched = state.processes.values().filter(|process| process.exit.is_some()).count();
            let exit = exit.filter(|_| watched < WATCHED_MAX).map(Arc::new);
            state.processes.insert(start, Process { token, exit, born: now });
        }
        drop(state);
        if let Some(dropped) = dropped {
            (self.ended)(dropped);
        }
        if is_new {
            self.wake();
        }
        token
    }

    /// The watcher thread: waits for exits, ends their tokens.
    fn watch(&self) {
        loop {
            let state = self.lock();
            if state.stopping {
                return;
            }
            let exits: Vec<(Start, Arc<OwnedFd>)> =
                state.processes.iter().filter_map(|(start, process)| Some((*start, process.exit.clone()?))).collect();
            let unwatched = exits.len() < state.processes.len();
            let Some(wake) = &self.wake else {
                // No event descriptor: look every now and then, at everything.
                drop(self.changed.wait_timeout(state, SWEEP));
                self.sweep(true);
                continue;
            };
            drop(state);
            let timeout = Timespec { tv_sec: SWEEP.as_secs() as i64, tv_nsec: 0 };
            let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
            fds.extend(exits.iter().map(|(_, exit)| PollFd::new(exit.as_ref(), PollFlags::IN)));
            let polled = rustix::event::poll(&mut fds, unwatched.then_some(&timeout));
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            if polled.is_err() {
                continue;
            }
            if ready[0] {
                // Only the wake-up counts, not the number.
                let _ = rustix::io::read(wake, &mut [0u8; 8]);
            }
            for ((start, _), _) in exits.iter().zip(&ready[1..]).filter(|(_, ready)| **ready) {
                self.end(*start);
            }
            if unwatched {
                self.sweep(false);
            }
        }
    }

    /// Ends processes that /proc no longer knows: those without a descriptor, or all.
    fn sweep(&self, all: bool) {
        let suspects: Vec<Start> = self
            .lock()
            .processes
            .iter()
            .filter(|(_, process)| all || process.exit.is_none())
            .map(|(start, _)| *start)
            .collect();
        for start in suspects {
            if start_ticks(start.process) != Some(start.ticks) {
                self.end(start);
            }
        }
    }

    fn end(&self, start: Start) {
        let mut state = self.lock();
        let Some(process) = state.processes.remove(&start) else { return };
        state.threads.retain(|_, thread| thread.start != start);
        drop(state);
        (self.ended)(process.token);
    }
}

impl State {
    fn forget_oldest(&mut self) -> Option<Token> {
        let oldest = self.processes.iter().min_by_key(|(_, process)| process.born).map(|(start, _)| *start)?;
        self.threads.retain(|_, thread| thread.start != oldest);
        self.processes.remove(&oldest).map(|process| process.token)
    }
}

/// A token no one can guess. Should the system have no randomness, time and address still make it
/// unlikely to repeat.
fn random_token() -> Token {
    let mut bytes = [0u8; 16];
    if getrandom::fill(&mut bytes).is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        return Token(now.as_nanos() ^ (u128::from(std::process::id()) << 96));
    }
    Token(u128::from_le_bytes(bytes))
}

/// The process (thread group) of a thread, from `/proc/<tid>/status`.
fn thread_group(tid: u32) -> Option<u32> {
    let status = fs::read(format!("/proc/{tid}/status")).ok()?;
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// Start time of a thread or process in clock ticks after boot: field 22 of its `stat`.
pub(crate) fn start_ticks(id: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{id}/stat")).ok()?;
    // The second field is the program's name in parentheses and may itself hold blanks and
    // parentheses.
    let after_name = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = stat[after_name + 1..].split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    std::str::from_utf8(fields.nth(19)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
