//! Programs that change a volume while the daemon of its mount is killed again and again.
//!
//! `RUNNEL_CONTINUITY_SECONDS` says how long, and `RUNNEL_CONTINUITY_PROGRAMS` which of them.

use std::io::Write;
use std::path::Path;
use std::process::Child;
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use crate::continuity::{begun, python};
use crate::support::*;
use crate::volume::Data;

/// The programs; each is described there.
const PROGRAMS: &str = include_str!("kept/programs.py");

const NAMES: [&str; 9] = ["rollback", "wal", "append", "names", "flock", "lockf", "tree", "nameless", "overwrite"];

/// Tells whether a data base is whole.
const CHECK: &str = "
import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute('pragma integrity_check').fetchone()[0])
";

/// Writes a part whenever it is told to, and syncs the last one.
const WRITER: &str = "
import os, sys
file = open(sys.argv[1], 'wb', buffering=0)
file.write(b'before, ')
print('begins', flush=True)
sys.stdin.readline()
file.write(b'between, ')
print('written', flush=True)
sys.stdin.readline()
file.write(b'after')
os.fsync(file.fileno())
";

/// The next daemon does not need the server for what it goes on with.
#[test]
fn fuse_a_volume_whose_daemon_and_server_are_killed_goes_on() {
    if !can_mount("fuse_a_volume_whose_daemon_and_server_are_killed") {
        return;
    }
    let data = Data::new();
    let server = data.serve("127.0.0.1:0");
    let mount = Mount::start(server.url("volume/data"), &[]);
    // A program of its own: whoever starts a server must not wait for one.
    let mut writer = begun(python(WRITER, &[&mount.path.join("file")]));
    assert!(!data.at("file").exists(), "nothing was sent yet");
    let address = server.kill();
    mount.kill_daemon();
    let mut orders = writer.stdin.take().expect("it is piped");
    orders.write_all(b"\n").expect("it is told");
    hear(&mut writer, "written");
    mount.kill_daemon();
    let _server = data.serve(&address);
    orders.write_all(b"\n").expect("it is told");
    assert!(wait(&mut writer).success());
    assert_eq!(std::fs::read(data.at("file")).expect("it is there"), b"before, between, after");
}

#[test]
fn fuse_programs_on_a_volume_do_not_notice_that_daemons_are_killed() {
    if !can_mount("fuse_programs_on_a_volume_do_not_notice") {
        return;
    }
    let variable = |name: &str| std::env::var(name).ok();
    let seconds = variable("RUNNEL_CONTINUITY_SECONDS").and_then(|seconds| seconds.parse().ok());
    let wanted = variable("RUNNEL_CONTINUITY_PROGRAMS");
    let names =
        NAMES.iter().filter(|name| wanted.as_ref().is_none_or(|wanted| wanted.split(',').any(|one| one == **name)));
    let data = Data::new();
    let server = data.serve("127.0.0.1:0");
    let mut mount = Mount::start(server.url("volume/data"), &[]);
    let programs: Vec<(&str, Child)> =
        names.map(|name| (*name, begun(python(PROGRAMS, &[Path::new(name), &mount.path])))).collect();
    let ends = Instant::now() + Duration::from_secs(seconds.unwrap_or(20));
    let mut kills = 0;
    while Instant::now() < ends {
        // The moment is arbitrary on purpose.
        park_timeout(Duration::from_millis(1500 + (kills * 977) % 1000));
        mount.kill_daemon();
        kills += 1;
        // Answers once the next one serves.
        assert_eq!(mount.status()["restarts"], kills);
    }
    for (name, mut program) in programs {
        drop(program.stdin.take());
        let output = program.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{name}: {}", output.status);
        let mut said = text.split_whitespace().map(|number| number.parse::<u64>().expect("a number"));
        let (count, longest) = said.next().zip(said.next()).expect("two numbers");
        assert!(count > 0, "{name} did nothing");
        eprintln!("{name}: {count} done; longest {longest} ms; {kills} daemons killed");
    }
    let status = mount.status();
    assert_eq!(status["volume"]["lost"].as_array().map(Vec::len), Some(0), "{status:#}");
    mount.terminate();
    // What was acknowledged is on the server.
    for path in ["rollback.db", "wal.db"].map(|name| data.at(name)).iter().filter(|path| path.exists()) {
        assert_eq!(output(&mut python(CHECK, &[path])).stdout, b"ok\n");
    }
}
