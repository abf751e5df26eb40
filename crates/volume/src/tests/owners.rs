//! Owners, set-id bits and special files: kept in an attribute of the server's plain files. The
//! crash tests have them too.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::*;

const SOMEBODY: Owner = Owner { uid: 70_001, gid: 70_002 };

fn folder(at: &str, mode: u16, owner: Option<Owner>) -> Operation {
    Operation::MakeFolder { path: path(at), mode, owner }
}

fn file(at: &str, mode: u16, owner: Option<Owner>) -> Operation {
    Operation::Create { path: path(at), mode, exclusive: true, owner }
}

fn node(at: &str, kind: Kind) -> Operation {
    Operation::MakeNode { path: path(at), kind, mode: 0o640, rdev: 0x103, owner: Some(SOMEBODY) }
}

fn chown(at: &str, uid: Option<u32>, gid: Option<u32>) -> Operation {
    Operation::SetOwner { path: path(at), base: None, uid, gid }
}

fn done(volume: &Volume, operation: Operation) {
    volume.commit(transaction(vec![operation])).unwrap();
}

fn real() -> (tempfile::TempDir, Volume) {
    let folder = tempfile::tempdir().unwrap();
    let volume = Volume::open(folder.path(), None, SMALL).unwrap();
    (folder, volume)
}

#[test]
fn special_files_are_empty_plain_files_without_rights_on_the_server() {
    let (folder, volume) = real();
    for (name, kind) in
        [("fifo", Kind::Fifo), ("socket", Kind::Socket), ("char", Kind::CharDevice), ("block", Kind::BlockDevice)]
    {
        done(&volume, node(name, kind));
        let info = volume.stat(&path(name)).unwrap();
        let rdev = if matches!(kind, Kind::Fifo | Kind::Socket) { 0 } else { 0x103 };
        assert_eq!((info.kind, info.mode, info.owner, info.rdev), (kind, 0o640, SOMEBODY, rdev));
        let there = fs::symlink_metadata(folder.path().join(name)).unwrap();
        assert!(there.is_file() && there.len() == 0 && there.mode() & 0o7777 == 0o600, "{there:?}");
        // Its bytes are served to nobody, whatever somebody put there.
        fs::write(folder.path().join(name), "secret").unwrap();
        assert!(matches!(volume.read(&path(name), None, 0, 1), Err(VolumeError::NotFile { .. })));
        assert!(matches!(volume.block_table(&path(name), None, 0, 1), Err(VolumeError::NotFile { .. })));
        let error = volume.commit(transaction(vec![write(name, None, 0, b"x")])).unwrap_err();
        assert!(matches!(error, VolumeError::NotFile { .. }), "{error}");
        let disk = RealDisk::open(folder.path()).unwrap();
        assert!(disk.open(name.as_bytes(), false).is_err() && disk.open(name.as_bytes(), true).is_err());
    }
    let listed = volume.list(&VolumePath::top(), b"", 9).unwrap().entries;
    let kinds: Vec<_> = listed.into_iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [Kind::BlockDevice, Kind::CharDevice, Kind::Fifo, Kind::Socket]);
}

#[test]
fn an_attribute_that_makes_no_sense_hides_its_file() {
    let (folder, volume) = real();
    let at = folder.path().join("f");
    fs::write(&at, "secret").unwrap();
    for value in [&b""[..], b"\x01", &[1; 16], &[1; 17]] {
        rustix::fs::setxattr(&at, "user.runnel.inode", value, rustix::fs::XattrFlags::empty()).unwrap();
        assert!(matches!(volume.stat(&path("f")), Err(VolumeError::Special { .. })), "{value:?}");
        assert!(volume.read(&path("f"), None, 0, 1).is_err());
    }
}

#[test]
fn what_is_made_belongs_to_who_makes_it_or_to_the_group_of_its_folder() {
    let volume = open(&SimulatedDisk::new(1), SMALL).unwrap();
    done(&volume, folder("d", 0o2775, Some(Owner { uid: 1, gid: 50 })));
    done(&volume, folder("d/e", 0o755, Some(SOMEBODY)));
    done(&volume, file("d/e/f", 0o644, Some(SOMEBODY)));
    done(&volume, node("d/p", Kind::Fifo));
    done(&volume, file("g", 0o644, Some(SOMEBODY)));
    let is = |at: &str| {
        let info = volume.stat(&path(at)).unwrap();
        (info.mode, info.owner.uid, info.owner.gid)
    };
    assert_eq!(is("d/e"), (0o2755, SOMEBODY.uid, 50), "the bit goes on to folders");
    assert_eq!(is("d/e/f"), (0o644, SOMEBODY.uid, 50));
    assert_eq!(is("d/p"), (0o640, SOMEBODY.uid, 50));
    assert_eq!(is("g"), (0o644, SOMEBODY.uid, SOMEBODY.gid));
    done(&volume, chown("g", None, Some(9)));
    assert_eq!(is("g"), (0o644, SOMEBODY.uid, 9));
    let before = volume.stat(&path("g")).unwrap().seen;
    done(&volume, chown("g", Some(SOMEBODY.uid), None));
    assert!(volume.stat(&path("g")).unwrap().seen.version > before.version);
}

#[test]
fn a_symbolic_link_of_somebody_else_is_the_same_link() {
    let (folder, volume) = real();
    symlink("target", folder.path().join("s")).unwrap();
    let before = volume.stat(&path("s")).unwrap();
    done(&volume, chown("s", Some(SOMEBODY.uid), None));
    let after = volume.stat(&path("s")).unwrap();
    assert_eq!((after.kind, after.seen.file), (Kind::Symlink, before.seen.file));
    assert_eq!((after.owner.uid, after.owner.gid, after.size), (SOMEBODY.uid, before.owner.gid, 6));
    assert_eq!(after.mtime_ns, before.mtime_ns);
    assert_eq!(volume.read_link(&path("s")).unwrap(), b"target");
    assert!(volume.read(&path("s"), None, 0, 1).is_err());
    // In one transaction with what it builds on, and back again.
    let made = Operation::MakeLink { path: path("t"), target: b"a/b".to_vec(), owner: Some(SOMEBODY) };
    let operations = vec![made, chown("t", Some(5), Some(6)), rename("t", "u")];
    volume.commit(transaction(operations)).unwrap();
    assert_eq!(volume.stat(&path("u")).unwrap().owner, Owner { uid: 5, gid: 6 });
    assert_eq!(volume.read_link(&path("u")).unwrap(), b"a/b");
    done(&volume, chown("u", Some(before.owner.uid), Some(before.owner.gid)));
    assert_eq!(fs::read_link(folder.path().join("u")).unwrap().to_str(), Some("a/b"), "a link of the file system");
    drop(volume);
    let volume = Volume::open(folder.path(), None, SMALL).unwrap();
    assert_eq!(volume.stat(&path("s")).unwrap().seen, after.seen);
}

/// Nobody gets rights on the server by what a device sets, and what its admin sets holds.
#[test]
fn set_id_bits_are_shown_and_never_set_on_the_server() {
    let (folder, volume) = real();
    let host = |name: &str| fs::metadata(folder.path().join(name)).unwrap().mode() & 0o7777;
    done(&volume, file("f", 0o4755, None));
    done(&volume, Operation::SetMode { path: path("f"), base: None, mode: 0o6711 });
    assert_eq!((volume.stat(&path("f")).unwrap().mode, host("f")), (0o6711, 0o711));
    done(&volume, Operation::SetMode { path: path("f"), base: None, mode: 0o400 });
    assert_eq!((volume.stat(&path("f")).unwrap().mode, host("f")), (0o400, 0o400), "no attribute any more");
    // The server can read and write on what somebody else may not read.
    done(&volume, file("g", 0o000, Some(SOMEBODY)));
    assert_eq!((volume.stat(&path("g")).unwrap().mode, host("g")), (0, 0o600));
    done(&volume, write("g", None, 0, b"text"));
    fs::set_permissions(folder.path().join("g"), fs::Permissions::from_mode(0o444)).unwrap();
    let info = volume.stat(&path("g")).unwrap();
    assert_eq!((info.mode, info.owner), (0o444, SOMEBODY));
}

#[test]
fn a_file_system_without_attributes_refuses_owners_and_special_files_alone() {
    let disk = SimulatedDisk::new(1);
    disk.set_attributes(false);
    let volume = open(&disk, SMALL).unwrap();
    // Made with an owner, or with bits that would give rights: as far as it goes.
    done(&volume, file("f", 0o4755, Some(SOMEBODY)));
    let made = Operation::MakeLink { path: path("s"), target: b"f".to_vec(), owner: Some(SOMEBODY) };
    done(&volume, made);
    let info = volume.stat(&path("f")).unwrap();
    assert_eq!((info.mode, info.owner), (0o755, crate::world::OWNER));
    done(&volume, chown("f", Some(info.owner.uid), None));
    for refused in [chown("f", Some(1), None), chown("s", Some(1), None), node("p", Kind::Fifo)] {
        let error = volume.commit(transaction(vec![refused])).unwrap_err();
        assert!(matches!(error, VolumeError::Unsupported { .. }), "{error}");
    }
    done(&volume, Operation::SetMode { path: path("f"), base: None, mode: 0o2640 });
    assert_eq!(volume.stat(&path("f")).unwrap().mode, 0o640);
}
