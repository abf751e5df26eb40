//! Random transactions, a crash at a random I/O (of a commit, a checkpoint, or the recovery itself), and again.
//! Afterwards the acknowledged transactions are there, and of the one in flight all or nothing.

use std::collections::{BTreeMap, HashMap};

use units::{Rng, SplitMix64};

use super::model::{Model, Node, random, walk};
use super::{SMALL, open};
use crate::*;

/// Runs one seed; a failure names it. `RUNNEL_VOLUME_SEED=N` runs only that one, `RUNNEL_VOLUME_SEEDS=N` so many.
#[test]
fn sim_a_crash_leaves_what_was_acknowledged() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("RUNNEL_VOLUME_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("RUNNEL_VOLUME_SEEDS").unwrap_or(40),
    };
    for seed in seeds {
        let run = std::panic::catch_unwind(|| one(seed));
        assert!(run.is_ok(), "to repeat: RUNNEL_VOLUME_SEED={seed}");
    }
}

/// What was acknowledged, and what every version ever seen held.
#[derive(Default)]
struct Known {
    model: Model,
    versions: BTreeMap<Vec<u8>, Seen>,
    contents: HashMap<Seen, Vec<u8>>,
}

impl Known {
    fn look(&mut self, volume: &Volume) -> Model {
        let (model, versions) = walk(volume);
        for (path, seen) in &versions {
            let Node::File { bytes, .. } = &model.0[path] else { unreachable!() };
            let before = self.contents.entry(*seen).or_insert_with(|| bytes.clone());
            assert_eq!(before, bytes, "{seen:?} of {} had another content", String::from_utf8_lossy(path));
        }
        self.versions = versions;
        model
    }
}

fn one(seed: u64) {
    let mut rng = SplitMix64(seed);
    let disk = SimulatedDisk::new(seed ^ 0x5eed);
    let mut known = Known::default();
    let tight = seed % 4 == 1;
    if seed % 2 == 1 {
        known.model = foreign(&disk);
    }
    let mut volume = open(&disk, SMALL).unwrap();
    assert_eq!(known.look(&volume), known.model);
    if tight {
        // The journal, the least reserve, and not much else.
        disk.set_capacity(Some(320 << 10));
        drop(volume);
        volume = open(&disk, SMALL).unwrap();
    }
    for _round in 0..4 {
        disk.crash_at(Some(disk.changes() + 1 + rng.below(400)));
        let mut flight: Vec<Model> = vec![known.model.clone()];
        while !disk.is_down() {
            if rng.below(40) == 0 {
                let _ = volume.checkpoint();
                continue;
            }
            let (mut transactions, stale) = some_transactions(&mut rng, &known);
            if tight {
                transactions.truncate(1);
            }
            // What each of them would leave, whether or not the machine lives to tell.
            flight = vec![known.model.clone()];
            let mut expected = Vec::new();
            for transaction in &transactions {
                let mut after = flight.last().unwrap().clone();
                let result = if stale { None } else { after.commit(transaction).ok() };
                expected.push(result.is_some());
                flight.push(after);
            }
            let results = volume.commit_all(&transactions);
            if disk.is_down() {
                break;
            }
            if matches!(results[0], Err(VolumeError::NoSpace { .. })) {
                assert!(tight);
                flight.truncate(1);
                expected = vec![false];
            }
            for ((result, expected), transaction) in results.iter().zip(&expected).zip(&transactions) {
                assert_eq!(result.is_ok(), *expected, "{result:?} of {transaction:?}");
                let stale_error = matches!(result, Err(VolumeError::Conflict { .. }));
                assert!(!stale || stale_error, "{result:?} of {transaction:?}");
            }
            known.model = flight.pop().unwrap();
            let found = known.look(&volume);
            assert_eq!(found, known.model, "after {transactions:?}");
            flight = vec![known.model.clone()];
        }
        drop(volume);
        volume = reopen(&disk, &mut rng);
        let before = known.versions.clone();
        let found = known.look(&volume);
        assert!(flight.contains(&found), "found {found:?}, not one of {flight:?}");
        // Unless a transaction in flight would leave the same tree, with other versions.
        if found == known.model && flight[1..].iter().all(|after| *after != found) {
            assert_eq!(known.versions, before, "versions of an unchanged tree");
        }
        known.model = found;
    }
}

/// Files that the volume finds.
fn foreign(disk: &SimulatedDisk) -> Model {
    let mut model = Model::default();
    for folder in ["b", "b/c"] {
        disk.make_folder(folder.as_bytes(), 0o755).unwrap();
        model.0.insert(folder.into(), Node::Folder { mode: 0o755 });
    }
    for (name, count) in [("a", 3000), ("b/a", 700), ("b/c/b", 0)] {
        let bytes = vec![5; count];
        disk.create(name.as_bytes(), 0o644).unwrap().write_at(0, &bytes).unwrap();
        disk.set_mtime(name.as_bytes(), 77).unwrap();
        model.0.insert(name.into(), Node::File { bytes, mode: 0o644, mtime_ns: 77 });
    }
    disk.sync_all().unwrap();
    model
}

/// One transaction or a few, sometimes with the base that a writer saw before somebody else came: these must conflict.
fn some_transactions(rng: &mut SplitMix64, known: &Known) -> (Vec<Transaction>, bool) {
    let count = if rng.below(3) == 0 { 1 + rng.below(4) } else { 1 };
    let mut transactions: Vec<_> = (0..count).map(|_| random(rng)).collect();
    let mut stale = false;
    if rng.below(4) == 0 && !known.versions.is_empty() {
        let chosen = rng.below(known.versions.len() as u64) as usize;
        let (path, seen) = known.versions.iter().nth(chosen).unwrap();
        stale = rng.below(2) == 0;
        let base = Some(Seen { version: seen.version - u64::from(stale), ..*seen });
        let path = VolumePath::new(path).unwrap();
        transactions.truncate(1);
        transactions[0].operations.insert(0, Operation::Append { path, base, bytes: b"seen".to_vec() });
        if stale {
            transactions[0].operations.truncate(1);
        }
    }
    (transactions, stale)
}

/// Starts the machine again, which may crash once more while it recovers.
fn reopen(disk: &SimulatedDisk, rng: &mut SplitMix64) -> Volume {
    loop {
        disk.restart();
        if rng.below(3) == 0 {
            disk.crash_at(Some(disk.changes() + 1 + rng.below(60)));
        }
        match open(disk, SMALL) {
            Ok(volume) if !disk.is_down() => {
                disk.crash_at(None);
                return volume;
            }
            Ok(_) => {}
            Err(error) => assert!(disk.is_down(), "{error}"),
        }
    }
}
