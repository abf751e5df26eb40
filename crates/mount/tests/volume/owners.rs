//! Owners, set-id bits and special files through the kernel: a mount that keeps owners is for root.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, lchown, symlink};

use mount::Owners;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use stream::Options;

use crate::world::{Mount, World, errno, need_fuse};

fn is_root() -> bool {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: owners can be set by root alone");
        return false;
    }
    true
}

fn keeping(world: &World) -> Mount {
    world.mount_with(Options::default(), |options| (options.owners, options.allow_other) = (Owners::Keep, true))
}

#[test]
fn fuse_owners_are_kept_shown_and_changed() {
    need_fuse!();
    if !is_root() {
        return;
    }
    let world = World::new();
    let (one, two) = (keeping(&world), keeping(&world));
    let of = |mount: &Mount, name: &str| {
        let found = fs::symlink_metadata(mount.at(name)).expect("there");
        (found.uid(), found.gid(), found.permissions().mode() & 0o7777)
    };
    fs::write(one.at("f"), "text").expect("written");
    chown(one.at("f"), Some(12), Some(34)).expect("chown");
    fs::set_permissions(one.at("f"), fs::Permissions::from_mode(0o6755)).expect("chmod");
    assert_eq!((of(&one, "f"), of(&two, "f")), ((12, 34, 0o6755), (12, 34, 0o6755)));
    let there = fs::metadata(world.at("f")).expect("on the server");
    assert_eq!((there.uid(), there.permissions().mode() & 0o7777), (0, 0o755), "nobody has rights there by it");
    chown(one.at("f"), Some(13), None).expect("chown");
    assert_eq!(of(&one, "f"), (13, 34, 0o755), "the bits go with the owner");
    symlink("f", one.at("s")).expect("made");
    lchown(one.at("s"), Some(5), Some(6)).expect("lchown");
    assert_eq!((of(&one, "s").0, fs::read_link(two.at("s")).expect("a link")), (5, "f".into()));
    assert_eq!(fs::read(one.at("s")).expect("followed"), b"text");
    fs::create_dir(one.at("d")).expect("made");
    chown(one.at("d"), None, Some(77)).expect("chown");
    fs::set_permissions(one.at("d"), fs::Permissions::from_mode(0o2775)).expect("chmod");
    fs::write(one.at("d/new"), "").expect("written");
    fs::create_dir(one.at("d/e")).expect("made");
    assert_eq!((of(&one, "d/new").1, of(&two, "d/e")), (77, (0, 77, 0o2755)));
    // A mount whose files are those of one user shows nothing of it, and changes nothing.
    let user = world.mount();
    assert_eq!((of(&user, "f").0, errno(chown(user.at("f"), Some(1), None))), (0, 1));
    // The top folder is the server's; what changes nothing succeeds, as archivers want it.
    let (top, mode) = (one.at(""), fs::metadata(world.at("")).expect("there").permissions());
    let (uid, gid, _) = of(&one, "");
    chown(&top, Some(uid), Some(gid)).expect("chown");
    fs::set_permissions(&top, mode).expect("chmod");
    assert_eq!(errno(chown(&top, Some(uid + 1), None)), 1);
    // Nobody believes here what was so before.
    assert_eq!(of(&keeping(&world), "f"), (13, 34, 0o755));
}

#[test]
fn fuse_special_files_are_made_and_are_those_of_the_device() {
    need_fuse!();
    if !is_root() {
        return;
    }
    let world = World::new();
    let (mount, two) = (keeping(&world), keeping(&world));
    let mknod = |name: &str, kind, device| mknodat(CWD, mount.at(name), kind, Mode::from_raw_mode(0o640), device);
    mknod("p", FileType::Fifo, 0).expect("made");
    mknod("s", FileType::Socket, 0).expect("made");
    mknod("null", FileType::CharacterDevice, makedev(1, 3)).expect("made");
    mknod("disk", FileType::BlockDevice, makedev(259, 70_000)).expect("made");
    let found = |name: &str| fs::symlink_metadata(two.at(name)).expect("there");
    assert!(found("p").file_type().is_fifo() && found("s").file_type().is_socket());
    assert!(found("null").file_type().is_char_device() && found("disk").file_type().is_block_device());
    assert_eq!((found("null").rdev(), found("disk").rdev()), (makedev(1, 3), makedev(259, 70_000)));
    // The mount says nodev, as long as nobody asks for devices.
    assert_eq!(errno(fs::read(mount.at("null"))), 13, "EACCES");
    let (writer, reader) = (mount.at("p"), mount.at("p"));
    let writing = std::thread::spawn(move || fs::OpenOptions::new().write(true).open(writer)?.write_all(b"through"));
    let mut text = String::new();
    fs::File::open(reader).expect("opens").read_to_string(&mut text).expect("read");
    writing.join().expect("ends").expect("written");
    assert_eq!(text, "through");
    for name in ["p", "s", "null", "disk"] {
        assert!(fs::metadata(world.at(name)).expect("there").is_file(), "an empty file on the server");
        fs::rename(mount.at(name), mount.at("other")).expect("renamed");
        fs::remove_file(mount.at("other")).expect("removed");
    }
}
