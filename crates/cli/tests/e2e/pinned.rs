//! `runnel pin` with a real server: all of an image, and no byte more than is missing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Output, Stdio};

use crate::support::*;

/// `runnel pin` into a cache.
fn pin(cache: &Path, url: &str, options: &[&str]) -> std::process::Command {
    let mut command = runnel();
    command.args(["pin", "--json", "--cache-size", "1g", "--cache"]).arg(cache).args(options).arg(url);
    command
}

/// What it says as JSON.
fn said(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

fn number(json: &serde_json::Value, name: &str) -> u64 {
    json[name].as_u64().unwrap_or_else(|| panic!("{name} in {json}"))
}

/// Compares all of a tree with its source, and reads every byte of it.
fn assert_same(source: &Path, found: &Path) -> u64 {
    let (mut folders, mut bytes) = (vec![Path::new("").to_path_buf()], 0);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(source.join(&folder)).unwrap() {
            let name = folder.join(entry.unwrap().file_name());
            let (one, other) = (source.join(&name), found.join(&name));
            let (about, there) = (one.symlink_metadata().unwrap(), other.symlink_metadata().unwrap());
            assert_eq!((about.mode(), about.is_dir() || about.len() == there.len()), (there.mode(), true), "{name:?}");
            if about.is_dir() {
                folders.push(name);
            } else if about.is_symlink() {
                assert_eq!(fs::read_link(one).unwrap(), fs::read_link(other).unwrap(), "{name:?}");
            } else {
                let contents = fs::read(other).unwrap_or_else(|error| panic!("{name:?}: {error}"));
                assert!(contents == fs::read(one).unwrap(), "{name:?} differs");
                bytes += about.len();
            }
        }
    }
    bytes
}

/// Waits until a pin has so many bytes in its cache.
fn wait_for_bytes(cache: &Path, bytes: u64, child: &mut Child) {
    let size = || -> u64 {
        let logs = fs::read_dir(cache).into_iter().flatten().flatten();
        logs.filter_map(|log| log.metadata().ok()).map(|about| about.len()).sum()
    };
    while size() < bytes {
        assert!(child.try_wait().unwrap().is_none(), "it ended too early");
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
}

#[test]
fn fuse_a_pinned_image_is_whole_without_its_server() {
    if !can_mount("fuse_a_pinned_image_is_whole_without_its_server") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    ok(&["extract".as_ref(), python_image().as_os_str(), "-C".as_ref(), at("source").as_os_str()]);
    let server = Server::start(&at("store"));
    let url = server.url("python");
    ok(&["push".as_ref(), python_image().as_os_str(), url.as_ref()]);
    let cache = at("cache");

    let done = output(&mut pin(&cache, &url, &[]));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let pinned = said(&done);
    assert_eq!((&pinned["complete"], number(&pinned, "pinned_bytes")), (&true.into(), number(&pinned, "bytes")));
    let command = |action: &[&str]| ok(&[&["cache", "--cache", cache.to_str().unwrap()], action].concat());
    let status: serde_json::Value = serde_json::from_str(&command(&["status", "--json"])).unwrap();
    assert_eq!((&status["pins"][0]["complete"], &status["pins"][0]["id"]), (&true.into(), &pinned["id"]), "{status}");
    assert!(command(&["status"]).contains(&url), "{}", command(&["status"]));

    server.kill();
    // Another limit than that of the pin takes nothing away.
    let options = ["--soft", "1", "--cache", cache.to_str().unwrap()];
    let mut mount = Mount::start(&url, &options);
    assert!(assert_same(&at("source"), &mount.path) > 1 << 20);
    mount.terminate();
    let program = ["--", "/usr/bin/python3", "-c", "import sqlite3, xml.dom.minidom, asyncio; print(6 * 7)"];
    let ran = output(runnel().arg("run").args(options).arg(&url).args(program));
    assert_eq!(ran.stdout, b"42\n", "{}", String::from_utf8_lossy(&ran.stderr));

    // From a disk that was written once and is read-only, where a view with one can be had.
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
    let mut fixed = std::process::Command::new("unshare");
    fixed.args(["--mount", "sh", "-c", script]).arg(&cache).arg(env!("CARGO_BIN_EXE_runnel"));
    if output(std::process::Command::new("unshare").args(["--mount", "true"])).status.success() {
        let ran = output(fixed.arg("run").args(options).arg(&url).args(program));
        assert_eq!(ran.stdout, b"42\n", "{}", String::from_utf8_lossy(&ran.stderr));
        assert!(!String::from_utf8_lossy(&ran.stderr).contains("warning"), "{}", String::from_utf8_lossy(&ran.stderr));
    } else {
        eprintln!("skipped a read-only disk: `unshare --mount` is refused, as in a chroot");
    }

    command(&["prune"]);
    assert!(command(&["verify"]).contains(" 0 damaged"));
    assert_eq!(output(runnel().arg("run").args(options).arg(&url).args(program)).stdout, b"42\n", "it is kept");
    command(&["unpin", &url]);
    fails(&["cache", "--cache", cache.to_str().unwrap(), "unpin", &url], 4, "not pinned");
    command(&["prune"]);
    assert!(!output(runnel().arg("run").args(options).arg(&url).args(program)).status.success());
}

#[test]
fn a_pin_that_is_killed_or_interrupted_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    let url = server.url("python");
    ok(&["push".as_ref(), python_image().as_os_str(), url.as_ref()]);
    let cache = folder.path().join("cache");
    let all = fs::metadata(python_image()).unwrap().len();
    // Long enough to be killed twice, however slow this machine is.
    let rate = (all / 20).to_string();
    let start = || {
        let mut command = pin(&cache, &url, &["--rate", &rate]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut killed = start();
    wait_for_bytes(&cache, all / 8, &mut killed);
    killed.kill().unwrap();
    killed.wait().unwrap();

    let mut stopped = start();
    wait_for_bytes(&cache, all / 4, &mut stopped);
    send(&stopped, Signal::INT);
    let ended = stopped.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{text}");
    assert!(text.contains("goes on from there"), "{text}");
    let ended = said(&ended);
    assert!(number(&ended, "blocks_present") > 0, "what came before it was killed: {ended}");

    let rest = output(&mut pin(&cache, &url, &[]));
    assert!(rest.status.success(), "{}", String::from_utf8_lossy(&rest.stderr));
    let rest = said(&rest);
    assert!(number(&rest, "blocks_present") > number(&ended, "blocks_present"), "{rest} after {ended}");
    assert!(number(&rest, "transferred_bytes") < all * 9 / 10, "{rest}");
    let again = said(&output(&mut pin(&cache, &url, &[])));
    assert!(number(&again, "transferred_bytes") < 16 << 10, "{again}");
}

#[test]
fn a_pin_keeps_to_its_budget_and_to_the_room_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    let url = server.url("python");
    ok(&["push".as_ref(), python_image().as_os_str(), url.as_ref()]);
    let (cache, small) = (folder.path().join("cache"), folder.path().join("small"));
    let budget = fs::metadata(python_image()).unwrap().len() / 2;
    for round in 0..2 {
        let ended = output(&mut pin(&cache, &url, &["--budget", &budget.to_string()]));
        let text = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(7), "{text}");
        assert!(text.contains("budget of this month") && text.contains("hint: "), "{text}");
        let ended = said(&ended);
        let (used, had) = (number(&ended, "transferred_bytes"), number(&ended, "pinned_bytes"));
        assert!(used <= budget && (round == 0) == (used > budget / 2), "{ended}");
        // With nothing left the server is not even asked.
        assert!(if round == 0 { had < number(&ended, "bytes") } else { used == 0 }, "{ended}");
    }
    let arguments = ["pin", "--cache", small.to_str().unwrap(), "--cache-size", "1m", &url];
    let text = fails(&arguments, 1, "needs");
    assert!(text.contains("--cache-size"), "{text}");
    let status = ok(&["cache", "--cache", small.to_str().unwrap(), "status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!((number(&status, "records"), &status["pins"]), (0, &serde_json::json!([])));

    fails(&["pin", "app.rnl"], 2, "images of a server");
    fails(&["pin", "--cache", "none", &url], 2, "--cache DIR");
    fails(&["pin", "--rate", "0", &url], 2, "--rate 0");
    fails(&["pin", "--cache", small.to_str().unwrap(), &server.url("absent")], 4, "absent");
}
