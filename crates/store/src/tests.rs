//! Conformance: one set of checks that every store must pass, and what `Fault` promises.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[test]
fn every_store_conforms() {
    for (name, check) in conformance::CHECKS {
        eprintln!("{name}");
        check(&Memory::new());
        let root = tempfile::tempdir().unwrap();
        check(&Local::open(root.path()).unwrap());
        // Without a plan, Fault must be transparent.
        check(&Fault::new(Arc::new(Memory::new()), FaultPlan::default()));
    }
}

#[test]
fn of_those_that_put_by_one_version_at_once_one_succeeds() {
    let root = tempfile::tempdir().unwrap();
    let memory = Memory::new();
    // Each thread with a store of its own, as processes have.
    let local = || -> Box<dyn Store> { Box::new(Local::open(root.path()).unwrap()) };
    let shared = || -> Box<dyn Store> { Box::new(memory.clone()) };
    for open in [&local as &(dyn Fn() -> Box<dyn Store> + Sync), &shared] {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let store = open();
                    (0..8).for_each(|_| conformance::count_up(&*store));
                });
            }
        });
        assert_eq!(open().get("count", 20).unwrap(), b"32");
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
fn a_planned_fault_of_a_conditional_put_changes_nothing() {
    let inner = Memory::new();
    let plan = FaultPlan { at: Some((0, FaultKind::Error)), ..FaultPlan::default() };
    let fault = Fault::new(Arc::new(inner.clone()), plan);
    assert!(matches!(fault.put_if("a", b"x", None), Err(StoreError::Io { .. })));
    assert_eq!(inner.list("").unwrap(), []);
    let version = fault.put_if("a", b"x", None).unwrap();
    assert_eq!(inner.get_versioned("a", 1).unwrap(), (b"x".to_vec(), version));
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
