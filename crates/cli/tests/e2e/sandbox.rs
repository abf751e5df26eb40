//! Commands that parse bytes of others sit in their sandbox while they do. What they cannot do
//! there, the tests of crate `sandbox` try for each role.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::Stdio;

use crate::support::{Mount, Server, can_mount, is_root, ok, run, runnel};

/// A field of what the kernel says of a process.
fn field(pid: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("a field");
    line.trim().to_owned()
}

/// Whether the process has given up new privileges and system calls, or nothing of it.
fn assert_confined(pid: u32, expected: bool, capabilities: u32) {
    let (calls, privileges) = if expected { ("2", "1") } else { ("0", "0") };
    assert_eq!((field(pid, "Seccomp").as_str(), field(pid, "NoNewPrivs").as_str()), (calls, privileges));
    let kept = u64::from_str_radix(&field(pid, "CapEff"), 16).expect("a number").count_ones();
    assert!(!is_root() || !expected || kept == capabilities, "{kept} capabilities");
}

#[test]
fn a_server_gives_up_what_it_does_not_need() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("tree")).expect("a folder");
    fs::write(at("tree/file"), b"text").expect("a file");
    fs::create_dir(at("store")).expect("a folder");
    ok(&["pack".as_ref(), at("tree").as_os_str(), "-o".as_ref(), at("elsewhere.rnl").as_os_str()]);
    symlink(at("elsewhere.rnl"), at("store/linked.rnl")).expect("a link");
    let server = Server::start(&at("store"));
    assert_confined(server.pid(), true, 3);
    assert_eq!(ok(&["cat", &server.url("linked"), "/file"]), "text", "an image that lies elsewhere");
    ok(&["push".as_ref(), at("elsewhere.rnl").as_os_str(), server.url("pushed").as_ref()]);
    assert_eq!(ok(&["cat", &server.url("pushed"), "/file"]), "text");
    drop(server);
    let server = Server::start_at(&at("store"), "127.0.0.1:0", &["--no-sandbox"]);
    assert_confined(server.pid(), false, 0);
}

#[test]
fn fuse_a_mount_is_served_inside_the_sandbox() {
    if !can_mount("fuse_a_mount_is_served_inside_the_sandbox") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for name in ["store", "tree", "cache", "unsent", "changes"] {
        fs::create_dir(at(name)).expect("a folder");
    }
    fs::write(at("tree/file"), b"text").expect("a file");
    let image = at("image.rnl");
    ok(&["pack".as_ref(), at("tree").as_os_str(), "-o".as_ref(), image.as_os_str()]);
    let volume = format!("data={}:rw", at("tree").display());
    let server = Server::start_at(&at("store"), "127.0.0.1:0", &["--volume", &volume]);
    ok(&["push".as_ref(), image.as_os_str(), server.url("app").as_ref()]);

    let (cache, unsent) = (at("cache").display().to_string(), at("unsent").display().to_string());
    let overlay = at("changes").display().to_string();
    let local = image.display().to_string();
    let (remote, volume) = (server.url("app"), server.url("volume/data"));
    let cases: [(&str, &[&str]); 6] = [
        (&local, &[]),
        (&remote, &[]),
        (&remote, &["--overlay", &overlay]),
        (&volume, &[]),
        (&volume, &["--read-only"]),
        (&volume, &["--cache", &cache, "--unsent", &unsent]),
    ];
    for (target, options) in cases {
        // An overlay needs root.
        if options.contains(&"--overlay") && !is_root() {
            continue;
        }
        for (sandbox, expected) in [(None, true), (Some("--no-sandbox"), false)] {
            let options: Vec<&str> = options.iter().copied().chain(sandbox).collect();
            let mut mount = Mount::start(target, &options);
            assert_confined(mount.daemon(), expected, 1);
            let kept = u64::from_str_radix(&field(mount.keeper(), "CapEff"), 16).expect("a number").count_ones();
            let gives_up = expected && !options.contains(&"--overlay");
            assert!(!is_root() || !gives_up || kept == 2, "the keeper has {kept} capabilities");
            assert_eq!(fs::read(mount.path.join("file")).expect("readable"), b"text", "{target} {options:?}");
            mount.status();
            if options.contains(&"--overlay") || (target == volume && !options.contains(&"--read-only")) {
                fs::write(mount.path.join("new"), b"new").expect("writable");
                fs::remove_file(mount.path.join("new")).expect("removable");
            }
            mount.terminate();
            assert!(
                fs::read_dir(&mount.path).expect("there").next().is_none(),
                "{target} {options:?}: it stays mounted"
            );
        }
    }
    let of_volume = fs::read_dir(at("cache/volumes")).expect("a folder of each volume").next();
    assert!(of_volume.expect("one volume").expect("it").path().join("blocks.cache").is_file());
}

#[test]
fn an_archive_is_read_inside_the_sandbox() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    // One file that is longer than a pipe holds: once half of it is written, some was read.
    let bytes = vec![7u8; 1 << 20];
    fs::write(at("file"), &bytes).expect("a file");
    let tar =
        std::process::Command::new("tar").arg("-cC").arg(folder.path()).arg("file").output().expect("tar is there");
    for (option, expected) in [(None, true), (Some("--no-sandbox"), false)] {
        let output = at(if expected { "in.rnl" } else { "out.rnl" });
        let mut command = runnel();
        command.args(["pack", "-", "-o"]).arg(&output).args(option).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        let mut input = child.stdin.take().expect("a pipe");
        let (first, rest) = tar.stdout.split_at(tar.stdout.len() / 2);
        input.write_all(first).expect("it reads");
        assert_confined(child.id(), expected, 1);
        input.write_all(rest).expect("it reads");
        drop(input);
        assert!(child.wait().expect("it ends").success());
        assert_eq!(run(&["cat".as_ref(), output.as_os_str(), "/file".as_ref()]).stdout, bytes);
    }
    assert_eq!(fs::read(at("in.rnl")).expect("there"), fs::read(at("out.rnl")).expect("there"));
}
