//! Which files of a repository an answer has.

use super::publisher::{Files, Publisher, START};
use crate::repository::{collect, file_name, listed_version, version_of};
use crate::{Known, Stapled, UnixTime, Verifier};

/// The repository as a folder.
fn folder(files: &Files) -> Files {
    let named = |(role, file): (&String, &Vec<u8>)| (file_name(role, version_of(role, file).unwrap()), file.clone());
    files.iter().map(named).collect()
}

fn collected(folder: &Files, name: &str, root: u64) -> Stapled {
    collect::<()>(name, &Known::of_root(root), |file| Ok(folder.get(file).cloned())).unwrap()
}

fn roles(answer: &Stapled) -> Vec<&str> {
    answer.files().map(|(role, _)| role).collect()
}

#[test]
fn an_answer_has_what_the_name_needs() {
    let mut publisher = Publisher::new();
    publisher.delegate("targets", "one", &["one-*"], &[("one-app:1", 2)]);
    publisher.delegate("targets", "all", &["*"], &[("app:2", 3)]);
    publisher.delegate("all", "deep", &["deep-*"], &[("deep-app:1", 4)]);
    let files = publisher.files();
    let folder = folder(&files);
    for (name, image, expected) in [
        ("app:1", Some(1), &[][..]),
        ("one-app:1", Some(2), &["one"]),
        ("app:2", Some(3), &["all"]),
        ("deep-app:1", Some(4), &["all", "deep"]),
        ("one-none:1", None, &["one", "all"]),
        ("", None, &[]),
    ] {
        let answer = collected(&folder, name, 1);
        assert_eq!(roles(&answer), [&["timestamp", "snapshot", "targets"], expected].concat(), "{name}");
        let mut device = Verifier::new(&files["root"]).unwrap();
        let found = device.verify(&answer, name, Some(UnixTime(START)));
        assert_eq!(found.ok().map(|found| u64::from(found.image.0[31])), image, "{name}");
    }
    assert_eq!(collected(&folder, "app:1", 0).roots().len(), 1);
    assert_eq!(listed_version(&files["snapshot"], "deep"), Some(1));
    assert_eq!(listed_version(&files["snapshot"], "none"), None);
}

#[test]
fn a_search_ends_where_a_device_would() {
    let files = Publisher::new().files();
    for (role, there) in [("timestamp", 0), ("snapshot", 1), ("targets", 2)] {
        let mut damaged = folder(&files);
        damaged.remove(&file_name(role, 1));
        assert_eq!(roles(&collected(&damaged, "app:1", 1)).len(), there, "without {role}");
        let mut damaged = folder(&files);
        damaged.insert(file_name(role, 1), b"{}".to_vec());
        assert_eq!(roles(&collected(&damaged, "app:1", 1)).len(), there + 1, "with a damaged {role}");
    }
    // A role that delegates to itself, and one that is not listed.
    let mut publisher = Publisher::new();
    publisher.delegate("targets", "loop", &["*"], &[]);
    publisher.delegate("loop", "loop", &["*"], &[]);
    let files = publisher.files();
    assert_eq!(roles(&collected(&folder(&files), "other:1", 1)), ["timestamp", "snapshot", "targets", "loop"]);
    let failed = collect("app:1", &Known::of_root(1), |_| Err("the disk fails"));
    assert_eq!(failed.map(drop), Err("the disk fails"));
}

#[test]
fn so_many_roots_are_in_one_answer() {
    let root = Publisher::new().files()["root"].clone();
    let read = |file: &str| Ok::<_, ()>(file.ends_with(".root.json").then(|| root.clone()));
    let answer = collect("app:1", &Known::of_root(3), read).unwrap();
    assert!(answer.has_more_roots());
    assert_eq!((answer.roots().len(), answer.files().count()), (32, 0));
}
