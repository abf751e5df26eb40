//! A tree with one of everything that a file system can hold, and whether mounts can be tested
//! here.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::PathBuf;

use rustix::fs::{FileType, Mode, Timespec, Timestamps, XattrFlags};

/// Why real mounts cannot be tested here, if so.
pub fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root");
    }
    fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err().then_some("no /dev/fuse")
}

/// One of everything, 3,000 files in one directory among it.
pub fn odd_tree() -> tempfile::TempDir {
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
