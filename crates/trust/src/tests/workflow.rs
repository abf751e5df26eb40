//! Each rule of the workflow, by one repository that breaks it.

use serde_json::{Value, json};

use super::publisher::{DAY, Files, Publisher, START, image, key, key_id, sign, stapled};
use crate::{JudgedBy, Kind, Stapled, UnixTime, Verifier};

const NOW: Option<UnixTime> = Some(UnixTime(START));

/// What a device that trusts the root among `files` makes of them: an image's number or a kind.
fn outcome(files: &Files, name: &str) -> Result<u64, Kind> {
    let mut device = Verifier::new(&files["root"]).map_err(|refusal| refusal.kind())?;
    open(&mut device, &stapled(files), name)
}

fn open(device: &mut Verifier, answer: &Stapled, name: &str) -> Result<u64, Kind> {
    open_at(device, answer, name, NOW)
}

fn open_at(device: &mut Verifier, answer: &Stapled, name: &str, now: Option<UnixTime>) -> Result<u64, Kind> {
    let before = device.state().encode();
    let found = device.verify(answer, name, now);
    if found.is_err() && answer.roots().is_empty() {
        assert_eq!(device.state().encode(), before, "a refusal changes nothing");
    }
    let number = |found: crate::SignedName| {
        assert_eq!(found.image.0[..24], [0; 24]);
        found.image.0[24..].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    found.map(number).map_err(|refusal| {
        assert!(refusal.to_string().len() > 20, "{refusal}");
        refusal.kind()
    })
}

/// Opens `app:1` of a repository whose bodies were edited before they were signed.
#[track_caller]
fn check(expected: Result<u64, Kind>, role: &str, edit: impl Fn(&mut Value)) {
    for has_hashes in [true, false] {
        let publisher = Publisher { has_hashes, ..Publisher::new() };
        let files = publisher.edited(|edited, body| {
            if edited == role {
                edit(body);
            }
        });
        assert_eq!(outcome(&files, "app:1"), expected);
    }
}

#[test]
fn a_good_repository_is_accepted() {
    check(Ok(1), "", |_| {});
    check(Ok(1), "targets", |body| body["unknown"] = json!({"text": "\\\"ä", "null": null, "low": -5, "yes": true}));
}

#[test]
fn damaged_fields_are_told() {
    for (role, field, value) in [
        ("root", "_type", json!("targets")),
        ("timestamp", "_type", json!("snapshot")),
        ("targets", "spec_version", json!("2.0.0")),
        ("snapshot", "version", json!(0)),
        ("snapshot", "version", json!("1")),
        ("snapshot", "version", json!(-1)),
        ("targets", "version", json!(1.5)),
        ("targets", "expires", json!("2027-01-01")),
        ("timestamp", "meta", json!({})),
        ("timestamp", "meta", json!({"snapshot.json": {}})),
        ("snapshot", "meta", json!([])),
        ("snapshot", "meta", json!({"targets.json": {"version": 1}, "x.json": {"version": 0}})),
        ("root", "keys", json!([])),
        ("root", "roles", json!({})),
        ("targets", "targets", json!({"app:1": {"length": 1, "custom": {"runnel": {"id": "12"}}}})),
        ("targets", "targets", json!({"app:1": {"length": 1, "custom": {}}})),
        ("targets", "targets", with_fs_verity(json!("12"))),
        ("targets", "targets", with_fs_verity(json!("g".repeat(64)))),
        ("targets", "targets", with_fs_verity(json!(null))),
    ] {
        let edit = |body: &mut Value| body[field] = value.clone();
        check(Err(Kind::Damaged), role, edit);
    }
    check(Err(Kind::Mixed), "snapshot", |body| body["meta"] = json!({"x.json": {"version": 1}}));
    check(Err(Kind::NotFound), "targets", |body| body["targets"] = json!({"app:2": {}}));
    check(Err(Kind::Damaged), "root", |body| body["roles"]["snapshot"]["threshold"] = json!(0));
    check(Err(Kind::Oversized), "root", |body| body["roles"]["snapshot"]["threshold"] = json!(9));
    check(Err(Kind::Signature), "root", |body| body["roles"]["snapshot"]["threshold"] = json!(2));
}

/// `app:1` as image 1 whose file has this digest.
fn with_fs_verity(digest: Value) -> Value {
    json!({"app:1": {"length": 1, "custom": {"runnel": {"id": image(1), "fs_verity": digest}}}})
}

#[test]
fn the_digest_of_a_file_is_told_if_it_was_signed() {
    for (targets, expected) in [(with_fs_verity(json!("ab".repeat(32))), Some([0xab; 32])), (json!(null), None)] {
        let files = Publisher::new().edited(|role, body| {
            if role == "targets" && !targets.is_null() {
                body["targets"] = targets.clone();
            }
        });
        let mut device = Verifier::new(&files["root"]).expect("a root");
        let found = device.verify(&stapled(&files), "app:1", NOW).expect("accepted");
        assert_eq!(found.fs_verity, expected);
    }
}

#[test]
fn names_are_checked() {
    let files = Publisher::new().files();
    for name in ["", "app", ":", "app:", ":1", "app:1:2", ".app:1", "a/b:1", "app:1\n", &"a".repeat(300)] {
        assert_eq!(outcome(&files, name), Err(Kind::NotFound), "{name}");
    }
    assert_eq!(outcome(&files, "app:2"), Err(Kind::NotFound));
}

#[test]
fn files_that_are_missing_damaged_or_too_large_are_told() {
    for role in ["timestamp", "snapshot", "targets"] {
        let mut files = Publisher { has_hashes: false, ..Publisher::new() }.files();
        let good = files[role].clone();
        files.get_mut(role).expect("a file").truncate(good.len() - 1);
        assert_eq!(outcome(&files, "app:1"), Err(Kind::Damaged));
        files.insert(role.into(), [&good[..], &vec![b' '; 300_000]].concat());
        assert_eq!(outcome(&files, "app:1"), Err(Kind::Oversized));
        files.remove(role);
        assert_eq!(outcome(&files, "app:1"), Err(Kind::Missing));
    }
}

#[test]
fn listed_lengths_and_hashes_count() {
    let edit_meta = |parent: &'static str, child: &'static str, field: &'static str, value: Value| {
        let files = Publisher::new().edited(|role, body| {
            if role == parent {
                body["meta"][child][field] = value.clone();
            }
        });
        outcome(&files, "app:1")
    };
    for (parent, child) in [("timestamp", "snapshot.json"), ("snapshot", "targets.json")] {
        assert_eq!(edit_meta(parent, child, "version", json!(2)), Err(Kind::Mixed));
        assert_eq!(edit_meta(parent, child, "length", json!(2)), Err(Kind::Mixed));
        assert_eq!(edit_meta(parent, child, "length", json!("x")), Err(Kind::Mixed));
        assert_eq!(edit_meta(parent, child, "hashes", json!({"sha256": "00".repeat(32)})), Err(Kind::Mixed));
        assert_eq!(edit_meta(parent, child, "hashes", json!({"sha512": "00".repeat(64)})), Err(Kind::Mixed));
        assert_eq!(edit_meta(parent, child, "hashes", json!({"md5": "00"})), Err(Kind::Mixed));
        assert_eq!(edit_meta(parent, child, "hashes", json!({})), Err(Kind::Mixed));
    }
}

#[test]
fn thresholds_count_distinct_keys() {
    let labels = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    let mut publisher = Publisher { has_hashes: false, ..Publisher::new() };
    publisher.snapshot.keys = labels(&["a", "b", "c"]);
    publisher.snapshot.threshold = 2;
    let files = publisher.files();
    let body: Value = serde_json::from_slice(&files["snapshot"]).expect("JSON");
    for (signers, expected) in [
        (&["a", "b"][..], Ok(1)),
        (&["c", "a"], Ok(1)),
        (&["a", "b", "c", "stranger"], Ok(1)),
        (&["a"], Err(Kind::Signature)),
        (&["a", "stranger"], Err(Kind::Signature)),
        (&[], Err(Kind::Signature)),
        (&["a", "a"], Err(Kind::Damaged)),
    ] {
        let mut files = files.clone();
        files.insert("snapshot".into(), sign(&body["signed"], &labels(signers)));
        assert_eq!(outcome(&files, "app:1"), expected, "{signers:?}");
    }
    // One key under two ids counts once.
    let twin = publisher.edited(|role, body| {
        if role == "root" {
            body["keys"][key_id("twin")] = key("a");
            body["roles"]["snapshot"]["keyids"] = json!([key_id("a"), key_id("twin")]);
        }
    });
    let mut file: Value = serde_json::from_slice(&sign(&body["signed"], &labels(&["a"]))).expect("JSON");
    let mut second = file["signatures"][0].clone();
    second["keyid"] = json!(key_id("twin"));
    file["signatures"].as_array_mut().expect("an array").push(second);
    let mut files = twin.clone();
    files.insert("snapshot".into(), serde_json::to_vec(&file).expect("JSON"));
    assert_eq!(outcome(&files, "app:1"), Err(Kind::Signature));
}

#[test]
fn every_expiry_is_judged() {
    for (days, kind) in [(2, Kind::Freeze), (8, Kind::Freeze), (400, Kind::Expired)] {
        let files = Publisher::new().files();
        let mut device = Verifier::new(&files["root"]).expect("a root");
        let now = Some(UnixTime(START + days * DAY));
        assert_eq!(open_at(&mut device, &stapled(&files), "app:1", now), Err(kind));
    }
    for role in ["root", "snapshot", "targets"] {
        check(Err(Kind::Expired), role, |body| body["expires"] = json!("2026-01-01T00:00:00Z"));
    }
}

#[test]
fn without_a_clock_the_floor_judges() {
    let publisher = Publisher::new();
    let files = publisher.files();
    let mut device = Verifier::new(&files["root"]).expect("a root");
    let answer = stapled(&files);
    let found = device.verify(&answer, "app:1", None).expect("accepted");
    assert_eq!((found.judged_by, found.bytes, &found.role[..]), (JudgedBy::Floor, 4097, "targets"));
    assert_eq!(found.expires.0 / 60, (START + DAY) / 60);
    let found = device.verify(&answer, "app:1", NOW).expect("accepted");
    assert_eq!(found.judged_by, JudgedBy::Clock);
    // A clock that was reset is not believed, and does not lower the floor.
    let found = device.verify(&answer, "app:1", Some(UnixTime(5))).expect("accepted");
    assert_eq!(found.judged_by, JudgedBy::Floor);
    device.raise_floor(UnixTime(START + 2 * DAY));
    assert_eq!(open_at(&mut device, &answer, "app:1", None), Err(Kind::Freeze));
    assert_eq!(open_at(&mut device, &answer, "app:1", NOW), Err(Kind::Freeze));
    // A refusal raises nothing.
    let mut device = Verifier::new(&files["root"]).expect("a root");
    assert_eq!(open_at(&mut device, &answer, "app:1", Some(UnixTime(START + 90 * DAY))), Err(Kind::Freeze));
    assert_eq!(open_at(&mut device, &answer, "app:1", NOW), Ok(1));
}

#[test]
fn versions_do_not_go_back() {
    let old = Publisher::new();
    let mut new = old.clone();
    new.delegate("targets", "lib", &["lib*"], &[("lib:1", 7)]).role.version = 5;
    for role in [&mut new.timestamp, &mut new.snapshot, &mut new.targets] {
        role.version = 3;
    }
    let files = new.files();
    let mut device = Verifier::new(&files["root"]).expect("a root");
    assert_eq!(open(&mut device, &stapled(&files), "lib:1"), Ok(7));
    let mut check = |expected: Result<u64, Kind>, edit: &dyn Fn(&mut Publisher)| {
        let mut publisher = new.clone();
        publisher.timestamp.version = 4;
        edit(&mut publisher);
        assert_eq!(open(&mut device.clone(), &stapled(&publisher.files()), "lib:1"), expected);
        publisher.has_hashes = false;
        assert_eq!(open(&mut device, &stapled(&publisher.files()), "lib:1"), expected);
    };
    check(Err(Kind::Rollback), &|publisher| publisher.timestamp.version = 2);
    check(Err(Kind::Forked), &|publisher| {
        (publisher.timestamp.version, publisher.timestamp.expires) = (3, START + 2 * DAY)
    });
    check(Err(Kind::Rollback), &|publisher| publisher.snapshot.version = 2);
    check(Err(Kind::Forked), &|publisher| publisher.snapshot.expires += DAY);
    let newer = |publisher: &mut Publisher| publisher.snapshot.version = 4;
    check(Err(Kind::Rollback), &|publisher| (newer(publisher), publisher.targets.version = 2).0);
    check(Err(Kind::Rollback), &|publisher| (newer(publisher), publisher.delegated[0].role.version = 4).0);
    check(Err(Kind::Rollback), &|publisher| (newer(publisher), publisher.delegated.clear()).0);
    check(Err(Kind::Forked), &|publisher| (newer(publisher), publisher.targets.expires += DAY).0);
    check(Err(Kind::Forked), &|publisher| (newer(publisher), publisher.delegated[0].role.expires += DAY).0);
    check(Ok(7), &|publisher| (newer(publisher), publisher.delegated[0].role.version = 6).0);
    // What a snapshot listed counts for roles that were never read, too.
    let mut device = Verifier::new(&files["root"]).expect("a root");
    assert_eq!(open(&mut device, &stapled(&files), "app:1"), Ok(1));
    let mut publisher = new.clone();
    (publisher.timestamp.version, publisher.snapshot.version, publisher.delegated[0].role.version) = (4, 4, 4);
    assert_eq!(open(&mut device, &stapled(&publisher.files()), "app:1"), Err(Kind::Rollback));
}
