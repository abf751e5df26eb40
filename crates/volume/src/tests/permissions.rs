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

#[test]
fn files_that_may_not_be_removed_stay() {
    let chattr = |flag: &str, at: &Path| {
        std::process::Command::new("chattr").arg(flag).arg(at).output().is_ok_and(|output| output.status.success())
    };
    let folder = tempfile::tempdir().unwrap();
    let (fixed, grows) = (folder.path().join("fixed"), folder.path().join("grows"));
    fs::write(&fixed, "text").unwrap();
    fs::create_dir(&grows).unwrap();
    fs::write(grows.join("old"), "text").unwrap();
    if !chattr("+i", &fixed) || !chattr("+a", &grows) {
        eprintln!("skipped: attributes of files need root and a file system that has them");
        chattr("-i", &fixed);
        return;
    }
    let run = std::panic::catch_unwind(|| {
        let volume = Volume::open(folder.path(), None, SMALL).unwrap();
        volume.commit(transaction(vec![create("ours"), create("grows/new")])).unwrap();
        for at in ["fixed", "grows/old", "grows/new"] {
            refuse(&volume, unlink(at));
            refuse(&volume, rename(at, "elsewhere"));
            refuse(&volume, rename("ours", at));
        }
        // The folder is met in the same transaction.
        let made = vec![create("grows/newer"), unlink("grows/newer")];
        assert!(matches!(volume.commit(transaction(made)), Err(VolumeError::Denied { .. })));
        refuse(&volume, Operation::Link { from: path("fixed"), base: None, to: path("more") });
        refuse(&volume, Operation::SetTime { path: path("grows"), base: None, mtime_ns: 7 });
        volume.commit(transaction(vec![rename("ours", "grows/ours")])).unwrap();
        drop(volume);
        Volume::open(folder.path(), None, SMALL).unwrap();
    });
    assert!(chattr("-i", &fixed) && chattr("-a", &grows));
    run.unwrap();
}

#[test]
fn files_of_others_in_sticky_folders_stay() {
    let prepare = |folder: &Path| {
        for (at, user) in [("theirs", OTHER), ("ours", SERVER)] {
            fs::create_dir(folder.join(at)).unwrap();
            fs::write(folder.join(at).join("file"), "text").unwrap();
            give(&folder.join(at).join("file"), OTHER, 0o664);
            std::os::unix::fs::symlink("x", folder.join(at).join("link")).unwrap();
            give(&folder.join(at), user, 0o1777);
        }
    };
    serve(prepare, |volume, _| {
        volume.commit(transaction(vec![create("theirs/mine"), create("mine")])).unwrap();
        for at in ["theirs/file", "theirs/link"] {
            refuse(volume, unlink(at));
            refuse(volume, rename(at, "elsewhere"));
            refuse(volume, rename("mine", at));
        }
        // Moved there and away again in one transaction.
        let both = vec![rename("ours/file", "theirs/other"), unlink("theirs/other")];
        assert!(matches!(volume.commit(transaction(both)), Err(VolumeError::Denied { .. })));
        let allowed = [unlink("theirs/mine"), rename("ours/file", "ours/other"), unlink("ours/link")];
        volume.commit(transaction(allowed.to_vec())).unwrap();
    });
}

/// A recovery could not give them the name under which they wait.
#[test]
fn names_of_linked_files_of_others_stay() {
    let prepare = |folder: &Path| {
        fs::write(folder.join("theirs"), "text").unwrap();
        fs::hard_link(folder.join("theirs"), folder.join("other")).unwrap();
        give(&folder.join("theirs"), OTHER, 0o644);
    };
    serve(prepare, |volume, _| {
        volume.commit(transaction(vec![create("ours")])).unwrap();
        refuse(volume, unlink("other"));
        refuse(volume, rename("theirs", "elsewhere"));
        refuse(volume, rename("ours", "theirs"));
    });
}
