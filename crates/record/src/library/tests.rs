//! The ring, with a writer of its own that does what the library does.

use super::*;

/// Writes an entry at the head, without its commits.
fn reserve(library: &Library, kind: u8, payload: &[u8], process: u32) -> (u64, u64) {
    let slots = ring::slots_of(payload.len()) as u64;
    let head = library.load(ring::HEAD_AT).unwrap();
    library.store(ring::HEAD_AT, head + slots).unwrap();
    let mut rest = payload.to_vec();
    rest.resize(slots as usize * ring::FURTHER_BYTES, 0);
    let mut rest = rest.as_slice();
    for number in 0..slots {
        let at = ring::HEADER_BYTES / 8 + ((head + number) as usize % ring::SLOTS) * ring::SLOT_WORDS;
        let (first, bytes) = if number == 0 { (3, ring::FIRST_BYTES) } else { (1, ring::FURTHER_BYTES) };
        if number == 0 {
            library.store(at + 1, ring::describe(kind, payload.len(), process)).unwrap();
            library.store(at + 2, 1000 + head).unwrap();
        }
        for word in 0..bytes / 8 {
            library.store(at + first + word, native(*rest[word * 8..].first_chunk().unwrap())).unwrap();
        }
        rest = &rest[bytes..];
    }
    (head, slots)
}

fn commit(library: &Library, (head, slots): (u64, u64)) {
    for position in head..head + slots {
        let at = ring::HEADER_BYTES / 8 + (position as usize % ring::SLOTS) * ring::SLOT_WORDS;
        library.store(at, position + 1).unwrap();
    }
}

fn drain(library: &mut Library) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    library.drain(|raw| found.push((raw.process, format!("{:?}", raw.what)))).unwrap();
    found
}

#[test]
fn entries_come_out_as_they_went_in_and_over_the_end() {
    let mut library = Library::new().unwrap();
    let mut seen = 0;
    // Entries of one to three slots, more than the ring has room for at one time.
    for round in 0..ring::SLOTS as u32 / 100 {
        for number in 0..100_u32 {
            let path = format!("/bin/{}", "x".repeat((round as usize + number as usize * 7) % 120));
            let entry = reserve(&library, ring::KIND_HELLO, path.as_bytes(), number);
            commit(&library, entry);
        }
        for (number, (process, what)) in drain(&mut library).into_iter().enumerate() {
            let path = format!("/bin/{}", "x".repeat((round as usize + number * 7) % 120));
            assert_eq!((process as usize, what), (number, format!("{:?}", Did::Hello { path: path.into_bytes() })));
            seen += 1;
        }
    }
    assert_eq!(seen, ring::SLOTS / 100 * 100);
    assert!(library.tail > ring::SLOTS as u64);
    assert_eq!(library.lost(), 0);
}

#[test]
fn a_writer_that_died_is_passed_over_after_a_while() {
    let mut library = Library::new().unwrap();
    reserve(&library, ring::KIND_HELLO, &[b'd'; 100], 1);
    let alive = reserve(&library, ring::KIND_HELLO, b"/bin/alive", 2);
    commit(&library, alive);
    let mut rounds = 0;
    let found = loop {
        let found = drain(&mut library);
        if !found.is_empty() {
            break found;
        }
        rounds += 1;
        assert!(rounds < 1000);
    };
    assert!(rounds >= PATIENCE_ROUNDS);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, 2);
    assert_eq!(library.lost(), 3, "each slot of the dead one");
}

#[test]
fn an_entry_that_is_being_written_is_waited_for() {
    let mut library = Library::new().unwrap();
    let entry = reserve(&library, ring::KIND_HELLO, &[b'l'; 200], 1);
    assert!(drain(&mut library).is_empty());
    commit(&library, (entry.0, 2));
    assert!(drain(&mut library).is_empty(), "half of it");
    commit(&library, entry);
    assert_eq!(drain(&mut library).len(), 1);
    assert_eq!(library.lost(), 0);
}

#[test]
fn nonsense_is_left_out() {
    let mut library = Library::new().unwrap();
    for (kind, payload) in [(0, &b""[..]), (99, b"abc"), (ring::KIND_READ, b"short"), (ring::KIND_FILE, b"12345678")] {
        let entry = reserve(&library, kind, payload, 1);
        commit(&library, entry);
    }
    assert!(drain(&mut library).is_empty());
    assert_eq!(library.tail, 4);
}

#[test]
fn vain_paths_are_spelled_as_the_file_system_would() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    std::fs::create_dir(root.join("real")).unwrap();
    std::os::unix::fs::symlink("real", root.join("link")).unwrap();
    let mut folders = Folders::default();
    let mut resolved = |path: &str| {
        let path = folders.resolve(root.join(path).as_os_str().as_bytes());
        path.map(|path| String::from_utf8(path).unwrap())
    };
    let expected = |path: &str| Some(root.join(path).to_str().unwrap().to_string());
    assert_eq!(resolved("link/none"), expected("real/none"));
    assert_eq!(resolved("link/../none"), expected("none"));
    assert_eq!(resolved("gone/../link/none"), expected("link/none"), "nothing is resolved behind what is not there");
    assert_eq!(resolved("gone/more/none"), expected("gone/more/none"));
}
