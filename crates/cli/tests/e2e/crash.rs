//! kill -9, at the server and at the device.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::support::*;

#[test]
fn fuse_server_killed_and_restarted_under_a_running_program() {
    if !can_mount("fuse_server_killed") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let server = Server::start(&store);
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    let mount = Mount::start(server.url("python"), &[]);
    let address = server.kill();

    // The program starts while the server is away and ends after its return.
    let program = runnel()
        .arg("enter")
        .arg(&mount.path)
        .args(["--", "/usr/bin/python3", "-c", "import json; print('alive')"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let _server = Server::start_at(&store, &address, &[]);
    let output = program.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, b"alive\n");
    assert!(mount.status()["session"]["reconnects"].as_u64().unwrap() > 0);
}

#[test]
fn fuse_soft_mount_gives_an_error_when_the_server_stays_away() {
    if !can_mount("fuse_soft_mount") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    let mount = Mount::start(server.url("python"), &["--soft", "1"]);
    server.kill();
    let error = std::fs::read(mount.path.join("usr/lib/python3.11/typing.py")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "EIO, not {error}");
}

#[test]
fn fuse_client_killed_and_mounted_again() {
    if !can_mount("fuse_client_killed") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    let mut mount = Mount::start(server.url("python"), &[]);
    let file = mount.path.join("usr/lib/python3.11/abc.py");
    let before = std::fs::read(&file).unwrap();
    // The process that mounted for the daemon takes away what the daemon left.
    mount.kill();
    mount.wait_unmounted();
    assert!(!file.exists());
    drop(mount);
    // Outside the sandbox there is no such process.
    let mut mount = Mount::start(server.url("python"), &["--no-sandbox"]);
    assert_eq!(std::fs::read(mount.path.join("usr/lib/python3.11/abc.py")).unwrap(), before);
    mount.kill();
    // The kernel still knows the names, but no byte that it has not got comes from a dead daemon.
    assert!(std::fs::read(mount.path.join("usr/lib/python3.11/typing.py")).is_err());
    // The dead mount is in the way; the message says how to clear it, and clearing it works.
    let target = server.url("python");
    fails(&["mount".as_ref(), target.as_ref(), mount.path.as_os_str()], 1, "runnel umount");
    ok(&["umount".as_ref(), mount.path.as_os_str()]);
    let again = Mount::start(&target, &[]);
    assert_eq!(std::fs::read(again.path.join("usr/lib/python3.11/abc.py")).unwrap(), before);
}

#[test]
fn push_killed_at_any_moment_keeps_the_previous_tag() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let tree = folder.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("version"), "one").unwrap();
    let first = folder.path().join("first.rnl");
    let second = folder.path().join("second.rnl");
    ok(&["pack".as_ref(), tree.as_os_str(), "-o".as_ref(), first.as_os_str()]);
    std::fs::write(tree.join("version"), "two").unwrap();
    let noise: Vec<u8> =
        (0..24_000_000u32).flat_map(|i| i.wrapping_mul(2_654_435_761).rotate_left(i % 31).to_le_bytes()).collect();
    std::fs::write(tree.join("noise"), noise).unwrap();
    ok(&["pack".as_ref(), tree.as_os_str(), "-o".as_ref(), second.as_os_str()]);

    let mut server = Server::start(&store);
    ok(&["push".as_ref(), first.as_os_str(), server.url("app").as_ref()]);
    let before = ok(&["images", "--json", &format!("runnel://{}", server.address)]);
    let mut cut_short = 0;
    for delay_milliseconds in [0u64, 5, 20, 60, 150] {
        let mut push = runnel()
            .args(["push".as_ref(), second.as_os_str(), server.url("app").as_ref()])
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // The moment is arbitrary on purpose: wherever the kill lands, the store must be whole.
        std::thread::park_timeout(std::time::Duration::from_millis(delay_milliseconds));
        let address = server.kill();
        let pushed = push.wait().unwrap().success();
        server = Server::start_at(&store, &address, &[]);
        let after = ok(&["images", "--json", &format!("runnel://{}", server.address)]);
        if pushed {
            break;
        }
        cut_short += 1;
        assert_eq!(after, before, "an upload that failed changed what is published");
    }
    eprintln!("{cut_short} uploads were cut short");
    ok(&["push".as_ref(), second.as_os_str(), server.url("app").as_ref()]);
    assert_ne!(ok(&["images", "--json", &format!("runnel://{}", server.address)]), before);
    // Nothing of the broken uploads is left behind.
    let left = Command::new("find").arg(&store).args(["-path", "*/.tmp/*/*"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout), "");
}

/// Ctrl-C ends a command that waits for a silent server, and the background process with it:
/// nothing is mounted yet that would have to be undone.
#[test]
fn a_signal_ends_who_connects() {
    let folder = tempfile::tempdir().unwrap();
    let mountpoint = folder.path().to_str().unwrap();
    let commands: [&[&str]; 4] = [
        &["run", "SERVER/app", "--", "/bin/true"],
        &["mount", "SERVER/app", mountpoint],
        &["mount", "--foreground", "SERVER/app", mountpoint],
        &["mount", "--foreground", "SERVER/volume/data", mountpoint],
    ];
    for arguments in commands {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("runnel://{}", silent.local_addr().unwrap());
        let arguments: Vec<String> = arguments.iter().map(|argument| argument.replace("SERVER", &server)).collect();
        let mut child = runnel().args(&arguments).spawn().unwrap();
        let (mut connection, _) = silent.accept().unwrap();
        send(&child, Signal::INT);
        assert_eq!(wait(&mut child).signal(), Some(Signal::INT.as_raw()), "runnel {arguments:?}");
        // The process in the background too. What it says before is its Hello.
        std::io::copy(&mut connection, &mut std::io::sink()).unwrap();
    }
}
