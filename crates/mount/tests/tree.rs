//! A mounted image against the tree it was made from, file by file, attributes included, through the real packer and
//! the real session.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use client::{Config, Session, Target};
use mount::{Mounted, Options};
use pack::compare::{Attribute, CompareOptions, assert_equal};
use pack::{Silent, Source, pack};
use rustix::fs::{FileType, Mode, Timespec, Timestamps, XattrFlags};

/// Why real mounts cannot be tested here, if so.
fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root");
    }
    fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err().then_some("no /dev/fuse")
}

/// Packs `tree`, mounts it, and hands both to `check`.
fn with_mount(tree: &Path, check: impl FnOnce(&Mounted, &Session)) {
    let folder = tempfile::tempdir().expect("tempdir");
    let (image, root) = (folder.path().join("tree.rnl"), folder.path().join("mount"));
    fs::create_dir(&root).expect("made");
    let source = Source::detect(tree).expect("a directory");
    pack(source, &image, &pack::Options::default(), &Silent).expect("packed");
    let session = Session::open(&Target::File(image), Config::default()).expect("opens");
    let options = Options { control: false, ..Options::default() };
    let mounted = Mounted::start(session.clone(), &root, options).expect("mounts");
    check(&mounted, &session);
    mounted.unmount().expect("unmounts");
}

fn odd_tree() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("tempdir");
    let at = |path: &[u8]| -> PathBuf { folder.path().join(std::ffi::OsStr::from_bytes(path)) };
    for path in ["a/b/c", "empty", "big"] {
        fs::create_dir_all(at(path.as_bytes())).expect("made");
    }
    let bytes: Vec<u8> = (0..3_000_001u32).map(|at| (at >> 3) as u8 ^ (at >> 13) as u8).collect();
    fs::write(at(b"a/large"), &bytes).expect("written");
    fs::write(at(b"a/\xff\xfe"), b"not a UTF-8 name").expect("written");
    fs::write(at(b"a/nothing"), b"").expect("written");
    fs::hard_link(at(b"a/large"), at(b"a/b/c/same")).expect("linked");
    symlink("../large", at(b"a/b/up")).expect("linked");
    symlink("/nowhere", at(b"dangling")).expect("linked");
    let sparse = fs::File::create(at(b"sparse")).expect("created");
    sparse.set_len(5 << 30).expect("long");
    sparse.write_at(b"far away", (4 << 30) + 12_345).expect("written");
    for number in 0..3000 {
        fs::write(at(format!("big/{number}").as_bytes()), number.to_string()).expect("written");
    }
    let no_mode = Mode::from_raw_mode(0o640);
    for (path, kind, device) in [
        ("pipe", FileType::Fifo, 0),
        ("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        ("disk", FileType::BlockDevice, rustix::fs::makedev(259, 300)),
        ("socket", FileType::Socket, 0),
    ] {
        rustix::fs::mknodat(rustix::fs::CWD, at(path.as_bytes()), kind, no_mode, device).expect("made");
    }
    rustix::fs::setxattr(at(b"a/nothing"), "user.colour", b"red", XattrFlags::empty()).expect("set");
    rustix::fs::setxattr(at(b"a/b"), "user.of a folder", b"", XattrFlags::empty()).expect("set");
    rustix::fs::chown(at(b"a/b"), Some(rustix::fs::Uid::from_raw(1234)), Some(rustix::fs::Gid::from_raw(70_000)))
        .expect("chown");
    fs::set_permissions(at(b"a/large"), fs::Permissions::from_mode(0o6755)).expect("chmod");
    let old = Timespec { tv_sec: -1_000_000, tv_nsec: 999_999_999 };
    let times = Timestamps { last_access: old, last_modification: old };
    rustix::fs::utimensat(rustix::fs::CWD, at(b"a/nothing"), &times, rustix::fs::AtFlags::empty()).expect("set");
    folder
}

#[test]
fn fuse_ref_a_mount_equals_its_source() {
    if let Some(why) = obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    let tree = odd_tree();
    with_mount(tree.path(), |mounted, session| {
        assert_equal(tree.path(), mounted.mountpoint(), &CompareOptions::default());
        let first = session.counters().reads;
        assert!(first > 0);
        // Once more, out of the kernel's caches.
        assert_equal(tree.path(), mounted.mountpoint(), &CompareOptions::default());
        let again = session.counters().reads - first;
        assert!(again * 10 <= first, "{first} READs at first and {again} again");
    });
}

/// The comparison itself must notice what it is there to notice.
#[test]
fn fuse_canary_a_changed_source_differs() {
    if let Some(why) = obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    let tree = odd_tree();
    with_mount(tree.path(), |mounted, _| {
        fs::write(tree.path().join("big/7"), "8").expect("written");
        fs::set_permissions(tree.path().join("empty"), fs::Permissions::from_mode(0o700)).expect("chmod");
        let options = CompareOptions { ignored: vec![Attribute::Mtime], ..CompareOptions::default() };
        let comparison = pack::compare::compare(tree.path(), mounted.mountpoint(), &options).expect("compared");
        let found: Vec<_> = comparison.differences.iter().map(|difference| difference.attribute).collect();
        assert_eq!(found, [Attribute::Contents, Attribute::Permissions]);
    });
}

#[test]
fn fuse_ref_programs_of_this_machine_equal_their_image() {
    let source = Path::new("/usr/sbin");
    if let Some(why) = obstacle().or((!source.is_dir()).then_some("no /usr/sbin")) {
        eprintln!("skipped: {why}");
        return;
    }
    with_mount(source, |mounted, _| assert_equal(source, mounted.mountpoint(), &CompareOptions::default()));
}
