//! Shims and desktop entries.

use super::*;
use crate::shim::{ShimFolders, install, uninstall};

fn folders_in(folder: &Path) -> ShimFolders {
    fs::create_dir_all(folder.join("share/applications")).unwrap();
    ShimFolders {
        bin: folder.join("bin"),
        applications: folder.join("own"),
        entries: vec![folder.join("share/applications")],
    }
}

#[test]
fn a_shim_and_an_entry_come_and_go_without_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let folders = folders_in(folder.path());
    let entry =
        "[Desktop Entry]\nName=Shell\nExec=sh -c %f\nDBusActivatable=true\n\n[Desktop Action new]\nExec=/bin/other\n";
    fs::write(folders.entries[0].join("shell.desktop"), entry).unwrap();
    fs::write(folders.entries[0].join("other.desktop"), "[Desktop Entry]\nExec=other sh\n").unwrap();
    let (runnel, sh) = (Path::new("/opt/it's/runnel"), Path::new("/usr/bin/sh"));
    for _ in 0..2 {
        assert_eq!(install(&folders, runnel, sh).unwrap().len(), 2);
    }
    let shim = fs::read_to_string(folders.bin.join("sh")).unwrap();
    assert!(shim.ends_with("exec '/opt/it'\\''s/runnel' launch -- '/usr/bin/sh' \"$@\"\n"), "{shim}");
    let own = fs::read_to_string(folders.applications.join("shell.desktop")).unwrap();
    assert!(own.contains("\nExec=\"/opt/it's/runnel\" launch -- \"/usr/bin/sh\" -c %f\n"), "{own}");
    assert!(own.contains("\nExec=/bin/other\n") && !own.contains("DBusActivatable"), "{own}");
    assert_eq!(uninstall(&folders, Path::new("/usr/bin/env")).unwrap(), Vec::<PathBuf>::new());
    assert_eq!(uninstall(&folders, sh).unwrap().len(), 2);
    let left = |folder: &Path| fs::read_dir(folder).unwrap().count();
    assert_eq!((left(&folders.bin), left(&folders.applications)), (0, 0));
}

#[test]
fn a_shim_without_its_launcher_starts_the_program_plainly() {
    let folder = tempfile::tempdir().unwrap();
    let folders = folders_in(folder.path());
    install(&folders, &folder.path().join("gone"), Path::new("/usr/bin/env")).unwrap();
    let shim = std::process::Command::new(folders.bin.join("env")).args(["echo", "a  b"]).output().unwrap();
    assert_eq!((shim.stdout, shim.status.code()), (b"a  b\n".to_vec(), Some(0)));
}

#[test]
fn files_of_the_user_are_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let folders = folders_in(folder.path());
    fs::create_dir_all(&folders.bin).unwrap();
    fs::write(folders.bin.join("sh"), "mine").unwrap();
    assert!(install(&folders, Path::new("/runnel"), Path::new("/usr/bin/sh")).is_err());
    assert!(uninstall(&folders, Path::new("/usr/bin/sh")).unwrap().is_empty());
    assert_eq!(fs::read_to_string(folders.bin.join("sh")).unwrap(), "mine");
    assert!(install(&folders, Path::new("/run\nnel"), Path::new("/usr/bin/env")).is_err());
}

#[test]
fn an_installed_shim_starts_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let folders = folders_in(folder.path());
    // Stands in for this program: says what it was asked.
    let runnel = folder.path().join("runnel");
    fs::write(&runnel, "#!/bin/sh\nprintf '%s|' \"$@\"\n").unwrap();
    fs::set_permissions(&runnel, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    install(&folders, &runnel, Path::new("/usr/bin/env")).unwrap();
    let output = std::process::Command::new(folders.bin.join("env")).args(["a b", "'c"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "launch|--|/usr/bin/env|a b|'c|");
}
