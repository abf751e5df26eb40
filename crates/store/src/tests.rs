//! Conformance: one set of checks that every store must pass, and what `Fault` promises.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Runs `check` on every kind of store.
fn on_every_store(check: impl Fn(&dyn Store)) {
    check(&Memory::new());
    let root = tempfile::tempdir().unwrap();
    check(&Local::open(root.path()).unwrap());
    // Without a plan, Fault must be transparent.
    check(&Fault::new(Arc::new(Memory::new()), FaultPlan::default()));
}

fn keys(listed: Vec<Listed>) -> Vec<String> {
    listed
        .into_iter()
        .map(|entry| match entry {
            Listed::Object(key) => key,
            Listed::Folder(key) => format!("{key}/"),
        })
        .collect()
}

#[test]
fn what_is_put_is_read_back_whole_and_in_part() {
    on_every_store(|store| {
        store.put_atomic("images/a.rnl", b"0123456789").unwrap();
        assert_eq!(store.len("images/a.rnl").unwrap(), 10);
        assert_eq!(store.get("images/a.rnl", 10).unwrap(), b"0123456789");
        let mut part = [0; 4];
        store.read_at("images/a.rnl", 3, &mut part).unwrap();
        assert_eq!(&part, b"3456");
        store.put_atomic("images/a.rnl", b"").unwrap();
        assert_eq!(store.get("images/a.rnl", 10).unwrap(), b"");
        assert!(store.open("images/a.rnl").unwrap().is_empty());
    });
}

#[test]
fn a_read_past_the_end_says_where_the_object_ends() {
    on_every_store(|store| {
        store.put_atomic("a", b"0123456789").unwrap();
        let object = store.open("a").unwrap();
        for (offset, bytes) in [(8, 3), (10, 1), (u64::MAX - 8, 16)] {
            match object.read_at(offset, &mut vec![0; bytes]) {
                Err(StoreError::Truncated { found: 10, .. }) => {}
                // The system refuses an offset over 2^63 before it looks at the file.
                Err(StoreError::Io { .. }) if offset > i64::MAX as u64 => {}
                other => panic!("{offset} + {bytes}: {other:?}"),
            }
        }
        // Advice changes nothing that can be seen.
        object.advise_whole();
        object.read_at(10, &mut []).unwrap();
        assert!(matches!(store.get("a", 9), Err(StoreError::TooLarge { bytes: 10, limit: 9, .. })));
    });
}

#[test]
fn an_open_object_keeps_its_bytes_when_the_key_is_replaced_or_deleted() {
    on_every_store(|store| {
        store.put_atomic("a", b"first").unwrap();
        let object = store.open("a").unwrap();
        store.put_atomic("a", b"second, longer").unwrap();
        store.delete("a").unwrap();
        let mut bytes = vec![0; object.len() as usize];
        object.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, b"first");
        assert!(store.open("a").is_err_and(|error| error.is_not_found()));
    });
}

#[test]
fn an_upload_is_invisible_until_committed_and_gone_when_dropped() {
    on_every_store(|store| {
        let mut upload = store.create().unwrap();
        upload.write_at(6, b"world").unwrap();
        upload.write_at(0, b"hello ").unwrap();
        let mut back = [0; 7];
        upload.read_at(4, &mut back).unwrap();
        assert_eq!(&back, b"o world");
        assert!(matches!(upload.read_at(8, &mut back), Err(StoreError::Truncated { .. })));
        assert_eq!(store.list("").unwrap(), []);
        upload.commit("greeting").unwrap();
        assert_eq!(store.get("greeting", 100).unwrap(), b"hello world");

        let mut dropped = store.create().unwrap();
        dropped.write_at(0, b"x").unwrap();
        drop(dropped);
        let mut aborted = store.create().unwrap();
        aborted.write_at(0, b"x").unwrap();
        aborted.abort();
        assert_eq!(keys(store.list("").unwrap()), ["greeting"]);
    });
}

#[test]
fn a_gap_in_an_upload_reads_as_zeros() {
    on_every_store(|store| {
        let mut upload = store.create().unwrap();
        upload.write_at(5000, b"end").unwrap();
        upload.commit("sparse").unwrap();
        let bytes = store.get("sparse", 10_000).unwrap();
        assert_eq!(bytes.len(), 5003);
        assert!(bytes[..5000].iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_listing_shows_one_level_in_order() {
    on_every_store(|store| {
        for key in ["top.rnl", "tags/b/latest", "tags/a/v1", "tags/a/latest", "tagsx", "images/1.rnl"] {
            store.put_atomic(key, b"").unwrap();
        }
        assert_eq!(keys(store.list("").unwrap()), ["images/", "tags/", "tagsx", "top.rnl"]);
        assert_eq!(keys(store.list("tags").unwrap()), ["tags/a/", "tags/b/"]);
        assert_eq!(keys(store.list("tags/a").unwrap()), ["tags/a/latest", "tags/a/v1"]);
        assert_eq!(keys(store.list("nothing").unwrap()), Vec::<String>::new());
        assert_eq!(keys(store.list("top.rnl").unwrap()), Vec::<String>::new());
    });
}

#[test]
fn deleting_is_idempotent_and_takes_only_the_object() {
    on_every_store(|store| {
        store.put_atomic("tags/a/v1", b"1").unwrap();
        store.delete("tags/a/v2").unwrap();
        store.delete("tags/a").unwrap();
        store.delete("none/at/all").unwrap();
        assert_eq!(store.get("tags/a/v1", 1).unwrap(), b"1");
        store.delete("tags/a/v1").unwrap();
        assert!(store.open("tags/a/v1").is_err_and(|error| error.is_not_found()));
    });
}

#[test]
fn a_key_below_a_key_is_a_conflict_and_changes_nothing() {
    on_every_store(|store| {
        store.put_atomic("a/b", b"1").unwrap();
        for key in ["a", "a/b/c"] {
            match store.put_atomic(key, b"2") {
                Err(StoreError::Conflict { key: named }) => assert_eq!(named, key),
                other => panic!("{key}: {other:?}"),
            }
        }
        assert_eq!(keys(store.list("").unwrap()), ["a/"]);
        assert_eq!(store.get("a/b", 1).unwrap(), b"1");
    });
}

#[test]
fn keys_that_could_leave_the_folder_or_hide_in_it_are_refused_by_every_call() {
    let long_part = "x".repeat(256);
    let long_key = format!("{}/{}/{}", "x".repeat(250), "x".repeat(250), "x".repeat(250));
    let bad = [
        "",
        "/",
        "/etc/passwd",
        "..",
        "../a",
        "a/../b",
        "a//b",
        "a/",
        "/a",
        ".",
        "./a",
        ".tmp/0/0",
        "a/.hidden",
        "a\0b",
        "a\nb",
        "a b",
        "a\\b",
        "é",
        "1/2/3/4/5/6/7/8/9",
        &long_part,
        &long_key,
    ];
    on_every_store(|store| {
        for key in bad {
            assert!(matches!(store.open(key), Err(StoreError::InvalidKey { .. })), "open {key:?}");
            assert!(matches!(store.put_atomic(key, b""), Err(StoreError::InvalidKey { .. })), "put {key:?}");
            assert!(matches!(store.delete(key), Err(StoreError::InvalidKey { .. })), "delete {key:?}");
            let upload = store.create().unwrap();
            assert!(matches!(upload.commit(key), Err(StoreError::InvalidKey { .. })), "commit {key:?}");
            if !key.is_empty() {
                assert!(matches!(store.list(key), Err(StoreError::InvalidKey { .. })), "list {key:?}");
            }
        }
        assert_eq!(store.list("").unwrap(), []);
    });
    for key in ["a", "1/2/3/4/5/6/7/8", "tags/python-3.11/v1.0_rc+1", "a..b"] {
        check_key(key).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Memory, Local and a plain map agree after any sequence of puts and deletes.
    #[test]
    fn ref_stores_agree_with_a_map(
        steps in prop::collection::vec((0usize..6, prop::option::of(prop::collection::vec(any::<u8>(), 0..40))), 0..24)
    ) {
        let names = ["a", "b/c", "b/d", "e/f/g", "b/c/x", "e"];
        let root = tempfile::tempdir().unwrap();
        let stores: [Box<dyn Store>; 2] = [Box::new(Memory::new()), Box::new(Local::open(root.path()).unwrap())];
        let mut map: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
        for (name, bytes) in steps {
            let key = names[name];
            let results: Vec<bool> = stores
                .iter()
                .map(|store| match &bytes {
                    Some(bytes) => store.put_atomic(key, bytes).is_ok(),
                    None => store.delete(key).is_ok(),
                })
                .collect();
            // A folder emptied by deletes stays a folder on disk, so only there may a put of its
            // name still fail.
            if results[0] != results[1] {
                prop_assert!(results[0] && bytes.is_some());
                stores[0].delete(key).unwrap();
                map.remove(key);
                continue;
            }
            if results[0] {
                match bytes {
                    Some(bytes) => drop(map.insert(key, bytes)),
                    None => drop(map.remove(key)),
                }
            }
        }
        for store in &stores {
            for key in names {
                prop_assert_eq!(store.get(key, 100).ok(), map.get(key).cloned());
            }
        }
    }
}

/// Puts an object in three writes, then switches a pointer to it: a small push.
fn publish(store: &dyn Store, body: &str, version: &str) -> Result<(), StoreError> {
    let mut upload = store.create()?;
    for (piece, bytes) in body.as_bytes().chunks(4).enumerate() {
        upload.write_at(piece as u64 * 4, bytes)?;
    }
    upload.commit(&format!("images/{version}"))?;
    store.put_atomic("tag", version.as_bytes())
}

fn resolve(store: &dyn Store) -> String {
    let version = String::from_utf8(store.get("tag", 100).unwrap()).unwrap();
    String::from_utf8(store.get(&format!("images/{version}"), 100).unwrap()).unwrap()
}

#[test]
fn a_fault_at_every_operation_leaves_the_tag_on_an_intact_object() {
    let inner = Arc::new(Memory::new());
    publish(&*inner, "old content", "v1").unwrap();
    let clean = Fault::new(inner, FaultPlan::default());
    publish(&clean, "new content!", "v2").unwrap();
    let operations = clean.operations();
    assert_eq!(operations, 1 + 3 + 1 + 3);

    for kind in
        [FaultKind::Error, FaultKind::ShortWrite, FaultKind::Full, FaultKind::CrashBefore, FaultKind::CrashAfter]
    {
        let mut switched = 0;
        for operation in 0..operations {
            let inner = Memory::new();
            publish(&inner, "old content", "v1").unwrap();
            let fault =
                Fault::new(Arc::new(inner.clone()), FaultPlan { at: Some((operation, kind)), ..FaultPlan::default() });
            publish(&fault, "new content!", "v2").unwrap_err();
            match resolve(&inner).as_str() {
                "old content" => {}
                "new content!" => switched += 1,
                other => panic!("{kind:?} at {operation}: the tag resolves to {other:?}"),
            }
            if !fault.crashed() {
                fault.heal();
                publish(&fault, "new content!", "v2").unwrap();
                assert_eq!(resolve(&inner), "new content!");
            }
        }
        // Only a crash after the very last commit may show the new object though the caller saw an
        // error.
        assert_eq!(switched, u64::from(kind == FaultKind::CrashAfter), "{kind:?}");
    }
}

#[test]
fn a_crash_stops_every_later_call() {
    let fault = Fault::new(
        Arc::new(Memory::new()),
        FaultPlan { at: Some((0, FaultKind::CrashBefore)), ..FaultPlan::default() },
    );
    assert!(matches!(fault.put_atomic("a", b"x"), Err(StoreError::Crashed)));
    assert!(fault.crashed());
    fault.heal();
    assert!(matches!(fault.open("a"), Err(StoreError::Crashed)));
    assert!(matches!(fault.list(""), Err(StoreError::Crashed)));
    assert!(matches!(fault.delete("a"), Err(StoreError::Crashed)));
}

#[test]
fn random_faults_follow_the_seed() {
    let run = |seed| -> Vec<bool> {
        let plan = FaultPlan { at: None, errors_per_million: 200_000, seed };
        let fault = Fault::new(Arc::new(Memory::new()), plan);
        (0..200).map(|_| fault.put_atomic("a", b"x").is_ok()).collect()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    let good = run(3).iter().filter(|ok| **ok).count();
    assert!((40..180).contains(&good), "{good} of 200 succeeded at 20 % errors in three operations");
}

#[test]
fn a_full_disk_is_told_apart_and_reading_goes_on() {
    let inner = Memory::new();
    inner.put_atomic("old", b"kept").unwrap();
    let fault = Fault::new(Arc::new(inner), FaultPlan { at: Some((1, FaultKind::Full)), ..FaultPlan::default() });
    let error = fault.put_atomic("new", b"x").unwrap_err();
    assert!(error.is_full(), "{error}");
    assert!(error.to_string().contains("new"), "{error}");
    assert_eq!(fault.get("old", 10).unwrap(), b"kept");
    assert!(fault.put_atomic("new", b"x").is_err_and(|error| error.is_full()));
    fault.heal();
    fault.put_atomic("new", b"x").unwrap();
}

#[test]
fn a_store_is_claimed_by_one_server_or_by_readers() {
    let root = tempfile::tempdir().unwrap();
    let store = || Local::open(root.path()).unwrap();
    let refused = |sharing| match store().claim(sharing) {
        Err(StoreError::InUse { holder, .. }) => assert_eq!(holder, Some(std::process::id())),
        other => panic!("{other:?}"),
    };
    let alone = store().claim(Sharing::Alone).unwrap();
    refused(Sharing::Alone);
    refused(Sharing::Readers);
    drop(alone);
    let readers = [(); 2].map(|()| store().claim(Sharing::Readers).unwrap());
    refused(Sharing::Alone);
    drop(readers);
    store().claim(Sharing::Alone).unwrap();
    assert_eq!(store().list("").unwrap(), [], "the file of the claim is no object");
}
