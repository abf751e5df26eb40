//! With a key the files say nothing, and what was changed or moved is not there.

use encryption::OVERHEAD_BYTES;

use super::*;
use crate::folder::Unreadable;
use crate::format::{HEAD_BYTES, PinnedName, SEALED_HEADER_BYTES, Version};

const SECRET: &[u8] = b"what an image has";
/// A record of these tests: a head, a label and a payload of a size that two of them have.
const RECORD: usize = HEAD_BYTES + 2 + 1000 + 3 * OVERHEAD_BYTES;

fn payload(number: u64) -> Vec<u8> {
    let mut bytes = SECRET.repeat(1000 / SECRET.len() + 1);
    bytes.truncate(1000);
    bytes[999] = number as u8;
    bytes
}

fn put(cache: &Cache, image: u64, number: u64) {
    assert!(cache.put(&owner(image), Kind::Block, &key(number), b"at", &payload(number)).unwrap());
}

fn sealed() -> Top {
    Top::new(Some(storage_key(1)))
}

/// The files whose names end so, in their order.
fn files(top: &Top, extension: &str) -> Vec<PathBuf> {
    let found = fs::read_dir(top.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = found.filter(|path| path.extension().is_some_and(|found| found == extension)).collect();
    found.sort();
    found
}

/// Which of these records are there; none is wrong.
fn found(top: &Top, numbers: std::ops::Range<u64>) -> Vec<u64> {
    let cache = open(top).unwrap();
    let is_there = |number: &u64| {
        cache.read(Kind::Block, &key(*number)).inspect(|found| assert_eq!(*found, payload(*number))).is_some()
    };
    numbers.filter(is_there).collect()
}

fn name() -> PinnedName {
    let version = Some(Version { owner: owner(0x51), bytes: 1000 });
    PinnedName { target: "runnel://h/secret".into(), current: version, ..PinnedName::default() }
}

fn pin(cache: &Cache) {
    assert!(cache.put_pinned(&owner(0x51), Kind::Block, &key(7), b"at", &payload(7)).unwrap());
    let _claim = cache.claim_name(&key(9)).unwrap().unwrap();
    cache.change_name(&key(9), |found| *found = name()).unwrap();
}

#[test]
fn the_files_say_nothing_of_what_is_in_them() {
    let told = |top: &Top| {
        let cache = open(top).unwrap();
        (0..3).for_each(|number| put(&cache, 0x51, number));
        pin(&cache);
        // While a log is written, after that, and when its image is pinned no more.
        let mut bytes = Vec::new();
        let read_all = |bytes: &mut Vec<u8>| {
            for entry in fs::read_dir(top.path()).unwrap() {
                let path = entry.unwrap().path();
                bytes.extend(path.file_name().unwrap().as_encoded_bytes());
                bytes.extend(fs::read(path).unwrap());
            }
        };
        read_all(&mut bytes);
        cache.close();
        read_all(&mut bytes);
        cache.unpin(&owner(0x51)).unwrap();
        read_all(&mut bytes);
        let digits: String = key(9).0.iter().map(|byte| format!("{byte:02x}")).collect();
        let hash = format::hash(&payload(7));
        let known = [SECRET, &owner(0x51).0, &key(7).0, &hash, b"secret", digits.as_bytes(), b"RcRd", b"RNLINDEX"];
        known.map(|part| bytes.windows(part.len()).any(|found| found == part))
    };
    assert_eq!(told(&Top::new(None)), [true; 8]);
    assert_eq!(told(&sealed()), [false; 8]);
}

#[test]
fn a_flipped_bit_is_a_miss() {
    let top = sealed();
    let cache = open(&top).unwrap();
    (0..2).for_each(|number| put(&cache, 1, number));
    drop(cache);
    let log = &files(&top, "log")[0];
    let whole = fs::read(log).unwrap();
    for at in (0..whole.len()).step_by(3) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(log, &damaged).unwrap();
        let lost: &[u64] = match at.checked_sub(SEALED_HEADER_BYTES) {
            // The header, and the zeros in it.
            None => &[],
            // The heads are in the index, too, and are read from there.
            Some(at) if at / RECORD < 2 && at % RECORD >= RECORD - 1000 - OVERHEAD_BYTES => &[1 - (at / RECORD) as u64],
            Some(_) => &[0, 1],
        };
        assert_eq!(found(&top, 0..2), lost, "byte {at} of {}", whole.len());
        fs::remove_file(log).unwrap();
    }
    fs::write(log, &whole).unwrap();
    assert_eq!(found(&top, 0..2), [0, 1]);
}

#[test]
fn what_was_moved_is_a_miss_and_is_put_again() {
    let top = sealed();
    for image in 0..2 {
        let cache = open(&top).unwrap();
        (0..2).for_each(|number| put(&cache, image, 2 * image + number));
    }
    let logs = files(&top, "log");
    let (first, second) = (fs::read(&logs[0]).unwrap(), fs::read(&logs[1]).unwrap());
    let at = |record: usize| SEALED_HEADER_BYTES + record * RECORD..SEALED_HEADER_BYTES + (record + 1) * RECORD;
    let end = at(1).end;

    // The files change places: neither is what its name says.
    fs::write(&logs[0], &second).unwrap();
    fs::write(&logs[1], &first).unwrap();
    assert_eq!(found(&top, 0..4), []);

    // The records of a log do; one stands where another log has it; an end is that of another log.
    let swapped = [&first[..at(0).start], &first[at(1)], &first[at(0)], &first[end..]].concat();
    let taken = [&first[..at(1).start], &second[at(1)], &first[end..]].concat();
    let joined = [&first[..end], &second[end..]].concat();
    for (bytes, left) in [(swapped, &[2, 3][..]), (taken, &[0, 2, 3]), (joined, &[0, 1, 2, 3])] {
        fs::write(&logs[0], bytes).unwrap();
        fs::write(&logs[1], &second).unwrap();
        assert_eq!(found(&top, 0..4), left);
        // Without its index, too.
        let short = fs::read(&logs[0]).unwrap().len() - 1;
        OpenOptions::new().write(true).open(&logs[0]).unwrap().set_len(short as u64).unwrap();
        let again = found(&top, 0..4);
        assert!(again.iter().all(|number| left.contains(number)) && again.ends_with(&[2, 3]), "{again:?}");
    }
    let cache = open(&top).unwrap();
    put(&cache, 0, 1);
    drop(cache);
    assert!(found(&top, 0..4).contains(&1));
}

#[test]
fn a_name_that_was_moved_or_changed_is_not_pinned() {
    let top = sealed();
    let cache = open(&top).unwrap();
    pin(&cache);
    let other = cache.claim_name(&key(8)).unwrap().unwrap();
    cache.change_name(&key(8), |found| found.target = "other".into()).unwrap();
    drop(other);
    let names = files(&top, "pin");
    let kept = bytes_of(&names);
    fs::write(&names[0], &kept[1]).unwrap();
    fs::write(&names[1], &kept[0]).unwrap();
    assert_eq!(cache.pinned_names().unwrap(), []);
    assert_eq!((cache.pinned_name(&key(8)).unwrap(), cache.pinned_name(&key(9)).unwrap()), (None, None));
    for at in [0, 9, 30, 60, 1000] {
        for (path, bytes) in names.iter().zip(&kept) {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            bytes[at + crate::format::SLOT_BYTES] ^= 1;
            fs::write(path, bytes).unwrap();
        }
        assert_eq!(cache.pinned_names().unwrap(), [], "byte {at}");
    }
    fs::write(&names[0], &kept[0]).unwrap();
    fs::write(&names[1], &kept[1]).unwrap();
    assert_eq!(cache.pinned_name(&key(9)).unwrap(), Some(name()));
}

/// What files have.
fn bytes_of(files: &[PathBuf]) -> Vec<Vec<u8>> {
    files.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// The same folder with another key, or none.
fn with(top: &Top, key: Option<&StorageKey>) -> Cache {
    Cache::open_with(top.path(), Some(LIMIT), key, Duration::ZERO).unwrap()
}

#[test]
fn a_cache_with_another_key_is_discarded_and_its_pins_stay() {
    let keys = [None, Some(storage_key(1)), Some(storage_key(2))];
    for (of, to) in [(0, 1), (1, 0), (1, 2)] {
        let top = Top::new(keys[of].clone());
        let cache = open(&top).unwrap();
        (0..2).for_each(|number| put(&cache, 1, number));
        pin(&cache);
        drop(cache);
        let sizes = bytes_of(&files(&top, "log")).iter().map(|bytes| bytes.len() as u64).collect::<Vec<_>>();
        let cache = with(&top, keys[to].as_ref());
        assert!(!cache.has(Kind::Block, &key(0)) && cache.pins().is_empty());
        assert_eq!(cache.pinned_names().unwrap(), []);
        // What others could read goes, whatever it is.
        let is_plain = of == 0;
        let expected = match is_plain {
            true => Unreadable { bytes: sizes[0] + sizes[1], pinned_bytes: sizes[1], kept_bytes: 0 },
            false => Unreadable { bytes: sizes[0], pinned_bytes: 0, kept_bytes: sizes[1] },
        };
        assert_eq!(cache.unreadable(), expected);
        cache.discard_unreadable().unwrap();
        let kept = Unreadable { kept_bytes: expected.kept_bytes, ..Unreadable::default() };
        assert_eq!(with(&top, keys[to].as_ref()).unreadable(), kept);
        assert_eq!(cache.pinned_bytes().unwrap(), kept.kept_bytes);
        put(&cache, 1, 1);
        drop(cache);
        let own = open(&top).unwrap();
        assert_eq!(own.read(Kind::Block, &key(7)).is_some(), !is_plain);
        assert_eq!(own.pinned_name(&key(9)).unwrap(), (!is_plain).then(name));
        assert!(!own.has(Kind::Block, &key(0)));
    }
}

#[test]
fn what_is_in_use_with_another_key_stays_until_it_is_not() {
    let top = Top::new(None);
    let writer = open(&top).unwrap();
    put(&writer, 1, 0);
    let other = || with(&top, Some(&storage_key(1)));
    other().discard_unreadable().unwrap();
    assert!(other().unreadable().bytes > 0, "it is being written");
    drop(writer);
    other().discard_unreadable().unwrap();
    assert_eq!((other().unreadable(), bytes_in(top.path())), (Unreadable::default(), 0));
}

#[test]
fn what_has_another_key_goes_when_there_is_no_room() {
    let top = sealed();
    let cache = open(&top).unwrap();
    for number in 0..200 {
        assert!(cache.put(&owner(1), Kind::Block, &key(number), b"", &[7; 2000]).unwrap());
    }
    drop(cache);
    let other = with(&top, Some(&storage_key(2)));
    for number in 0..100 {
        assert!(other.put(&owner(1), Kind::Block, &key(number), b"", &[8; 2000]).unwrap());
        assert!(bytes_in(top.path()) <= LIMIT);
    }
    assert_eq!(other.read(Kind::Block, &key(99)).unwrap(), [8; 2000]);
}

/// Time of the processor for this thread, which does not depend on what else the machine does.
fn processor() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// What a key costs: `cargo test --release -p runnel-cache bench -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn bench_of_a_cache_with_and_without_a_key() {
    const RECORDS: u64 = 4000;
    for bytes in [4 << 10, 40 << 10] {
        both(|top| {
            let payload: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
            let rates = [(); 5].map(|()| {
                let cache = Cache::open_with(top.path(), Some(1 << 30), top.key.as_ref(), Duration::ZERO).unwrap();
                let began = processor();
                for number in 0..RECORDS {
                    assert!(cache.put(&owner(1), Kind::Block, &key(number), b"at", &payload).unwrap());
                }
                cache.close();
                let written = processor() - began;
                let began = processor();
                for number in 0..RECORDS {
                    assert_eq!(cache.read(Kind::Block, &key(number)).unwrap().len(), bytes);
                }
                let read = processor() - began;
                drop(cache);
                let began = processor();
                let cache = Cache::open_with(top.path(), Some(1 << 30), top.key.as_ref(), Duration::ZERO).unwrap();
                let opened = processor() - began;
                cache.clear().unwrap();
                let rate = |time: Duration| (RECORDS * bytes as u64) as f64 / time.as_secs_f64() / 1e6;
                (rate(written) as u64, rate(read) as u64, opened.as_micros())
            });
            println!(
                "{bytes} bytes, key {}: MB a second of processor written, read; µs to open: {rates:?}",
                top.key.is_some()
            );
        });
    }
}
