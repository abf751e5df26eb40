//! Somebody beside the server who may write in the served folder puts links and pipes where files
//! were.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// What nobody may touch: a folder outside with a file, and how both were.
struct Outside {
    folder: tempfile::TempDir,
    was: String,
}

impl Outside {
    fn new() -> Outside {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        fs::write(&file, "secret").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::create_dir(folder.path().join("empty")).unwrap();
        let mut outside = Outside { folder, was: String::new() };
        outside.was = outside.now();
        outside
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn now(&self) -> String {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.path()).unwrap() {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            found.push(format!(
                "{:?} {:o} {} {}",
                entry.file_name(),
                meta.mode(),
                meta.mtime_nsec(),
                meta.ctime_nsec()
            ));
        }
        found.sort();
        let meta = fs::metadata(self.path()).unwrap();
        let content = fs::read(self.path().join("secret")).unwrap();
        format!("{found:?} {:o} {} {} {content:?}", meta.mode(), meta.mtime_nsec(), meta.ctime_nsec())
    }
}

/// A call of every operation of a disk with this path; those that only look must not succeed
/// either.
fn every_operation(disk: &RealDisk, at: &[u8]) -> Vec<(&'static str, bool)> {
    let mut nothing = |_: &[u8], _: Kind| true;
    let fifo = Inode { kind: Kind::Fifo, mode: 0o600, owner: Owner { uid: 7, gid: 7 }, rdev: 0 };
    vec![
        ("list", disk.list(at, &mut nothing).is_ok()),
        ("open to read", disk.open(at, false).is_ok()),
        ("open to write", disk.open(at, true).is_ok()),
        ("create", disk.create(at, 0o666).is_ok()),
        ("make_folder", disk.make_folder(at, 0o777).is_ok()),
        ("make_node", disk.make_node(at, &fifo, b"x").is_ok()),
        ("set_owner", disk.set_owner(at, fifo.owner, 0o6777).is_ok()),
        ("set-id bits", disk.set_mode(at, 0o6777).is_ok()),
        ("set_mode", disk.set_mode(at, 0o666).is_ok()),
        ("check_writable of a file", disk.check_writable(at, Kind::File).is_ok()),
        ("check_writable of a folder", disk.check_writable(at, Kind::Folder).is_ok()),
        ("sync_folder", disk.sync_folder(at).is_ok()),
        ("folder", disk.folder(at, false).is_ok()),
    ]
}

/// The same of those that act on a link itself where it is the last name.
fn every_operation_on_names(disk: &RealDisk, at: &[u8]) -> Vec<(&'static str, bool)> {
    vec![
        ("stat", disk.stat(at).is_ok()),
        ("read_link", disk.read_link(at).is_ok()),
        ("set_mtime", disk.set_mtime(at, 1).is_ok()),
        ("rename from", disk.rename(at, b"taken").is_ok()),
        ("rename to", disk.rename(b"file", at).is_ok()),
        ("unlink", disk.unlink(at).is_ok()),
        ("remove_folder", disk.remove_folder(at).is_ok()),
    ]
}

#[test]
fn no_operation_follows_a_link_at_any_name() {
    for walk in [false, true] {
        let (folder, outside) = (tempfile::tempdir().unwrap(), Outside::new());
        let disk = RealDisk::open(folder.path()).unwrap();
        disk.set_walk(walk);
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("file"), "ours").unwrap();
        symlink(outside.path(), folder.path().join("link")).unwrap();
        symlink(outside.path(), folder.path().join("a/b/link")).unwrap();
        for at in ["link/secret", "link/empty", "link/new", "a/b/link/secret", "a/b/link/empty", "a/b/link/new"] {
            for (name, done) in every_operation(&disk, at.as_bytes()) {
                assert!(!done, "{name} of {at}, walk {walk}");
            }
            for (name, done) in every_operation_on_names(&disk, at.as_bytes()) {
                assert!(!done, "{name} of {at}, walk {walk}");
            }
            assert_eq!(outside.now(), outside.was, "{at}");
        }
        symlink(outside.path().join("secret"), folder.path().join("to-file")).unwrap();
        for at in ["link", "a/b/link", "to-file"] {
            for (name, done) in every_operation(&disk, at.as_bytes()) {
                assert!(!done, "{name} of {at}, walk {walk}");
            }
            assert_eq!(disk.stat(at.as_bytes()).unwrap().kind, Kind::Symlink);
            // These change the link, or its name.
            disk.set_mtime(at.as_bytes(), 1).unwrap();
            disk.rename(at.as_bytes(), b"taken").unwrap();
            disk.rename(b"taken", at.as_bytes()).unwrap();
            disk.unlink(at.as_bytes()).unwrap();
            assert_eq!(outside.now(), outside.was, "{at}");
        }
    }
}

#[test]
fn a_pipe_in_the_place_of_a_file_neither_holds_nor_serves() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for walk in [false, true] {
        let disk = RealDisk::open(folder.path()).unwrap();
        disk.set_walk(walk);
        let refused = every_operation(&disk, b"pipe");
        assert!(refused.iter().all(|(_, done)| !done), "{refused:?}");
        assert_eq!(fs::symlink_metadata(&pipe).unwrap().mode() & 0o7777, 0o600);
    }
}

/// Files may have no permissions at all, and get new ones.
#[test]
fn permission_bits_are_set_whatever_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(folder.path()).unwrap();
    disk.create(b"file", 0).unwrap();
    disk.make_folder(b"folder", 0o027).unwrap();
    let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("file"), mode("folder")), (0, 0o027));
    for at in ["file", "folder"] {
        disk.set_mode(at.as_bytes(), 0o640).unwrap();
        assert_eq!(mode(at), 0o640);
        // What is done for users who are not root and may not open it.
        let found = rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW;
        let found = rustix::fs::open(folder.path().join(at), found, rustix::fs::Mode::empty()).unwrap();
        crate::real::Found { fd: found, opened: false }.set_mode(0o751).unwrap();
        assert_eq!(mode(at), 0o751);
    }
    let outside = Outside::new();
    let link = folder.path().join("link");
    symlink(outside.path().join("secret"), &link).unwrap();
    let found = rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW;
    let found = rustix::fs::open(&link, found, rustix::fs::Mode::empty()).unwrap();
    assert!(crate::real::Found { fd: found, opened: false }.set_mode(0o666).is_err());
    assert_eq!(outside.now(), outside.was);
}

/// Somebody swaps a file and a link as fast as they can. However the two meet, nothing outside
/// changes.
#[test]
fn regress_swapping_files_and_links_reaches_nothing_outside() {
    const ROUNDS: usize = 30_000;
    let (folder, outside) = (tempfile::tempdir().unwrap(), Outside::new());
    let (file, link) = (folder.path().join("f"), folder.path().join("link"));
    fs::write(&file, "ours").unwrap();
    symlink(outside.path().join("secret"), &link).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                let cwd = rustix::fs::CWD;
                rustix::fs::renameat_with(cwd, &file, cwd, &link, exchange).unwrap();
            }
        });
        let disk = RealDisk::open(folder.path()).unwrap();
        for round in 0..ROUNDS {
            disk.set_walk(round % 2 == 1);
            // Done to the file, or refused for the link.
            let _ = disk.set_mode(b"f", 0o666);
            let _ = disk.set_mtime(b"f", 1);
            if let Ok(opened) = disk.open(b"f", true) {
                opened.write_at(0, b"mine").unwrap();
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(outside.now(), outside.was);
}
