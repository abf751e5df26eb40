//! Conformance: checks that every store must pass, for the tests of stores that are not here.

use crate::{Listed, Store, StoreError, Version, check_key};

/// A check of an empty store, with its name.
pub type Check = (&'static str, fn(&dyn Store));

macro_rules! checks {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name)),*] };
}

/// All of them.
pub const CHECKS: &[Check] = checks![
    what_is_put_is_read_back_whole_and_in_part,
    a_read_past_the_end_says_where_the_object_ends,
    an_open_object_keeps_its_bytes_when_the_key_is_replaced_or_deleted,
    an_upload_is_invisible_until_committed_and_gone_when_dropped,
    a_gap_in_an_upload_reads_as_zeros,
    a_listing_shows_one_level_in_order,
    deleting_is_idempotent_and_takes_only_the_object,
    a_key_below_a_key_is_a_conflict_and_changes_nothing,
    keys_that_could_leave_the_folder_or_hide_in_it_are_refused_by_every_call,
    an_object_is_put_if_it_is_still_the_one_that_was_read,
];

/// Counts the object `count` up by one, however often somebody else is quicker.
pub fn count_up(store: &dyn Store) {
    loop {
        let (number, version) = match store.get_versioned("count", 20) {
            Ok((bytes, version)) => (String::from_utf8(bytes).unwrap().parse::<u32>().unwrap(), Some(version)),
            Err(error) if error.is_not_found() => (0, None),
            Err(error) => panic!("{error}"),
        };
        match store.put_if("count", (number + 1).to_string().as_bytes(), version.as_ref()) {
            Ok(_) => return,
            Err(error) if error.is_changed() => {}
            Err(error) => panic!("{error}"),
        }
    }
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

/// What is put is read back whole and in part.
fn what_is_put_is_read_back_whole_and_in_part(store: &dyn Store) {
    store.put_atomic("images/a.rnl", b"0123456789").unwrap();
    assert_eq!(store.len("images/a.rnl").unwrap(), 10);
    assert_eq!(store.get("images/a.rnl", 10).unwrap(), b"0123456789");
    let mut part = [0; 4];
    store.read_at("images/a.rnl", 3, &mut part).unwrap();
    assert_eq!(&part, b"3456");
    store.put_atomic("images/a.rnl", b"").unwrap();
    assert_eq!(store.get("images/a.rnl", 10).unwrap(), b"");
    assert!(store.open("images/a.rnl").unwrap().is_empty());
}

/// A read past the end says where the object ends.
fn a_read_past_the_end_says_where_the_object_ends(store: &dyn Store) {
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
}

/// An open object keeps its bytes when the key is replaced or deleted.
fn an_open_object_keeps_its_bytes_when_the_key_is_replaced_or_deleted(store: &dyn Store) {
    store.put_atomic("a", b"first").unwrap();
    let object = store.open("a").unwrap();
    store.put_atomic("a", b"second, longer").unwrap();
    store.delete("a").unwrap();
    let mut bytes = vec![0; object.len() as usize];
    object.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, b"first");
    assert!(store.open("a").is_err_and(|error| error.is_not_found()));
}

/// An upload is invisible until committed and gone when dropped.
fn an_upload_is_invisible_until_committed_and_gone_when_dropped(store: &dyn Store) {
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
}

/// A gap in an upload reads as zeros.
fn a_gap_in_an_upload_reads_as_zeros(store: &dyn Store) {
    let mut upload = store.create().unwrap();
    upload.write_at(5000, b"end").unwrap();
    upload.commit("sparse").unwrap();
    let bytes = store.get("sparse", 10_000).unwrap();
    assert_eq!(bytes.len(), 5003);
    assert!(bytes[..5000].iter().all(|byte| *byte == 0));
}

/// A listing shows one level in order.
fn a_listing_shows_one_level_in_order(store: &dyn Store) {
    for key in ["top.rnl", "tags/b/latest", "tags/a/v1", "tags/a/latest", "tagsx", "images/1.rnl"] {
        store.put_atomic(key, b"").unwrap();
    }
    assert_eq!(keys(store.list("").unwrap()), ["images/", "tags/", "tagsx", "top.rnl"]);
    assert_eq!(keys(store.list("tags").unwrap()), ["tags/a/", "tags/b/"]);
    assert_eq!(keys(store.list("tags/a").unwrap()), ["tags/a/latest", "tags/a/v1"]);
    assert_eq!(keys(store.list("nothing").unwrap()), Vec::<String>::new());
    assert_eq!(keys(store.list("top.rnl").unwrap()), Vec::<String>::new());
}

/// Deleting is idempotent and takes only the object.
fn deleting_is_idempotent_and_takes_only_the_object(store: &dyn Store) {
    store.put_atomic("tags/a/v1", b"1").unwrap();
    store.delete("tags/a/v2").unwrap();
    store.delete("tags/a").unwrap();
    store.delete("none/at/all").unwrap();
    assert_eq!(store.get("tags/a/v1", 1).unwrap(), b"1");
    store.delete("tags/a/v1").unwrap();
    assert!(store.open("tags/a/v1").is_err_and(|error| error.is_not_found()));
}

/// A key below a key is a conflict and changes nothing.
fn a_key_below_a_key_is_a_conflict_and_changes_nothing(store: &dyn Store) {
    store.put_atomic("a/b", b"1").unwrap();
    for key in ["a", "a/b/c"] {
        match store.put_atomic(key, b"2") {
            Err(StoreError::Conflict { key: named }) => assert_eq!(named, key),
            other => panic!("{key}: {other:?}"),
        }
    }
    assert_eq!(keys(store.list("").unwrap()), ["a/"]);
    assert_eq!(store.get("a/b", 1).unwrap(), b"1");
}

/// Keys that could leave the folder or hide in it are refused by every call.
fn keys_that_could_leave_the_folder_or_hide_in_it_are_refused_by_every_call(store: &dyn Store) {
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
    for key in ["a", "1/2/3/4/5/6/7/8", "tags/python-3.11/v1.0_rc+1", "a..b"] {
        check_key(key).unwrap();
    }
}

/// An object is put if it is still the one that was read.
fn an_object_is_put_if_it_is_still_the_one_that_was_read(store: &dyn Store) {
    let changed = |result: Result<Version, StoreError>| match result {
        Err(StoreError::Changed { key }) => assert_eq!(key, "tags/a/v1"),
        other => panic!("{other:?}"),
    };
    let key = "tags/a/v1";
    let nothing = store.get_versioned(key, 10);
    assert!(nothing.is_err_and(|error| error.is_not_found()));
    let first = store.put_if(key, b"1", None).unwrap();
    assert_eq!(store.get_versioned(key, 10).unwrap(), (b"1".to_vec(), first.clone()));
    assert!(matches!(store.get_versioned(key, 0), Err(StoreError::TooLarge { bytes: 1, limit: 0, .. })));
    changed(store.put_if(key, b"2", None));
    let second = store.put_if(key, b"2", Some(&first)).unwrap();
    changed(store.put_if(key, b"3", Some(&first)));
    changed(store.put_if(key, b"3", None));
    assert_eq!(store.get(key, 10).unwrap(), b"2");
    // By whatever way it was changed.
    store.put_atomic(key, b"4").unwrap();
    changed(store.put_if(key, b"5", Some(&second)));
    let (_, fourth) = store.get_versioned(key, 10).unwrap();
    store.delete(key).unwrap();
    changed(store.put_if(key, b"5", Some(&fourth)));
    store.put_if(key, b"5", None).unwrap();
    assert_eq!(keys(store.list("").unwrap()), ["tags/"]);
    assert!(matches!(store.put_if(".hidden", b"", None), Err(StoreError::InvalidKey { .. })));
}
