//! Commands that parse bytes of others sit in their sandbox while they do. What they cannot do there, the tests of crate `sandbox`
//! try for each role.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::Stdio;

use crate::support::{Server, is_root, ok, run, runnel};

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
