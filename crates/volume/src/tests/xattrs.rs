//! Extended attributes: what may be set, how much, and what is left of them.

use std::fs;

use super::*;

fn set(at: &str, name: &str, value: &[u8], how: XattrHow) -> Operation {
    Operation::SetXattr { path: path(at), base: None, name: name.into(), value: value.to_vec(), how }
}

fn remove(at: &str, name: &str) -> Operation {
    Operation::RemoveXattr { path: path(at), base: None, name: name.into() }
}

fn shown(volume: &Volume, at: &str) -> Vec<(String, Vec<u8>)> {
    let (info, xattrs) = volume.xattrs(&path(at)).unwrap();
    assert_eq!(info.has_xattrs, !xattrs.is_empty());
    xattrs.into_iter().map(|(name, value)| (String::from_utf8(name).unwrap(), value)).collect()
}

#[test]
fn attributes_are_set_replaced_and_removed() {
    let disk = SimulatedDisk::new(1);
    let volume = open(&disk, SMALL).unwrap();
    let folder = Operation::MakeFolder { path: path("d"), mode: 0o755, owner: None };
    let link = Operation::MakeLink { path: path("l"), target: b"f".to_vec(), owner: None };
    volume.commit(transaction(vec![create("f"), folder, link])).unwrap();
    let commit = |operations| volume.commit(transaction(operations));
    let before = volume.stat(&path("f")).unwrap();
    assert!(!before.has_xattrs);
    let done = commit(vec![set("f", "user.a", b"1", XattrHow::Create), set("d", "user.b", b"", XattrHow::Any)]);
    let after = volume.stat(&path("f")).unwrap();
    assert_eq!(after.seen, done.unwrap().versions[0]);
    assert!(after.has_xattrs && after.seen.version == before.seen.version + 1 && after.ctime_ns > before.ctime_ns);
    assert_eq!(after.mtime_ns, before.mtime_ns);
    assert_eq!(shown(&volume, "f"), [("user.a".to_owned(), b"1".to_vec())]);
    assert_eq!(shown(&volume, "d"), [("user.b".to_owned(), Vec::new())]);
    let refused = commit(vec![set("f", "user.a", b"2", XattrHow::Create)]);
    assert!(matches!(refused, Err(VolumeError::Exists { .. })));
    let refused = commit(vec![set("f", "user.c", b"2", XattrHow::Replace)]);
    assert!(matches!(refused, Err(VolumeError::NoAttribute { .. })));
    assert!(matches!(commit(vec![remove("f", "user.c")]), Err(VolumeError::NoAttribute { .. })));
    // Operations of one transaction see each other.
    commit(vec![set("f", "user.c", b"3", XattrHow::Create), set("f", "user.c", b"4", XattrHow::Replace)]).unwrap();
    commit(vec![remove("f", "user.a"), rename("f", "g")]).unwrap();
    assert_eq!(shown(&volume, "g"), [("user.c".to_owned(), b"4".to_vec())]);
    for (at, name) in [("g", "user.runnel.inode"), ("g", "trusted.a"), ("g", "user."), ("l", "user.a"), ("", "user.a")]
    {
        let refused = commit(vec![set(at, name, b"x", XattrHow::Any)]);
        assert!(matches!(refused, Err(VolumeError::Invalid { .. })), "{at} {name}: {refused:?}");
    }
    let stale = Operation::SetXattr {
        path: path("g"),
        base: Some(before.seen),
        name: b"user.a".to_vec(),
        value: Vec::new(),
        how: XattrHow::Any,
    };
    assert!(matches!(commit(vec![stale]), Err(VolumeError::Conflict { .. })));
    disk.set_attributes(false);
    assert!(matches!(commit(vec![set("g", "user.a", b"x", XattrHow::Any)]), Err(VolumeError::Unsupported { .. })));
}

#[test]
fn attributes_have_limits() {
    let disk = SimulatedDisk::new(2);
    let volume = open(&disk, Options::default()).unwrap();
    volume.commit(transaction(vec![create("f")])).unwrap();
    let commit = |name: &str, bytes| volume.commit(transaction(vec![set("f", name, &vec![7; bytes], XattrHow::Any)]));
    assert!(matches!(commit("user.a", XATTR_VALUE_BYTES_MAX + 1), Err(VolumeError::TooLarge { .. })));
    assert!(matches!(commit("user.a", XATTRS_BYTES_MAX - 5), Err(VolumeError::NoSpace { .. })));
    commit("user.a", XATTRS_BYTES_MAX - 6).unwrap();
    assert!(matches!(commit("user.b", 0), Err(VolumeError::NoSpace { .. })));
    commit("user.a", 1).unwrap();
    commit("user.b", 0).unwrap();
}

/// More than the file system holds is refused before anything is promised.
#[test]
fn the_limit_of_a_real_file_system_counts() {
    let folder = tempfile::tempdir().unwrap();
    let volume = Volume::open(folder.path(), None, Options::default()).unwrap();
    volume.commit(transaction(vec![create("f")])).unwrap();
    let mut refused = 0;
    for index in 0..60 {
        let operation = set("f", &format!("user.{index}"), &[9; 1000], XattrHow::Any);
        match volume.commit(transaction(vec![operation])) {
            Ok(_) => assert_eq!(refused, 0, "room came back"),
            Err(VolumeError::NoSpace { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    let kept = shown(&volume, "f");
    assert_eq!(kept.len() + refused, 60);
    assert!(!kept.is_empty() && !volume.is_broken());
    // Those of the system and our own are shown to nobody.
    let owner = Operation::SetOwner { path: path("f"), base: None, uid: Some(7), gid: Some(8) };
    volume.commit(transaction(vec![owner])).unwrap();
    assert_eq!(shown(&volume, "f"), kept);
    drop(volume);
    let mut value = [0; 2000];
    assert_eq!(rustix::fs::getxattr(folder.path().join("f"), "user.0", &mut value[..]), Ok(1000));
}

/// A set that others made beside the server is shown, and is a change.
#[test]
fn attributes_that_others_set_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let volume = Volume::open(folder.path(), None, SMALL).unwrap();
    volume.commit(transaction(vec![create("f")])).unwrap();
    let before = volume.stat(&path("f")).unwrap().seen;
    let at = folder.path().join("f");
    rustix::fs::setxattr(&at, "user.theirs", b"x", rustix::fs::XattrFlags::empty()).unwrap();
    assert_eq!(shown(&volume, "f"), [("user.theirs".to_owned(), b"x".to_vec())]);
    assert!(volume.stat(&path("f")).unwrap().seen.version > before.version);
    fs::set_permissions(&at, std::os::unix::fs::PermissionsExt::from_mode(0o400)).unwrap();
    volume.commit(transaction(vec![set("f", "user.ours", b"y", XattrHow::Any)])).unwrap();
    assert_eq!(shown(&volume, "f").len(), 2);
}
