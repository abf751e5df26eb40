//! A model of several processes that use one cache while power fails and the disk is full.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use units::{Rng, SplitMix64};

use super::*;

mod names;
mod pins;
mod sealed;

pub(crate) mod fault {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    }

    /// The disk has so many bytes left for this thread.
    pub fn full_after(bytes: u64) {
        LEFT.set(bytes);
    }

    /// Fails if the disk is full.
    pub fn before(bytes: u64) -> io::Result<()> {
        let left = LEFT.get();
        if left == u64::MAX {
            return Ok(());
        }
        LEFT.set(left.saturating_sub(bytes));
        if left < bytes { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

const LIMIT: u64 = 256 << 10;

/// A folder for a cache, and its key.
struct Top {
    _top: tempfile::TempDir,
    path: PathBuf,
    key: Option<StorageKey>,
}

impl Top {
    fn new(key: Option<StorageKey>) -> Top {
        let top = tempfile::tempdir().unwrap();
        Top { path: top.path().join("cache"), _top: top, key }
    }

    fn open(&self, bytes_max: u64) -> std::io::Result<Cache> {
        Cache::open_sealed(&self.path, Some(bytes_max), self.key.as_ref())
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// A cache is the same with a key and without.
fn both(test: impl Fn(&Top)) {
    for key in [None, Some(storage_key(1))] {
        test(&Top::new(key));
    }
}

fn storage_key(number: u8) -> StorageKey {
    let bytes: Vec<u8> = (0..32).map(|at| at ^ number).collect();
    StorageKey::parse(&bytes).unwrap()
}

/// A cache that may be written at any rate.
fn open(top: &Top) -> std::io::Result<Cache> {
    Cache::open_with(top.path(), Some(LIMIT), top.key.as_ref(), Duration::ZERO)
}

fn key(number: u64) -> Key {
    Key(*blake3::hash(&number.to_le_bytes()).as_bytes())
}

fn owner(number: u64) -> Owner {
    Owner([number as u8; 32])
}

fn bytes_in(folder: &Path) -> u64 {
    let logs = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    logs.filter(|entry| entry.file_name() != "images.lock").map(|entry| entry.metadata().unwrap().len()).sum()
}

fn random_bytes(rng: &mut SplitMix64, most: u64) -> Vec<u8> {
    let words = rng.below(most) as usize / 8;
    (0..words).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

/// What a power cut may leave of a file whose bytes were not synced: sectors that were never
/// written, and an end that was not moved.
fn lose_sectors(rng: &mut SplitMix64, folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        for _ in 0..rng.below(3) {
            let at = rng.below(length.max(1)) / 512 * 512;
            let sector = (length - at.min(length)).min(512) as usize;
            let lost: Vec<u8> = match rng.below(2) {
                0 => vec![0; sector],
                _ => (0..sector).map(|_| rng.next_u64() as u8).collect(),
            };
            file.write_all_at(&lost, at).unwrap();
        }
        if rng.below(8) == 0 {
            file.set_len(rng.below(length + 1)).unwrap();
        }
    }
}

/// What was ever put under a name: after a power cut an older one may be there again.
type Model = HashMap<(Kind, Key), Vec<Vec<u8>>>;

fn check(cache: &Cache, model: &Model, kind: Kind, key: Key) {
    if let Some(found) = cache.read(kind, &key) {
        assert!(model.get(&(kind, key)).is_some_and(|put| put.contains(&found)), "bytes that nobody put");
    }
}

fn step(rng: &mut SplitMix64, caches: &mut [Option<Cache>], top: &Top, model: &mut Model) {
    let which = rng.below(caches.len() as u64) as usize;
    let kind = [Kind::Block, Kind::Pages, Kind::Name][rng.below(3) as usize];
    let key = key(rng.below(64));
    let Some(cache) = &caches[which] else {
        caches[which] = open(top).ok();
        return;
    };
    match rng.below(16) {
        0..8 => {
            let (label, payload) = (random_bytes(rng, 64), random_bytes(rng, 12 << 10));
            // Before: a write that fails may have put all of it.
            model.entry((kind, key)).or_default().push(payload.clone());
            let owner = owner(rng.below(3));
            let _ = match rng.below(6) {
                0 => cache.put_pinned(&owner, kind, &key, &label, &payload),
                1 => cache.unpin(&owner).map(|()| false),
                _ => cache.put(&owner, kind, &key, &label, &payload),
            };
        }
        8..12 => check(cache, model, kind, key),
        12 => {
            for found in cache.records(&owner(rng.below(3)), kind) {
                check(cache, model, kind, found.key);
            }
        }
        13 => {
            // A full disk, or one that has room again.
            fault::full_after(if rng.below(2) == 0 { rng.below(64 << 10) } else { u64::MAX });
        }
        14 => drop(caches[which].take()),
        // The process is killed.
        _ => {
            if let Some(cache) = caches[which].take() {
                cache.killed();
            }
        }
    }
}

/// One life of a cache: some steps, and the power fails.
fn live(seed: u64, top: &Top) {
    let mut rng = SplitMix64(seed);
    let folder = top.path();
    let mut model = Model::new();
    for _ in 0..4 {
        let mut caches = [None, None];
        for _ in 0..60 {
            step(&mut rng, &mut caches, top, &mut model);
            if folder.exists() {
                assert!(bytes_in(folder) <= LIMIT, "seed {seed}: over the limit");
            }
        }
        caches.into_iter().flatten().for_each(Cache::killed);
        fault::full_after(u64::MAX);
        if folder.exists() {
            lose_sectors(&mut rng, folder);
        }
        let cache = open(top).unwrap();
        assert!(bytes_in(folder) <= LIMIT, "seed {seed}: over the limit after a power cut");
        for (kind, key) in model.keys() {
            check(&cache, &model, *kind, *key);
        }
    }
}

#[test]
fn sim_power_cuts_and_full_disks_show_no_wrong_bytes() {
    let rounds = std::env::var("RUNNEL_SIM_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(100);
    (0..rounds).for_each(|seed| both(|top| live(seed, top)));
}

#[test]
fn what_was_put_is_there_for_others_and_later() {
    both(|top| {
        let cache = top.open(1 << 20).unwrap();
        for number in 0..10 {
            assert!(cache.put(&owner(1), Kind::Pages, &key(number), &[number as u8], b"pages").unwrap());
        }
        assert!(cache.put(&owner(2), Kind::Block, &key(1), b"", b"block").unwrap());
        // While it is written.
        let other = top.open(1 << 20).unwrap();
        assert_eq!(other.read(Kind::Pages, &key(3)).unwrap(), b"pages");
        drop(cache);
        let later = top.open(1 << 20).unwrap();
        let labels: Vec<u8> = later.records(&owner(1), Kind::Pages).iter().map(|found| found.label[0]).collect();
        assert_eq!(labels, (0..10).collect::<Vec<u8>>(), "in their order");
        assert_eq!(later.read(Kind::Block, &key(1)).unwrap(), b"block");
        assert_eq!(later.read(Kind::Block, &key(2)), None);
        // It goes on with the logs that are there.
        assert!(later.put(&owner(1), Kind::Pages, &key(20), b"", b"more").unwrap());
        drop(later);
        let last = top.open(1 << 20).unwrap();
        assert_eq!((last.status().unwrap().logs, last.records(&owner(1), Kind::Pages).len()), (2, 11));
    });
}

#[test]
fn a_record_that_is_put_again_counts() {
    both(|top| {
        let cache = top.open(1 << 20).unwrap();
        cache.put(&owner(0), Kind::Name, &key(1), b"", b"old").unwrap();
        cache.put(&owner(0), Kind::Name, &key(1), b"", b"new").unwrap();
        assert_eq!(cache.records(&owner(0), Kind::Name).len(), 1);
        drop(cache);
        let cache = top.open(1 << 20).unwrap();
        assert_eq!(cache.read(Kind::Name, &key(1)).unwrap(), b"new");
    });
}

#[test]
fn the_log_used_longest_ago_goes_first() {
    both(|top| {
        let payload = vec![7; 30 << 10];
        for image in 0..4 {
            let cache = open(top).unwrap();
            assert!(cache.put(&owner(image), Kind::Block, &key(image), b"", &payload).unwrap());
            assert!(cache.put(&owner(image), Kind::Block, &key(100 + image), b"", &payload).unwrap());
        }
        let cache = open(top).unwrap();
        for image in [0, 2, 3] {
            assert!(cache.read(Kind::Block, &key(image)).is_some());
        }
        assert!(cache.put(&owner(9), Kind::Block, &key(9), b"", &payload).unwrap());
        let have = |image| open(top).unwrap().has(Kind::Block, &key(image));
        assert_eq!([0, 1, 2, 3, 9].map(have), [true, false, true, true, true]);
    });
}

#[test]
fn what_was_fetched_in_small_parts_stays_longer() {
    both(|top| {
        for (image, count) in [(0, 60), (1, 1), (2, 1)] {
            let cache = open(top).unwrap();
            for number in 0..count {
                let payload = vec![7; (50 << 10) / count as usize];
                assert!(cache.put(&owner(image), Kind::Block, &key(100 * image + number), b"", &payload).unwrap());
            }
        }
        let cache = open(top).unwrap();
        assert!(cache.put(&owner(9), Kind::Block, &key(999), b"", &[7; 50 << 10]).unwrap());
        assert!(cache.put(&owner(8), Kind::Block, &key(888), b"", &[7; 50 << 10]).unwrap());
        let have = |number| open(top).unwrap().has(Kind::Block, &key(number));
        assert_eq!([0, 100, 200, 999, 888].map(have), [true, false, true, true, true]);
    });
}

#[test]
fn little_more_is_written_than_is_cached() {
    both(|top| {
        let cache = top.open(64 << 20).unwrap();
        let mut cached = 0;
        for number in 0..400 {
            // A push of 32 pages, half its size.
            let payload = vec![number as u8; 40 << 10];
            assert!(cache.put(&owner(1), Kind::Pages, &key(number), &[0; 256], &payload).unwrap());
            cached += payload.len() as u64;
        }
        cache.close();
        let status = cache.status().unwrap();
        assert!(status.written_bytes * 100 <= cached * 115, "{} of {cached}", status.written_bytes);
        assert_eq!(status.payload_bytes, cached);
    });
}

#[test]
fn no_more_is_written_in_an_hour_than_the_cache_holds() {
    both(|top| {
        let cache = top.open(LIMIT).unwrap();
        let payload = vec![1; 8 << 10];
        let taken = (0..1000).filter(|number| cache.put(&owner(1), Kind::Block, &key(*number), b"", &payload).unwrap());
        let taken = taken.count() as u64 * payload.len() as u64;
        assert!(taken <= LIMIT && taken > LIMIT / 2, "{taken}");
    });
}

#[test]
fn short_starts_use_up_what_they_write_and_leave_no_files() {
    both(|top| {
        for number in 0..200 {
            let cache = top.open(LIMIT).unwrap();
            assert!(cache.put(&owner(1), Kind::Block, &key(number), b"", &[1; 100]).unwrap(), "{number}");
        }
        // One that is refused.
        let cache = top.open(LIMIT).unwrap();
        let taken =
            (0..100).filter(|n| cache.put(&owner(2), Kind::Block, &key(*n), b"", &[1; 9 << 10]).unwrap()).count();
        assert!(taken < 100);
        assert!(!cache.put(&owner(3), Kind::Block, &key(300), b"", &[1; 30 << 10]).unwrap());
        drop(cache);
        let logs = fs::read_dir(top.path()).unwrap().map(|entry| entry.unwrap());
        assert!(logs.into_iter().all(|log| log.metadata().unwrap().len() > 0));
    });
}

#[test]
fn a_log_that_others_went_on_with_keeps_their_records() {
    both(|top| {
        let first = top.open(1 << 20).unwrap();
        first.put(&owner(1), Kind::Block, &key(1), b"", b"one").unwrap();
        // It knows one record, and the other two are written behind its back.
        let second = top.open(1 << 20).unwrap();
        first.put(&owner(1), Kind::Block, &key(2), b"", b"two").unwrap();
        first.close();
        second.put(&owner(1), Kind::Block, &key(3), b"", b"three").unwrap();
        drop((first, second));
        let last = top.open(1 << 20).unwrap();
        assert_eq!([1, 2, 3].map(|number| last.has(Kind::Block, &key(number))), [true; 3]);
    });
}

#[test]
fn nobody_waits_for_a_process_that_keeps_the_lock() {
    both(|top| {
        let cache = top.open(1 << 20).unwrap();
        let lock = OpenOptions::new().read(true).write(true).open(top.path().join("images.lock")).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert!(!cache.put(&owner(1), Kind::Block, &key(1), b"", b"one").unwrap());
        assert!(top.open(1 << 20).is_ok());
        assert!(cache.clear().is_err());
        drop(lock);
        assert!(cache.put(&owner(1), Kind::Block, &key(1), b"", b"one").unwrap());
    });
}

#[test]
fn logs_that_others_removed_are_let_go() {
    both(|top| {
        let cache = open(top).unwrap();
        for image in 0..3 {
            cache.put(&owner(image), Kind::Block, &key(image), b"", &[1; 1000]).unwrap();
        }
        cache.close();
        open(top).unwrap().clear().unwrap();
        assert_eq!(cache.status().unwrap().logs, 3);
        for image in 0..3 {
            assert_eq!(cache.read(Kind::Block, &key(image)), None);
        }
        assert_eq!((cache.status().unwrap().logs, cache.status().unwrap().records), (0, 0));
    });
}

#[test]
fn numbers_that_make_no_sense_do_no_harm() {
    both(|top| {
        let cache = top.open(LIMIT).unwrap();
        cache.put(&owner(1), Kind::Block, &key(2), b"", b"two").unwrap();
        drop(cache);
        let make = |name: &str| {
            let file = fs::File::create(top.path().join(name)).unwrap();
            file.set_len(1 << 40).unwrap();
            file.set_modified(std::time::SystemTime::now() + Duration::from_secs(1 << 32)).unwrap_or_default();
        };
        // They are no logs, so no log goes for them.
        for name in ["1.log", "+000000000000001.log", "FFFFFFFFFFFFFFFF.log"] {
            make(name);
        }
        assert!(top.open(LIMIT).unwrap().has(Kind::Block, &key(2)));
        make("ffffffffffffffff.log");
        let cache = top.open(LIMIT).unwrap();
        assert!(cache.put(&owner(1), Kind::Block, &key(1), b"", b"one").unwrap());
        assert_eq!(cache.read(Kind::Block, &key(1)).unwrap(), b"one");
    });
}

#[test]
fn damage_is_found_and_forgotten() {
    both(|top| {
        let cache = top.open(1 << 20).unwrap();
        for number in 0..4 {
            cache.put(&owner(1), Kind::Block, &key(number), b"", &[number as u8; 5000]).unwrap();
        }
        drop(cache);
        let log = fs::read_dir(top.path()).unwrap().map(|entry| entry.unwrap().path());
        let log = log.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "log")).unwrap();
        OpenOptions::new().write(true).open(&log).unwrap().write_all_at(&[9; 10], 7000).unwrap();
        let cache = top.open(1 << 20).unwrap();
        assert_eq!(cache.verify().unwrap(), (3, 1));
        assert_eq!(cache.read(Kind::Block, &key(1)), None);
        // It is known as lost from now on.
        let cache = top.open(1 << 20).unwrap();
        assert_eq!((cache.has(Kind::Block, &key(1)), cache.verify().unwrap()), (false, (3, 0)));
        cache.clear().unwrap();
        assert_eq!((bytes_in(top.path()), cache.verify().unwrap()), (0, (0, 0)));
        assert!(cache.put(&owner(1), Kind::Block, &key(1), b"", b"again").unwrap());
    });
}

#[test]
fn a_folder_that_others_can_enter_is_refused() {
    let top = tempfile::tempdir().unwrap();
    fs::set_permissions(top.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let error = Cache::open(top.path(), Some(LIMIT)).unwrap_err().to_string();
    assert!(error.contains("755") && error.contains("mode 700"), "{error}");
}

#[test]
fn the_usual_limit_is_a_tenth_of_the_free_space() {
    let mib = |mib: u64| mib << 20;
    assert_eq!(folder::usual_limit(0, mib(100_000)), mib(64));
    assert_eq!(folder::usual_limit(0, mib(110)), mib(10));
    // What it holds itself changes nothing.
    assert_eq!(folder::usual_limit(mib(10), mib(100)), mib(10));
    assert_eq!(folder::usual_limit(mib(60), 0), mib(60) / 11);
    let top = Top::new(None);
    let cache = Cache::open(top.path(), None).unwrap();
    assert!(cache.status().unwrap().bytes_max <= mib(64));
    assert_eq!(fs::metadata(top.path()).unwrap().permissions().mode() & 0o777, 0o700);
}
