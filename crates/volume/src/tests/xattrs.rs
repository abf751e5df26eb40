//! Extended attributes: what may be set, how much, and what is left of them; access control lists,
//! which go with the permission bits.

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

/// As `u::rwx,u:7:rw-,g::r-x,m::MASK,o::r--`; without a mask and a user, what bits say too.
fn acl(mask: Option<u16>) -> Vec<u8> {
    let named = mask.map(|_| (2, 6, 7));
    let entries = [(1, 7, u32::MAX)].into_iter().chain(named).chain([(4, 5, u32::MAX)]);
    let entries = entries.chain(mask.map(|mask| (16, mask, u32::MAX))).chain([(32, 4, u32::MAX)]);
    let bytes = entries.flat_map(|(tag, permissions, id): (u16, u16, u32)| {
        let mut bytes = tag.to_le_bytes().to_vec();
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
        bytes
    });
    2u32.to_le_bytes().into_iter().chain(bytes).collect()
}

fn set_acl(at: &str, name: &[u8], value: Vec<u8>) -> Operation {
    Operation::SetXattr { path: path(at), base: None, name: name.to_vec(), value, how: XattrHow::Any }
}

#[test]
fn lists_and_permission_bits_go_together() {
    let disk = SimulatedDisk::new(3);
    let volume = open(&disk, SMALL).unwrap();
    let folder = Operation::MakeFolder { path: path("d"), mode: 0o2755, owner: None };
    let link = Operation::MakeLink { path: path("l"), target: b"f".to_vec(), owner: None };
    let pipe = Operation::MakeNode { path: path("p"), kind: Kind::Fifo, mode: 0o600, rdev: 0, owner: None };
    volume.commit(transaction(vec![create("f"), folder, link, pipe])).unwrap();
    let commit = |operations| volume.commit(transaction(operations));
    let mode = |at: &str| volume.stat(&path(at)).unwrap().mode;
    let chmod = |at: &str, mode| Operation::SetMode { path: path(at), base: None, mode };
    let list = |at: &str, name: &[u8]| volume.xattrs(&path(at)).unwrap().1.get(name).cloned();
    commit(vec![set_acl("f", ACL_ACCESS, acl(Some(7)))]).unwrap();
    assert_eq!((mode("f"), list("f", ACL_ACCESS)), (0o774, Some(acl(Some(7)))));
    commit(vec![chmod("f", 0o754)]).unwrap();
    assert_eq!((mode("f"), list("f", ACL_ACCESS)), (0o754, Some(acl(Some(5)))));
    // In one transaction too, and of what it makes.
    commit(vec![create("g"), set_acl("g", ACL_ACCESS, acl(Some(7))), chmod("g", 0o734)]).unwrap();
    assert_eq!((mode("g"), list("g", ACL_ACCESS)), (0o734, Some(acl(Some(3)))));
    commit(vec![set_acl("d", ACL_ACCESS, acl(Some(0))), set_acl("d", ACL_DEFAULT, acl(Some(7)))]).unwrap();
    assert_eq!((mode("d"), list("d", ACL_DEFAULT)), (0o2704, Some(acl(Some(7)))));
    commit(vec![set_acl("p", ACL_ACCESS, acl(Some(6)))]).unwrap();
    assert_eq!((mode("p"), volume.stat(&path("p")).unwrap().kind), (0o764, Kind::Fifo));
    // What bits say is no list.
    commit(vec![set_acl("f", ACL_ACCESS, acl(None))]).unwrap();
    assert_eq!((mode("f"), list("f", ACL_ACCESS)), (0o754, None));
    for operation in [
        set_acl("f", ACL_DEFAULT, acl(Some(7))),
        set_acl("l", ACL_ACCESS, acl(Some(7))),
        set_acl("f", ACL_ACCESS, b"no list".to_vec()),
        set_acl("f", ACL_ACCESS, Vec::new()),
        set_acl("f", b"system.other", acl(Some(7))),
        set("p", "user.a", b"x", XattrHow::Any),
    ] {
        let refused = commit(vec![operation.clone()]);
        assert!(matches!(refused, Err(VolumeError::Invalid { .. })), "{operation:?}: {refused:?}");
    }
}

#[test]
fn lists_are_attributes_of_ours_on_a_real_disk() {
    let folder = tempfile::tempdir().unwrap();
    let volume = Volume::open(folder.path(), None, SMALL).unwrap();
    volume.commit(transaction(vec![create("f"), set_acl("f", ACL_ACCESS, acl(Some(7)))])).unwrap();
    let (at, mut value) = (folder.path().join("f"), [0; 100]);
    let stored = rustix::fs::getxattr(&at, "user.runnel.acl", &mut value[..]).unwrap();
    assert_eq!(value[..stored], acl(Some(7)));
    assert!(rustix::fs::getxattr(&at, "system.posix_acl_access", &mut value[..]).is_err());
    drop(volume);
    let volume = Volume::open(folder.path(), None, SMALL).unwrap();
    assert_eq!(volume.xattrs(&path("f")).unwrap().1, Xattrs::from([(ACL_ACCESS.to_vec(), acl(Some(7)))]));
    // One of the server's system is its own affair.
    if rustix::fs::setxattr(&at, "system.posix_acl_default", &acl(Some(7)), rustix::fs::XattrFlags::empty()).is_ok() {
        panic!("a file has no default list");
    }
    let _ = rustix::fs::setxattr(&at, "system.posix_acl_access", &acl(Some(5)), rustix::fs::XattrFlags::empty());
    assert_eq!(volume.xattrs(&path("f")).unwrap().1.len(), 1);
}
