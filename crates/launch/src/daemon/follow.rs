//! One program that was started plainly: decide, fetch, follow, record. The counterpart of
//! `session`, without a tracer.
//!
//! The program runs from the first moment and is never stopped, not even for a rotating disk: the
//! prefetch only overlaps with its start. Later groups are fetched when a probe reports that their
//! code is run.
//!
//! A probe is in the code of all processes that run it. So a plan of root's may have probes
//! anywhere, a plan of a user only in files of this user.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use probe::uprobe::{Disabled, Uprobes};
use profile::plan::LaunchPlan;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::plans::Store;
use super::process::Process;
use super::{Event, EventSink};
use crate::history::{Launch, Mode};
use crate::prefetch::{Fetched, Hints, Job, Prefetcher, Settings};
use crate::sites::{TriggerSite, announce, followers, trigger_sites};
use crate::{LaunchError, Program, quiet};

/// Hits of a probe by other processes before it is given up: it is code that is run all the time,
/// and each hit costs whoever runs it.
const STRANGERS_MAX: u32 = 16;

/// A program that was started.
pub(crate) struct Start {
    pub(crate) process: Process,
    pub(crate) program: Program,
    /// The folder with its plan.
    pub(crate) store: Store,
    /// When its start was reported.
    pub(crate) began: Instant,
    /// Whether it is followed after its first group.
    pub(crate) followed: bool,
}

/// What all followers share.
pub(crate) struct Tools {
    pub(crate) hints: Arc<dyn Hints>,
    pub(crate) events: EventSink,
    /// Hangs up when the daemon ends.
    pub(crate) stop: OwnedFd,
    /// Whether there are uprobes.
    pub(crate) probes: bool,
}

/// Does all that a launch needs; returns when there is nothing left to do for it. To be called in a
/// thread of its own, since it takes on the rights of the program.
pub(crate) fn follow(start: &Start, tools: &Tools, closer: &Sender<Disabled>) {
    if let Err(error) = fetch(start, tools, closer) {
        (tools.events)(&Event::Note { text: format!("{}: {error}", start.program.title()) });
    }
}

fn rights(source: io::Error) -> LaunchError {
    LaunchError::Daemon {
        what: "act with the rights of the user",
        source,
        hint: "the daemon needs CAP_SETUID and CAP_SETGID",
    }
}

fn fetch(start: &Start, tools: &Tools, closer: &Sender<Disabled>) -> Result<(), LaunchError> {
    let pid = Pid::from_raw(start.process.id as i32);
    // One that has ended already needs nothing.
    let Some(process) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else { return Ok(()) };
    start.store.owner.assume().map_err(rights)?;
    start.store.check(&start.store.plans.plan_path(&start.program))?;
    let Some((plan, history)) = start.store.plans.load(&start.program)? else { return Ok(()) };
    start.process.rights.assume().map_err(rights)?;
    let plan = Arc::new(plan);
    let mode = history.mode(&plan);
    let mut fetcher = None;
    if mode == Mode::With {
        let settings = Settings::of(&start.program.real);
        let started = Prefetcher::start(Arc::clone(&plan), settings, Arc::clone(&tools.hints));
        let prefetcher = started.map_err(LaunchError::io("start a thread for", &start.program.real))?;
        if start.followed && tools.probes {
            announce(&plan);
        }
        send(&prefetcher, &plan, 0);
        fetcher = Some(prefetcher);
    }
    let after_us = start.began.elapsed().as_micros() as u64;
    let is_followed = start.followed && mode != Mode::Warm;
    let mut following = Following { start, tools, closer, plan, mode, fetcher, probes: None, sites: Vec::new() };
    if is_followed && mode == Mode::With && tools.probes {
        following.probe();
    }
    // Told when code that runs from now on meets its probe.
    let (process_id, program) = (start.process.id, start.program.title());
    (tools.events)(&Event::Launch { process: process_id, program, mode, after_us });
    if !is_followed {
        following.fetcher.map(Prefetcher::finish);
        return Ok(());
    }
    following.until_over(&process);
    Ok(())
}

fn send(prefetcher: &Prefetcher, plan: &LaunchPlan, group: usize) {
    let jobs = prefetcher.jobs();
    for group in followers(plan, group) {
        // The thread lives until it is stopped.
        let _ = jobs.send(Job { group, opened: None });
    }
}

struct Following<'a> {
    start: &'a Start,
    tools: &'a Tools,
    closer: &'a Sender<Disabled>,
    plan: Arc<LaunchPlan>,
    mode: Mode,
    fetcher: Option<Prefetcher>,
    probes: Option<Uprobes>,
    /// The sites with probes, and the number of hits of each by other processes.
    sites: Vec<(TriggerSite, u32)>,
}

impl Following<'_> {
    /// Sets a probe for each later group.
    fn probe(&mut self) {
        let (mut sites, _) = trigger_sites(&self.plan);
        // A probe at a wrong place, inside an instruction, would break the code of everybody who
        // runs it.
        let owner = self.start.store.owner.uid;
        sites.retain(|site| owner == 0 || site.file.metadata().is_ok_and(|found| found.uid() == owner));
        if sites.is_empty() {
            return;
        }
        let mut probes = match Uprobes::open() {
            Ok(probes) => probes,
            Err(error) => return self.note(&format!("no probes: {error}")),
        };
        for site in sites {
            match probes.add(&site.file, site.offset, site.group as u32) {
                Ok(()) => self.sites.push((site, 0)),
                Err(error) => self.note(&format!("no probe for group {}: {error}", site.group)),
            }
        }
        self.probes = Some(probes);
    }

    fn note(&self, text: &str) {
        (self.tools.events)(&Event::Note { text: format!("{}: {text}", self.start.program.title()) });
    }

    /// Until the program has ended, the daemon ends, the launch is over and all groups are fetched,
    /// or it took too long.
    fn until_over(mut self, process: &OwnedFd) {
        let mut clock = Clock::start(self.start.process.id, self.start.began).ok();
        let end = self.start.began + probe::TIME_LIMIT;
        let mut stopped = false;
        let mut ended = false;
        while !stopped && !ended && (clock.is_some() || self.awaits_hits()) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let over;
            (stopped, ended, over) = self.wait(process, clock.as_ref(), left);
            if over && let Some(clock) = clock.take() {
                self.enter(clock.took());
            }
            self.hits();
        }
        if let Some(clock) = clock {
            let took = clock.took();
            // What it says when it was stopped is not how long the launch took.
            if ended && !stopped {
                self.enter(took);
            }
        }
        let fetched = match self.fetcher.take() {
            Some(fetcher) if stopped || ended => fetcher.stop(),
            Some(fetcher) => fetcher.finish(),
            None => Fetched::default(),
        };
        let (process, program) = (self.start.process.id, self.start.program.title());
        (self.tools.events)(&Event::Ended { process, program, fetched });
    }

    fn awaits_hits(&self) -> bool {
        self.probes.as_ref().is_some_and(|probes| !probes.is_empty())
    }

    /// Waits for whatever comes first: the daemon is to stop, the program has ended, the launch is
    /// over.
    fn wait(&self, process: &OwnedFd, clock: Option<&Clock>, left: Duration) -> (bool, bool, bool) {
        let mut fds = vec![PollFd::new(self.tools.stop.as_fd(), PollFlags::POLLIN)];
        fds.push(PollFd::new(process.as_fd(), PollFlags::POLLIN));
        if let Some(clock) = clock {
            fds.push(PollFd::new(clock.over.as_fd(), PollFlags::POLLIN));
        }
        if let Some(probes) = &self.probes {
            fds.extend(probes.descriptors().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        }
        // An interrupted wait is begun again by the caller.
        let _ = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
        let is_ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        (is_ready(&fds[0]), is_ready(&fds[1]), clock.is_some() && is_ready(&fds[2]))
    }

    /// Fetches the groups whose code was run by the program.
    fn hits(&mut self) {
        let Some(probes) = &mut self.probes else { return };
        for hit in probes.drain() {
            let Some(found) = self.sites.iter().position(|(site, _)| site.group as u32 == hit.id) else { continue };
            let (site, strangers) = &mut self.sites[found];
            let is_ours = Process::executable(hit.process) == Some(site.process)
                && Process::is_below(self.start.process.id, hit.process);
            if is_ours {
                let group = site.group;
                if let Some(fetcher) = &self.fetcher {
                    send(fetcher, &self.plan, group);
                }
                (self.tools.events)(&Event::Group { process: self.start.process.id, group });
            } else {
                *strangers += 1;
                if *strangers < STRANGERS_MAX {
                    continue;
                }
            }
            // Closing waits for all processors, and the next hit shall not wait for that.
            let _ = self.closer.send(probes.disable(hit.id));
            self.sites.remove(found);
        }
    }

    /// Adds the launch to the history of the plan, with the rights of its owner.
    fn enter(&self, took: Duration) {
        let bytes = self.fetcher.as_ref().map_or(0, |fetcher| fetcher.fetched().bytes);
        let launch = Launch::new(self.mode, took, bytes);
        let entered = self.start.store.owner.assume().map_err(rights).and_then(|()| {
            let entered = self.start.store.plans.enter(&self.start.program, launch);
            self.start.process.rights.assume().map_err(rights).and(entered)
        });
        match entered {
            Ok(()) => (self.tools.events)(&Event::Over { process: self.start.process.id, launch }),
            // A full disk costs an entry of the history.
            Err(error) => self.note(&error.to_string()),
        }
    }
}

/// Waits until the launch is over, on a thread.
struct Clock {
    /// Hangs up then.
    over: OwnedFd,
    ended: Sender<()>,
    thread: JoinHandle<Duration>,
}

impl Clock {
    fn start(process: u32, began: Instant) -> io::Result<Clock> {
        let (over, open) = pipe_with(PipeFlags::CLOEXEC)?;
        let (ended, end) = mpsc::channel();
        let thread = thread::Builder::new().name("launch-clock".into()).spawn(move || {
            let took = quiet::wait(process, began, &end);
            drop(open);
            took
        })?;
        Ok(Clock { over, ended, thread })
    }

    /// How long it took; if it is not over, until now.
    fn took(self) -> Duration {
        drop(self.ended);
        self.thread.join().unwrap_or_default()
    }
}
