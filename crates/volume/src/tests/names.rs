//! Several names of one file: one id, one version, one content, whatever happens to the names. The
//! crash tests have them too.

use std::fs;

use super::*;

fn link(from: &str, to: &str) -> Operation {
    Operation::Link { from: path(from), base: None, to: path(to) }
}

fn done(volume: &Volume, operations: Vec<Operation>) -> Seen {
    *volume.commit(transaction(operations)).unwrap().versions.last().unwrap()
}

fn seen(volume: &Volume, at: &str) -> Seen {
    volume.stat(&path(at)).unwrap().seen
}

#[test]
fn names_come_and_go_and_the_file_stays_as_it_is() {
    let disk = SimulatedDisk::new(1);
    let volume = open(&disk, SMALL).unwrap();
    let file = done(&volume, vec![create("a"), write("a", None, 0, b"text")]);
    let folder = Operation::MakeFolder { path: path("d"), mode: 0o755, owner: None };
    done(&volume, vec![folder, link("a", "d/b"), link("d/b", "c"), unlink("a")]);
    assert_eq!([seen(&volume, "d/b"), seen(&volume, "c")], [file, file], "no other content, no other version");
    assert_eq!(volume.stat(&path("c")).unwrap().links, 2);
    // Based on what was seen under another name.
    let after = done(&volume, vec![write("c", Some(file), 4, b"more")]);
    assert_eq!(content(&volume, &path("d/b")).unwrap(), (after, b"textmore".to_vec()));
    // Two names of one file: nothing happens.
    done(&volume, vec![rename("c", "d/b")]);
    assert_eq!(volume.stat(&path("c")).unwrap().links, 2);
    // One is replaced; the other goes on.
    done(&volume, vec![create("e"), rename("e", "c")]);
    assert_eq!((seen(&volume, "d/b"), volume.stat(&path("d/b")).unwrap().links), (after, 1));
    for refused in [link("d", "x"), link("none", "x"), link("c", "d/b"), link("c", "none/x")] {
        assert!(volume.commit(transaction(vec![refused])).is_err());
    }
    drop(volume);
    assert_eq!(seen(&open(&disk, SMALL).unwrap(), "d/b"), after);
}

/// The names of a file need not be known to the journal, or lie in the folder at all.
#[test]
fn a_name_that_goes_changes_nothing_for_those_who_have_the_file_by_another() {
    let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("f"), "text").unwrap();
    for name in ["a", "b"] {
        fs::hard_link(outside.path().join("f"), folder.path().join(name)).unwrap();
    }
    let volume = Volume::open(folder.path(), None, SMALL).unwrap();
    let before = seen(&volume, "b");
    done(&volume, vec![unlink("a")]);
    assert_eq!(seen(&volume, "b"), before);
    let after = done(&volume, vec![write("b", Some(before), 0, b"T")]);
    // In one transaction with a change of the content.
    let last = done(&volume, vec![link("b", "c"), write("c", Some(after), 1, b"E"), unlink("c")]);
    assert_eq!((seen(&volume, "b"), last.version), (last, after.version + 1));
    done(&volume, vec![unlink("b")]);
    assert_eq!(fs::read(outside.path().join("f")).unwrap(), b"TExt");
}

#[test]
fn a_quota_counts_a_file_once_and_until_its_last_name_goes() {
    let disk = SimulatedDisk::new(2);
    let quota = Options { quota_bytes: Some(1000), ..SMALL };
    let mut volume = open(&disk, quota).unwrap();
    done(&volume, vec![create("a"), write("a", None, 0, &[1; 600]), link("a", "b")]);
    drop(volume);
    volume = open(&disk, quota).unwrap();
    let more = || transaction(vec![create("c"), write("c", None, 0, &[1; 600])]);
    assert!(matches!(volume.commit(more()), Err(VolumeError::OverQuota { .. })), "1,200 are too many");
    done(&volume, vec![create("d"), write("d", None, 0, &[1; 300])]);
    done(&volume, vec![unlink("a")]);
    assert!(matches!(volume.commit(more()), Err(VolumeError::OverQuota { .. })), "it has another name");
    done(&volume, vec![unlink("b")]);
    volume.commit(more()).unwrap();
}

/// A crash at every call of these transactions, and of the recovery after it.
#[test]
fn sim_files_with_unknown_names_survive_a_crash_anywhere() {
    for at in 1..40 {
        for seed in 0..12 {
            let disk = SimulatedDisk::new(at * 100 + seed);
            drop(disk.create(b"a", 0o644).unwrap());
            // The journal never tells of this one.
            disk.hard_link(b"a", b"unknown").unwrap();
            disk.sync_all().unwrap();
            let volume = open(&disk, SMALL).unwrap();
            disk.crash_at(Some(disk.changes() + at));
            let written = volume.commit(transaction(vec![write("a", None, 0, b"text")])).is_ok();
            let linked = volume.commit(transaction(vec![link("a", "b")])).is_ok();
            let removed = volume.commit(transaction(vec![unlink("a"), unlink("b")]));
            // Not by a checkpoint.
            disk.crash_at(Some(disk.changes() + 1));
            drop(volume);
            disk.restart();
            disk.crash_at(Some(disk.changes() + 1 + at % 17));
            let _ = open(&disk, SMALL);
            disk.restart();
            let volume = open(&disk, SMALL).unwrap();
            let text = content(&volume, &path("unknown")).unwrap().1;
            assert!(
                if written { text == b"text" } else { text.is_empty() || text == b"text" },
                "{at} {seed}: {text:?}"
            );
            let names = ["a", "b", "unknown"].map(|name| volume.stat(&path(name)).is_ok());
            if let Ok(removed) = removed {
                assert_eq!(names, [false, false, true], "{at} {seed}");
                assert_eq!(seen(&volume, "unknown"), removed.versions[1], "{at} {seed}");
            } else {
                assert!(!linked || names[1] || !names[0], "{at} {seed}: {names:?}");
            }
            let count = names.iter().filter(|there| **there).count() as u32;
            assert_eq!(volume.stat(&path("unknown")).unwrap().links, count, "{at} {seed}: none is left in our folder");
        }
    }
}

/// Somebody beside the server moves a file with several names, gives it more, and puts another file
/// in its place: after a crash each name has what devices wrote under it, and none is there again.
#[test]
fn files_with_several_names_that_others_move_are_recovered() {
    for young in [false, true] {
        for seed in 0..20 {
            let disk = SimulatedDisk::new(seed);
            let volume = open(&disk, SMALL).unwrap();
            done(&volume, vec![create("f"), link("f", "h"), create("one"), rename("one", "two")]);
            if !young {
                volume.checkpoint().unwrap();
            }
            done(&volume, vec![write("f", None, 0, b"one"), write("two", None, 0, b"one")]);
            disk.rename(b"f", b"g").unwrap();
            disk.hard_link(b"two", b"four").unwrap();
            done(&volume, vec![write("g", None, 0, b"two"), write("four", None, 0, b"TWO")]);
            done(&volume, vec![create("f"), write("f", None, 0, b"new"), link("g", "i"), unlink("h")]);
            disk.crash_at(Some(disk.changes() + 1));
            drop(volume);
            disk.restart();
            let volume = open(&disk, SMALL).unwrap();
            for (name, text) in [("f", b"new"), ("g", b"two"), ("i", b"two"), ("two", b"TWO"), ("four", b"TWO")] {
                let (_, found) = content(&volume, &path(name)).unwrap();
                assert_eq!(found, text, "{name}, seed {seed}, young: {young}");
            }
            for name in ["h", "one"] {
                assert!(volume.stat(&path(name)).is_err(), "{name}, seed {seed}, young: {young}");
            }
            assert_eq!(seen(&volume, "g").file, seen(&volume, "i").file);
            assert_ne!(seen(&volume, "g").file, seen(&volume, "f").file);
        }
    }
}
