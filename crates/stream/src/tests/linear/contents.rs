//! Four devices read and write files at the same time, each under a lock, as programs on mounts do.
//! Each file is one atomic register, whatever is cut and crashes and by whichever of its names it
//! was opened. What fails, because a lock was lost or somebody was faster, may have been done or
//! not: it is an operation that has never returned.

use std::cell::Cell;
use std::collections::BTreeMap;

use bytes::Bytes;
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};
use units::{LockKind, Rng, SplitMix64};
use wire::volume::HeldLock;

use super::super::model::seeds;
use super::super::sim::{Faults, Outcome, Sim, options, taken};
use super::super::writers::{TOKEN, WRITE, close, device, open, sync, write};
use crate::call::{Call, Opened};
use crate::{Handle, LockOwner, LockWish, StreamError};

/// Names, and which file each is of. The last file is not there at the beginning: who locks it
/// first makes it.
const NAMES: [(&str, usize); 4] = [("f", 0), ("f2", 0), ("g", 1), ("made", 2)];
const FILES: usize = 3;

/// Bytes of a file, over several blocks: the value again and again.
const CONTENT_BYTES: usize = 1304;

/// What a device does with a file.
#[derive(Clone, Debug, PartialEq)]
enum Op {
    Read,
    Write(u64),
    /// Reads and writes under one lock.
    Swap(u64),
}

#[derive(Clone, Debug, PartialEq)]
enum Ret {
    Found(u64),
    Written,
}

/// A file on one machine.
#[derive(Clone, Debug, Default)]
struct Register(u64);

impl SequentialSpec for Register {
    type Op = Op;
    type Ret = Ret;

    fn invoke(&mut self, op: &Op) -> Ret {
        match op {
            Op::Read => Ret::Found(self.0),
            Op::Write(value) => {
                self.0 = *value;
                Ret::Written
            }
            Op::Swap(value) => Ret::Found(std::mem::replace(&mut self.0, *value)),
        }
    }
}

fn content(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(CONTENT_BYTES / 8)
}

/// The value of a file; one that was only made has none yet.
fn value_of(bytes: &[u8]) -> u64 {
    let Some(first) = bytes.first_chunk() else { return 0 };
    let value = u64::from_le_bytes(*first);
    assert_eq!(bytes, content(value), "a mixture");
    value
}

/// What an operation waits for.
enum Step {
    Open(Outcome<Opened>),
    /// What was written, or that the file was made, is on the server before it is locked.
    Made(Outcome<()>),
    Lock(Outcome<Option<HeldLock>>),
    Look(Outcome<Opened>),
    Read(Outcome<Bytes>),
    Write(Outcome<()>),
    Sync(Outcome<()>),
}

/// An operation that is not over.
struct Running {
    at: usize,
    /// Of the history, which has one operation at a time in each.
    thread: usize,
    name: usize,
    op: Op,
    handle: Option<Handle>,
    found: Option<u64>,
    step: Step,
}

impl Running {
    fn begin(sim: &mut Sim, at: usize, thread: usize, name: usize, op: Op, handle: Option<Handle>) -> Running {
        let step = match handle {
            Some(handle) => Step::Made(sim.call(at, |done| Call::Sync { handle, done })),
            None => {
                let path = NAMES[name].0.as_bytes().to_vec();
                Step::Open(sim.call(at, |done| Call::Open { path, how: WRITE, token: TOKEN, done }))
            }
        };
        Running { at, thread, name, op, handle, found: None, step }
    }

    fn lock(&self, sim: &mut Sim, handle: Handle) -> Step {
        let kind = if self.op == Op::Read { LockKind::Shared } else { LockKind::Exclusive };
        Step::Lock(sim.call(self.at, |done| Call::Lock { handle, wish: wish(Some(kind)), done }))
    }

    fn write(&self, sim: &mut Sim, handle: Handle, value: u64) -> Step {
        let bytes = content(value).into();
        Step::Write(sim.call(self.at, |done| Call::Write { handle, offset: 0, bytes, done }))
    }

    /// Goes on as far as it can; what came of it, if it is over.
    fn advance(&mut self, sim: &mut Sim) -> Result<Option<Ret>, StreamError> {
        let (at, handle) = (self.at, self.handle.unwrap_or(Handle(0)));
        self.step = match &self.step {
            Step::Open(outcome) => {
                let Some(Opened { handle, .. }) = taken(outcome).transpose()? else { return Ok(None) };
                self.handle = Some(handle);
                Step::Made(sim.call(at, |done| Call::Sync { handle, done }))
            }
            Step::Made(outcome) => match taken(outcome).transpose()? {
                None => return Ok(None),
                Some(()) => self.lock(sim, handle),
            },
            Step::Lock(outcome) => match taken(outcome).transpose()? {
                None => return Ok(None),
                Some(Some(_)) => self.lock(sim, handle),
                Some(None) => Step::Look(sim.call(at, |done| Call::Look { handle, done })),
            },
            Step::Look(outcome) => match (taken(outcome).transpose()?, &self.op) {
                (None, _) => return Ok(None),
                (Some(_), Op::Write(value)) => self.write(sim, handle, *value),
                (Some(_), Op::Read | Op::Swap(_)) => {
                    let bytes = 2 * CONTENT_BYTES as u32;
                    Step::Read(sim.call(at, |done| Call::Read { handle, token: TOKEN, offset: 0, bytes, done }))
                }
            },
            Step::Read(outcome) => {
                let Some(bytes) = taken(outcome).transpose()? else { return Ok(None) };
                let found = value_of(&bytes);
                self.found = Some(found);
                match self.op {
                    Op::Swap(value) => self.write(sim, handle, value),
                    _ => return Ok(Some(Ret::Found(found))),
                }
            }
            Step::Write(outcome) => match taken(outcome).transpose()? {
                None => return Ok(None),
                Some(()) => Step::Sync(sim.call(at, |done| Call::Sync { handle, done })),
            },
            Step::Sync(outcome) => {
                let done = taken(outcome).transpose()?;
                return Ok(done.map(|()| self.found.map_or(Ret::Written, Ret::Found)));
            }
        };
        Ok(None)
    }

    /// Unlocks, and closes what is not kept open.
    fn end(&self, sim: &mut Sim, closed: impl IntoIterator<Item = Handle>) {
        if let Some(handle) = self.handle {
            drop(sim.call(self.at, |done| Call::Lock { handle, wish: wish(None), done }));
        }
        for handle in closed {
            drop(sim.call(self.at, |done| Call::Close { handle, done }));
        }
    }
}

/// Locks or unlocks the whole file. All operations of a device have one owner, so that an unlock
/// that comes late would end the next lock.
fn wish(kind: Option<LockKind>) -> LockWish {
    let owner = LockOwner { is_flock: false, number: 1 };
    LockWish { owner, start: 0, end: u64::MAX, kind, test: false, pid: 1 }
}

/// The connection of a device is gone, in some cases until its locks have ended.
fn cut(sim: &mut Sim, rng: &mut SplitMix64, at: usize) {
    sim.devices[at].cut();
    if rng.below(4) == 0 {
        sim.until(|sim| !sim.devices[at].engine.status().connected);
        let back = sim.now + 1_000_000 * (8 + rng.below(6));
        sim.devices[at].hold_off(back);
    }
}

/// Four devices, and files of which all but the last are there.
fn world(seed: u64) -> (Sim, Vec<usize>) {
    let mut sim = Sim::new(seed, Faults::default());
    let devices = (0..4).map(|_| device(&mut sim, options())).collect();
    for name in ["f", "g"] {
        let file = open(&mut sim, 0, name, WRITE).unwrap();
        write(&mut sim, 0, file, 0, content(0)).unwrap();
        sync(&mut sim, 0, file).unwrap();
        close(&mut sim, 0, file).unwrap();
    }
    sim.wait(0, |done| Call::Link { from: b"f".to_vec(), to: b"f2".to_vec(), done }).unwrap();
    (sim, devices)
}

/// Also without faults there are new ones: the clock may jump over the time that a peer may be
/// silent.
fn connections(sim: &Sim) -> u64 {
    sim.devices.iter().map(|device| device.generation).sum()
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story, told in its order")]
fn sim_contents_under_locks_are_linearizable() {
    let (over, failed) = (Cell::new(0), Cell::new(0));
    seeds(150, |seed| {
        let mut rng = SplitMix64(seed ^ 0x10c5);
        let (mut sim, devices) = world(seed);
        let faults = Faults {
            cuts: rng.below(4),
            crashes: rng.below(2),
            flips: 0,
            pushes: rng.below(2) == 0,
            late: rng.below(5),
        };
        let cuts = rng.below(2) == 0;
        sim.faults = faults;
        let before = connections(&sim);
        let mut testers = [(); FILES].map(|()| LinearizabilityTester::new(Register(0)));
        let mut kept: BTreeMap<(usize, usize), Handle> = BTreeMap::new();
        let mut running: Vec<Running> = Vec::new();
        let mut threads = devices.clone();
        let (mut left, mut failures) = (24, 0);
        while left > 0 || !running.is_empty() {
            for at in devices.iter().copied() {
                if left == 0 || rng.below(3) > 0 || running.iter().any(|other| other.at == at) {
                    continue;
                }
                if faults.crashes > 0 && rng.below(12) == 0 {
                    let change = sim.disk.changes() + 1 + rng.below(40);
                    sim.disk.crash_at(Some(change));
                }
                let name = rng.below(NAMES.len() as u64) as usize;
                let op = [Op::Read, Op::Write(left), Op::Swap(left)][rng.below(3) as usize].clone();
                testers[NAMES[name].1].on_invoke(threads[at], op.clone()).unwrap();
                let handle = kept.get(&(at, name)).copied();
                running.push(Running::begin(&mut sim, at, threads[at], name, op, handle));
                left -= 1;
            }
            if cuts && rng.below(1500) == 0 {
                let at = devices[rng.below(4) as usize];
                cut(&mut sim, &mut rng, at);
            }
            sim.step();
            running.retain_mut(|run| {
                let (at, name, file) = (run.at, run.name, NAMES[run.name].1);
                match run.advance(&mut sim) {
                    Ok(None) => return true,
                    Ok(Some(ret)) => {
                        testers[file].on_return(run.thread, ret).unwrap();
                        over.set(over.get() + 1);
                        if rng.below(2) == 0 {
                            kept.remove(&(at, name));
                            run.end(&mut sim, run.handle);
                        } else {
                            kept.extend(run.handle.map(|handle| ((at, name), handle)));
                            run.end(&mut sim, None);
                        }
                    }
                    Err(_) => {
                        failures += 1;
                        threads[at] = devices.len() + failures;
                        // What was refused is let go with the last handle of the file.
                        kept.extend(run.handle.map(|handle| ((at, name), handle)));
                        let mut closed = Vec::new();
                        kept.retain(|(other, name), handle| {
                            let stays = *other != at || NAMES[*name].1 != file;
                            closed.extend((!stays).then_some(*handle));
                            stays
                        });
                        run.end(&mut sim, closed);
                    }
                }
                false
            });
        }
        assert!(connections(&sim) > before || failures == 0, "nothing was cut, and {failures} operations failed");
        failed.set(failed.get() + failures);
        for tester in testers {
            assert!(tester.is_consistent(), "no order explains {tester:#?}");
        }
    });
    if std::env::var_os("RUNNEL_STREAM_SEED").is_none() {
        assert!(
            over.get() > 10 * failed.get() && failed.get() > 0,
            "{over:?} operations came to an end, {failed:?} failed"
        );
    }
}

/// The checker finds a read of what was overwritten before, and lets what failed be done or not.
#[test]
fn a_read_of_an_old_content_is_found() {
    let mut tester = LinearizabilityTester::new(Register(0));
    tester.on_invoke(1, Op::Write(7)).unwrap();
    tester.on_invret(2, Op::Read, Ret::Found(0)).unwrap();
    tester.on_invret(2, Op::Read, Ret::Found(7)).unwrap();
    assert!(tester.is_consistent());
    tester.on_invret(3, Op::Read, Ret::Found(0)).unwrap();
    assert!(!tester.is_consistent());
}
