//! Files of outbox and cache that were damaged: an error or a miss, never a panic and never wrong
//! data.

use bytes::Bytes;
use tempfile::TempDir;
use units::{Rng, SplitMix64};
use wire::volume::{Change, Owner, Secret, Seen, XattrHow};

use crate::Room;
use crate::cache::Cache;
use crate::job::BlockKey;
use crate::outbox::{Identity, Outbox, Stored, StoredBase, Who, file_name, hash, parse_device};

fn stored(rng: &mut SplitMix64, number: u64) -> Stored {
    let path = |rng: &mut SplitMix64| (0..1 + rng.below(40)).map(|_| b'a' + rng.below(26) as u8).collect::<Vec<u8>>();
    let bytes =
        |rng: &mut SplitMix64| Bytes::from((0..rng.below(300)).map(|_| rng.next_u64() as u8).collect::<Vec<_>>());
    let base = match rng.below(3) {
        0 => StoredBase::Free,
        1 => StoredBase::Known(Seen { file: rng.next_u64(), version: rng.next_u64() }),
        _ => StoredBase::After(rng.below(number)),
    };
    let changes = (0..1 + rng.below(6)).map(|_| {
        let (path, base) = (path(rng), None);
        match rng.below(11) {
            9 => Change::SetXattr { path, base, name: b"user.a".to_vec(), value: bytes(rng), how: XattrHow::Replace },
            10 => Change::RemoveXattr { path, base, name: b"user.b".to_vec() },
            8 => Change::SetAccessTime { path, base, atime_ns: rng.next_u64() as i64 },
            6 => {
                let owner = Some(Owner { uid: rng.next_u64() as u32, gid: 7 });
                Change::Create { path, mode: 0o4755, exclusive: rng.below(2) == 0, owner }
            }
            7 => {
                let [uid, gid] = [(); 2].map(|()| (rng.below(2) == 0).then(|| rng.below(1 << 31) as u32));
                Change::SetOwner { path, base, uid, gid }
            }
            0 => Change::Write { path, base, offset: rng.next_u64(), bytes: bytes(rng) },
            1 => Change::Append { path, base, bytes: bytes(rng) },
            2 => Change::Truncate { path, base, size: rng.next_u64() },
            3 => Change::Create { path, mode: 0o640, exclusive: rng.below(2) == 0, owner: None },
            4 => Change::SetTime { path, base, mtime_ns: rng.next_u64() as i64 },
            _ => Change::SetMode { path, base, mode: 0o7777 },
        }
    });
    let changes = changes.collect();
    Stored {
        number,
        known_as: number,
        volume: u128::from(rng.next_u64()),
        mtime_ns: rng.next_u64() as i64,
        base,
        changes,
    }
}

fn room(folder: &std::path::Path, bytes: u64) -> Room {
    Room { folder: folder.to_owned(), bytes }
}

/// Changes bytes, cuts, or adds.
fn damage(rng: &mut SplitMix64, bytes: &mut Vec<u8>) {
    for _ in 0..1 + rng.below(3) {
        match rng.below(3) {
            0 if !bytes.is_empty() => {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << rng.below(8);
            }
            1 => bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize),
            _ => bytes.push(rng.next_u64() as u8),
        }
    }
}

#[test]
fn fuzz_transactions_are_read_as_they_were_written_or_not_at_all() {
    let mut rng = SplitMix64(11);
    for round in 0..3000 {
        let number = 1 + rng.below(1 << 40);
        let stored = stored(&mut rng, number);
        let whole = stored.to_bytes();
        assert_eq!(Stored::parse(number, number, &whole), Ok(stored), "{round}");
        let mut damaged = whole.clone();
        damage(&mut rng, &mut damaged);
        assert!(damaged == whole || Stored::parse(number, number, &damaged).is_err());
        // With a right hash the rest of the checks are reached.
        let content = damaged.len().saturating_sub(16);
        damaged.truncate(content);
        let right = hash(&damaged);
        damaged.extend(right);
        if let Ok(read) = Stored::parse(number, number, &damaged) {
            assert_eq!(Stored::parse(number, number, &read.to_bytes()), Ok(read));
        }
    }
}

#[test]
fn an_outbox_survives_what_does_not_belong_there() {
    let folder = TempDir::new().unwrap();
    let mut rng = SplitMix64(12);
    let who = Who { identity: Some(Identity { number: 7, secret: Secret([9; 32]) }), previous: 3 };
    {
        let (mut outbox, held) = Outbox::open(folder.path(), None, false).unwrap();
        assert_eq!((held.next_number, held.stored.len()), (1, 0));
        for goes_on in [false, true] {
            assert!(Outbox::open(folder.path(), None, goes_on).is_err(), "one process at a time");
        }
        for number in 1..6 {
            outbox.store(number, number, &stored(&mut rng, number).to_bytes()).unwrap();
        }
        outbox.renumber(1, 9).unwrap();
        outbox.remove(2).unwrap();
        outbox.identify(who).unwrap();
        outbox.reserve(500).unwrap();
    }
    std::fs::write(folder.path().join(file_name(3, 3)), b"nonsense").unwrap();
    std::fs::write(folder.path().join("x.txn"), b"").unwrap();
    std::fs::write(folder.path().join("7.txn.new"), b"").unwrap();
    std::fs::write(folder.path().join("plans.new"), b"somebody's").unwrap();
    let (mut outbox, held) = Outbox::open(folder.path(), None, false).unwrap();
    assert_eq!(held.who, who);
    let numbers: Vec<_> = held.stored.iter().map(|stored| (stored.number, stored.known_as)).collect();
    assert_eq!(numbers, [(4, 4), (5, 5), (9, 1)]);
    outbox.renumber(9, 11).unwrap();
    assert!(folder.path().join(file_name(11, 1)).exists());
    outbox.remove(11).unwrap();
    // What could not be written leaves nothing behind, nor does a process that died.
    std::fs::create_dir(folder.path().join(file_name(12, 12))).unwrap();
    outbox.store(12, 12, b"bytes").unwrap_err();
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name.to_str().unwrap().ends_with(".new")).collect();
    assert_eq!(left, ["plans.new"], "what is not ours stays");
    std::fs::remove_dir(folder.path().join(file_name(12, 12))).unwrap();
    assert!(held.next_number == 500 && held.lost.len() == 1, "{held:?}");
    assert!(folder.path().join("lost").join(file_name(3, 3)).exists());
    outbox.lose(4, "because").unwrap();
    let text = std::fs::read_to_string(folder.path().join("lost/00000000000000000004.txt")).unwrap();
    assert!(text.starts_with("because\n"), "{text}");
    drop(outbox);
    let path = folder.path().join("device");
    let whole = std::fs::read(&path).unwrap();
    for _ in 0..500 {
        let mut damaged = whole.clone();
        damage(&mut rng, &mut damaged);
        assert!(damaged == whole || parse_device(&damaged).is_none());
    }
    std::fs::write(path, &whole[..20]).unwrap();
    let error = Outbox::open(folder.path(), None, false).unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");
}

#[test]
fn fuzz_a_damaged_cache_misses() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("blocks.cache");
    let mut rng = SplitMix64(13);
    let open = |bytes| Cache::open(&room(folder.path(), bytes), None, 77, 512).unwrap();
    let content = |slot: u32| vec![slot as u8; 100 + slot as usize];
    let key = |slot: u32| BlockKey { file: 5, version: 6, index: slot };
    let (cache, found) = open(20_000);
    assert!(cache.slots() == 34 && found.is_empty());
    (0..34).for_each(|slot| cache.write(slot, key(slot), &content(slot)).unwrap());
    assert!(cache.write(34, key(34), b"").is_err() && cache.read(99, key(1)).is_none());
    drop(cache);
    let whole = std::fs::read(&path).unwrap();
    let (cache, found) = open(20_000);
    assert_eq!(found.len(), 34);
    assert_eq!(cache.read(3, key(3)).unwrap(), content(3));
    assert!(cache.read(3, key(4)).is_none());
    drop(cache);
    for _ in 0..300 {
        let mut damaged = whole.clone();
        damage(&mut rng, &mut damaged);
        std::fs::write(&path, &damaged).unwrap();
        let (cache, found) = open(20_000);
        for (slot, key) in found {
            if let Some(bytes) = cache.read(slot, key) {
                assert!(key.index == slot && bytes == content(slot));
            }
        }
    }
    std::fs::write(&path, &whole).unwrap();
    let (_, found) = Cache::open(&room(folder.path(), 20_000), None, 78, 512).unwrap();
    assert!(found.is_empty(), "another volume");
}
