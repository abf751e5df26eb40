//! A name stands for its old version or for its new one, whatever happens in between.

use std::os::unix::fs::symlink;

use super::*;
use crate::format::{BAD_MAX, PinnedName, SLOT_BYTES, Version, parse_slot, slot};

fn version(image: u64) -> Option<Version> {
    Some(Version { owner: owner(image), bytes: 1000 * image })
}

fn name_of(current: u64, previous: u64) -> PinnedName {
    let bad = vec![owner(90), owner(91)];
    PinnedName {
        target: "runnel://h/ä".into(),
        current: version(current),
        previous: version(previous),
        bad,
        ..PinnedName::default()
    }
}

/// Pins a block of an image.
fn pin(cache: &Cache, image: u64) {
    assert!(cache.put_pinned(&owner(image), Kind::Block, &key(image), b"", &[7; 1000]).unwrap());
    cache.close();
}

/// The images that are pinned, by their numbers.
fn pinned(top: &Top) -> Vec<u8> {
    open(top).unwrap().pins().keys().map(|owner| owner.0[0]).collect()
}

/// Pins a name with these versions.
fn pin_name(cache: &Cache, number: u64, name: &PinnedName) {
    let _claim = cache.claim_name(&key(number)).unwrap().unwrap();
    cache.change_name(&key(number), |found| *found = name.clone()).unwrap();
}

fn file_of(folder: &Path) -> PathBuf {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let names: Vec<_> = names.filter(|path| path.extension().is_some_and(|found| found == "pin")).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    names[0].clone()
}

#[test]
fn sim_a_power_cut_leaves_the_old_state_or_the_new_one() {
    let mut rng = SplitMix64(31);
    let (mut olds, mut news) = (0, 0);
    for key_number in 0..300 {
        let top = &Top::new((key_number % 2 == 0).then(|| storage_key(1)));
        let cache = open(top).unwrap();
        let mut last = name_of(1, 2);
        pin_name(&cache, 1, &last);
        let path = file_of(top.path());
        for round in 0..1 + rng.below(4) {
            let before = fs::read(&path).unwrap();
            let next = name_of(10 + round, 1 + rng.below(9));
            cache.change_name(&key(1), |name| *name = next.clone()).unwrap();
            let mut after = fs::read(&path).unwrap();
            assert_eq!(after.len(), 2 * SLOT_BYTES);
            // Of the sectors that this wrote some never came to the disk.
            let lost = rng.below(4);
            for at in (0..after.len()).step_by(512) {
                if before[at..at + 512] == after[at..at + 512] {
                    continue;
                }
                match if lost == 0 { 3 } else { rng.below(4) } {
                    0 => after[at..at + 512].copy_from_slice(&before[at..at + 512]),
                    1 => after[at..at + 512].fill(rng.next_u64() as u8),
                    _ => {}
                }
            }
            fs::write(&path, &after).unwrap();
            let found = open(top).unwrap().pinned_name(&key(1)).unwrap().expect("one of them");
            assert!(found == last || found == next, "{found:?}");
            if found == last {
                olds += 1
            } else {
                news += 1
            }
            assert_eq!(open(top).unwrap().names_at_open()[&key(1)], found);
            last = found;
        }
    }
    assert!(olds > 50 && news > 50, "{olds} {news}");
}

#[test]
fn a_full_disk_keeps_nobody_from_changing_a_name() {
    both(|top| {
        let cache = open(top).unwrap();
        fault::full_after(0);
        let claim = cache.claim_name(&key(1)).unwrap().unwrap();
        let made = cache.change_name(&key(1), |name| *name = name_of(1, 2));
        drop(claim);
        fault::full_after(u64::MAX);
        assert_eq!(made.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
        assert_eq!(cache.pinned_names().unwrap(), []);
        assert_eq!(bytes_in(top.path()), 0, "nothing stays of it");
        pin_name(&cache, 1, &name_of(1, 2));
        fault::full_after(0);
        let changed = cache.change_name(&key(1), |name| *name = name_of(2, 1));
        fault::full_after(u64::MAX);
        changed.unwrap();
        assert_eq!(cache.pinned_name(&key(1)).unwrap(), Some(name_of(2, 1)));
    });
}

#[test]
fn a_name_is_claimed_by_one_at_a_time() {
    both(|top| {
        let (one, other) = (open(top).unwrap(), open(top).unwrap());
        let claim = one.claim_name(&key(1)).unwrap().unwrap();
        assert!(other.claim_name(&key(1)).unwrap().is_none() && other.claim_name(&key(2)).unwrap().is_some());
        one.change_name(&key(1), |name| *name = name_of(1, 2)).unwrap();
        // Returning to another version waits for nobody.
        other.change_name(&key(1), |name| name.current = version(2)).unwrap();
        drop(claim);
        let claim = other.claim_name(&key(1)).unwrap().unwrap();
        claim.remove().unwrap();
        assert_eq!(other.pinned_names().unwrap(), []);
        assert!(other.change_name(&key(1), |_| ()).is_err(), "it is not pinned");
        assert_eq!(bytes_in(top.path()), 0);
    });
}

#[test]
fn what_no_name_has_goes_when_nobody_uses_it() {
    both(|top| {
        let cache = open(top).unwrap();
        (1..6).for_each(|image| pin(&cache, image));
        pin_name(&cache, 1, &PinnedName { next: version(3), ..name_of(1, 2) });
        assert_eq!(cache.unpin_unnamed().unwrap(), []);
        assert_eq!(pinned(top), [1, 2, 3]);
        let program = open(top).unwrap();
        assert!(program.use_pinned(&owner(1)) && !program.use_pinned(&owner(4)));
        cache.change_name(&key(1), |name| *name = name_of(2, 2)).unwrap();
        let later = open(top).unwrap();
        assert_eq!(later.unpin_unnamed().unwrap(), [owner(1)]);
        assert_eq!(pinned(top), [1, 2]);
        drop(program);
        assert_eq!(later.unpin_unnamed().unwrap(), []);
        assert_eq!(pinned(top), [2]);
        assert!(open(top).unwrap().has(Kind::Block, &key(1)), "it is there as long as there is room");
        // One that knew it as pinned knows better as soon as it changes a name.
        assert_eq!(cache.pinned_keys(&owner(1), Kind::Block).len(), 1);
        cache.change_name(&key(1), |name| name.next = version(1)).unwrap();
        assert_eq!(cache.pinned_keys(&owner(1), Kind::Block).len(), 0);
    });
}

#[test]
fn files_that_are_no_names_are_left_alone() {
    both(|top| {
        let cache = open(top).unwrap();
        pin(&cache, 2);
        pin_name(&cache, 1, &name_of(2, 2));
        let at = |name: &str| top.path().join(name);
        for name in ["x.pin", ".pin", &format!("{}.pin", "A".repeat(64)), &format!("{}é.pin", "0".repeat(62))] {
            fs::write(at(name), b"x").unwrap();
        }
        fs::write(at(&format!("{}.pin", "0".repeat(64))), [5; 3 * SLOT_BYTES]).unwrap();
        fs::write(at(&format!("{}.pin", "1".repeat(64))), b"").unwrap();
        assert_eq!(cache.pinned_names().unwrap(), [(key(1), name_of(2, 2))]);
        let sealing = top.key.as_ref().map(crate::sealed::purpose);
        let id = |number| crate::sealed::name_id(sealing.as_ref(), &key(number));
        let digits = |number| id(number).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        symlink(file_of_name(top.path(), &digits(1)), at(&format!("{}.pin", digits(7)))).unwrap();
        assert!(cache.pinned_name(&key(7)).is_err() && cache.claim_name(&key(7)).is_err(), "it leads elsewhere");
        assert_eq!(pinned(top), [2]);
    });
}

fn file_of_name(folder: &Path, digits: &str) -> PathBuf {
    folder.join(format!("{digits}.pin"))
}

#[test]
fn what_is_too_long_is_refused_and_changes_nothing() {
    both(|top| {
        let cache = open(top).unwrap();
        pin_name(&cache, 1, &name_of(1, 2));
        let long = [
            PinnedName { target: "a".repeat(513), ..name_of(3, 4) },
            PinnedName { bad: vec![owner(1); BAD_MAX + 1], ..name_of(3, 4) },
        ];
        for name in long {
            assert!(cache.change_name(&key(1), |found| *found = name).is_err());
            assert_eq!(cache.pinned_name(&key(1)).unwrap(), Some(name_of(1, 2)));
        }
        let most =
            PinnedName { target: "a".repeat(512), bad: vec![owner(1); BAD_MAX], is_unchecked: true, ..name_of(3, 4) };
        cache.change_name(&key(1), |found| *found = most.clone()).unwrap();
        assert_eq!(cache.pinned_name(&key(1)).unwrap(), Some(most));
    });
}

#[test]
fn fuzz_slots_that_were_changed_are_refused() {
    let name = PinnedName { next: version(7), is_unchecked: true, ..name_of(5, 6) };
    let bytes = slot(9, &name);
    assert_eq!(parse_slot(&bytes), Some((9, name)));
    let mut rng = SplitMix64(4);
    for _ in 0..20_000 {
        let mut other = bytes;
        for _ in 0..1 + rng.below(3) {
            let most = if rng.below(2) == 0 { 32 } else { SLOT_BYTES as u64 };
            let at = rng.below(most) as usize;
            other[at] = rng.next_u64() as u8;
        }
        assert!(other == bytes || parse_slot(&other).is_none());
    }
}
