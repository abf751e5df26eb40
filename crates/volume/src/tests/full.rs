//! A full disk and a used quota: refused before anything is promised.

use std::process::Command;

use super::model::walk;
use super::*;

/// Writes until there is no room; then everything acknowledged is there, and what is removed makes
/// room again.
fn fill(volume: &Volume) {
    let chunk = vec![7; 8 << 10];
    let mut written = Vec::new();
    for index in 0..100_000 {
        let name = format!("file{index}");
        match volume.commit(transaction(vec![create(&name), write(&name, None, 0, &chunk)])) {
            Ok(_) => written.push(name),
            Err(VolumeError::NoSpace { .. }) => {
                assert!(matches!(volume.stat(&path(&name)), Err(VolumeError::NotFound { .. })), "half a transaction");
                break;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(written.len() > 10, "only {} files fit", written.len());
    for name in &written {
        assert_eq!(content(volume, &path(name)).unwrap().1, chunk);
    }
    // The disk is full for writers of large and small things alike, but not for those who remove.
    for name in &written[..written.len() / 2] {
        volume.commit(transaction(vec![unlink(name)])).unwrap();
    }
    volume.checkpoint().unwrap();
    volume.commit(transaction(vec![create("again"), write("again", None, 0, &chunk)])).unwrap();
    let listed = walk(volume).0.paths().len();
    assert_eq!(listed, written.len() - written.len() / 2 + 1);
}

#[test]
fn a_full_simulated_disk_refuses_before_it_promises() {
    let disk = SimulatedDisk::new(1);
    let volume = open(&disk, SMALL).unwrap();
    disk.set_capacity(Some(4 << 20));
    fill(&volume);
    // Somebody else takes the rest, as one does between our look and our write: the reserve is
    // there for that.
    let hog = disk.create(b"hog", 0o600).unwrap();
    let mut at = 0;
    while hog.write_at(at, &[1; 512]).is_ok() {
        at += 512;
    }
    let seen = volume.commit(transaction(vec![create("last"), write("last", None, 0, b"promised")])).unwrap();
    assert_eq!(content(&volume, &path("last")).unwrap(), (seen.versions[1], b"promised".to_vec()));
    // And used up in the end.
    let more = |index: u32| {
        let name = format!("more{index}");
        volume.commit(transaction(vec![create(&name), write(&name, None, 0, &[1; 8192])]))
    };
    let refused = (0..1000).map(more).find_map(Result::err);
    assert!(matches!(refused, Some(VolumeError::NoSpace { .. })), "{refused:?}");
    let (model, _) = walk(&volume);
    drop(volume);
    assert_eq!(walk(&open(&disk, SMALL).unwrap()).0, model);
}

#[test]
fn a_full_tmpfs_refuses_before_it_promises() {
    let folder = tempfile::tempdir().unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"]).arg(folder.path()).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: mounting a tmpfs needs root");
        return;
    }
    let run = std::panic::catch_unwind(|| {
        let options = Options { journal_bytes: 256 << 10, ..Options::default() };
        fill(&Volume::open(folder.path(), None, options).unwrap());
    });
    assert!(Command::new("umount").arg(folder.path()).status().unwrap().success());
    run.unwrap();
}

#[test]
fn a_quota_counts_what_is_there_and_what_goes() {
    let disk = SimulatedDisk::new(2);
    disk.create(b"old", 0o600).unwrap().write_at(0, &[1; 600]).unwrap();
    let volume = open(&disk, Options { quota_bytes: Some(1000), ..SMALL }).unwrap();
    let commit = |operations| volume.commit(transaction(operations));
    commit(vec![create("a"), write("a", None, 0, &[1; 400])]).unwrap();
    let free = || (volume.space().unwrap().all_bytes, volume.space().unwrap().bytes);
    assert_eq!(free(), (1000, 0));
    assert!(matches!(commit(vec![write("a", None, 400, b"x")]), Err(VolumeError::OverQuota { quota_bytes: 1000 })));
    commit(vec![write("a", None, 0, b"same size")]).unwrap();
    commit(vec![unlink("old")]).unwrap();
    assert_eq!(free(), (1000, 600));
    commit(vec![write("a", None, 999, b"x")]).unwrap();
    assert!(matches!(commit(vec![write("a", None, 1000, b"x")]), Err(VolumeError::OverQuota { .. })));
}
