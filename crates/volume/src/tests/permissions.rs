//! What the server's user may not do is refused before it is promised, and the volume goes on.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use rustix::process::{Gid, Uid};

use super::*;

/// The server's user, another one, and a group of both.
const SERVER: u32 = 4001;
const OTHER: u32 = 4002;
const GROUP: u32 = 4003;

/// Does `test` with a folder that root has prepared and another user serves.
fn serve(prepare: impl FnOnce(&Path), test: impl FnOnce(&Volume, &Path) + Send) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: to serve as another user needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    give(folder.path(), SERVER, 0o755);
    prepare(folder.path());
    let run = || {
        // On Linux a thread has users of its own.
        let (user, group) = (Uid::from_raw(SERVER), Gid::from_raw(GROUP));
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(group, group, group).unwrap();
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        let volume = Volume::open(folder.path(), None, SMALL).unwrap();
        test(&volume, folder.path());
        volume.commit(transaction(vec![create("last")])).unwrap();
        drop(volume);
        Volume::open(folder.path(), None, SMALL).unwrap();
    };
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap();
}

fn give(at: &Path, user: u32, mode: u32) {
    chown(at, Some(user), Some(GROUP)).unwrap();
    fs::set_permissions(at, fs::Permissions::from_mode(mode)).unwrap();
}

fn refuse(volume: &Volume, operation: Operation) {
    let refused = volume.commit(transaction(vec![operation.clone()]));
    assert!(matches!(refused, Err(VolumeError::Denied { .. })), "{operation:?}: {refused:?}");
    assert!(!volume.is_broken());
}

#[test]
fn attributes_of_files_of_others_are_refused() {
    let prepare = |folder: &Path| {
        fs::write(folder.join("theirs"), "text").unwrap();
        give(&folder.join("theirs"), OTHER, 0o664);
        std::os::unix::fs::symlink("x", folder.join("link")).unwrap();
        fs::create_dir(folder.join("shared")).unwrap();
        give(&folder.join("shared"), OTHER, 0o775);
    };
    serve(prepare, |volume, folder| {
        refuse(volume, write("theirs", None, 0, b"x"));
        refuse(volume, Operation::Append { path: path("theirs"), base: None, bytes: b"x".to_vec() });
        refuse(volume, Operation::Truncate { path: path("theirs"), base: None, size: 1 });
        refuse(volume, Operation::Link { from: path("theirs"), base: None, to: path("more") });
        for at in ["theirs", "shared", "link"] {
            refuse(volume, Operation::SetTime { path: path(at), base: None, mtime_ns: 7 });
            refuse(volume, Operation::SetAccessTime { path: path(at), base: None, atime_ns: 7 });
            refuse(volume, Operation::SetOwner { path: path(at), base: None, uid: Some(7), gid: None });
        }
        for at in ["theirs", "shared"] {
            refuse(volume, Operation::SetMode { path: path(at), base: None, mode: 0o600 });
        }
        assert_eq!(fs::read(folder.join("theirs")).unwrap(), b"text");
        // Names in a folder of others are another matter.
        let (made, theirs) = (write("shared/ours", None, 0, b"ours"), rename("theirs", "shared/theirs"));
        volume.commit(transaction(vec![create("shared/ours"), made, theirs])).unwrap();
        volume.commit(transaction(vec![write("shared/ours", None, 0, b"x"), unlink("shared/theirs")])).unwrap();
    });
}
