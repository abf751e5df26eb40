//! `mount --kernel` as a user drives it: background, signals, kill -9, and what is refused.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::*;

/// Whether the kernel can; any reason but an old or small one fails the test later.
fn can_mount_by_kernel(test: &str) -> bool {
    let config = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0u32), numbers.next().unwrap_or(0u32));
    if !can_mount(test) {
        return false;
    }
    if version < (6, 12) || !config.contains("erofs") {
        eprintln!("skipped {test}: Linux {} without EROFS from files", release.trim());
        return false;
    }
    true
}

/// What the mount table says of `path`.
fn mounted(path: &Path) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().find(|line| line.split(' ').nth(4) == path.to_str()).map(str::to_string)
}

#[test]
fn fuse_a_kernel_mount_from_the_command_line() {
    if !can_mount_by_kernel("fuse_a_kernel_mount_from_the_command_line") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("tree")).unwrap();
    fs::create_dir(at("mount")).unwrap();
    for number in 0..300 {
        fs::write(at("tree").join(number.to_string()), number.to_string().repeat(1000)).unwrap();
    }
    let (image, root) = (at("image.rnl"), at("mount"));
    ok(&["pack".as_ref(), at("tree").as_os_str(), "-o".as_ref(), image.as_os_str()]);
    let arguments = ["mount".as_ref(), "--kernel".as_ref(), image.as_os_str(), root.as_os_str()];

    // In the background, ended by umount.
    ok(&arguments);
    assert!(mounted(&root).unwrap().contains("erofs runnel\\043image"));
    assert_eq!(fs::read_to_string(root.join("7")).unwrap(), "7".repeat(1000));
    let status: serde_json::Value =
        serde_json::from_str(&ok(&["status".as_ref(), root.as_os_str(), "--json".as_ref()])).unwrap();
    assert!(status["fuse"]["read"].as_u64().unwrap() > 0);
    fails(&arguments, 1, "already a runnel mount");
    ok(&["umount".as_ref(), root.as_os_str()]);
    assert_eq!(mounted(&root), None);

    // In the foreground, ended by SIGTERM.
    let mut mount = Mount::start(&image, &["--kernel"]);
    assert_eq!(fs::read_dir(&mount.path).unwrap().count(), 300);
    mount.terminate();
    assert_eq!(mounted(&mount.path), None);

    // kill -9: nothing wrong is read, and umount clears what is left.
    let mut mount = Mount::start(&image, &["--kernel"]);
    mount.kill();
    assert!(fs::read(mount.path.join("200")).is_err());
    assert!(mounted(&mount.path).is_some());
    ok(&["umount".as_ref(), mount.path.as_os_str()]);
    assert_eq!(mounted(&mount.path), None);
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains("/kernel-"));
}

#[test]
fn a_kernel_mount_that_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().as_os_str();
    let remote = ["mount".as_ref(), "--kernel".as_ref(), "runnel://127.0.0.1:1/image".as_ref(), path];
    fails(&remote, 2, "needs an image file");
    let overlay = ["mount".as_ref(), "--kernel".as_ref(), "image.rnl".as_ref(), path, "--overlay".as_ref(), path];
    fails(&overlay, 2, "--overlay");
    // As another user, where this one is root.
    let setpriv = Command::new("setpriv").args(["--reuid", "65534", "--clear-groups", "true"]).status();
    if !setpriv.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no setpriv, or not root");
        return;
    }
    let shared = tempfile::tempdir_in("/tmp").unwrap();
    let program = shared.path().join("runnel");
    fs::copy(env!("CARGO_BIN_EXE_runnel"), &program).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(shared.path(), open).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--clear-groups"])
        .arg(&program)
        .args(["mount", "--foreground", "--kernel", "image.rnl"])
        .arg(shared.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && said.contains("needs root") && said.contains("leave out --kernel"),
        "{said}"
    );
}
