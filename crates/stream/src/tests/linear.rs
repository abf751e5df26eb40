//! Four devices change names at the same time: whatever is cut and crashes, there is an order of
//! all calls in which each gave what it had to give, and which no call contradicts that was over
//! before another one began. The checker of the histories is that of the `stateright` crate.

mod contents;

use std::cell::Cell;
use std::collections::BTreeMap;

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};
use units::{Rng, SplitMix64, Token};

use super::model::seeds;
use super::sim::{Faults, Outcome, Sim, options, taken};
use super::writers::device;
use crate::call::{Call, Opened};
use crate::{ErrorKind, Handle, OpenHow, Options};

const FOLDERS: [&str; 2] = ["d", "e"];
const FILES: [&str; 5] = ["a", "d/a", "d/b", "e/a", "e/b"];

/// What a device asks for.
#[derive(Clone, Debug, PartialEq)]
enum Op {
    Create(&'static str),
    Look(&'static str),
    Remove(&'static str),
    Rename { from: &'static str, to: &'static str, replace: bool },
    MakeFolder(&'static str),
    RemoveFolder(&'static str),
}

/// What it is told.
#[derive(Clone, Debug, PartialEq)]
enum Ret {
    Done,
    /// The file with this number.
    File(u64),
    Failed(ErrorKind),
}

/// The names as one machine would have them: files by their numbers, folders without one.
#[derive(Clone, Debug, Default)]
struct Names(BTreeMap<String, Option<u64>>);

impl Names {
    fn has_parent(&self, path: &str) -> bool {
        path.rsplit_once('/').is_none_or(|(parent, _)| self.0.contains_key(parent))
    }

    fn is_empty(&self, folder: &str) -> bool {
        !self.0.keys().any(|path| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
    }

    /// Does `op`; a file that it makes gets the number `new`.
    fn apply(&mut self, op: &Op, new: u64) -> Result<Ret, ErrorKind> {
        match *op {
            Op::Create(path) => {
                self.free(path)?;
                self.0.insert(path.to_owned(), Some(new));
                Ok(Ret::File(new))
            }
            Op::Look(path) => self.file(path).map(Ret::File),
            Op::Remove(path) => {
                self.file(path)?;
                self.0.remove(path);
                Ok(Ret::Done)
            }
            Op::Rename { from, to, replace } => {
                let found = *self.0.get(from).ok_or(ErrorKind::NotFound)?;
                match self.free(to) {
                    Err(ErrorKind::Exists) if replace && found.is_some() => {}
                    Err(ErrorKind::Exists) if replace && self.is_empty(to) => {}
                    Err(ErrorKind::Exists) if replace => return Err(ErrorKind::NotEmpty),
                    other => other?,
                }
                let inside =
                    |path: &str| path.strip_prefix(from).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
                let (moved, others): (Vec<_>, _) =
                    std::mem::take(&mut self.0).into_iter().partition(|(path, _)| inside(path));
                self.0 = BTreeMap::from_iter::<Vec<_>>(others);
                self.0.extend(moved.into_iter().map(|(path, node)| (path.replacen(from, to, 1), node)));
                Ok(Ret::Done)
            }
            Op::MakeFolder(path) => {
                self.free(path)?;
                self.0.insert(path.to_owned(), None);
                Ok(Ret::Done)
            }
            Op::RemoveFolder(path) => {
                self.0.get(path).ok_or(ErrorKind::NotFound)?;
                if !self.is_empty(path) {
                    return Err(ErrorKind::NotEmpty);
                }
                self.0.remove(path);
                Ok(Ret::Done)
            }
        }
    }

    fn file(&self, path: &str) -> Result<u64, ErrorKind> {
        self.0.get(path).copied().flatten().ok_or(ErrorKind::NotFound)
    }

    fn free(&self, path: &str) -> Result<(), ErrorKind> {
        match self.has_parent(path) {
            false => Err(ErrorKind::NotFound),
            true if self.0.contains_key(path) => Err(ErrorKind::Exists),
            true => Ok(()),
        }
    }
}

impl SequentialSpec for Names {
    type Op = Op;
    type Ret = Ret;

    fn invoke(&mut self, op: &Op) -> Ret {
        self.apply(op, 0).unwrap_or_else(Ret::Failed)
    }

    fn is_valid_step(&mut self, op: &Op, ret: &Ret) -> bool {
        let new = if let Ret::File(number) = ret { *number } else { 0 };
        self.apply(op, new).unwrap_or_else(Ret::Failed) == *ret
    }
}

/// A call that is not over.
enum Pending {
    Opened(Outcome<Opened>),
    Done(Outcome<()>),
}

fn some_op(rng: &mut SplitMix64) -> Op {
    let mut file = || FILES[rng.below(FILES.len() as u64) as usize];
    let (from, to) = (file(), file());
    let folder = rng.below(2) as usize;
    let replace = rng.below(2) == 0;
    match rng.below(12) {
        0..=2 => Op::Create(from),
        3..=5 => Op::Look(from),
        6 => Op::Remove(from),
        7..=8 if from != to => Op::Rename { from, to, replace },
        7..=8 => Op::Look(to),
        9 => Op::MakeFolder(FOLDERS[folder]),
        10 => Op::RemoveFolder(FOLDERS[folder]),
        _ => Op::Rename { from: FOLDERS[folder], to: FOLDERS[1 - folder], replace },
    }
}

fn begin(sim: &mut Sim, at: usize, op: &Op) -> Pending {
    let path = |text: &str| text.as_bytes().to_vec();
    let open = |text: &str, how: OpenHow| {
        let path = path(text);
        move |done| Call::Open { path, how, token: Token(1), done }
    };
    let create = OpenHow { read: true, write: true, create: Some(0o644), exclusive: true, ..OpenHow::default() };
    match *op {
        Op::Create(file) => Pending::Opened(sim.call(at, open(file, create))),
        Op::Look(file) => Pending::Opened(sim.call(at, open(file, OpenHow::READ))),
        Op::Remove(file) => Pending::Done(sim.call(at, |done| Call::Remove { path: path(file), done })),
        Op::Rename { from, to, replace } => {
            Pending::Done(sim.call(at, |done| Call::Rename { from: path(from), to: path(to), replace, done }))
        }
        Op::MakeFolder(folder) => Pending::Done(sim.call(at, |done| super::sim::folder(path(folder), done))),
        Op::RemoveFolder(folder) => Pending::Done(sim.call(at, |done| Call::RemoveFolder { path: path(folder), done })),
    }
}

/// What came of a call, and what is open since.
fn end(pending: &Pending) -> Option<(Ret, Option<Handle>)> {
    let failed = |error: crate::StreamError| (Ret::Failed(error.kind()), None);
    match pending {
        Pending::Opened(outcome) => {
            let opened = |opened: Opened| (Ret::File(opened.info.seen.file), Some(opened.handle));
            taken(outcome).map(|result| result.map_or_else(failed, opened))
        }
        Pending::Done(outcome) => taken(outcome).map(|result| result.map_or_else(failed, |()| (Ret::Done, None))),
    }
}

#[test]
fn sim_names_are_linearizable() {
    let (calls, looks, failed) = (Cell::new(0), Cell::new(0), Cell::new(0));
    seeds(200, |seed| {
        let mut rng = SplitMix64(seed ^ 0x11ea);
        let faults = Faults { cuts: rng.below(4), crashes: rng.below(2), flips: 0, pushes: false, late: rng.below(5) };
        let mut sim = Sim::new(seed, faults);
        // What a device remembers of names is older than what others do, as documented; here each
        // look is at the server.
        let options = Options { names_ttl: std::time::Duration::ZERO, ..options() };
        let devices: Vec<usize> = (0..4).map(|_| device(&mut sim, options.clone())).collect();
        for folder in FOLDERS {
            sim.wait(devices[0], |done| super::sim::folder(folder.into(), done)).unwrap();
        }
        let names = FOLDERS.map(|folder| (folder.to_owned(), None));
        let mut tester = LinearizabilityTester::new(Names(names.into()));
        let mut pending: BTreeMap<usize, Pending> = BTreeMap::new();
        let mut left = 28;
        while left > 0 || !pending.is_empty() {
            for at in &devices {
                if left == 0 || pending.contains_key(at) || rng.below(3) > 0 {
                    continue;
                }
                if faults.crashes > 0 && rng.below(12) == 0 {
                    let change = sim.disk.changes() + 1 + rng.below(40);
                    sim.disk.crash_at(Some(change));
                }
                let op = some_op(&mut rng);
                looks.set(looks.get() + usize::from(matches!(op, Op::Look(_))));
                tester.on_invoke(*at, op.clone()).unwrap();
                pending.insert(*at, begin(&mut sim, *at, &op));
                left -= 1;
            }
            sim.step();
            let mut over = Vec::new();
            for (at, call) in &pending {
                over.extend(end(call).map(|(ret, handle)| (*at, ret, handle)));
            }
            for (at, ret, handle) in over {
                pending.remove(&at);
                calls.set(calls.get() + 1);
                failed.set(failed.get() + usize::from(matches!(ret, Ret::Failed(_))));
                tester.on_return(at, ret).unwrap();
                if let Some(handle) = handle {
                    drop(sim.call(at, |done| Call::Close { handle, done }));
                }
            }
        }
        assert!(tester.is_consistent(), "no order explains {tester:#?}");
    });
    if std::env::var_os("RUNNEL_STREAM_SEED").is_none() {
        let changed = calls.get() - looks.get().max(failed.get());
        assert!(changed * 4 > calls.get(), "of {calls:?} calls {looks:?} looked and {failed:?} failed");
    }
}

/// The checker finds what no order explains.
#[test]
fn a_look_back_in_time_is_found() {
    let mut tester = LinearizabilityTester::new(Names::default());
    tester.on_invret(1, Op::Create("a"), Ret::File(7)).unwrap();
    tester.on_invret(1, Op::Remove("a"), Ret::Done).unwrap();
    assert!(tester.is_consistent());
    tester.on_invret(2, Op::Look("a"), Ret::File(7)).unwrap();
    assert!(!tester.is_consistent());
}
