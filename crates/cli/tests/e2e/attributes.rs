//! Attributes of files on a mounted volume, as programs copy them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::support::*;
use crate::volume::{Data, has, sh};

/// A tree with what an archive can hold: names of one file, links, times, modes and extended
/// attributes.
fn tree(at: &Path) {
    fs::create_dir_all(at.join("d/e")).unwrap();
    for number in 0..40 {
        let path = at.join(format!("d/{number}"));
        fs::write(&path, format!("file {number}\n").repeat(number * 20)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode([0o644, 0o755, 0o600, 0o444][number % 4])).unwrap();
        if number % 3 == 0 {
            fs::hard_link(&path, at.join(format!("d/e/{number}"))).unwrap();
        }
        if number % 5 == 0 {
            symlink(format!("../{number}"), at.join(format!("d/e/link{number}"))).unwrap();
        }
    }
    let script = "for n in 1 2 3 10 11; do setfattr -n user.origin -v \"http://host/$n\" d/$n; done
        setfattr -n user.empty d/1; setfattr -n user.binary -v 0x00ff0a d/2; setfattr -n user.folder -v x d/e
        setfattr -n user.large -v $(head -c 1500 /dev/zero | tr '\\0' a) d/10
        touch -d '2001-02-03 04:05:06.789' d/1 d/e";
    sh(at, script);
}

#[test]
fn fuse_volume_rsync_copies_all_that_files_have() {
    if !can_mount("fuse_volume_rsync_copies_all_that_files_have")
        || !["rsync", "setfattr", "getfattr"].into_iter().all(has)
    {
        return;
    }
    let data = Data::new();
    let server = data.serve("127.0.0.1:0");
    let mut mount = Mount::start(server.url("volume/data"), &[]);
    let source = data.folder().join("tree");
    tree(&source);
    let (from, to) = (source.display(), mount.path.join("copy"));
    let to = to.display();
    sh(&mount.path, &format!("rsync -aHAX {from}/ {to}/"));
    // Nothing is left to do, and nothing would be done.
    assert_eq!(sh(&mount.path, &format!("rsync -aHAX --itemize-changes {from}/ {to}/")), "");
    assert_eq!(sh(&mount.path, &format!("rsync -aHAXc --itemize-changes {from}/ {to}/")), "");
    sh(&mount.path, &format!("diff -r --no-dereference {from} {to}"));
    let attributes = |at: &Path| sh(at, "find . -print0 | sort -z | xargs -0 getfattr -hd -m -");
    let expected = attributes(&source);
    assert_eq!(expected.matches("user.").count(), 10, "one of them of a file with two names: {expected}");
    assert_eq!(attributes(&mount.path.join("copy")), expected);
    // As another device sees them, and as the server has them.
    let other = Mount::start(server.url("volume/data"), &["--read-only"]);
    assert_eq!(attributes(&other.path.join("copy")), expected);
    assert_eq!(sh(&data.at("copy"), "getfattr -d -m user.large d/10 | grep -c aaaa").trim(), "1");
    // One that is gone at the source goes with the next run.
    sh(&source, "setfattr -x user.origin d/3");
    sh(&mount.path, &format!("rsync -aHAX {from}/ {to}/"));
    assert_eq!(attributes(&mount.path.join("copy")), attributes(&source));
    mount.terminate();
}
