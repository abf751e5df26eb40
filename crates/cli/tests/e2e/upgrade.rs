//! A new version that is installed while programs use mounts of the old one.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::*;

fn upgrade(installed: &Installed, path: &Path) -> std::process::Output {
    output(installed.command().arg("upgrade").arg(path))
}

#[test]
fn fuse_the_next_daemon_is_the_program_that_is_installed_then() {
    if !can_mount("fuse_the_next_daemon") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    for options in [&[][..], &["--no-sandbox"]] {
        let installed = Installed::new();
        let mut mount = Mount::start_by(installed.command(), None, server.url("python"), options);
        let modules = mount.path.join("usr/lib/python3.11");
        let served = |name: &str| {
            let expected = ok(&["cat", &server.url("python"), &format!("/usr/lib/python3.11/{name}.py")]);
            assert_eq!(std::fs::read_to_string(modules.join(name).with_extension("py")).unwrap(), expected);
        };
        let first = mount.daemon();
        installed.install(env!("CARGO_BIN_EXE_runnel").as_ref());
        assert!(!installed.runs(first));
        let upgraded = upgrade(&installed, &mount.path);
        assert!(upgraded.status.success(), "{}", String::from_utf8_lossy(&upgraded.stderr));
        let second = mount.daemon();
        assert!(installed.runs(second) && second != first);
        assert_eq!(mount.status()["restarts"], 0, "an upgrade is no death");
        served("abc");

        // Nothing new: another daemon of the same program. One that dies is replaced by it, too.
        assert!(upgrade(&installed, &mount.path).status.success());
        mount.kill_daemon();
        assert_eq!(mount.status()["restarts"], 1);
        assert!(installed.runs(mount.daemon()));
        served("typing");
        mount.terminate();
        mount.wait_unmounted();
    }
}

#[test]
fn fuse_a_program_that_cannot_serve_is_not_taken() {
    if !can_mount("fuse_a_program_that_cannot_serve") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    let installed = Installed::new();
    let mut mount = Mount::start_by(installed.command(), None, server.url("python"), &[]);
    let modules = mount.path.join("usr/lib/python3.11");
    // What cannot be executed, ends at once, knows nothing of keepers, or is not there.
    let wrong = [
        (Some("/etc/hostname"), "cannot take over: it cannot be executed"),
        (Some("/usr/bin/true"), "cannot take over: it does not understand"),
        (Some("/usr/bin/false"), "cannot take over: it does not understand"),
        (None, "is not there"),
    ];
    for (wrong, why) in wrong {
        let before = mount.daemon();
        wrong.map_or_else(|| installed.remove(), |wrong| installed.install(wrong.as_ref()));
        let told = output(runnel().arg("upgrade").arg(&mount.path));
        assert_eq!(told.status.code(), Some(1), "{why}");
        let text = String::from_utf8_lossy(&told.stderr);
        assert!(text.contains(why) && text.contains("the one before serves on"), "{why}: {text}");
        assert_ne!(mount.daemon(), before);
        assert!(mount.status()["refused"].as_str().unwrap().contains(why));
    }
    mount.kill_daemon();
    assert!(std::fs::read(modules.join("abc.py")).is_ok());
    assert!(mount.status()["refused"].is_string());
    // The next version is good again.
    installed.install(env!("CARGO_BIN_EXE_runnel").as_ref());
    mount.kill_daemon();
    assert!(mount.status()["refused"].is_null());
    assert!(installed.runs(mount.daemon()));
    assert!(std::fs::read(modules.join("typing.py")).is_ok());
    mount.terminate();
}

/// Without root, in name spaces of its own.
#[test]
fn fuse_a_running_program_is_served_by_the_program_that_is_installed_then() {
    let name = "fuse_a_running_program_is_served_by";
    if !others_can_mount(name) || !can_be_alone(name) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    let installed = Installed::new();
    let runtime = folder.path().join("runtime");
    std::fs::create_dir(&runtime).unwrap();
    std::os::unix::fs::chown(&runtime, Some(NOBODY), Some(NOBODY)).unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let as_nobody = || -> Command {
        let mut command = installed.command();
        command.env("XDG_RUNTIME_DIR", &runtime).env("HOME", "/").current_dir("/").uid(NOBODY).gid(NOBODY);
        command
    };
    let program = "print('begins', flush=True); input(); import tarfile, http.client; print(len(tarfile.__all__) > 5)";
    let mut run = as_nobody()
        .args(["run", server.url("python").as_str(), "--", "/usr/bin/python3", "-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    hear(&mut run, "begins");
    let first = child_of(child_of(run.id()));
    installed.install(env!("CARGO_BIN_EXE_runnel").as_ref());
    let upgraded = output(as_nobody().arg("upgrade"));
    assert!(upgraded.status.success(), "{}", String::from_utf8_lossy(&upgraded.stderr));
    let second = child_of(child_of(run.id()));
    assert!(installed.runs(second) && second != first);
    run.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let output = run.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, b"True\n");
}

#[test]
fn what_is_no_mount_is_not_upgraded() {
    let folder = tempfile::tempdir().unwrap();
    fails(&["upgrade".as_ref(), folder.path().as_os_str()], 4, "is not a runnel mount");
}
