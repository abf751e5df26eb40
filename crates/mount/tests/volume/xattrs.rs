//! Extended attributes through the kernel.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr, getxattr, lgetxattr, listxattr, lsetxattr, removexattr, setxattr};
use rustix::io::Errno;

use crate::world::{World, obstacle, pattern};

/// The names that a file has.
fn names(path: &Path) -> Vec<String> {
    let mut names = vec![0; 4096];
    let bytes = listxattr(path, &mut names[..]).expect("listed");
    let text = String::from_utf8(names[..bytes].to_vec()).expect("text");
    text.split_terminator('\0').map(str::to_owned).collect()
}

fn value(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 64 << 10];
    let bytes = getxattr(path, name, &mut value[..])?;
    value.truncate(bytes);
    Ok(value)
}

fn set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    setxattr(path, name, value, XattrFlags::empty())
}

fn is_skipped() -> bool {
    obstacle().inspect(|why| eprintln!("skipped: {why}")).is_some()
}

#[test]
fn fuse_attributes_are_set_shown_and_removed() -> io::Result<()> {
    if is_skipped() {
        return Ok(());
    }
    let world = World::new();
    let (one, two) = (world.mount(), world.mount());
    let file = one.at("f");
    fs::write(&file, "text")?;
    assert_eq!((names(&file).len(), value(&file, "user.a")), (0, Err(Errno::NODATA)));
    let before = fs::metadata(&file)?;
    set(&file, "user.a", b"one")?;
    let after = fs::metadata(&file)?;
    assert_eq!((before.mtime_nsec(), before.mtime()), (after.mtime_nsec(), after.mtime()));
    assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
    assert_eq!((names(&file), value(&file, "user.a")), (vec!["user.a".to_owned()], Ok(b"one".to_vec())));
    // The server has it as its own, and other devices see it.
    assert_eq!(value(&world.at("f"), "user.a"), Ok(b"one".to_vec()));
    assert_eq!(value(&two.at("f"), "user.a"), Ok(b"one".to_vec()));
    assert_eq!(setxattr(&file, "user.a", b"x", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(setxattr(&file, "user.b", b"x", XattrFlags::REPLACE), Err(Errno::NODATA));
    setxattr(&file, "user.a", b"two", XattrFlags::REPLACE)?;
    setxattr(&file, "user.b", b"", XattrFlags::CREATE)?;
    assert_eq!((value(&file, "user.a"), value(&file, "user.b")), (Ok(b"two".to_vec()), Ok(Vec::new())));
    assert_eq!(getxattr(&file, "user.a", &mut [0u8; 2][..]), Err(Errno::RANGE));
    assert_eq!(listxattr(&file, &mut [0u8; 8][..]), Err(Errno::RANGE));
    removexattr(&file, "user.a")?;
    assert_eq!((names(&file), removexattr(&file, "user.a")), (vec!["user.b".to_owned()], Err(Errno::NODATA)));
    // They go with the file, not with its name.
    fs::rename(&file, one.at("g"))?;
    fs::hard_link(one.at("g"), one.at("h"))?;
    set(&one.at("h"), "user.c", b"linked")?;
    assert_eq!(value(&one.at("g"), "user.c"), Ok(b"linked".to_vec()));
    fs::create_dir(one.at("d"))?;
    set(&one.at("d"), "user.d", b"folder")?;
    assert_eq!((names(&one.at("d")), names(&one.at(""))), (vec!["user.d".to_owned()], Vec::new()));
    Ok(())
}

#[test]
fn fuse_attributes_that_cannot_be_are_refused() -> io::Result<()> {
    if is_skipped() {
        return Ok(());
    }
    let world = World::new();
    let mount = world.mount();
    let file = mount.at("f");
    fs::write(&file, "")?;
    symlink("f", mount.at("l"))?;
    let none = XattrFlags::empty();
    assert_eq!(lsetxattr(mount.at("l"), "user.a", b"x", none), Err(Errno::PERM));
    assert_eq!(lgetxattr(mount.at("l"), "user.a", &mut [0u8; 9][..]), Err(Errno::NODATA));
    assert_eq!(set(mount.root(), "user.a", b"x"), Err(Errno::PERM));
    for name in ["user.runnel.inode", "user.runnel.x", "trusted.a", "security.a"] {
        assert_eq!(set(&file, name, b"x"), Err(Errno::OPNOTSUPP), "{name}");
    }
    // One that makes sense; others the kernel refuses by itself.
    let capability = [&[0, 0, 0, 2][..], &[0; 16]].concat();
    assert_eq!(set(&file, "security.capability", &capability), Err(Errno::OPNOTSUPP));
    assert_eq!(value(&file, "user.runnel.inode"), Err(Errno::OPNOTSUPP));
    assert_eq!(removexattr(&file, "user.runnel.inode"), Err(Errno::OPNOTSUPP));
    assert_eq!(value(&file, "user.runnel.lease"), Ok(b"none".to_vec()));
    assert_eq!(set(&file, "user.a", &[1; (64 << 10) + 1]), Err(Errno::TOOBIG));
    assert_eq!(set(&file, "user.a", &[1; 64 << 10]), Err(Errno::NOSPC));
    set(&file, "user.a", &[1; 2000])?;
    assert_eq!(names(&file), ["user.a"]);
    fs::write(mount.at("big"), pattern(1000, 1))?;
    fs::set_permissions(mount.at("big"), fs::Permissions::from_mode(0o444))?;
    set(&mount.at("big"), "user.a", b"root may")?;
    Ok(())
}

/// A file of which the server has nothing yet, or not all.
#[test]
fn fuse_attributes_of_unsent_files_are_kept() -> io::Result<()> {
    if is_skipped() {
        return Ok(());
    }
    let world = World::new();
    let (mount, none) = (world.mount(), XattrFlags::empty());
    // So that the folder is known, and files are made here first.
    fs::write(mount.at("first"), "")?;
    for round in 0..4 {
        let name = format!("f{round}");
        if round % 2 == 1 {
            // It is there already, with an attribute that emptying leaves.
            fs::write(world.at(&name), "old")?;
            set(&world.at(&name), "user.old", b"kept")?;
        }
        let mut file = mount.open_created(&name);
        file.write_all(&pattern(10_000, round))?;
        if round < 2 {
            fsetxattr(&file, "user.a", b"fresh", none)?;
        }
        let shown = fgetxattr(&file, "user.a", &mut [0u8; 16][..]);
        assert_eq!(shown, if round < 2 { Ok(5) } else { Err(Errno::NODATA) });
        assert_eq!(names(&mount.at(&name)).len(), (round < 2) as usize + round as usize % 2);
        file.write_all(b"more")?;
        drop(file);
        let there = fs::read(world.at(&name))?;
        assert_eq!((there.len(), &there[..10_000]), (10_004, &pattern(10_000, round)[..]));
        assert_eq!(value(&world.at(&name), "user.old").is_ok(), round % 2 == 1);
    }
    assert_eq!(value(&world.at("f0"), "user.a"), Ok(b"fresh".to_vec()));
    // One without a name has none any more, and its content is read on.
    let file = mount.open("f1");
    fs::remove_file(mount.at("f1"))?;
    assert_eq!(fsetxattr(&file, "user.a", b"x", none), Err(Errno::OPNOTSUPP));
    assert_eq!(fgetxattr(&file, "user.a", &mut [0u8; 16][..]), Err(Errno::NODATA));
    Ok(())
}
