//! The guide to a secure fleet, run as it stands.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::*;

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/secure-a-fleet.md");

/// What the shell is told before each block.
const BEFORE: &str = "set -eu\n";

/// The commands of the page, block by block.
fn blocks() -> Vec<String> {
    let page = fs::read_to_string(GUIDE).unwrap();
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned());
    blocks.collect()
}

fn shell(folder: &Path, script: &str) -> Command {
    let binary = Path::new(env!("CARGO_BIN_EXE_runnel"));
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("{BEFORE}{script}")).current_dir(folder).stdin(Stdio::null());
    shell.env("PATH", path).env("HOME", folder).env("RUNNEL_CACHE", "none");
    shell.env("RUNNEL_TRUST_STATE", folder.join("state"));
    shell.env("RUNNEL_TRUST_PASSPHRASE_FILE", folder.join("passphrase"));
    shell
}

/// A port that nobody has now.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_guide_to_a_secure_fleet_works_as_it_stands() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("passphrase"), "of the guide\n").unwrap();
    let blocks = blocks();
    let variables = blocks[0].replace("7327", &free_port().to_string());
    assert!(variables.contains("PORT=") && blocks.len() == 12, "{} blocks", blocks.len());
    let run = |block: &str| output(&mut shell(folder, &format!("{variables}{block}")));
    let ls = |device: &str| run(&blocks[6].replace("camera-7", device));
    let mut served = None;
    for block in &blocks[1..] {
        if block.starts_with("runnel serve") {
            let script = format!("{variables}exec {} --ready-file ready", block.trim_end());
            let mut child = shell(folder, &script).spawn().unwrap();
            wait_for_file(&folder.join("ready"), &mut child, "the server of the guide");
            served = Some(Served(child));
            continue;
        }
        let done = run(block);
        assert!(done.status.success(), "{block}: {}", String::from_utf8_lossy(&done.stderr));
        if block.starts_with("runnel ls") {
            assert_eq!(done.stdout, b"ls\n");
        }
    }
    // What the page says of it.
    assert!(ls("camera-8").status.success());
    while ls("camera-7").status.success() {}
    let said = String::from_utf8_lossy(&ls("camera-7").stderr).into_owned();
    assert!(said.contains("certificate"), "{said}");
    let push = run(&blocks[5].replace("builder", "camera-8").replace("app:1", "app:2"));
    let said = String::from_utf8_lossy(&push.stderr);
    assert!(!push.status.success() && said.contains("no right `push`"), "{said}");
    let audit = fs::read_to_string(folder.join("log/audit.jsonl")).unwrap();
    for action in ["push", "sign", "refused", "token-revoked"] {
        assert!(audit.contains(&format!("\"action\":\"{action}\"")), "{action}: {audit}");
    }
    drop(served);
}
