//! What a mount shows is what the image holds.

use super::*;

#[track_caller]
fn compare(root: &Path, source: &Memory, node: &Node) {
    let path = root.join(OsStr::from_bytes(&node.path));
    let found = fs::symlink_metadata(&path).expect("is there");
    let id = source.metadata.resolve(&[b"/", node.path.as_slice()].concat()).expect("resolves");
    let expected = source.metadata.inode(id).expect("known");
    assert_eq!(found.ino(), u64::from(id.0), "{path:?}");
    assert_eq!(found.mode(), expected.mode(), "{path:?}");
    assert_eq!((found.uid(), found.gid()), (expected.uid(), expected.gid()), "{path:?}");
    assert_eq!((found.mtime(), found.mtime_nsec() as u32), expected.mtime(), "{path:?}");
    assert_eq!((found.nlink(), found.len()), (u64::from(expected.nlink()), expected.size()), "{path:?}");
    let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    assert_eq!((major, minor), image::device_parts(expected.rdev()), "{path:?}");
    match &node.body {
        Body::File(_) => {
            let inside = source.metadata.path(id).expect("has a path");
            assert_eq!(fs::read(&path).expect("readable"), source.contents[&inside], "{path:?}");
        }
        Body::Other(Content::Symlink(target)) => {
            assert_eq!(fs::read_link(&path).expect("a link").as_os_str().as_bytes(), target);
        }
        Body::Other(Content::Socket) => assert!(found.file_type().is_socket()),
        _ => {}
    }
    let mut names = vec![0; 1024];
    let length = rustix::fs::llistxattr(&path, &mut names).unwrap_or(0);
    let names: Vec<&[u8]> = names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty()).collect();
    let known: BTreeMap<&[u8], &[u8]> = source.metadata.xattrs(id).collect();
    assert_eq!(names.into_iter().collect::<BTreeSet<_>>(), known.keys().copied().collect());
    for (name, value) in known {
        let mut found = vec![0; 64];
        let length = rustix::fs::lgetxattr(&path, OsStr::from_bytes(name), &mut found).expect("there");
        assert_eq!(&found[..length], value);
    }
}

#[test]
fn fuse_every_file_is_as_in_the_image() {
    need_fuse!();
    let nodes = zoo();
    let mount = mount(&nodes);
    for node in &nodes {
        compare(mount.folder.path(), &mount.source, node);
    }
    let listed: BTreeSet<OsString> =
        fs::read_dir(mount.at("dir")).expect("listed").map(|entry| entry.expect("entry").file_name()).collect();
    let expected = nodes.iter().filter_map(|node| node.path.strip_prefix(b"dir/"));
    assert_eq!(listed, expected.map(|name| OsString::from_vec(name.to_vec())).collect());
    assert_eq!(fs::metadata(mount.at("dir/capable")).unwrap().ino(), fs::metadata(mount.at("dir/link")).unwrap().ino());
    mount.mounted.unmount().expect("unmounts");
    assert!(fs::read_dir(mount.folder.path()).expect("empty again").next().is_none());
}

#[test]
fn fuse_owners_can_be_presented_as_one() {
    need_fuse!();
    let options = Options { owner: Some((12, 34)), control: false, ..Options::default() };
    let mount = mount_with(&zoo(), options);
    let found = fs::metadata(mount.at("dir/empty")).expect("there");
    assert_eq!((found.uid(), found.gid()), (12, 34));
}

#[test]
fn fuse_nothing_can_be_written() {
    need_fuse!();
    let mount = mount(&zoo());
    let refused = |result: io::Result<()>| assert_eq!(result.unwrap_err().raw_os_error(), Some(30), "not EROFS");
    refused(fs::write(mount.at("new"), b"x"));
    refused(fs::write(mount.at("far"), b"x"));
    refused(fs::create_dir(mount.at("dir/new")));
    refused(fs::remove_file(mount.at("far")));
    refused(fs::rename(mount.at("far"), mount.at("farther")));
    refused(fs::set_permissions(mount.at("far"), fs::Permissions::from_mode(0o600)));
    refused(rustix::fs::setxattr(mount.at("far"), "user.a", b"b", XattrFlags::empty()).map_err(Into::into));
}

#[test]
fn fuse_without_xattrs_the_kernel_stops_asking() {
    need_fuse!();
    let mount = mount(&[Node::file(b"a", b"a"), Node::file(b"b", b"b")]);
    let mut value = [0; 16];
    for file in ["a", "b", "a"] {
        let found = rustix::fs::getxattr(mount.at(file), "user.colour", &mut value);
        assert_eq!(found.unwrap_err(), Errno::OPNOTSUPP);
    }
    assert_eq!(mount.mounted.fuse_counters().xattr, 1);
    assert_eq!(rustix::fs::listxattr(mount.at("a"), &mut value), Ok(0), "an empty list, as on a disk");
    assert_eq!(rustix::fs::listxattr_query(mount.at("b")), Ok(0));
}

#[test]
fn fuse_xattrs_tell_missing_from_too_long() {
    need_fuse!();
    let mount = mount(&zoo());
    let path = mount.at("dir/capable");
    let get = |name: &str, buffer: &mut [u8]| rustix::fs::getxattr(&path, name, buffer);
    assert_eq!(get("user.nothing", &mut [0; 8]).unwrap_err(), Errno::NODATA);
    assert_eq!(get("user.colour", &mut [0; 2]).unwrap_err(), Errno::RANGE);
    assert_eq!(rustix::fs::getxattr_query(&path, "user.colour").expect("its size"), 3);
    assert_eq!(get("user.colour", &mut [0; 3]).expect("its value"), 3);
}

#[test]
fn fuse_a_big_directory_lists_from_any_place() {
    need_fuse!();
    let count = 5000;
    let mut nodes = vec![Node::dir(b"big")];
    nodes.extend((0..count).map(|at| Node::file(format!("big/a rather long name {at:05}").as_bytes(), b"")));
    let mount = mount(&nodes);
    let folder = fs::File::open(mount.at("big")).expect("opens");
    let mut listing = rustix::fs::Dir::read_from(&folder).expect("a directory");
    let mut seen: Vec<(Vec<u8>, i64)> = Vec::new();
    while let Some(entry) = listing.read() {
        let entry = entry.expect("entry");
        seen.push((entry.file_name().to_bytes().to_vec(), entry.offset()));
    }
    assert_eq!(seen.len(), count + 2);
    assert_eq!((seen[0].0.as_slice(), seen[1].0.as_slice()), (&b"."[..], &b".."[..]));
    assert_eq!(seen.iter().map(|(name, _)| name).collect::<BTreeSet<_>>().len(), count + 2);
    for start in [0, 1, 2, 777, 2500, 4999, 5001] {
        listing.seek(seen[start].1).expect("seeks");
        let next = listing.read().map(|entry| entry.expect("entry").file_name().to_bytes().to_vec());
        assert_eq!(next.as_ref(), seen.get(start + 1).map(|(name, _)| name), "behind entry {start}");
    }
}

#[test]
fn fuse_holes_are_found() {
    need_fuse!();
    let mount = mount(&zoo());
    let file = fs::File::open(mount.at("dir/sparse")).expect("opens");
    let page = PAGE_BYTES as u64;
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(SeekFrom::Data(0)), Ok(0));
    assert_eq!(seek(SeekFrom::Hole(0)), Ok(page));
    assert_eq!(seek(SeekFrom::Data(page as _)), Ok(65 * page));
    assert_eq!(seek(SeekFrom::Hole((65 * page) as _)), Ok(65 * page + 100));
    assert_eq!(seek(SeekFrom::Data((66 * page) as _)), Err(Errno::NXIO));
    assert!(file.metadata().expect("there").blocks() * 512 < 3 * page);
}
