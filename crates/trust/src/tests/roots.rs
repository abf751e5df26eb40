//! Rotation of roots and of the keys that they give out.

use super::publisher::{DAY, Files, Publisher, START, stapled};
use crate::{Kind, Stapled, State, UnixTime, Verifier};

const NOW: Option<UnixTime> = Some(UnixTime(START));

/// The next root, with a new key for each of `roles`.
fn rotate(publisher: &mut Publisher, roles: &[&str]) {
    publisher.old_root_keys = publisher.root.keys.clone();
    publisher.root.version += 1;
    let version = publisher.root.version;
    for name in roles {
        let role = match *name {
            "root" => &mut publisher.root,
            "timestamp" => &mut publisher.timestamp,
            "snapshot" => &mut publisher.snapshot,
            _ => &mut publisher.targets,
        };
        role.keys = vec![format!("{name} of root {version}")];
    }
}

fn answer(files: &Files, roots: &[Vec<u8>]) -> Stapled {
    let mut answer = stapled(files);
    roots.iter().for_each(|root| answer.push_root(root.clone()));
    answer
}

fn open(device: &mut Verifier, answer: &Stapled) -> Result<(), Kind> {
    device.verify(answer, "app:1", NOW).map(drop).map_err(|refusal| refusal.kind())
}

/// Roots 1 to `count`, each with new root keys, and the files of the last.
fn history(count: u64) -> (Vec<Vec<u8>>, Files) {
    let mut publisher = Publisher::new();
    let mut roots = vec![publisher.files()["root"].clone()];
    for _ in 1..count {
        rotate(&mut publisher, &["root"]);
        roots.push(publisher.files()["root"].clone());
    }
    (roots, publisher.files())
}

#[test]
fn many_missed_roots_are_followed_in_parts() {
    let (roots, files) = history(80);
    let mut device = Verifier::new(&roots[0]).expect("a root");
    let mut calls = 0;
    loop {
        let known = device.root_version() as usize;
        let mut part = answer(&files, &roots[known..roots.len().min(known + 32)]);
        if known + 32 < roots.len() {
            part.set_more_roots();
        }
        let part = Stapled::decode(&part.encode().expect("fits")).expect("what was encoded");
        calls += 1;
        match open(&mut device, &part) {
            Err(Kind::MoreRoots) => assert!(device.root_version() as usize > known),
            outcome => break assert_eq!(outcome, Ok(())),
        }
        device =
            Verifier::resume(&roots[0], State::decode(&device.state().encode()).expect("a state")).expect("a root");
    }
    assert_eq!((calls, device.root_version()), (3, 80));
    // No progress, no promise of more.
    let mut empty = Stapled::default();
    empty.set_more_roots();
    assert_eq!(open(&mut device, &empty), Err(Kind::Missing));
}

#[test]
fn roots_follow_one_another() {
    let (roots, files) = history(4);
    for (sent, expected, version) in [
        (&[1, 2, 3][..], Ok(()), 4),
        (&[1, 2], Ok(()), 3),
        (&[2], Err(Kind::Signature), 1),
        (&[1, 3], Err(Kind::Signature), 2),
        (&[1, 1], Err(Kind::Damaged), 2),
        (&[1, 2, 1], Err(Kind::Signature), 3),
        (&[0], Err(Kind::Damaged), 1),
    ] {
        let sent: Vec<Vec<u8>> = sent.iter().map(|index: &usize| roots[*index].clone()).collect();
        let mut device = Verifier::new(&roots[0]).expect("a root");
        assert_eq!(open(&mut device, &answer(&files, &sent)), expected, "{version}");
        assert_eq!(device.root_version(), version, "verified roots stay");
    }
    // Versions with a gap, signed by all keys.
    let mut publisher = Publisher::new();
    publisher.root.version = 3;
    let mut device = Verifier::new(&roots[0]).expect("a root");
    assert_eq!(open(&mut device, &answer(&files, &[publisher.files()["root"].clone()])), Err(Kind::Missing));
}

#[test]
fn both_old_and_new_keys_sign_a_root() {
    let first = Publisher::new();
    let mut second = first.clone();
    rotate(&mut second, &["root"]);
    let mut device = Verifier::new(&first.files()["root"]).expect("a root");
    let mut only_new = second.clone();
    only_new.old_root_keys.clear();
    let files = second.files();
    assert_eq!(open(&mut device, &answer(&files, &[only_new.files()["root"].clone()])), Err(Kind::Signature));
    let body: serde_json::Value = serde_json::from_slice(&files["root"]).expect("JSON");
    let only_old = super::publisher::sign(&body["signed"], &first.root.keys);
    assert_eq!(open(&mut device, &answer(&files, &[only_old])), Err(Kind::Signature));
    assert_eq!(open(&mut device, &answer(&files, &[files["root"].clone()])), Ok(()));
}

#[test]
fn only_the_last_root_must_not_have_expired() {
    let first = Publisher::new();
    let mut second = first.clone();
    rotate(&mut second, &[]);
    second.root.expires = START - DAY;
    let mut third = second.clone();
    rotate(&mut third, &[]);
    third.root.expires = START + DAY;
    let mut device = Verifier::new(&first.files()["root"]).expect("a root");
    let roots = [second.files()["root"].clone(), third.files()["root"].clone()];
    assert_eq!(open(&mut device.clone(), &answer(&second.files(), &roots[..1])), Err(Kind::Expired));
    assert_eq!(open(&mut device, &answer(&third.files(), &roots)), Ok(()));
}

#[test]
fn new_keys_end_a_fast_forward_attack() {
    // What was forwarded, which keys rotate, and whether the repository is usable again.
    for (forwarded, rotated, expected) in [
        ("timestamp", &[][..], Err(Kind::Rollback)),
        ("timestamp", &["timestamp"], Ok(())),
        ("timestamp", &["targets"], Err(Kind::Rollback)),
        ("timestamp", &["snapshot"], Err(Kind::Rollback)),
        ("snapshot", &["snapshot"], Ok(())),
        ("snapshot", &["timestamp", "snapshot"], Ok(())),
        ("snapshot", &["timestamp"], Err(Kind::Rollback)),
        ("targets", &["timestamp"], Err(Kind::Rollback)),
        ("targets", &["snapshot"], Ok(())),
        ("targets", &["targets"], Ok(())),
    ] {
        let honest = Publisher::new();
        let mut attacked = honest.clone();
        let mut recovered = honest.clone();
        attacked.timestamp.version = 2;
        recovered.timestamp.version = 3;
        if forwarded != "timestamp" {
            (attacked.snapshot.version, recovered.snapshot.version) = (2, 3);
        }
        if forwarded == "targets" {
            (attacked.targets.version, recovered.targets.version) = (2, 3);
        }
        match forwarded {
            "timestamp" => attacked.timestamp.version = u64::MAX,
            "snapshot" => attacked.snapshot.version = u64::MAX,
            _ => attacked.targets.version = u64::MAX,
        }
        rotate(&mut recovered, rotated);
        let mut device = Verifier::new(&honest.files()["root"]).expect("a root");
        assert_eq!(open(&mut device, &stapled(&attacked.files())), Ok(()));
        let files = recovered.files();
        let found = open(&mut device, &answer(&files, &[files["root"].clone()]));
        assert_eq!(found, expected, "{forwarded} {rotated:?}");
    }
}

#[test]
fn a_new_timestamp_key_does_not_bring_an_old_snapshot_back() {
    let old = Publisher::new();
    let mut new = old.clone();
    (new.timestamp.version, new.snapshot.version) = (2, 2);
    let mut device = Verifier::new(&old.files()["root"]).expect("a root");
    assert_eq!(open(&mut device, &stapled(&new.files())), Ok(()));
    let mut attack = old.clone();
    rotate(&mut attack, &["timestamp"]);
    let files = attack.files();
    assert_eq!(open(&mut device, &answer(&files, &[files["root"].clone()])), Err(Kind::Rollback));
}

#[test]
fn another_anchor_keeps_what_was_seen() {
    let old = Publisher::new();
    let mut new = old.clone();
    (new.timestamp.version, new.snapshot.version) = (5, 5);
    let mut device = Verifier::new(&old.files()["root"]).expect("a root");
    assert_eq!(open(&mut device, &stapled(&new.files())), Ok(()));
    // Firmware with a later root of the same publisher.
    let mut later = new.clone();
    rotate(&mut later, &["root"]);
    let state = device.state().clone();
    let mut device = Verifier::resume(&later.files()["root"], state.clone()).expect("a root");
    assert_eq!(device.root_version(), 2);
    assert_eq!(open(&mut device, &stapled(&old.files())), Err(Kind::Rollback));
    assert_eq!(open(&mut device, &stapled(&new.files())), Ok(()));
    // Firmware of another publisher.
    let mut other = old.clone();
    for (role, label) in
        [(&mut other.root, "r"), (&mut other.timestamp, "ti"), (&mut other.snapshot, "s"), (&mut other.targets, "ta")]
    {
        role.keys = vec![label.to_owned()];
    }
    let mut device = Verifier::resume(&other.files()["root"], state).expect("a root");
    assert_eq!(open(&mut device, &stapled(&new.files())), Err(Kind::Signature));
    assert_eq!(open(&mut device, &stapled(&other.files())), Ok(()));
}
