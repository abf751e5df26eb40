//! Stores in a real S3 service.

use std::path::Path;
use std::sync::Arc;

use objects::fixture::Gateway;
use objects::{BLOCK_BYTES, Remote};
use store::{Object, Store, StoreError, conformance};

/// Bytes of a large object: it goes up in parts, and is read in blocks.
const LARGE: u64 = 20 * BLOCK_BYTES + 77;

fn pattern(seed: u8, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at / 4096) as u8 ^ (at % 251) as u8 ^ seed).collect()
}

fn open(gateway: &Gateway, folder: &Path) -> Remote {
    gateway.store("prod", folder).unwrap()
}

fn upload(store: &dyn Store, key: &str, bytes: &[u8]) {
    let mut upload = store.create().unwrap();
    for (number, part) in bytes.chunks(3 << 20).enumerate() {
        upload.write_at(number as u64 * (3 << 20), part).unwrap();
    }
    upload.commit(key).unwrap();
}

fn read(object: &Arc<dyn Object>, offset: u64, bytes: usize) -> Result<Vec<u8>, StoreError> {
    let mut buf = vec![0; bytes];
    object.read_at(offset, &mut buf).map(|()| buf)
}

#[test]
fn a_store_in_s3_conforms() {
    let gateway = Gateway::start();
    for (number, (name, check)) in conformance::CHECKS.iter().enumerate() {
        // There are no folders, so nobody looks.
        if *name == "a_key_below_a_key_is_a_conflict_and_changes_nothing" {
            continue;
        }
        eprintln!("{name}");
        let cache = tempfile::tempdir().unwrap();
        check(&gateway.store(&format!("checks/{number}"), cache.path()).unwrap());
    }
}

#[test]
fn of_servers_that_read_one_version_the_first_to_put_succeeds() {
    // One after the other: this service looks and writes in two steps, unlike S3 itself.
    let gateway = Gateway::start();
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let stores = [open(&gateway, one.path()), open(&gateway, two.path())];
    let mut version = stores[0].put_if("tags/a/latest", b"0", None).unwrap();
    assert!(stores[1].put_if("tags/a/latest", b"0", None).is_err_and(|error| error.is_changed()));
    for round in 1..5u8 {
        let (quicker, slower) = (&stores[usize::from(round % 2)], &stores[usize::from((round + 1) % 2)]);
        let (_, read) = slower.get_versioned("tags/a/latest", 10).unwrap();
        assert_eq!(read, version, "both have read the same");
        version = quicker.put_if("tags/a/latest", &[round], Some(&read)).unwrap();
        let lost = slower.put_if("tags/a/latest", b"lost", Some(&read));
        assert!(lost.is_err_and(|error| error.is_changed()));
        assert_eq!(slower.get("tags/a/latest", 10).unwrap(), [round], "seen at once");
    }
}

#[test]
fn a_large_object_is_fetched_in_few_requests_and_once() {
    let gateway = Gateway::start();
    let (cache, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let bytes = pattern(1, LARGE);
    upload(&open(&gateway, other.path()), "images/a.rnl", &bytes);
    let store = open(&gateway, cache.path());
    let object = store.open("images/a.rnl").unwrap();
    assert_eq!(object.len(), LARGE);
    assert_eq!(gateway.gets("a.rnl"), 1, "its first block came with it");
    let mut buf = [0; 9];
    assert!(object.read_cached_at(5, &mut buf).unwrap() && buf == bytes[5..14]);
    assert!(!object.read_cached_at(BLOCK_BYTES, &mut buf).unwrap());
    // Many readers of the same blocks.
    std::thread::scope(|scope| {
        for reader in 0..8u64 {
            let (object, bytes) = (&object, &bytes);
            scope.spawn(move || {
                let offset = BLOCK_BYTES + reader;
                let part = read(object, offset, 4 * BLOCK_BYTES as usize - 8).unwrap();
                assert!(part == bytes[offset as usize..offset as usize + part.len()]);
            });
        }
    });
    assert_eq!(gateway.gets("a.rnl"), 2, "one fetch for all, of neighbours together");
    assert!(read(&object, 0, LARGE as usize).unwrap() == bytes);
    assert_eq!(gateway.gets("a.rnl"), 5, "16 blocks in three requests, of eight blocks at most each");
    assert!(object.read_cached_at(LARGE - 9, &mut buf).unwrap() && buf == bytes[LARGE as usize - 9..]);
    drop(object);
    drop(store);
    // What was read is on the disk for the next process.
    let store = open(&gateway, cache.path());
    let object = store.open("images/a.rnl").unwrap();
    assert!(read(&object, 0, LARGE as usize).unwrap() == bytes);
    assert_eq!(gateway.gets("a.rnl"), 6, "all but the first block");
}

#[test]
fn an_object_that_is_replaced_while_it_is_open_never_shows_bytes_of_two() {
    let gateway = Gateway::start();
    let cache = tempfile::tempdir().unwrap();
    let store = open(&gateway, cache.path());
    upload(&store, "a", &pattern(1, LARGE));
    let object = store.open("a").unwrap();
    upload(&store, "a", &pattern(2, LARGE));
    assert!(read(&object, 0, 100).unwrap() == pattern(1, 100), "it is cached");
    let error = read(&object, 5 * BLOCK_BYTES, 100).unwrap_err();
    assert!(matches!(&error, StoreError::Replaced { key } if key == "a"), "{error}");
    let object = store.open("a").unwrap();
    assert!(read(&object, 0, LARGE as usize).unwrap() == pattern(2, LARGE));
    store.delete("a").unwrap();
    assert!(matches!(store.open("a"), Err(StoreError::NotFound { .. })));
}

#[test]
fn what_is_cached_is_served_while_the_service_is_away() {
    let mut gateway = Gateway::start();
    let cache = tempfile::tempdir().unwrap();
    let store = open(&gateway, cache.path());
    let bytes = pattern(1, LARGE);
    upload(&store, "images/a", &bytes);
    store.put_atomic("tags/a/latest", b"small").unwrap();
    let object = store.open("images/a").unwrap();
    read(&object, 0, 3 * BLOCK_BYTES as usize).unwrap();
    assert_eq!(store.get("tags/a/latest", 10).unwrap(), b"small");
    gateway.kill();
    let away = |result: Result<(), StoreError>| {
        let error = result.expect_err("the service is away");
        assert!(error.is_away() && error.to_string().contains("s3://box/prod"), "{error}");
        assert!(!error.to_string().contains("test-secret") && !error.to_string().contains("test-key"), "{error}");
    };
    store.check().expect("nobody has noticed");
    away(read(&object, 9 * BLOCK_BYTES, 10).map(drop));
    away(store.check());
    assert!(read(&object, 5, 2 * BLOCK_BYTES as usize).unwrap() == bytes[5..2 * BLOCK_BYTES as usize + 5]);
    assert_eq!(store.get("tags/a/latest", 10).unwrap(), b"small", "as it was seen last");
    assert_eq!(store.len("images/a").unwrap(), LARGE);
    assert!(read(&store.open("images/a").unwrap(), 0, 10).unwrap() == bytes[..10]);
    away(store.open("images/b").map(drop));
    away(store.put_atomic("tags/a/latest", b"other"));
    away(store.list("tags").map(drop));
    gateway.restart();
    // It is asked once a second.
    while store.check().is_err() {
        std::thread::yield_now();
    }
    assert!(read(&object, 0, LARGE as usize).unwrap() == bytes);
    store.put_atomic("tags/a/latest", b"other").unwrap();
    assert_eq!(store.get("tags/a/latest", 10).unwrap(), b"other");
}

#[test]
fn a_cache_is_of_one_server_at_a_time() {
    let gateway = Gateway::start();
    let cache = tempfile::tempdir().unwrap();
    let store = open(&gateway, cache.path());
    let error = gateway.store("prod", cache.path()).err().unwrap().to_string();
    assert!(error.contains("another server uses it"), "{error}");
    drop(store);
    open(&gateway, cache.path());
}
