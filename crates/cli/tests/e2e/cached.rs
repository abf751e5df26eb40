//! The device cache under real mounts: second starts, and starts without a server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use units::{Rng, SplitMix64};

use crate::support::*;

/// A command whose cache nobody named; not even a test as root may use the one of this machine.
fn with_default_cache(home: &Path) -> Command {
    let mut command = runnel();
    match is_root() {
        true => command.env("RUNNEL_CACHE", home.join("runnel/device")),
        false => command.env_remove("RUNNEL_CACHE").env("XDG_CACHE_HOME", home),
    };
    command
}

#[test]
fn fuse_a_program_that_ran_before_starts_without_its_server() {
    if !can_mount("fuse_a_program_that_ran_before") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    let (cache, url) = (folder.path().join("cache"), server.url("python"));
    let start = |code: &str| -> Output {
        output(runnel().args(["run", "--soft", "1", "--cache"]).arg(&cache).arg(&url).args([
            "--",
            "/usr/bin/python3",
            "-c",
            code,
        ]))
    };
    let code = "import json, decimal; print(json.dumps(str(decimal.Decimal(2))))";
    let first = start(code);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let with_server = start(code);
    assert_eq!((with_server.stdout.as_slice(), with_server.stderr.as_slice()), (&b"\"2\"\n"[..], &b""[..]));

    server.kill();
    let alone = start(code);
    let said = String::from_utf8_lossy(&alone.stderr);
    assert_eq!(alone.stdout, b"\"2\"\n", "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("from the device cache"), "{said}");
    // What never ran fails, and does not wait for ever.
    assert!(!start("import sqlite3, xml.dom.minidom, asyncio").status.success());

    let command = |action: &[&str]| ok(&[&["cache", "--cache", cache.to_str().unwrap()], action].concat());
    let status: serde_json::Value = serde_json::from_str(&command(&["status", "--json"])).unwrap();
    let number = |name: &str| status[name].as_u64().unwrap();
    assert!(number("payload_bytes") > 1 << 20 && number("bytes") <= 64 << 20, "{status}");
    assert!(number("written_bytes") * 100 <= number("payload_bytes") * 115, "{status}");
    assert!(command(&["verify"]).contains(" 0 damaged"));
    command(&["prune"]);
    assert!(!start(code).status.success(), "nothing is left");
}

#[test]
fn fuse_what_was_fetched_is_kept_unless_the_user_says_none() {
    if !can_mount("fuse_what_was_fetched_is_kept_unless") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    let (home, url) = (folder.path().join("home"), server.url("python"));
    let python = |command: &mut Command, options: &[&str]| {
        output(command.arg("run").args(["--soft", "1"]).args(options).arg(&url).args([
            "--",
            "/usr/bin/python3",
            "-c",
            "",
        ]))
    };
    let none = python(&mut with_default_cache(&home), &["--cache", "none"]);
    assert!(none.status.success() && !home.exists());

    // Nobody can make a folder in a file. Whoever chose it is told.
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    let warned = python(&mut runnel(), &["--cache", file.join("cache").to_str().unwrap()]);
    let said = String::from_utf8_lossy(&warned.stderr);
    assert!(warned.status.success() && said.contains("no device cache") && said.lines().count() == 1, "{said}");
    if !is_root() {
        let quiet = python(&mut with_default_cache(&file), &[]);
        assert_eq!((quiet.status.success(), &*quiet.stderr), (true, &b""[..]));
    }

    let kept = python(&mut with_default_cache(&home), &[]);
    assert!(kept.status.success(), "{}", String::from_utf8_lossy(&kept.stderr));
    let status = output(with_default_cache(&home).args(["cache", "status", "--json"]));
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let cache = home.join("runnel/device");
    assert_eq!(status["folder"], cache.to_str().unwrap());
    assert!(status["payload_bytes"].as_u64().unwrap() > 1 << 20, "{status}");
    assert_eq!(fs::metadata(&cache).unwrap().permissions().mode() & 0o777, 0o700);
    // One of its own, in a mount inside its sandbox.
    let mut mount =
        Mount::start(&url, &["--cache", folder.path().join("mounted").to_str().unwrap(), "--cache-size", "2m"]);
    fs::read(mount.path.join("usr/bin/python3")).unwrap();
    mount.terminate();
    let logs = fs::read_dir(folder.path().join("mounted")).unwrap().map(|log| log.unwrap().metadata().unwrap().len());
    let bytes: u64 = logs.sum();
    assert!((1 << 20..2 << 20).contains(&bytes), "{bytes}");
    server.kill();
    let alone = python(&mut with_default_cache(&home), &[]);
    assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stderr));
    let said = ok(&["cache", "prune", "--cache", cache.to_str().unwrap()]);
    assert!(said.contains("removed") && !python(&mut with_default_cache(&home), &[]).status.success(), "{said}");
    fails(&["cache", "--cache", "none"], 2, "--cache DIR");
    fails(&["cache", "--cache", folder.path().join("nowhere").to_str().unwrap()], 4, "nowhere");
}

/// Whether any file in a folder, or its name, has this.
fn is_in(folder: &Path, part: &[u8]) -> bool {
    let has = |bytes: &[u8]| bytes.windows(part.len()).any(|found| found == part);
    fs::read_dir(folder).unwrap().any(|entry| {
        let entry = entry.unwrap();
        has(entry.file_name().as_encoded_bytes()) || has(&fs::read(entry.path()).unwrap())
    })
}

#[test]
fn fuse_a_cache_with_a_key_tells_nothing_and_serves_without_its_server() {
    if !can_mount("fuse_a_cache_with_a_key_tells_nothing") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let text = |name: &str| at(name).to_str().unwrap().to_owned();
    fs::create_dir(at("tree")).unwrap();
    // No codec makes it shorter, so it lies in the image as it is.
    let mut rng = SplitMix64(7);
    let content: Vec<u8> = (0..16_000).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    fs::write(at("tree/a-name-to-be-found"), &content).unwrap();
    ok(&["pack".as_ref(), at("tree").as_os_str(), "-o".as_ref(), at("image.rnl").as_os_str()]);
    let server = Server::start(&at("store"));
    let url = server.url("telltale");
    ok(&["push".as_ref(), at("image.rnl").as_os_str(), url.as_ref()]);
    for (key, digits) in [("right.key", "0123456789abcdef"), ("wrong.key", "fedcba9876543210")] {
        fs::write(at(key), digits.repeat(4)).unwrap();
        fs::set_permissions(at(key), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let start = |cache: &str, key: &str| {
        Mount::start(&url, &["--soft", "1", "--cache", &text(cache), "--cache-key", &text(key)])
    };
    let read = |mut mount: Mount| {
        assert!(fs::read(mount.path.join("a-name-to-be-found")).unwrap() == content);
        mount.terminate();
    };
    let cache = |action: &[&str]| ok(&[&["cache", "--cache", &text("cache")], action].concat());
    let unread = |key: &str| {
        let said = cache(&["status", "--json", "--cache-key", key]);
        serde_json::from_str::<serde_json::Value>(&said).unwrap()["unreadable_bytes"].as_u64().unwrap()
    };
    let (right, wrong) = (text("right.key"), text("wrong.key"));

    // Without a key all of it can be found; with one, what was there before goes, too.
    read(Mount::start(&url, &["--cache", &text("cache")]));
    let known: [&[u8]; 3] = [b"a-name-to-be-found", &content[1000..1064], &content[100_000..100_064]];
    assert_eq!(known.map(|part| is_in(&at("cache"), part)), [true; 3]);
    assert!(unread(&right) > 100_000 && unread("none") == 0);
    read(start("cache", "right.key"));
    ok(&["pin", "--cache", &text("cache"), "--cache-key", &right, &url]);
    assert_eq!(known.map(|part| is_in(&at("cache"), part)), [false; 3]);
    assert!(!is_in(&at("cache"), b"telltale"));
    assert!(unread(&right) == 0 && unread(&wrong) > 100_000 && unread("none") > 100_000);

    // What another key cannot open is fetched, and what is pinned with the first one stays.
    read(start("cache", "wrong.key"));
    let address = server.kill();
    read(start("cache", "right.key"));
    assert!(cache(&["verify", "--cache-key", &right]).contains(" 0 damaged"));

    // A damaged one is fetched.
    for entry in fs::read_dir(at("cache")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "log") {
            let mut bytes = fs::read(&path).unwrap();
            bytes.iter_mut().skip(4096).step_by(1000).for_each(|byte| *byte ^= 1);
            fs::write(&path, bytes).unwrap();
        }
    }
    let server = Server::start_at(&at("store"), &address, &[]);
    read(start("cache", "right.key"));
    drop(server);
}
