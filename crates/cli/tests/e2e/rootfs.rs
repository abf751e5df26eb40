//! Every file of a real Debian root file system, on the mount, against its source.

use std::path::{Path, PathBuf};
use std::process::Command;

use pack::compare::CompareOptions;

use crate::support::*;

/// A Debian minimal system made by debootstrap, kept under the target folder between runs.
fn debian() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("debian-bookworm");
    if folder.join("etc/debian_version").exists() {
        return Some(folder);
    }
    let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("debian-bookworm.new");
    let _ = std::fs::remove_dir_all(&fresh);
    let made = Command::new("debootstrap").args(["--variant=minbase", "bookworm"]).arg(&fresh).output();
    match made {
        Ok(output) if output.status.success() => {
            std::fs::rename(&fresh, &folder).expect("the new root file system gets its name");
            Some(folder)
        }
        Ok(output) => panic!("debootstrap failed: {}", String::from_utf8_lossy(&output.stdout)),
        Err(error) => {
            eprintln!("skipped: debootstrap does not start ({error}); ./x setup installs it");
            None
        }
    }
}

#[test]
fn fuse_debian_root_file_system_is_the_same_on_the_mount() {
    if !can_mount("fuse_debian_root_file_system") {
        return;
    }
    let Some(tree) = debian() else { return };
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("debian.rnl");
    ok(&["pack".as_ref(), tree.as_os_str(), "-o".as_ref(), image.as_os_str()]);
    ok(&["check".as_ref(), image.as_os_str()]);

    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), image.as_os_str(), server.url("debian").as_ref()]);
    let mount = Mount::start(server.url("debian"), &[]);
    let compared = pack::compare::compare(&tree, &mount.path, &CompareOptions::default()).unwrap();
    assert!(compared.differences.is_empty(), "{:#?}", compared.differences);
    assert!(compared.paths > 5000 && compared.bytes > 100_000_000, "only {} paths were compared", compared.paths);

    // The same tree from a local file goes the same way, without a network.
    let local = Mount::start(&image, &[]);
    pack::compare::assert_equal(&tree, &local.path, &CompareOptions::default());
}

#[test]
fn fuse_an_image_is_mounted_as_mount_asks_its_helper_to() {
    if !can_mount("fuse_mount_helper") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (tree, image, target) = (folder.path().join("tree"), folder.path().join("a.rnl"), folder.path().join("mnt"));
    std::fs::create_dir_all(&tree).unwrap();
    std::fs::create_dir(&target).unwrap();
    std::fs::write(tree.join("file"), "text").unwrap();
    ok(&["pack".as_ref(), tree.as_os_str(), "-o".as_ref(), image.as_os_str()]);
    let helper = folder.path().join("mount.runnel");
    std::os::unix::fs::symlink(runnel().get_program(), &helper).unwrap();

    let call = |options: &[&str]| output(Command::new(&helper).arg(&image).arg(&target).args(options));
    assert_eq!(call(&["-o", "nonsense"]).status.code(), Some(2));
    assert!(call(&["-f"]).status.success() && !target.join("file").exists(), "-f mounts nothing");
    let mounted = call(&["-v", "-o", "ro,nosuid,nodev,noatime"]);
    let said = String::from_utf8_lossy(&mounted.stderr).into_owned();
    assert!(mounted.status.success() && said.contains("is mounted by "), "{said}");
    assert_eq!(std::fs::read_to_string(target.join("file")).unwrap(), "text");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(&*target.to_string_lossy())).unwrap();
    assert!(line.contains("nosuid") && line.contains("nodev"), "{line}");
    assert!(Command::new("umount").arg(&target).status().unwrap().success());

    // With or without the module no other way is tried: nothing else looks at the id.
    let other = call(&["-o", &format!("id={}", "0".repeat(64))]);
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert_eq!(other.status.code(), Some(32), "{said}");
    assert!(said.contains("no such module\nhint: ") || said.contains("not the image that id= names"), "{said}");
    assert!(!target.join("file").exists(), "an image with another id is mounted");
}
