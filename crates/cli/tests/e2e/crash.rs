//! kill -9, at the server and at the device.

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use rustix::process::{Pid, kill_process, kill_process_group};

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
fn fuse_a_killed_daemon_is_replaced() {
    if !can_mount("fuse_a_killed_daemon") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    for options in [&[][..], &["--no-sandbox"]] {
        let mut mount = Mount::start(server.url("python"), options);
        let modules = mount.path.join("usr/lib/python3.11");
        let mut open = std::fs::File::open(modules.join("typing.py")).unwrap();
        let first = mount.daemon();
        mount.kill_daemon();
        // What nobody has read yet, through the mount and through a file that was open.
        let expected = ok(&["cat", &server.url("python"), "/usr/lib/python3.11/abc.py"]);
        assert_eq!(std::fs::read_to_string(modules.join("abc.py")).unwrap(), expected);
        let mut read = String::new();
        open.read_to_string(&mut read).unwrap();
        assert_eq!(read, ok(&["cat", &server.url("python"), "/usr/lib/python3.11/typing.py"]));
        let status = mount.status();
        assert_eq!(status["restarts"], 1);
        assert_eq!(status["pid"], mount.daemon());
        assert_ne!(mount.daemon(), first);
        drop(open);
        mount.terminate();
        mount.wait_unmounted();
    }
}

/// A READ that the daemon has taken and not answered is answered by the next one.
#[test]
fn fuse_what_waits_when_a_daemon_is_killed_is_served_by_the_next() {
    if !can_mount("fuse_what_waits_when_a_daemon_is_killed") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let server = Server::start(&store);
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    let expected = ok(&["cat", &server.url("python"), "/usr/lib/python3.11/typing.py"]);
    let mount = Mount::start(server.url("python"), &[]);
    // The name stands for another image by then.
    let other = folder.path().join("other.rnl");
    ok(&["pack".as_ref(), folder.path().join("store").as_os_str(), "-o".as_ref(), other.as_os_str()]);
    ok(&["push".as_ref(), other.as_os_str(), server.url("python").as_ref()]);
    let address = server.kill();
    let waits = || mount.status()["fuse"]["read"].as_u64().unwrap();
    let before = waits();
    let path = mount.path.join("usr/lib/python3.11/typing.py");
    let mut reader = Command::new("cat").arg(path).stdout(std::process::Stdio::piped()).spawn().unwrap();
    while waits() == before {
        std::thread::yield_now();
    }
    mount.kill_daemon();
    assert!(reader.try_wait().unwrap().is_none());
    let _server = Server::start_at(&store, &address, &[]);
    assert_eq!(reader.wait_with_output().unwrap().stdout, expected.into_bytes());
}

/// `run` has a keeper, whose child is the daemon.
#[test]
fn fuse_a_program_survives_the_daemon_that_serves_it() {
    if !can_mount("fuse_a_program_survives_the_daemon") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    let target = server.url("python");
    let program = "print('begins', flush=True); input(); import tarfile, http.client; print(len(tarfile.__all__) > 5)";
    let mut run = runnel()
        .args(["run", target.as_str(), "--", "/usr/bin/python3", "-c", program])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    hear(&mut run, "begins");
    // Its first child is the keeper; the program and the witness of its signals come later.
    let daemon = child_of(child_of(run.id()));
    kill_process(Pid::from_raw(daemon.cast_signed()).unwrap(), Signal::KILL).unwrap();
    run.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let output = run.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, b"True\n");
}

/// A server that says that it has no such image is not waited for.
#[test]
fn fuse_a_mount_whose_image_is_gone_gives_errors() {
    if !can_mount("fuse_a_mount_whose_image_is_gone") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    let url = server.url("python");
    ok(&["push".as_ref(), python_image().as_os_str(), url.as_ref()]);
    let mut mount = Mount::start(&url, &[]);
    let module = |name: &str| mount.path.join("usr/lib/python3.11").join(name);
    let read = std::fs::read(module("abc.py")).unwrap();
    let _empty = Server::start_at(&folder.path().join("empty"), &server.kill(), &[]);
    mount.kill_daemon();
    let error = std::fs::read(module("typing.py")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "EIO, not {error}");
    assert_eq!(mount.status()["restarts"], 1);
    // It may come back.
    ok(&["push".as_ref(), python_image().as_os_str(), url.as_ref()]);
    ok(&["upgrade".as_ref(), mount.path.as_os_str()]);
    assert_eq!(std::fs::read(module("abc.py")).unwrap(), read);
    assert!(std::fs::read(module("typing.py")).is_ok());
    mount.terminate();
    mount.wait_unmounted();
}

/// Without a server, and with a daemon that died.
#[test]
fn fuse_a_program_with_soft_waits_no_longer_for_a_daemon_than_for_a_server() {
    if !can_mount("fuse_a_program_with_soft") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    let target = server.url("python");
    let program = "print('begins', flush=True); input(); open('/usr/lib/python3.11/typing.py').read()";
    let mut run = runnel()
        .args(["run", "--soft", "1", target.as_str(), "--", "/usr/bin/python3", "-c", program])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    hear(&mut run, "begins");
    let daemon = child_of(child_of(run.id()));
    server.kill();
    kill_process(Pid::from_raw(daemon.cast_signed()).unwrap(), Signal::KILL).unwrap();
    run.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    // It may also die, of code that cannot be read.
    assert!(!wait(&mut run).success());
}

#[test]
fn fuse_regress_a_run_that_is_stopped_while_it_starts_ends_by_the_signal() {
    if !can_mount("fuse_regress_a_run_that_is_stopped") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    let url = server.url("python");
    ok(&["push".as_ref(), python_image().as_os_str(), url.as_ref()]);
    let program = ["--", "/usr/bin/python3", "-c", "import time; time.sleep(600)"];
    // Whatever it does at that moment: of those before the program runs, one is as good as another.
    for step in 0..60 {
        // Whoever runs the tests may ignore SIGHUP, as nohup does; the program would do so, too.
        let mut run = std::process::Command::new("env");
        run.arg("--default-signal=HUP").arg(runnel().get_program()).env("RUNNEL_CACHE", "none").arg("run").arg(&url);
        let mut run = run.args(program).stderr(std::process::Stdio::piped()).spawn().unwrap();
        std::thread::park_timeout(std::time::Duration::from_millis(4 * step));
        send(&run, [Signal::TERM, Signal::HUP][step as usize % 2]);
        let status = wait(&mut run);
        let mut text = String::new();
        run.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(status.signal().is_some() && !text.contains("not found"), "after {step}: {status}, {text}");
    }
}

#[test]
fn fuse_a_mount_without_its_keeper_goes_on_and_can_be_unmounted() {
    if !can_mount("fuse_a_mount_without_its_keeper") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    let target = server.url("python");
    let mut mount = Mount::start(&target, &[]);
    let keeper = Pid::from_raw(mount.keeper().cast_signed()).unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    assert_eq!(mount.wait_ended().signal(), Some(9));
    assert!(std::fs::read(mount.path.join("usr/lib/python3.11/abc.py")).is_ok());
    // Nobody could start another daemon.
    let text = fails(&["upgrade".as_ref(), mount.path.as_os_str()], 1, "its keeper has ended");
    assert!(text.contains("unmount and mount again"), "{text}");
    assert!(std::fs::read(mount.path.join("usr/lib/python3.11/typing.py")).is_ok());
    ok(&["umount".as_ref(), mount.path.as_os_str()]);
    mount.wait_unmounted();
    // Both killed: the dead mount is in the way; the message says how to clear it.
    let mut mount = Mount::start(&target, &[]);
    mount.kill();
    assert!(std::fs::read(mount.path.join("usr/lib/python3.11/typing.py")).is_err());
    fails(&["mount".as_ref(), target.as_ref(), mount.path.as_os_str()], 1, "runnel umount");
    ok(&["umount".as_ref(), mount.path.as_os_str()]);
    let again = Mount::start(&target, &[]);
    assert!(std::fs::read(again.path.join("usr/lib/python3.11/abc.py")).is_ok());
}

/// A terminal sends it to the group in the foreground.
#[test]
fn fuse_ctrl_c_is_for_the_program_and_not_for_what_serves_it() {
    if !can_mount("fuse_ctrl_c_is_for_the_program") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    let target = server.url("python");
    // It is blocked before anybody can send it.
    let program = "
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print('begins', flush=True)
signal.sigwait([signal.SIGINT])
import tarfile, http.client
print(len(tarfile.__all__) > 5, flush=True)
";
    let mut run = runnel()
        .args(["run", target.as_str(), "--", "/usr/bin/python3", "-c", program])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    hear(&mut run, "begins");
    kill_process_group(Pid::from_child(&run), Signal::INT).unwrap();
    hear(&mut run, "True");
    assert!(wait(&mut run).success());
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
