//! Hard links through the kernel: one file under several names, here, on the server and on other
//! devices.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::world::{World, errno, need_fuse};

#[test]
fn fuse_names_of_one_file_are_one_file() {
    need_fuse!();
    let world = World::new();
    let (mount, other) = (world.mount(), world.mount());
    fs::create_dir(mount.at("d")).expect("made");
    fs::write(mount.at("a"), "text").expect("written");
    fs::hard_link(mount.at("a"), mount.at("d/b")).expect("linked");
    let of = |name: &str| fs::metadata(mount.at(name)).expect("there");
    assert_eq!((of("a").ino(), of("a").nlink(), of("d/b").nlink()), (of("d/b").ino(), 2, 2));
    let there = |name: &str| fs::metadata(world.at(name)).expect("on the server");
    assert_eq!((there("a").ino(), there("a").nlink()), (there("d/b").ino(), 2));
    let seen = fs::metadata(other.at("d/b")).expect("there");
    assert_eq!((seen.nlink(), seen.ino()), (2, fs::metadata(other.at("a")).expect("there").ino()));
    // What is written through one name is read through the other, before and after it was sent.
    let mut file = fs::OpenOptions::new().append(true).open(mount.at("d/b")).expect("opened");
    file.write_all(b" and more").expect("written");
    assert_eq!(fs::read(mount.at("a")).expect("read"), b"text and more");
    fs::set_permissions(mount.at("a"), fs::Permissions::from_mode(0o640)).expect("chmod");
    assert_eq!(of("d/b").mode() & 0o7777, 0o640);
    // The name goes by which it was opened; the file stays, and what is written gets there.
    fs::remove_file(mount.at("d/b")).expect("removed");
    file.write_all(b".").expect("written");
    file.sync_all().expect("synced");
    assert_eq!((of("a").nlink(), fs::read(world.at("a")).expect("read")), (1, b"text and more.".to_vec()));
    drop(file);
    assert_eq!(errno(fs::hard_link(mount.at("a"), mount.at("a"))), 17, "EEXIST");
    assert_eq!(errno(fs::hard_link(mount.at("none"), mount.at("c"))), 2, "ENOENT");
    assert_eq!(errno(fs::hard_link(mount.at("d"), mount.at("c"))), 1, "EPERM, of a folder");
}

#[test]
fn fuse_an_unsent_file_is_sent_and_linked() {
    need_fuse!();
    let world = World::new();
    let mount = world.mount();
    let mut file = mount.open_created("new");
    file.write_all(b"unsent").expect("written");
    fs::hard_link(mount.at("new"), mount.at("other")).expect("linked");
    assert_eq!(fs::read(world.at("other")).expect("on the server"), b"unsent");
    file.write_all(b" before").expect("written");
    let mut text = String::new();
    fs::File::open(mount.at("other")).expect("opened").read_to_string(&mut text).expect("read");
    assert_eq!(text, "unsent before");
    let of = |name: &str| fs::metadata(mount.at(name)).expect("there");
    assert_eq!((of("new").ino(), of("new").len(), of("other").len()), (of("other").ino(), 13, 13));
}

/// Also those that had several names before a device came.
#[test]
fn fuse_files_linked_on_the_server_are_written_and_renamed() {
    need_fuse!();
    let world = World::new();
    fs::write(world.at("a"), "text").expect("written");
    fs::hard_link(world.at("a"), world.at("b")).expect("linked");
    let mount = world.mount();
    fs::write(mount.at("a"), "changed").expect("written");
    assert_eq!(fs::read(mount.at("b")).expect("read"), b"changed");
    // Two names of one file: nothing happens.
    fs::rename(mount.at("a"), mount.at("b")).expect("renamed");
    assert_eq!(
        (fs::metadata(world.at("a")).expect("there").nlink(), fs::read_dir(mount.root()).expect("listed").count()),
        (2, 2)
    );
    fs::write(mount.at("c"), "new").expect("written");
    fs::rename(mount.at("c"), mount.at("b")).expect("replaced");
    assert_eq!(fs::read(world.at("a")).expect("read"), b"changed");
    assert_eq!(fs::metadata(mount.at("a")).expect("there").nlink(), 1);
    assert_eq!(fs::read(world.at("b")).expect("read"), b"new");
}

#[test]
fn fuse_folders_count_their_folders_and_times_are_told() {
    need_fuse!();
    let world = World::new();
    let mount = world.mount();
    fs::create_dir_all(mount.at("d/e")).expect("made");
    assert_eq!(fs::metadata(mount.at("d")).expect("there").nlink(), 3);
    assert_eq!(fs::metadata(mount.root()).expect("there").nlink(), 3, "the folder of the journal is none");
    fs::remove_dir(mount.at("d/e")).expect("removed");
    assert_eq!(fs::metadata(mount.at("d")).expect("there").nlink(), 2);
    // Times of access and of the content are set, that of change follows by itself and survives
    // that the file is sent.
    let file = mount.open_created("f");
    let (access, content) = (std::time::UNIX_EPOCH + SECONDS * 5, std::time::UNIX_EPOCH + SECONDS * 7);
    file.set_times(fs::FileTimes::new().set_accessed(access).set_modified(content)).expect("set");
    let unsent = fs::metadata(mount.at("f")).expect("there");
    assert_eq!((unsent.atime(), unsent.mtime()), (5, 7));
    assert!(unsent.ctime() > 7);
    drop(file);
    let sent = fs::metadata(mount.at("f")).expect("there");
    assert_eq!(
        (sent.atime(), sent.mtime(), sent.ctime(), sent.ctime_nsec()),
        (5, 7, unsent.ctime(), unsent.ctime_nsec())
    );
    fs::set_permissions(mount.at("f"), fs::Permissions::from_mode(0o600)).expect("chmod");
    let changed = fs::metadata(mount.at("f")).expect("there");
    assert!((changed.ctime(), changed.ctime_nsec()) > (sent.ctime(), sent.ctime_nsec()) && changed.mtime() == 7);
    let open = mount.open("f");
    fs::remove_file(mount.at("f")).expect("removed");
    assert_eq!(open.metadata().expect("open").nlink(), 0);
}

const SECONDS: std::time::Duration = std::time::Duration::from_secs(1);
