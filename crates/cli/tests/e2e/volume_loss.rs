//! Volumes whose server is killed or stopped: which writes survive, which programs end, and what
//! the end of a mount reports.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::*;
use crate::volume::Data;

#[test]
fn fuse_volume_writes_go_on_when_a_killed_server_is_back() {
    if !can_mount("fuse_volume_writes_go_on_when_a_killed_server_is_back") {
        return;
    }
    let data = Data::new();
    let server = data.serve("127.0.0.1:0");
    let mut mount = Mount::start(server.url("volume/data"), &[]);
    // A writer that says which records are acknowledged; it is never told of the server's death.
    let writer = "i=0; while [ $i -lt 60 ]; do
        printf 'record %05d\\n' $i | dd of=log oflag=append conv=notrunc,fsync status=none; echo $i; i=$((i+1)); done";
    let mut child = Command::new("sh")
        .args(["-euc", writer])
        .current_dir(&mount.path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh starts");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let mut acknowledged = 0;
    let mut server = Some(server);
    for kill_after in [9, 25, 40] {
        while acknowledged <= kill_after {
            acknowledged = lines.next().expect("the writer goes on").unwrap().parse::<usize>().unwrap() + 1;
        }
        let address = server.take().expect("one is there").kill();
        let text = fs::read_to_string(data.at("log")).unwrap();
        server = Some(data.serve(&address));
        let text_after = fs::read_to_string(data.at("log")).unwrap();
        assert!(text_after.starts_with(&text) || text.starts_with(&text_after), "recovery changed what was there");
        assert!(text_after.lines().count() >= acknowledged, "{acknowledged} were acknowledged:\n{text_after}");
    }
    assert!(child.wait().unwrap().success());
    let expected: String = (0..60).map(|number| format!("record {number:05}\n")).collect();
    assert_eq!(fs::read_to_string(data.at("log")).unwrap(), expected, "each record once, in order");
    mount.terminate();
}

/// Starts a script whose first argument is a folder, and waits until it says that it has opened its
/// files.
fn start(script: &str, folder: &Path) -> Child {
    let mut command = Command::new("sh");
    // Not in the folder: whoever starts it would wait with it.
    command.args(["-euc", script, "sh"]).arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("sh starts");
    let mut said = [0; 5];
    child.stdout.as_mut().unwrap().read_exact(&mut said).expect("it says that it has opened its files");
    child
}

/// Kills programs, which have to be gone soon, whatever they wait for. All are killed first: one
/// may wait in the kernel for the lock of a directory that another holds, which no signal ends.
fn kill(programs: &mut [Child], what: &[&str]) {
    for (program, what) in programs.iter_mut().zip(what) {
        assert!(program.try_wait().unwrap().is_none(), "{what} waits for the server");
    }
    let start = Instant::now();
    for program in &*programs {
        send(program, Signal::KILL);
    }
    for (program, what) in programs.iter_mut().zip(what) {
        wait(program);
        let took = start.elapsed();
        assert!(took < Duration::from_secs(2), "{what} was killed and gone only after {took:?}");
    }
}

/// With `--hard` a program waits for the server as long as it takes, except that it can be killed.
#[test]
fn fuse_volume_waiting_programs_can_be_killed() {
    if !can_mount("fuse_volume_waiting_programs_can_be_killed") {
        return;
    }
    for is_killed in [false, true] {
        let data = Data::new();
        let bytes: Vec<u8> = (0..1u32 << 20).map(|at| (at >> 8) as u8).collect();
        fs::write(data.at("large"), &bytes).unwrap();
        let server = data.serve("127.0.0.1:0");
        let mut mount = Mount::start(server.url("volume/data"), &["--hard"]);
        let scripts = [
            "echo open; read go; exec cat $1/large",
            "exec 4<$1/large; echo open; read go; exec cat <&4",
            "exec 4<$1/large; echo open; read go; exec dd of=/dev/null bs=64k iflag=direct <&4",
            "exec 4>$1/new; echo open; read go; exec dd if=/dev/zero bs=64k count=1 conv=fsync >&4",
            "echo open; read go; exec ls -l $1",
            "echo open; read go; exec mkdir $1/folder",
            "exec 4<$1/large; echo open; read go; exec cp /dev/fd/4 $1/copy",
            // It writes without closing anything, so it does not wait until it is killed.
            "exec 4>$1/kept; echo open; exec >&4; read go; echo unsent; read go",
        ];
        // All have opened what they need before the server is gone.
        let mut programs = scripts.map(|script| start(script, &mount.path));
        let mut server = Some(server);
        let address = if is_killed {
            server.take().unwrap().kill()
        } else {
            server.as_ref().unwrap().send(Signal::STOP);
            String::new()
        };
        for program in &mut programs {
            program.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        }
        std::thread::park_timeout(Duration::from_millis(700));
        kill(&mut programs, &scripts);
        match &server {
            Some(server) => server.send(Signal::CONT),
            None => server = Some(data.serve(&address)),
        }
        // What was written before the kill gets there, and the mount does what it did.
        assert_eq!(fs::read(mount.path.join("large")).unwrap(), bytes);
        fs::write(mount.path.join("after"), "after").unwrap();
        assert_eq!(fs::read_to_string(mount.path.join("kept")).unwrap(), "unsent\n");
        mount.terminate();
        for (name, text) in [("after", "after"), ("kept", "unsent\n")] {
            assert_eq!(fs::read_to_string(data.at(name)).unwrap(), text, "{name}");
        }
        drop(server);
    }
}

#[test]
fn fuse_volume_background_mounts_tell_what_is_unsent_or_lost() {
    if !can_mount("fuse_volume_background_mounts_tell_what_is_unsent_or_lost") {
        return;
    }
    let data = Data::new();
    let server = data.serve("127.0.0.1:0");
    let url = server.url("volume/data");
    let (place, unsent) = (data.folder().join("mnt"), data.folder().join("unsent"));
    fs::create_dir(&place).unwrap();
    let (place_text, unsent_text) = (place.to_str().unwrap(), unsent.to_str().unwrap());
    ok(&["mount", &url, place_text, "--soft", "1", "--unsent", unsent_text]);
    fs::write(place.join("f"), "before").unwrap();
    let shown = ok(&["status", place_text]);
    for row in ["blocks in memory", "unsent", "lost", "committed"] {
        assert!(shown.contains(row), "{shown}");
    }
    let file = fs::OpenOptions::new().write(true).open(place.join("f")).unwrap();
    let address = server.kill();
    file.write_all_at(b"unsent", 0).unwrap();
    assert!(file.sync_all().is_err());
    drop(file);
    let output = run(&["umount", place_text]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("--unsent"), "{said}");

    let server = data.serve(&address);
    ok(&["mount", &url, place_text, "--soft", "1", "--unsent", &format!("{unsent_text},1m")]);
    assert_eq!(fs::read(place.join("f")).unwrap(), b"unsent");
    ok(&["umount", place_text]);
    assert_eq!(fs::read(data.at("f")).unwrap(), b"unsent");

    // Without the folder it is lost, and the exit code says so.
    ok(&["mount", &url, place_text, "--soft", "1"]);
    let file = fs::OpenOptions::new().write(true).open(place.join("f")).unwrap();
    server.kill();
    file.write_all_at(b"lost", 0).unwrap();
    assert!(file.sync_all().is_err());
    drop(file);
    let said = fails(&["umount", place_text], 1, "did not get to the server");
    assert!(said.contains("f: "), "{said}");
}

#[test]
fn fuse_volume_unsent_changes_are_encrypted_and_wait_for_their_key() {
    if !can_mount("fuse_volume_unsent_changes_are_encrypted_and_wait_for_their_key") {
        return;
    }
    let data = Data::new();
    let server = data.serve("127.0.0.1:0");
    let url = server.url("volume/data");
    let [place, unsent, cache, right, wrong] = ["mnt", "unsent", "cache", "right.key", "wrong.key"].map(|name| {
        let path = data.folder().join(name);
        path.to_str().unwrap().to_owned()
    });
    fs::create_dir(&place).unwrap();
    for (key, text) in [(&right, "0123456789abcdef"), (&wrong, "fedcba9876543210")] {
        fs::write(key, text.repeat(4)).unwrap();
        fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let folders = ["mount", &url, &place, "--soft", "1", "--unsent", &unsent, "--cache", &cache];
    let mount = |key: &str| ok(&[&folders[..], &["--cache-key", key]].concat());
    mount(&right);
    fs::write(Path::new(&place).join("f"), "before").unwrap();
    let file = fs::OpenOptions::new().write(true).open(Path::new(&place).join("f")).unwrap();
    let address = server.kill();
    file.write_all_at(b"letter", 0).unwrap();
    assert!(file.sync_all().is_err());
    drop(file);
    ok(&["umount", &place]);
    let found = Command::new("grep").args(["-rl", "letter", &unsent, &cache]).output().expect("grep runs");
    assert!(found.stdout.is_empty(), "{}", String::from_utf8_lossy(&found.stdout));

    let server = data.serve(&address);
    fails(&[&folders[..], &["--cache-key", &wrong]].concat(), 1, "another key");
    fails(&folders, 1, "it is encrypted");
    fails(&["dump", &format!("{unsent}/device")], 2, "--cache-key");
    mount(&right);
    assert_eq!(fs::read(Path::new(&place).join("f")).unwrap(), b"letter");
    ok(&["umount", &place]);
    assert_eq!(fs::read(data.at("f")).unwrap(), b"letter");
    drop(server);
}

#[test]
fn fuse_volume_what_is_unsent_when_a_used_mount_is_taken_away_is_an_error() {
    if !can_mount("fuse_volume_what_is_unsent_when_a_used_mount_is_taken_away_is_an_error") {
        return;
    }
    let data = Data::new();
    let volume = format!("data={}:rw,quota=1M", data.at("").display());
    let server = Server::start_at(&data.folder().join("store"), "127.0.0.1:0", &["--volume", &volume]);
    let place = data.folder().join("mnt");
    fs::create_dir(&place).unwrap();
    let place_text = place.to_str().unwrap();
    ok(&["mount", &server.url("volume/data"), place_text]);
    let file = fs::OpenOptions::new().create(true).truncate(true).write(true).open(place.join("f")).unwrap();
    file.write_all_at(&vec![1; 2 << 20], 0).unwrap();
    assert!(file.sync_all().is_err());
    fails(&["umount", place_text], 1, "not on the server yet");
    drop(file);
}
