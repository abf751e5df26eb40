//! Names: found, listed, made, renamed, removed, and what a volume does not have.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{CWD, FileType, Mode, RenameFlags, XattrFlags};

use crate::world::{World, errno, need_fuse};

#[test]
fn fuse_names_are_made_renamed_and_removed_on_the_server() {
    need_fuse!();
    let world = World::new();
    let mount = world.mount();
    fs::create_dir_all(mount.at("a/b")).expect("mkdir");
    fs::write(mount.at("a/b/one"), "1").expect("written");
    assert_eq!(fs::read(world.at("a/b/one")).expect("there"), b"1");
    assert_eq!(errno(fs::create_dir(mount.at("a"))), 17, "EEXIST");
    assert_eq!(errno(fs::remove_dir(mount.at("a"))), 39, "ENOTEMPTY");
    assert_eq!(errno(fs::read(mount.at("a/none"))), 2, "ENOENT");
    assert_eq!(errno(fs::read(mount.at("a/b/one/x"))), 20, "ENOTDIR");

    let before = fs::metadata(mount.at("a/b/one")).expect("there").ino();
    fs::rename(mount.at("a/b/one"), mount.at("two")).expect("renamed");
    assert_eq!(fs::metadata(mount.at("two")).expect("there").ino(), before, "the number stays");
    assert!(!world.at("a/b/one").exists() && world.at("two").exists());
    // A folder takes along what is in it.
    fs::write(mount.at("a/b/three"), "3").expect("written");
    fs::rename(mount.at("a"), mount.at("c")).expect("renamed");
    assert_eq!(fs::read(mount.at("c/b/three")).expect("there"), b"3");
    assert_eq!(errno(fs::read(mount.at("a/b/three"))), 2);

    fs::write(mount.at("four"), "4").expect("written");
    let rename = |flags| rustix::fs::renameat_with(CWD, mount.at("four"), CWD, mount.at("two"), flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    assert_eq!(rename(RenameFlags::EXCHANGE), Err(rustix::io::Errno::INVAL));
    assert_eq!(rename(RenameFlags::empty()), Ok(()));
    assert_eq!(fs::read(world.at("two")).expect("there"), b"4");
    assert_eq!(fs::read(mount.at("two")).expect("there"), b"4");

    fs::remove_file(mount.at("two")).expect("removed");
    fs::remove_file(mount.at("c/b/three")).expect("removed");
    fs::remove_dir(mount.at("c/b")).expect("removed");
    fs::remove_dir(mount.at("c")).expect("removed");
    let left: Vec<_> = fs::read_dir(mount.root()).expect("listed").flatten().map(|entry| entry.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn fuse_listings_are_whole_and_numbers_agree() {
    need_fuse!();
    let world = World::new();
    fs::create_dir(world.at("many")).expect("mkdir");
    for number in 0..3000 {
        fs::write(world.at(&format!("many/file {number}")), number.to_string()).expect("written");
    }
    let odd = OsStr::from_bytes(b"not \xff UTF-8");
    fs::write(world.folder.path().join(odd), "odd").expect("written");
    symlink("many/file 7", world.at("link")).expect("linked");
    let mount = world.mount();
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(mount.at("many")).expect("listed") {
        let entry = entry.expect("an entry");
        assert!(seen.insert(entry.file_name()), "{:?} is there twice", entry.file_name());
        let metadata = entry.metadata().expect("there");
        assert_eq!(std::os::unix::fs::DirEntryExt::ino(&entry), metadata.ino());
    }
    assert_eq!(seen.len(), 3000);
    assert_eq!(fs::read(mount.root().join(odd)).expect("read"), b"odd");
    assert_eq!(fs::read_link(mount.at("link")).expect("read").to_str(), Some("many/file 7"));
    assert_eq!(fs::read(mount.at("link")).expect("followed"), b"7");
    // A mount that is made anew shows the same numbers: they are the server's.
    let number = |mount: &crate::world::Mount| fs::metadata(mount.at("many/file 9")).expect("there").ino();
    assert_eq!(number(&mount), number(&world.mount()));
    // What somebody else adds is in a listing that begins later.
    let other = world.mount();
    fs::write(other.at("many/new"), "").expect("written");
    std::thread::park_timeout(Duration::from_millis(60));
    assert_eq!(fs::read_dir(mount.at("many")).expect("listed").count(), 3001);
}

#[test]
fn fuse_attributes_are_kept() {
    need_fuse!();
    let world = World::new();
    let mount = world.mount();
    fs::write(mount.at("f"), "content").expect("written");
    fs::set_permissions(mount.at("f"), fs::Permissions::from_mode(0o640)).expect("chmod");
    let time = UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
    let file = mount.open("f");
    file.set_modified(time).expect("set");
    drop(file);
    let (here, there) = (fs::metadata(mount.at("f")).expect("there"), fs::metadata(world.at("f")).expect("there"));
    for metadata in [here, there] {
        assert_eq!(metadata.modified().expect("a time"), time);
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o640);
        assert_eq!(metadata.len(), 7);
    }
    fs::create_dir(mount.at("d")).expect("mkdir");
    fs::set_permissions(mount.at("d"), fs::Permissions::from_mode(0o750)).expect("chmod");
    assert_eq!(fs::metadata(world.at("d")).expect("there").permissions().mode() & 0o7777, 0o750);
    // The owner is who mounted; nobody else can be.
    let own = rustix::process::geteuid().as_raw();
    std::os::unix::fs::chown(mount.at("f"), Some(own), None).expect("stays");
    assert_eq!(errno(std::os::unix::fs::chown(mount.at("f"), Some(own + 1), None)), 1, "EPERM");
}

#[test]
fn fuse_symbolic_links_are_made_read_followed_and_removed() {
    need_fuse!();
    let world = World::new();
    let mount = world.mount();
    fs::write(mount.at("f"), "content").expect("written");
    symlink("f", mount.at("s")).expect("made");
    assert_eq!(fs::read_link(mount.at("s")).expect("read"), std::path::Path::new("f"));
    assert_eq!(fs::read(mount.at("s")).expect("followed"), b"content");
    assert_eq!(fs::read_link(world.at("s")).expect("on the server"), std::path::Path::new("f"));
    assert_eq!(errno(symlink("g", mount.at("s"))), 17, "EEXIST");
    // To nowhere, and as long as can be.
    let long = "n/".repeat(2047);
    symlink(&long, mount.at("t")).expect("made");
    assert_eq!(fs::read_link(mount.at("t")).expect("read").as_os_str().len(), long.len());
    fs::rename(mount.at("t"), mount.at("u")).expect("renamed");
    fs::remove_file(mount.at("u")).expect("removed");
    fs::remove_file(mount.at("s")).expect("removed");
    assert!(fs::symlink_metadata(world.at("s")).is_err() && world.at("f").is_file());
}

#[test]
fn fuse_what_a_volume_does_not_have_is_refused() {
    need_fuse!();
    let world = World::new();
    let mount = world.mount();
    fs::write(mount.at("f"), "x").expect("written");
    let mknod = |name, kind| rustix::fs::mknodat(CWD, mount.at(name), kind, Mode::from_raw_mode(0o600), 0);
    assert_eq!(mknod("p", FileType::Fifo), Err(rustix::io::Errno::PERM), "where all files are those of one user");
    assert_eq!(mknod("r", FileType::RegularFile), Ok(()));
    assert!(world.at("r").is_file());
    let long = "n".repeat(256);
    assert_eq!(errno(fs::write(mount.at(&long), "")), 36, "ENAMETOOLONG");
    let set = |name: &str, value: &[u8]| rustix::fs::setxattr(mount.at("f"), name, value, XattrFlags::empty());
    assert_eq!(set("trusted.other", b"1"), Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(set("user.runnel.lease", b"for ever"), Err(rustix::io::Errno::INVAL));
    let mut value = [0; 64];
    assert_eq!(rustix::fs::getxattr(mount.at("f"), "trusted.other", &mut value[..]), Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(rustix::fs::listxattr(mount.at("f"), &mut value[..]), Ok(0));
}
