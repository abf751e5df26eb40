//! Outboxes and caches with a key: their bytes say nothing, and another key gets nothing and
//! destroys nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bytes::Bytes;
use encryption::StorageKey;
use tempfile::TempDir;
use wire::volume::{Change, Secret};

use crate::Room;
use crate::cache::Cache;
use crate::job::BlockKey;
use crate::outbox::{Identity, Outbox, Stored, StoredBase, Who, file_name, unseal};

const SECRET: &[u8] = b"what nobody may read";

fn key(first: u8) -> StorageKey {
    let bytes: Vec<u8> = (first..first + 32).collect();
    StorageKey::parse(&bytes).unwrap()
}

fn stored(number: u64) -> Stored {
    let path = b"letters/dear".to_vec();
    let changes = vec![Change::Write { path, base: None, offset: 5, bytes: Bytes::from_static(SECRET) }];
    Stored { number, known_as: number, volume: 77, mtime_ns: 1, base: StoredBase::Free, changes }
}

fn who() -> Who {
    Who { identity: Some(Identity { number: 7, secret: Secret(*b"the secret of this device 123456") }), previous: 0 }
}

/// All files below a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        match path.is_dir() {
            true => found.extend(files(&path).into_iter().map(|(below, bytes)| (format!("{name}/{below}"), bytes))),
            false => drop(found.insert(name, fs::read(&path).unwrap())),
        }
    }
    found
}

fn filled(folder: &Path, key: Option<&StorageKey>) {
    let (mut outbox, _) = Outbox::open(folder, key, false).unwrap();
    outbox.identify(who()).unwrap();
    for number in 1..5 {
        outbox.store(number, number, &stored(number).to_bytes()).unwrap();
    }
    outbox.renumber(2, 9).unwrap();
    outbox.lose(3, "letters/dear: no room").unwrap();
}

fn refusal(folder: &Path, key: Option<&StorageKey>) -> String {
    let before = files(folder);
    let error = Outbox::open(folder, key, false).unwrap_err().to_string();
    assert_eq!(files(folder), before, "{error}");
    error
}

#[test]
fn an_outbox_with_a_key_shows_nothing_and_opens_with_it() {
    let folder = TempDir::new().unwrap();
    filled(folder.path(), Some(&key(1)));
    for (name, bytes) in files(folder.path()) {
        for secret in [SECRET, b"letters", b"secret of this"] {
            assert!(!bytes.windows(secret.len()).any(|part| part == secret), "{name}");
        }
    }
    let (outbox, held) = Outbox::open(folder.path(), Some(&key(1)), false).unwrap();
    assert_eq!(held.who, who());
    let expected = [stored(1), stored(4), Stored { number: 9, known_as: 2, ..stored(9) }];
    assert_eq!(held.stored, expected);
    drop(outbox);

    // What was lost is there for who has the key.
    let lost = |name: &str| fs::read(folder.path().join("lost").join(name)).unwrap();
    let text = lost("00000000000000000003.txt");
    let plain = String::from_utf8(unseal(&key(1), &text).unwrap()).unwrap();
    assert_eq!(plain, "letters/dear: no room\nletters/dear: 20 bytes at 5\n");
    assert_eq!(unseal(&key(1), &lost(&file_name(3, 3))).unwrap(), stored(3).to_bytes());
    assert!(unseal(&key(2), &text).unwrap_err().to_string().contains("another key"));
    assert!(unseal(&key(1), b"RNLSEAL1").is_err() && unseal(&key(1), &text[..text.len() - 1]).is_err());
}

#[test]
fn another_key_or_none_is_refused_and_loses_nothing() {
    let folder = TempDir::new().unwrap();
    filled(folder.path(), Some(&key(1)));
    assert!(refusal(folder.path(), Some(&key(2))).contains("another key"));
    assert!(refusal(folder.path(), None).contains("it is encrypted; give the key"));

    // Without the file that says whose it is, its transactions say it.
    let device = folder.path().join("device");
    let whole = fs::read(&device).unwrap();
    fs::remove_file(&device).unwrap();
    assert!(refusal(folder.path(), Some(&key(2))).contains("another key"));
    assert!(refusal(folder.path(), None).contains("it is encrypted; give the key"));
    fs::write(&device, whole).unwrap();
    assert_eq!(Outbox::open(folder.path(), Some(&key(1)), false).unwrap().1.stored.len(), 3);
}

#[test]
fn an_outbox_begun_without_a_key_gets_one_when_it_holds_no_changes() {
    let folder = TempDir::new().unwrap();
    filled(folder.path(), None);
    assert!(refusal(folder.path(), Some(&key(1))).contains("kept without a key"));

    let (mut outbox, held) = Outbox::open(folder.path(), None, false).unwrap();
    held.stored.iter().for_each(|stored| outbox.remove(stored.number).unwrap());
    drop(outbox);
    let (outbox, held) = Outbox::open(folder.path(), Some(&key(1)), false).unwrap();
    assert_eq!((held.who, held.stored.len()), (who(), 0));
    drop(outbox);
    assert!(refusal(folder.path(), None).contains("it is encrypted"));
}

#[test]
fn what_is_damaged_or_at_another_place_is_kept_aside() {
    let folder = TempDir::new().unwrap();
    filled(folder.path(), Some(&key(1)));
    let path = |number| folder.path().join(file_name(number, number));
    let mut bytes = fs::read(path(1)).unwrap();
    fs::write(path(5), &bytes).unwrap();
    bytes[60] ^= 1;
    fs::write(path(1), bytes).unwrap();
    // One that the key did not encrypt is not taken.
    fs::write(path(6), stored(6).to_bytes()).unwrap();
    let (_outbox, held) = Outbox::open(folder.path(), Some(&key(1)), false).unwrap();
    assert_eq!(held.stored.iter().map(|stored| stored.number).collect::<Vec<_>>(), [4, 9]);
    assert_eq!((held.lost.len(), held.next_number), (3, 10));
    for number in [1, 5, 6] {
        assert!(folder.path().join("lost").join(file_name(number, number)).exists(), "{number}");
    }
}

#[test]
fn a_damaged_device_is_an_error_with_a_key_too() {
    let folder = TempDir::new().unwrap();
    filled(folder.path(), Some(&key(1)));
    let path = folder.path().join("device");
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(&path, &damaged).unwrap();
        let error = refusal(folder.path(), Some(&key(1)));
        assert!(error.contains("damaged") || error.contains("another key"), "byte {at}: {error}");
    }
}

#[test]
fn a_cache_with_a_key_shows_nothing_and_misses_what_is_damaged() {
    let folder = TempDir::new().unwrap();
    let room = Room { folder: folder.path().to_owned(), bytes: 20_000 };
    let path = folder.path().join("blocks.cache");
    let at = |index| BlockKey { file: 5, version: 6, index };
    let open = |key: Option<&StorageKey>| Cache::open(&room, key, 77, 512).unwrap();
    let (plain, _) = open(None);
    plain.write(0, at(0), SECRET).unwrap();
    drop(plain);

    // One without a key is emptied.
    let (cache, found) = open(Some(&key(1)));
    assert!(found.is_empty() && cache.slots() == 32);
    cache.write(0, at(0), SECRET).unwrap();
    cache.write(1, at(1), &[7; 512]).unwrap();
    drop(cache);
    let whole = fs::read(&path).unwrap();
    assert!(!whole.windows(SECRET.len()).any(|part| part == SECRET));
    let (cache, found) = open(Some(&key(1)));
    assert_eq!(found, [(0, at(0)), (1, at(1))]);
    assert_eq!(cache.read(0, at(0)).unwrap(), SECRET);
    assert_eq!(cache.read(1, at(1)).unwrap(), vec![7; 512]);
    drop(cache);

    assert!(Cache::check_key(folder.path(), Some(&key(1))).is_ok());
    let said = |key: Option<&StorageKey>| Cache::check_key(folder.path(), key).unwrap_err().to_string();
    assert!(said(Some(&key(2))).contains("another key") && said(None).contains("none is given"));

    for byte in 64..64 + 64 + SECRET.len() + encryption::OVERHEAD_BYTES {
        let mut damaged = whole.clone();
        damaged[byte] ^= 1 << (byte % 8);
        fs::write(&path, damaged).unwrap();
        let (cache, _) = open(Some(&key(1)));
        assert!(cache.read(0, at(0)).is_none(), "byte {byte}");
        assert!(cache.read(1, at(1)).is_some());
    }
}
