//! The whole bench against a stand-in for the product: a script that takes the same commands and
//! serves nothing. What is checked is the order of commands, that every row appears, and that
//! nothing is left running.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bench::options::Options;
use bench::stream;
use serde_json::Value;

/// Notes its commands in `commands`. A server pretends to learn all the time; a mount is a folder
/// until `umount` says otherwise; programs do nothing but print.
const STAND_IN: &str = r#"#!/bin/sh
here=${0%/*}
echo "$*" >> "$here/commands"
case $1 in
pack) echo image > "$4" ;;
serve)
    mkdir -p "$2/learned"
    echo 127.0.0.1:9 > "$6"
    while :; do echo more >> "$2/learned/x.actions"; /bin/sleep 0.02; done ;;
mount)
    shift
    [ -e "$here/broken" ] && { echo "no route to the moon" >&2; exit 1; }
    /bin/rm -f "$2.umounted"
    : > "$5"
    while [ ! -e "$2.umounted" ]; do /bin/sleep 0.01; done ;;
umount) : > "$2.umounted" ;;
status) echo '{"session":{"requests":1,"pages_demanded":2,"pages_pushed":3,"pages_wasted":0,"stall_micros":4}}' ;;
enter) echo "OpenSSL, imports, hello" ;;
esac
"#;

/// A script cannot be started while another thread forks with it open for writing; so one test at a
/// time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn stand_in(folder: &Path) -> PathBuf {
    let path = folder.join("stand-in");
    fs::write(&path, STAND_IN).expect("a temporary folder can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("and its modes set");
    path
}

fn options(folder: &Path) -> Options {
    Options {
        runnel: stand_in(folder),
        work: Some(folder.join("work")),
        cases: vec!["openssl".into()],
        links: vec!["lan".into()],
        learning_runs: 1,
        keep_caches: true,
        json: true,
        history: Some(folder.join("history.jsonl")),
        commit: Some("abc".into()),
        ..Options::default()
    }
}

/// True, with the reason printed, if the machine cannot build the smallest tree.
fn cannot_run() -> bool {
    let missing = !Path::new("/usr/bin/openssl").exists() || !Path::new("/usr/bin/dpkg-query").exists();
    if missing {
        eprintln!("skipped: needs a Debian system with the package openssl");
    }
    missing
}

#[test]
fn every_mode_is_run_in_order_and_gives_its_rows() {
    if cannot_run() {
        return;
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut out = Vec::new();
    stream::run(&options(folder.path()), &mut out).expect("the stand-in does all it is asked");

    let text = String::from_utf8(out).expect("rows are text");
    assert_eq!(fs::read_to_string(folder.path().join("history.jsonl")).expect("a history"), text);
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a row is JSON")).collect();
    let walls = rows.iter().filter(|row| row["metric"] == "wall");
    let walls: Vec<_> =
        walls.map(|row| format!("{} {} {} {}", row["peer"], row["mode"], row["link"], row["n"])).collect();
    let expected = [
        r#""native" "warm" "local" 15"#,
        r#""runnel" "file-warm" "local" 15"#,
        r#""runnel" "file-first" "local" 1"#,
        r#""runnel" "none" "lan" 5"#,
        r#""runnel" "paper" "lan" 5"#,
        r#""runnel" "push" "lan" 5"#,
        r#""runnel" "push-warm" "lan" 5"#,
    ];
    assert_eq!(walls, expected);
    assert!(rows.iter().any(|row| row["metric"] == "pages_pushed" && row["mode"] == "push"));

    let commands = fs::read_to_string(folder.path().join("commands")).expect("the stand-in noted its commands");
    let commands: Vec<&str> = commands.lines().collect();
    let count = |part: &str| commands.iter().filter(|line| line.contains(part)).count();
    assert_eq!((count("serve "), count("--no-learn"), count("--push-window 0")), (4, 1, 1));
    // One mount of the file, 5 + 5 + 5 measured and one for learning.
    assert_eq!(count("mount ") - count("umount "), 17);
    assert!(commands.iter().filter(|line| line.starts_with("enter")).all(|line| line.contains("-- /usr/bin/openssl")));
}

#[test]
fn a_mount_that_fails_is_reported_with_its_reason() {
    if cannot_run() {
        return;
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("broken"), "").expect("a temporary folder can be written");
    let mut out = Vec::new();
    let error = stream::run(&options(folder.path()), &mut out).expect_err("no mount works");
    assert!(error.to_string().contains("openssl"), "{error:#}");
}
