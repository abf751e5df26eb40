//! One device against a plain map in memory: what is read is what was written, and what was
//! acknowledged survives everything.
//!
//! For each file the test keeps the states it had since the last acknowledged one. After a restart
//! of the device the server must have one of them; while the device lives, it must see exactly the
//! last.

mod killed;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use units::{Rng, SplitMix64, Token};

use super::sim::{Faults, Sim, options, taken, with_outbox};
use crate::call::Call;
use crate::{FileRef, Handle, OpenHow};

const NAMES: [&str; 4] = ["a", "b", "d/c", "d/e"];

type State = Option<Vec<u8>>;

/// Runs one seed; a failure names it. `RUNNEL_STREAM_SEED=N` runs only that one,
/// `RUNNEL_STREAM_SEEDS=N` so many.
pub fn seeds(usual: u64, run: impl Fn(u64)) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let seeds = match number("RUNNEL_STREAM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("RUNNEL_STREAM_SEEDS").unwrap_or(usual),
    };
    for seed in seeds {
        let run = catch_unwind(AssertUnwindSafe(|| run(seed)));
        assert!(run.is_ok(), "to repeat: RUNNEL_STREAM_SEED={seed}");
    }
}

struct Model {
    sim: Sim,
    at: usize,
    rng: SplitMix64,
    /// What the device sees.
    now: BTreeMap<&'static str, State>,
    /// What the server may have, the acknowledged state first.
    may: BTreeMap<&'static str, Vec<State>>,
    open: Vec<(Handle, &'static str, bool)>,
    nameless: Vec<Nameless>,
    outbox: bool,
}

/// A file that was removed or replaced while it was open: what its handles see.
struct Nameless {
    handles: Vec<(Handle, bool)>,
    state: Vec<u8>,
}

impl Model {
    fn new(seed: u64) -> Model {
        Model::with(seed, 0)
    }

    /// Each connection has a damaged bit among so many bytes; 0: none.
    fn with(seed: u64, flips: u64) -> Model {
        let mut rng = SplitMix64(seed ^ 0xabc);
        let calm = rng.below(4) == 0;
        let faults = Faults {
            cuts: if calm { 0 } else { 1 + rng.below(4) },
            crashes: if calm { 0 } else { rng.below(3) },
            flips,
            pushes: rng.below(2) == 0,
            late: rng.below(5),
        };
        let outbox = rng.below(2) == 0;
        let mut sim = Sim::new(seed, faults);
        let mut options = if outbox { with_outbox(options()) } else { options() };
        options.memory_bytes = [0, 2048, 64 << 10][rng.below(3) as usize];
        if rng.below(3) == 0 {
            options.cache = Some(crate::Room { folder: "cache".into(), bytes: 1 << 20 });
        }
        let at = sim.add_device(options);
        sim.until(|sim| sim.devices[0].engine.status().connected);
        let (now, may) = NAMES.iter().map(|name| ((*name, None), (*name, vec![None]))).unzip();
        let mut model = Model { sim, at, rng, now, may, open: Vec::new(), nameless: Vec::new(), outbox };
        model.sim.wait(at, |done| super::sim::folder(b"d".to_vec(), done)).unwrap();
        model
    }

    fn pick(&mut self) -> Option<usize> {
        (!self.open.is_empty()).then(|| self.rng.below(self.open.len() as u64) as usize)
    }

    /// The device changed a file, and the server does not know yet.
    fn changed(&mut self, name: &'static str, state: State) {
        self.now.insert(name, state.clone());
        self.may.get_mut(name).unwrap().push(state);
    }

    /// The server has what the device has of a file.
    fn acknowledged(&mut self, name: &'static str) {
        let state = self.now[name].clone();
        let found = self.sim.on_server(name.as_bytes());
        assert!(found == state, "{name}: acknowledged, but the server has {:?}", found.map(|found| found.len()));
        self.may.insert(name, vec![state]);
    }

    #[expect(clippy::too_many_lines, reason = "one story, told in its order")]
    fn step(&mut self) {
        let at = self.at;
        match self.rng.below(34) {
            28..=33 => self.step_range(),
            24..=27 => self.step_nameless(),
            0..=3 => self.open(),
            4..=9 => {
                let Some(index) = self.pick() else { return };
                let (handle, name, append) = self.open[index];
                let mut state = self.now[name].clone().unwrap_or_default();
                let most = if self.rng.below(6) == 0 { 6000 } else { 700 };
                let bytes: Vec<u8> = (0..1 + self.rng.below(most)).map(|_| self.rng.next_u64() as u8 | 1).collect();
                let offset = if append { state.len() as u64 } else { self.rng.below(5000) };
                let end = offset as usize + bytes.len();
                state.resize(state.len().max(end), 0);
                state[offset as usize..end].copy_from_slice(&bytes);
                let bytes = Bytes::from(bytes);
                self.sim.wait(at, |done| Call::Write { handle, offset, bytes, done }).unwrap();
                self.changed(name, Some(state));
            }
            10 => {
                let Some(index) = self.pick() else { return };
                let (handle, name, _) = self.open[index];
                let size = self.rng.below(7000);
                let mut state = self.now[name].clone().unwrap_or_default();
                state.resize(size as usize, 0);
                self.sim.wait(at, |done| Call::SetSize { of: handle.into(), size, done }).unwrap();
                self.changed(name, Some(state));
            }
            11..=15 => {
                let Some(index) = self.pick() else { return };
                let (handle, name, _) = self.open[index];
                let (offset, bytes) = (self.rng.below(7000), self.rng.below(4000) as u32);
                let token = Token(9);
                let found = self.sim.wait(at, |done| Call::Read { handle, token, offset, bytes, done }).unwrap();
                let state = self.now[name].clone().unwrap_or_default();
                let from = (offset as usize).min(state.len());
                let to = (offset as usize + bytes as usize).min(state.len());
                let wrong = found.iter().zip(&state[from..to]).position(|(a, b)| a != b);
                let at = wrong.map(|at| (from + at, found[at], state[from + at]));
                assert!(found == state[from..to], "{name}: {at:?} in {offset} {bytes} of {}", state.len());
            }
            16..=17 => {
                let Some(index) = self.pick() else { return };
                let (handle, name, _) = self.open[index];
                self.sim.wait(at, |done| Call::Sync { handle, done }).unwrap();
                self.acknowledged(name);
            }
            18 => {
                let Some(index) = self.pick() else { return };
                let (handle, name, _) = self.open.swap_remove(index);
                self.sim.wait(at, |done| Call::Close { handle, done }).unwrap();
                self.acknowledged(name);
            }
            19 => {
                let name = NAMES[self.rng.below(4) as usize];
                let of = FileRef::Path(name.into());
                let found = self.sim.wait(at, |done| Call::Stat { of, done });
                let size = self.now[name].as_ref().map(|state| state.len() as u64);
                assert_eq!(found.ok().map(|info| info.size), size, "{name}");
            }
            20 => self.rename(),
            21 => self.remove(),
            22 => {
                let folder: &str = if self.rng.below(2) == 0 { "" } else { "d" };
                let found = self.sim.wait(at, |done| Call::List { path: folder.into(), done }).unwrap();
                let found: Vec<_> = found.into_iter().filter(|entry| entry.name != b"d").collect();
                let found: Vec<_> = found.into_iter().map(|entry| (entry.name, entry.info.size)).collect();
                let there = self.now.iter().filter_map(|(name, state)| {
                    let (parent, last) = name.rsplit_once('/').unwrap_or(("", name));
                    Some((last.as_bytes().to_vec(), state.as_ref()?.len() as u64)).filter(|_| parent == folder)
                });
                assert_eq!(found, there.collect::<Vec<_>>());
            }
            _ if self.sim.kills == 0 && self.rng.below(3) == 0 => self.restart(),
            _ => {}
        }
    }

    /// Zeros and room, copies, and where data and holes are.
    fn step_range(&mut self) {
        let at = self.at;
        let Some(index) = self.pick() else { return };
        let (handle, name, append) = self.open[index];
        let mut state = self.now[name].clone().unwrap_or_default();
        let offset = self.rng.below(6000);
        let end = (offset + 1 + self.rng.below(3000)) as usize;
        match self.rng.below(6) {
            0..=1 => {
                let zero = self.rng.below(3) > 0;
                let (reserve, extend) = (!zero || self.rng.below(2) == 0, self.rng.below(2) == 0);
                let allocation = crate::Allocation { zero, reserve, extend };
                let range = (offset, end as u64 - offset);
                self.sim.wait(at, |done| Call::Allocate { handle, range, allocation, done }).unwrap();
                let cut = end.min(state.len());
                if zero && (offset as usize) < cut {
                    state[offset as usize..cut].fill(0);
                }
                if extend {
                    state.resize(state.len().max(end), 0);
                }
            }
            2..=3 if !append => {
                let Some(from) = self.pick() else { return };
                let (source, from_name, _) = self.open[from];
                let (from_offset, length) = (self.rng.below(6000), 1 + self.rng.below(4000));
                let overlaps = from_name == name && from_offset.abs_diff(offset) < length;
                if overlaps {
                    return;
                }
                self.sim.wait(at, |done| Call::Sync { handle: source, done }).unwrap();
                self.acknowledged(from_name);
                let (from, to) = ((source, from_offset), (handle, offset));
                let copied = match self.sim.wait(at, |done| Call::Copy { from, to, length, done }) {
                    Ok(copied) => copied as usize,
                    // What it is on the server is asked for when it is opened again.
                    Err(error) if error.kind() == crate::ErrorKind::Unsupported => return,
                    Err(error) => panic!("{name}: {error}"),
                };
                let from = self.now[from_name].clone().unwrap_or_default();
                let left = from.len().saturating_sub(from_offset as usize);
                assert_eq!(copied, left.min(length as usize));
                if copied == 0 {
                    return;
                }
                let end = offset as usize + copied;
                state.resize(state.len().max(end), 0);
                state[offset as usize..end].copy_from_slice(&from[from_offset as usize..from_offset as usize + copied]);
            }
            _ => {
                let seek = |hole| move |done| Call::Seek { handle, offset, hole, done };
                let data = self.sim.wait(at, seek(false)).unwrap();
                let hole = self.sim.wait(at, seek(true)).unwrap();
                let size = state.len() as u64;
                assert_eq!(hole.is_some(), offset < size, "{name}: a hole from {offset} on in {size}: {hole:?}");
                let skipped = data.unwrap_or(size) as usize;
                assert!(skipped <= state.len(), "{name}: data at {skipped} in {size}");
                let zeros = state.get(offset as usize..skipped).unwrap_or_default();
                assert!(zeros.iter().all(|byte| *byte == 0), "{name}: data between {offset} and {data:?}");
                let at_hole = hole.and_then(|hole| state.get(hole as usize));
                assert!(at_hole.is_none_or(|byte| *byte == 0), "{name}: data in the hole at {hole:?}");
                return;
            }
        }
        self.changed(name, Some(state));
        self.acknowledged(name);
    }

    fn open(&mut self) {
        if self.open.len() + self.nameless.len() >= 9 {
            return;
        }
        let name = NAMES[self.rng.below(4) as usize];
        let there = self.now[name].is_some();
        let append = self.rng.below(4) == 0;
        let exclusive = self.rng.below(8) == 0;
        let truncate = self.rng.below(8) == 0;
        let create = (self.rng.below(5) > 0).then_some(0o644);
        let how = OpenHow { read: true, write: !append, append, create, owner: None, exclusive, truncate };
        let path = name.as_bytes().to_vec();
        let opened = self.sim.wait(self.at, |done| Call::Open { path, how, token: Token(9), done });
        match (there, create.is_some()) {
            (true, true) if exclusive => assert_eq!(opened.unwrap_err().errno(), 17),
            (false, false) => assert_eq!(opened.unwrap_err().errno(), 2),
            _ => {
                let opened = opened.unwrap_or_else(|error| panic!("{name}: {error}"));
                let size = self.now[name].as_ref().map_or(0, |state| state.len() as u64);
                let size = if truncate { 0 } else { size };
                assert_eq!(opened.info.size, size, "{name}");
                if !there || truncate {
                    self.changed(name, Some(Vec::new()));
                }
                if !there && exclusive {
                    self.acknowledged(name);
                }
                self.open.push((opened.handle, name, append));
            }
        }
    }

    fn rename(&mut self) {
        let from = NAMES[self.rng.below(4) as usize];
        let to = NAMES[self.rng.below(4) as usize];
        if from == to {
            return;
        }
        let replace = self.rng.below(3) > 0;
        let (source, target) = (from.into(), to.into());
        let moved = self.sim.wait(self.at, |done| Call::Rename { from: source, to: target, replace, done });
        match (&self.now[from], &self.now[to]) {
            (None, _) => {
                let error = moved.unwrap_err();
                assert_eq!(error.errno(), 2, "{from}: {error}");
            }
            (Some(_), Some(_)) if !replace => assert_eq!(moved.unwrap_err().errno(), 17),
            (Some(state), _) => {
                moved.unwrap();
                let state = Some(state.clone());
                self.lose_name(to);
                self.now.insert(to, state);
                self.now.insert(from, None);
                self.acknowledged(from);
                self.acknowledged(to);
                self.open.iter_mut().filter(|(_, name, _)| *name == from).for_each(|(_, name, _)| *name = to);
            }
        }
    }

    fn remove(&mut self) {
        let name = NAMES[self.rng.below(4) as usize];
        let removed = self.sim.wait(self.at, |done| Call::Remove { path: name.into(), done });
        match self.now[name] {
            None => assert_eq!(removed.unwrap_err().errno(), 2),
            Some(_) => {
                removed.unwrap();
                self.lose_name(name);
                self.now.insert(name, None);
                self.acknowledged(name);
            }
        }
    }

    /// Whoever has the file open goes on with it.
    fn lose_name(&mut self, name: &'static str) {
        let (gone, open) = self.open.drain(..).partition(|(_, open, _)| *open == name);
        self.open = open;
        let gone: Vec<(Handle, &str, bool)> = gone;
        if let (Some(state), false) = (self.now[name].clone(), gone.is_empty()) {
            let handles = gone.into_iter().map(|(handle, _, append)| (handle, append)).collect();
            self.nameless.push(Nameless { handles, state });
        }
    }

    fn step_nameless(&mut self) {
        if self.nameless.is_empty() {
            return;
        }
        let (at, index) = (self.at, self.rng.below(self.nameless.len() as u64) as usize);
        let file = &mut self.nameless[index];
        let which = self.rng.below(file.handles.len() as u64) as usize;
        let (handle, append) = file.handles[which];
        match self.rng.below(11) {
            10 => {
                let (offset, length) = (self.rng.below(6000), 1 + self.rng.below(3000));
                let (zero, extend) = (self.rng.below(2) == 0, self.rng.below(2) == 0);
                let allocation = crate::Allocation { zero, reserve: true, extend };
                let range = (offset, length);
                self.sim.wait(at, |done| Call::Allocate { handle, range, allocation, done }).unwrap();
                let (offset, end) = (offset as usize, (offset + length) as usize);
                if zero && offset < file.state.len() {
                    let cut = end.min(file.state.len());
                    file.state[offset..cut].fill(0);
                }
                if extend {
                    file.state.resize(file.state.len().max(end), 0);
                }
            }
            0..=3 => {
                let bytes: Vec<u8> = (0..1 + self.rng.below(3000)).map(|_| self.rng.next_u64() as u8 | 1).collect();
                let offset = if append { file.state.len() as u64 } else { self.rng.below(5000) };
                let end = offset as usize + bytes.len();
                file.state.resize(file.state.len().max(end), 0);
                file.state[offset as usize..end].copy_from_slice(&bytes);
                let bytes = Bytes::from(bytes);
                self.sim.wait(at, |done| Call::Write { handle, offset, bytes, done }).unwrap();
            }
            4 => {
                let size = self.rng.below(7000);
                file.state.resize(size as usize, 0);
                self.sim.wait(at, |done| Call::SetSize { of: handle.into(), size, done }).unwrap();
            }
            5..=7 => {
                let (offset, bytes) = (self.rng.below(7000), self.rng.below(4000) as u32);
                let from = (offset as usize).min(file.state.len());
                let to = (offset as usize + bytes as usize).min(file.state.len());
                match self.sim.wait(at, |done| Call::Read { handle, token: Token(9), offset, bytes, done }) {
                    Ok(found) => assert!(found == file.state[from..to], "{offset} {bytes} of {}", file.state.len()),
                    // Not all of it was here when it was removed.
                    Err(error) => assert_eq!(error.errno(), 116, "{error}"),
                }
            }
            8 => {
                self.sim.wait(at, |done| Call::Sync { handle, done }).unwrap();
                let info = self.sim.wait(at, |done| Call::Stat { of: handle.into(), done }).unwrap();
                assert_eq!(info.size, file.state.len() as u64);
            }
            _ => {
                file.handles.swap_remove(which);
                if file.handles.is_empty() {
                    self.nameless.swap_remove(index);
                }
                self.sim.wait(at, |done| Call::Close { handle, done }).unwrap();
            }
        }
    }

    /// The process of the device dies, perhaps while it waits for the server.
    fn restart(&mut self) {
        let at = self.at;
        let cut_off = self.rng.below(2) == 0;
        self.sim.away = cut_off;
        let syncing = match self.pick() {
            Some(index) if self.rng.below(2) == 0 => {
                let (handle, _, _) = self.open[index];
                Some(self.sim.call(at, |done| Call::Sync { handle, done }))
            }
            _ => None,
        };
        for _ in 0..self.rng.below(400) {
            self.sim.step();
        }
        // What is all in the outbox is lost in no case.
        let status = self.sim.devices[at].engine.status();
        let whole = self.outbox && status.unsent.unsent_transactions == status.unsent.stored_transactions && {
            let sealed = self.sim.devices[at].engine.open_bytes() == 0;
            sealed && status.unsent.unsent_transactions > 0
        };
        let done = syncing.as_ref().and_then(taken);
        self.sim.restart_device(at);
        self.sim.away = false;
        self.open.clear();
        self.nameless.clear();
        self.sim.until(|sim| sim.devices[at].engine.status().connected);
        self.sim.wait(at, |done| Call::SyncAll { done }).unwrap();
        let _ = done;
        for name in NAMES {
            let found = self.sim.on_server(name.as_bytes());
            let may = &self.may[name];
            let size = found.as_ref().map(Vec::len);
            assert!(may.contains(&found), "{name}: {size:?} after a restart, of {} states", may.len());
            if whole {
                assert!(may.last() == Some(&found), "{name}: all was in the outbox, {size:?} is there");
            }
            self.now.insert(name, found.clone());
            self.may.insert(name, vec![found]);
        }
        let lost = &self.sim.devices[at].storage.lost;
        assert!(lost.is_empty(), "nobody else writes: {lost:?}");
    }

    /// Stops the server's machine at one of its next changes.
    fn crash_sometimes(&mut self) {
        let crashes = self.sim.faults.crashes;
        if crashes > 0 && self.rng.below(12) < crashes {
            let change = self.sim.disk.changes() + 1 + self.rng.below(40);
            self.sim.disk.crash_at(Some(change));
        }
    }

    fn finish(&mut self) {
        let at = self.at;
        self.sim.wait(at, |done| Call::SyncAll { done }).unwrap();
        for name in NAMES {
            self.acknowledged(name);
        }
        for (handle, _) in std::mem::take(&mut self.nameless).into_iter().flat_map(|file| file.handles) {
            self.sim.wait(at, |done| Call::Close { handle, done }).unwrap();
        }
        let status = self.sim.devices[at].engine.status();
        assert!(status.lost.is_empty() && status.unsent.unsent_bytes == 0, "{status:?}");
        self.sim.until(|sim| sim.devices[at].idle());
        assert!(self.sim.devices[at].storage.stored.is_empty());
    }
}

#[test]
fn sim_one_device_is_exact() {
    seeds(60, |seed| {
        let mut model = Model::new(seed);
        for _ in 0..120 {
            model.crash_sometimes();
            model.step();
        }
        model.finish();
    });
}

/// Whatever bit of a connection is damaged, what is read is what was written, and all of it gets to
/// the server, once.
#[test]
fn sim_flips_reach_neither_application_nor_disk() {
    let flipped = std::cell::Cell::new(0);
    seeds(60, |seed| {
        let mut model = Model::with(seed, 4000);
        for _ in 0..120 {
            model.step();
        }
        model.finish();
        flipped.set(flipped.get() + model.sim.flipped);
    });
    if std::env::var_os("RUNNEL_STREAM_SEED").is_none() {
        assert!(flipped.get() >= 2000, "{} bits were damaged", flipped.get());
    }
}
