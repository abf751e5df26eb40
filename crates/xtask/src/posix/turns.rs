//! One file changed by two mounts in turn, and by a mount that is killed, held against a model.
//!
//! What one mount closed the other one must see when it opens the file. Of a mount that was killed
//! the server must have what was last synced or closed, or any later state, and no mixture.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use memmap2::MmapMut;
use nix::unistd::close;

use units::{Rng, SplitMix64};

use super::Setting;
use super::mounted::{Mount, Server};

/// Longest file: more than a few pages, and small enough to be compared often.
const BYTES_MAX: u64 = 256 << 10;

/// Longest single change.
const CHANGE_BYTES_MAX: u64 = 20_000;

pub fn run(setting: &Setting) -> anyhow::Result<()> {
    let (seeds, operations) = if setting.full { (20, 5_000) } else { (2, 1_000) };
    let server = Server::start(&setting.runnel, &setting.folder.join("turns"))?;
    let mut mounts = [server.mount("one")?, server.mount("two")?];
    for seed in 1..=seeds {
        in_turn(&mounts, seed, operations).with_context(|| format!("two mounts in turn, seed {seed}"))?;
        let kills = operations / 100;
        killed(&mut mounts, seed, kills).with_context(|| format!("a mount that is killed, seed {seed}"))?;
    }
    let [one, two] = mounts;
    one.end()?;
    two.end()
}

fn in_turn(mounts: &[Mount; 2], seed: u64, operations: u32) -> anyhow::Result<()> {
    let name = format!("turns-{seed}");
    let mut model = Model::new(seed, true);
    fs::write(mounts[0].path.join(&name), "")?;
    let mut done = 0;
    let mut turn = 0;
    while done < operations {
        turn += 1;
        let path = mounts[turn % 2].path.join(&name);
        let begun = done;
        let how = |what: &str| format!("{what} of turn {turn}, which began after {begun} operations");
        let mut file = model.open(&path).with_context(|| how("the beginning"))?;
        model.check(&file).with_context(|| how("the beginning"))?;
        for _ in 0..1 + model.random.below(12) {
            model.step(&mut file).with_context(|| how("an operation"))?;
            done += 1;
        }
        close(file).with_context(|| how("the end"))?;
        if model.random.below(20) == 0 {
            // Another file under the name, as editors save.
            let new = path.with_extension("new");
            fs::write(&new, &model.now)?;
            fs::rename(&new, &path)?;
        }
    }
    Ok(())
}

/// The mount is killed between two operations or in the middle of one; then the other mount looks
/// first, or the one that is mounted anew.
fn killed(mounts: &mut [Mount; 2], seed: u64, kills: u32) -> anyhow::Result<()> {
    let name = format!("killed-{seed}");
    let mut model = Model::new(seed ^ 0x6b69_6c6c, false);
    fs::write(mounts[0].path.join(&name), "")?;
    for kill in 0..kills {
        let how = |what: &str| format!("{what} of kill {kill}");
        let path = mounts[0].path.join(&name);
        let killer = mounts[0].killer();
        let wait = Duration::from_micros(model.random.below(30_000));
        let thread = std::thread::spawn(move || {
            std::thread::sleep(wait);
            killer();
        });
        // Until a call fails.
        while model.session(&path).is_ok() {}
        thread.join().ok().context("the killing thread ended")?;
        let first = mounts[model.random.below(2) as usize].path.join(&name);
        mounts[0].kill_and_remount()?;
        let found = fs::read(&first).with_context(|| how("reading"))?;
        model.found(found).with_context(|| how("content"))?;
    }
    Ok(())
}

/// What the file must hold, or may hold if the mount dies now.
struct Model {
    random: SplitMix64,
    now: Vec<u8>,
    /// States since the last one that was synced, which is the first.
    may: Vec<Vec<u8>>,
    /// Not where the mount dies: a mapped page that cannot be read ends the program (SIGBUS).
    maps: bool,
}

impl Model {
    fn new(seed: u64, maps: bool) -> Model {
        Model { random: SplitMix64(seed), now: Vec::new(), may: vec![Vec::new()], maps }
    }

    fn open(&mut self, path: &Path) -> io::Result<File> {
        let empty = self.random.below(40) == 0;
        if empty {
            self.change(|now| now.clear());
        }
        OpenOptions::new().read(true).write(true).truncate(empty).open(path)
    }

    /// Opens the file, checks it, changes it, and closes it.
    fn session(&mut self, path: &Path) -> anyhow::Result<()> {
        let mut file = self.open(path)?;
        for _ in 0..self.random.below(6) {
            self.step(&mut file)?;
        }
        close(file)?;
        self.synced();
        Ok(())
    }

    /// A change that is about to be made: also one that fails may have happened.
    fn change(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.now);
        self.may.push(self.now.clone());
    }

    fn synced(&mut self) {
        self.may = vec![self.now.clone()];
    }

    /// Content that a dead mount left.
    fn found(&mut self, found: Vec<u8>) -> anyhow::Result<()> {
        let states = self.may.len();
        if !self.may.contains(&found) {
            let synced = first_difference(&self.may[0], &found);
            anyhow::bail!("{} bytes are none of {states} states; the synced one differs at {synced:?}", found.len());
        }
        self.now = found;
        self.synced();
        Ok(())
    }

    fn check(&mut self, file: &File) -> anyhow::Result<()> {
        let size = file.metadata()?.len();
        ensure!(size == self.now.len() as u64, "{size} bytes instead of {}", self.now.len());
        let mut content = vec![0; self.now.len()];
        if self.maps && !content.is_empty() && self.random.below(3) == 0 {
            content = map(file)?.to_vec();
        } else {
            file.read_exact_at(&mut content, 0)?;
        }
        let differs = first_difference(&self.now, &content);
        ensure!(differs.is_none(), "of {size} bytes, byte {differs:?} differs");
        Ok(())
    }

    fn step(&mut self, file: &mut File) -> anyhow::Result<()> {
        match self.random.below(10) {
            0 => {
                let size = self.random.below(BYTES_MAX);
                self.change(|now| now.resize(size as usize, 0));
                file.set_len(size)?;
            }
            1 => {
                file.sync_all()?;
                self.synced();
            }
            2 | 3 => self.check(file)?,
            4..=6 if self.maps && !self.now.is_empty() => {
                let at = self.random.below(self.now.len() as u64) as usize;
                let bytes = self.bytes((self.now.len() - at) as u64);
                let mut mapping = map(file)?;
                mapping[at..at + bytes.len()].copy_from_slice(&bytes);
                self.change(|now| now[at..at + bytes.len()].copy_from_slice(&bytes));
                if self.random.below(2) == 0 {
                    mapping.flush()?;
                    self.synced();
                }
            }
            _ => {
                let at = self.random.below(BYTES_MAX - CHANGE_BYTES_MAX) as usize;
                let bytes = self.bytes(CHANGE_BYTES_MAX);
                self.change(|now| {
                    now.resize(now.len().max(at + bytes.len()), 0);
                    now[at..at + bytes.len()].copy_from_slice(&bytes);
                });
                file.write_all_at(&bytes, at as u64)?;
            }
        }
        Ok(())
    }

    /// Bytes that no earlier change wrote, except by chance.
    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let count = 1 + self.random.below(most.min(CHANGE_BYTES_MAX));
        (0..count).map(|_| self.random.below(256) as u8).collect()
    }
}

fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    let common = one.iter().zip(other).position(|(one, other)| one != other);
    common.or((one.len() != other.len()).then(|| one.len().min(other.len())))
}

/// The whole file, mapped and shared.
#[allow(unsafe_code, reason = "mappings are what is tested")]
fn map(file: &File) -> io::Result<MmapMut> {
    // SAFETY: nobody but this thread changes the file, and it does not while the mapping is there.
    unsafe { MmapMut::map_mut(file) }
}
