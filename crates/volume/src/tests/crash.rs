//! Random transactions, a crash at a random I/O (of a commit, a checkpoint, or the recovery
//! itself), and again. Afterwards the acknowledged transactions are there, and of the one in flight
//! all or nothing.

use std::collections::{BTreeMap, HashMap};

use units::{Rng, SplitMix64};

use super::model::{Model, random, walk};
use super::{SMALL, open};
use crate::*;

/// Runs one seed; a failure names it. `RUNNEL_VOLUME_SEED=N` runs only that one,
/// `RUNNEL_VOLUME_SEEDS=N` so many.
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
    /// The last number that each device used.
    numbers: [u64; 3],
    /// The last transactions of each device that were acknowledged, and what they were answered.
    answered: Vec<(Transaction, Committed)>,
}

/// Transactions of one device that were in flight in all rounds, at most.
const IN_FLIGHT_MAX: usize = 16;

impl Known {
    fn look(&mut self, volume: &Volume) -> Model {
        let (mut model, versions) = walk(volume);
        model.owner = self.model.owner;
        for (path, seen) in &versions {
            let bytes = &model.get(path).unwrap().bytes;
            let before = self.contents.entry(*seen).or_insert_with(|| bytes.clone());
            assert_eq!(before, bytes, "{seen:?} of {} had another content", String::from_utf8_lossy(path));
        }
        self.versions = versions;
        model
    }

    /// Most transactions have a number; at times one is left out.
    fn number(&mut self, transactions: &mut [Transaction], rng: &mut SplitMix64) {
        for transaction in transactions {
            let device = rng.below(4) as usize;
            if let Some(number) = self.numbers.get_mut(device) {
                *number += 1 + rng.below(8) / 7;
                transaction.writer = Some(Writer { device: device as u128, number: *number });
            }
        }
    }

    fn answered(&mut self, transaction: &Transaction, committed: &Committed) {
        if let Some(writer) = transaction.writer {
            // As many as are remembered in any case: the volume may know of some that were in
            // flight when the machine stopped.
            let same = |other: &Transaction| other.writer.is_some_and(|other| other.device == writer.device);
            if self.answered.iter().filter(|(other, _)| same(other)).count() >= ANSWERS_MAX - IN_FLIGHT_MAX {
                let oldest = self.answered.iter().position(|(other, _)| same(other)).unwrap();
                self.answered.remove(oldest);
            }
            self.answered.push((transaction.clone(), committed.clone()));
        }
    }

    /// Repeats the acknowledged transactions; no change reaches the disk.
    fn repeat_unchanged(&self, volume: &Volume, disk: &SimulatedDisk) {
        let before = disk.changes();
        self.repeat(volume);
        assert_eq!(disk.changes(), before, "a repeated transaction changed something");
    }

    /// Every acknowledged transaction that is repeated gets its answer, and nothing happens.
    fn repeat(&self, volume: &Volume) {
        let transactions: Vec<_> = self.answered.iter().map(|(transaction, _)| transaction.clone()).collect();
        for (result, (transaction, committed)) in volume.commit_all(transactions).iter().zip(&self.answered) {
            assert_eq!(result.as_ref().unwrap(), committed, "{transaction:?}");
        }
    }

    /// Checks what a transaction was answered.
    fn take(
        &mut self,
        result: &Result<Committed, VolumeError>,
        expected: bool,
        stale: bool,
        transaction: &Transaction,
    ) {
        assert_eq!(result.is_ok(), expected, "{result:?} of {transaction:?}");
        let stale_error = matches!(result, Err(VolumeError::Conflict { .. }));
        assert!(!stale || stale_error, "{result:?} of {transaction:?}");
        if let Ok(committed) = result {
            self.answered(transaction, committed);
        }
    }

    /// Checks that a crash left one of the trees in flight, and takes it.
    fn find(&mut self, volume: &Volume, flight: &[Model]) {
        let before = self.versions.clone();
        let found = self.look(volume);
        assert!(flight.contains(&found), "found {found:?}, not one of {flight:?}");
        // Unless a transaction in flight would leave the same tree, with other versions.
        if found == self.model && flight[1..].iter().all(|after| *after != found) {
            assert_eq!(self.versions, before, "versions of an unchanged tree");
        }
        self.repeat(volume);
        assert_eq!(self.look(volume), found, "after repeating what was acknowledged");
        self.model = found;
    }
}

fn one(seed: u64) {
    let mut rng = SplitMix64(seed);
    let disk = SimulatedDisk::new(seed ^ 0x5eed);
    let mut known = Known { model: Model::simulated(), ..Known::default() };
    let tight = seed % 4 == 1;
    // The journal, a small reserve, and not much else.
    let capacity = tight.then(|| (200 << 10) + rng.below(80 << 10));
    if seed % 2 == 1 {
        known.model = foreign(&disk);
    }
    let mut volume = open(&disk, SMALL).unwrap();
    assert_eq!(known.look(&volume), known.model);
    if tight {
        disk.set_capacity(capacity);
        drop(volume);
        volume = open(&disk, SMALL).unwrap();
    }
    for _round in 0..4 {
        disk.crash_at(Some(disk.changes() + 1 + rng.below(400)));
        let mut flight: Vec<Model> = vec![known.model.clone()];
        let mut under_way = Vec::new();
        while !disk.is_down() {
            if rng.below(40) == 0 {
                let _ = volume.checkpoint();
                continue;
            }
            if rng.below(20) == 0 {
                known.repeat_unchanged(&volume, &disk);
            }
            let (mut transactions, stale) = some_transactions(&mut rng, &known);
            known.number(&mut transactions, &mut rng);
            if tight {
                transactions.truncate(1);
                set_room(&disk, capacity, &mut rng);
            }
            // At times a call on the disk fails, with the machine running on.
            let fault = rng.below(8) == 0;
            if fault {
                transactions.truncate(1);
                disk.fail_at(Some(disk.changes() + 1 + rng.below(12)));
            }
            let mut expected;
            (flight, expected) = foresee(&known.model, &transactions, stale);
            let results = volume.commit_all(transactions.clone());
            disk.fail_at(None);
            under_way = transactions.clone();
            let broken = matches!(results[0], Err(VolumeError::Broken { .. }));
            if disk.is_down() || broken {
                assert!(disk.is_down() || fault, "{results:?}");
                break;
            }
            assert!(tight || !matches!(results[0], Err(VolumeError::NoSpace { .. })));
            let failed = matches!(results[0], Err(VolumeError::Io { .. })) && fault;
            if failed || matches!(results[0], Err(VolumeError::NoSpace { .. })) {
                // Nobody was promised anything yet.
                flight.truncate(1);
                expected = vec![false];
            }
            for ((result, expected), transaction) in results.iter().zip(&expected).zip(&transactions) {
                known.take(result, *expected, stale, transaction);
            }
            known.model = flight.pop().unwrap();
            let found = known.look(&volume);
            assert_eq!(found, known.model, "after {transactions:?}");
            flight = vec![known.model.clone()];
            under_way.clear();
        }
        drop(volume);
        disk.set_capacity(capacity);
        volume = reopen(&disk, &mut rng);
        known.find(&volume, &flight);
        repeat_flight(&volume, &under_way, &flight, &mut known);
    }
}

/// At times others take all that is left but the reserve.
fn set_room(disk: &SimulatedDisk, capacity: Option<u64>, rng: &mut SplitMix64) {
    disk.set_capacity(capacity);
    if rng.below(4) == 0 {
        let free = disk.space().unwrap().bytes;
        disk.set_capacity(capacity.map(|capacity| capacity - free));
    }
}

/// What each of the transactions would leave, whether or not the machine lives to tell, and which
/// are not refused.
fn foresee(model: &Model, transactions: &[Transaction], stale: bool) -> (Vec<Model>, Vec<bool>) {
    let (mut flight, mut expected) = (vec![model.clone()], Vec::new());
    for transaction in transactions {
        let mut after = flight.last().unwrap().clone();
        let result = if stale { None } else { after.commit(transaction).ok() };
        expected.push(result.is_some());
        flight.push(after);
    }
    (flight, expected)
}

/// Devices repeat what they got no answer to: what the crash left is not done again, the rest is,
/// once.
fn repeat_flight(volume: &Volume, under_way: &[Transaction], flight: &[Model], known: &mut Known) {
    if under_way.iter().any(|transaction| transaction.writer.is_none()) {
        return;
    }
    let results = volume.commit_all(under_way.to_vec());
    let found = known.look(volume);
    // Room, and versions that were seen before, may be gone.
    let refused = |error: &VolumeError| matches!(error, VolumeError::NoSpace { .. } | VolumeError::Conflict { .. });
    // One that made no sense then may do so after those that came behind it.
    let retried = under_way.iter().zip(flight).any(|(transaction, before)| before.clone().commit(transaction).is_err());
    if !retried && !results.iter().any(|result| result.as_ref().is_err_and(refused)) {
        assert_eq!(Some(&found), flight.last(), "{results:?} of {under_way:?}");
    }
    let again = volume.commit_all(under_way.to_vec());
    for ((first, second), transaction) in results.iter().zip(&again).zip(under_way) {
        if let Ok(committed) = first {
            assert_eq!(second.as_ref().unwrap(), committed, "{transaction:?}");
            known.answered(transaction, committed);
        }
    }
    assert_eq!(known.look(volume), found, "after repeating {under_way:?} twice");
    known.model = found;
}

/// Files that the volume finds.
fn foreign(disk: &SimulatedDisk) -> Model {
    let mut model = Model::simulated();
    for folder in ["b", "b/c"] {
        disk.make_folder(folder.as_bytes(), 0o755).unwrap();
        model.insert(folder.as_bytes(), model.plain(Kind::Folder, 0o755, 0, Vec::new()));
    }
    for (name, count) in [("a", 3000), ("b/a", 700), ("b/c/b", 0)] {
        let bytes = vec![5; count];
        disk.create(name.as_bytes(), 0o644).unwrap().write_at(0, &bytes).unwrap();
        disk.set_mtime(name.as_bytes(), 77).unwrap();
        model.insert(name.as_bytes(), model.plain(Kind::File, 0o644, 77, bytes));
    }
    disk.sync_all().unwrap();
    model
}

/// One transaction or a few, sometimes with the base that a writer saw before somebody else came:
/// these must conflict.
fn some_transactions(rng: &mut SplitMix64, known: &Known) -> (Vec<Transaction>, bool) {
    let count = if rng.below(3) == 0 { 1 + rng.below(4) } else { 1 };
    let mut transactions: Vec<_> = (0..count).map(|_| random(rng)).collect();
    let mut stale = false;
    if rng.below(4) == 0 && !known.versions.is_empty() {
        let chosen = rng.below(known.versions.len() as u64) as usize;
        let (path, seen) = known.versions.iter().nth(chosen).unwrap();
        stale = rng.below(2) == 0;
        // One version that never was, since 0 would be any.
        let base = Some(Seen { version: seen.version + u64::from(stale), ..*seen });
        let path = VolumePath::new(path).unwrap();
        transactions.truncate(1);
        transactions[0].operations.insert(0, Operation::Append { path, base, bytes: b"seen".to_vec() });
        if stale {
            transactions[0].operations.truncate(1);
        }
    }
    (transactions, stale)
}

/// Starts the machine again if it is down, and opens the volume, when it may crash once more while
/// it recovers.
fn reopen(disk: &SimulatedDisk, rng: &mut SplitMix64) -> Volume {
    loop {
        if disk.is_down() {
            disk.restart();
        }
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

/// Stops the machine with three group commits in the journal, none of them in a checkpoint.
fn three_groups(disk: &SimulatedDisk) {
    let volume = open(disk, SMALL).unwrap();
    for name in ["a", "b", "c"] {
        volume.commit(super::transaction(vec![super::create(name)])).unwrap();
    }
    disk.crash_at(Some(disk.changes() + 1));
    drop(volume);
    disk.restart();
}

#[test]
fn a_torn_end_is_cut_and_a_damaged_middle_is_an_error() {
    for (damaged, left) in [(0, None), (512, None), (1024, Some(2)), (1536, Some(3))] {
        let disk = SimulatedDisk::new(damaged);
        three_groups(&disk);
        disk.open(b".runnel/journal", true).unwrap().write_at(damaged + 60, b"damage").unwrap();
        match (open(&disk, SMALL), left) {
            (Ok(volume), Some(left)) => {
                let recovered = volume.recovered();
                assert_eq!((recovered.groups, recovered.torn), (left, left < 3));
                // The third may be there even if its frame is not: it had been applied.
                assert!(walk(&volume).0.paths().len() as u64 >= left);
            }
            (Err(VolumeError::Corrupt { file: "journal", offset, .. }), None) => assert_eq!(offset, damaged),
            (result, _) => panic!("damage at {damaged}: {:?}", result.map(|volume| volume.recovered())),
        }
    }
}

/// Files that others removed, and folders that they filled, between a crash and the recovery.
#[test]
fn a_recovery_gets_by_with_what_others_did() {
    let disk = SimulatedDisk::new(1);
    let folder = |name: &str| Operation::MakeFolder { path: super::path(name), mode: 0o755, owner: None };
    let volume = open(&disk, SMALL).unwrap();
    let first = vec![folder("old"), super::create("old/file"), folder("empty"), super::create("gone")];
    volume.commit(super::transaction(first)).unwrap();
    volume.checkpoint().unwrap();
    let then = vec![
        super::write("gone", None, 0, b"lost"),
        super::rename("old/file", "file"),
        Operation::RemoveFolder { path: super::path("empty") },
        super::create("new"),
    ];
    volume.commit(super::transaction(then)).unwrap();
    disk.crash_at(Some(disk.changes() + 1));
    drop(volume);
    disk.restart();
    let _ = disk.unlink(b"gone");
    let _ = disk.make_folder(b"empty", 0o755);
    drop(disk.create(b"empty/theirs", 0o600).unwrap());
    let volume = open(&disk, SMALL).unwrap();
    let Recovered { groups, missing, lost, .. } = volume.recovered();
    assert_eq!((groups, missing, lost), (1, 1, 1));
    let names = walk(&volume).0.paths();
    assert_eq!(names, [&b"file"[..], b"new", b"old"]);
    let mut kept = 0;
    disk.list(b".runnel/lost", &mut |_, _| {
        kept += 1;
        true
    })
    .unwrap();
    assert_eq!(kept, 1);
}
