//! Updates of a pinned image on a device: one version or the other, and never both.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::support::*;

/// A server with an image, and a device that pins it.
struct Fleet {
    folder: tempfile::TempDir,
    server: Option<Server>,
    url: String,
}

impl Fleet {
    /// The server has version 1, which is pinned.
    fn pinned() -> Fleet {
        Fleet::pinned_in(tempfile::tempdir().unwrap())
    }

    fn pinned_in(folder: tempfile::TempDir) -> Fleet {
        let server = Server::start(&folder.path().join("store"));
        let fleet = Fleet { url: server.url("app"), server: Some(server), folder };
        fleet.publish(1);
        fleet.pin(&[]).success();
        fleet
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn cache(&self) -> PathBuf {
        self.at("cache")
    }

    /// The server has this version from now on.
    fn publish(&self, version: u32) {
        let (tree, image) = (self.at(&format!("v{version}")), self.at(&format!("v{version}.rnl")));
        if !image.exists() {
            fs::create_dir(&tree).unwrap();
            fs::write(tree.join("version"), format!("{version}\n")).unwrap();
            // What all of them have, and what only this one has: random, so that it is not small.
            for (name, seed, bytes) in [("same", 7, 600 << 10), ("own", version, 400 << 10)] {
                let mut state = u64::from(seed);
                let words = (0..bytes / 8).flat_map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state ^ (state >> 29)).to_le_bytes()
                });
                fs::write(tree.join(name), words.collect::<Vec<u8>>()).unwrap();
            }
            ok(&["pack".as_ref(), tree.as_os_str(), "-o".as_ref(), image.as_os_str()]);
        }
        ok(&["push".as_ref(), image.as_os_str(), self.url.as_ref()]);
    }

    fn command(&self, name: &str, options: &[&str]) -> Command {
        let mut command = runnel();
        command.args([name, "--json", "--cache"]).arg(self.cache()).args(options).arg(&self.url);
        command
    }

    fn pin(&self, options: &[&str]) -> Said {
        Said(output(&mut self.command("pin", &[&["--cache-size", "64m"], options].concat())))
    }

    fn rollback(&self) -> Said {
        Said(output(&mut self.command("rollback", &[])))
    }

    fn stop_server(&mut self) {
        self.server.take().unwrap().kill();
    }

    /// The state of the name, as `runnel cache status` shows it.
    fn state(&self) -> serde_json::Value {
        let said = ok(&["cache", "--cache", self.cache().to_str().unwrap(), "status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(status["pins"].as_array().unwrap().len(), 1, "{status}");
        status["pins"][0].clone()
    }

    /// The version that a mount shows.
    fn mounted(&self) -> String {
        let mut mount = self.mount();
        let version = version_in(&mount.path);
        mount.terminate();
        version
    }

    fn mount(&self) -> Mount {
        Mount::start(&self.url, &["--soft", "1", "--cache", self.cache().to_str().unwrap()])
    }
}

/// Reads all of a version.
fn version_in(folder: &Path) -> String {
    for name in ["same", "own"] {
        assert!(fs::read(folder.join(name)).unwrap().len() >= 400 << 10);
    }
    fs::read_to_string(folder.join("version")).unwrap().trim().into()
}

/// What a command said.
struct Said(Output);

impl Said {
    fn success(&self) -> serde_json::Value {
        assert!(self.0.status.success(), "{}", self.text());
        self.json()
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.0.stdout).unwrap_or_else(|_| panic!("{}", self.text()))
    }

    fn failure(&self, code: i32, what: &str) -> String {
        let text = self.text();
        assert_eq!(self.0.status.code(), Some(code), "{text}");
        assert!(text.contains(what) && !text.contains("panicked"), "{what:?} is not in {text}");
        text
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }
}

#[test]
fn fuse_an_update_takes_the_place_of_the_old_version_at_once() {
    if !can_mount("fuse_an_update_takes_the_place") {
        return;
    }
    let mut fleet = Fleet::pinned();
    let first = fleet.state();
    let running = fleet.mount();
    fleet.publish(2);
    // The server is there, and a start does not ask it.
    assert_eq!(fleet.mounted(), "1");
    let update = fleet.pin(&[]).success();
    assert_eq!((&update["switched"], &update["current"]), (&true.into(), &update["id"]), "{update}");
    let [moved, all] = ["transferred_bytes", "bytes"].map(|name| update[name].as_u64().unwrap());
    assert!(moved < all * 3 / 4, "what is the same is not fetched again: {update}");
    let [present, blocks] = ["blocks_present", "blocks"].map(|name| update[name].as_u64().unwrap());
    assert!(present > 0 && present < blocks, "{update}");
    let second = fleet.state();
    assert_eq!((&second["previous"]["id"], &second["id"]), (&first["id"], &update["id"]), "{second}");
    assert!(second["complete"] == true && second["previous"]["complete"] == true, "{second}");
    assert_eq!(fleet.pin(&[]).success()["switched"], false);

    fleet.stop_server();
    assert_eq!(fleet.mounted(), "2");
    assert_eq!(version_in(&running.path), "1");

    let rolled = fleet.rollback().success();
    assert_eq!((&rolled["from"], &rolled["id"]), (&second["id"], &first["id"]));
    assert_eq!(fleet.mounted(), "1");
    assert_eq!(fleet.state()["bad"], serde_json::json!([second["id"]]));
    fleet.rollback().failure(4, "no previous version");
    let program =
        output(runnel().args(["run", "--soft", "1", "--cache"]).arg(fleet.cache()).arg(&fleet.url).args(["--", "/no"]));
    assert_eq!(program.status.code(), Some(127), "{}", String::from_utf8_lossy(&program.stderr));
}

#[test]
fn a_version_that_was_left_comes_back_only_by_force() {
    let fleet = Fleet::pinned();
    let first = fleet.state()["id"].clone();
    fleet.publish(2);
    fleet.pin(&[]).success();
    fleet.rollback().success();
    let held = fleet.pin(&[]).success();
    assert_eq!(
        (&held["held_back"], &held["switched"], &held["current"]),
        (&true.into(), &false.into(), &first),
        "{held}"
    );
    fleet.publish(3);
    assert_eq!(fleet.pin(&[]).success()["switched"], true);
    fleet.publish(2);
    assert_eq!(fleet.pin(&[]).success()["held_back"], true);
    let forced = fleet.pin(&["--force"]).success();
    assert_eq!((&forced["switched"], &fleet.state()["bad"]), (&true.into(), &serde_json::json!([])), "{forced}");
}

#[test]
fn a_version_that_is_not_healthy_goes_by_itself() {
    let fleet = Fleet::pinned();
    let first = fleet.state()["id"].clone();
    let log = fleet.at("checked");
    // It says what it checks, and fails for version 2.
    let bad = fleet.at("bad");
    let command = format!(
        "echo \"$RUNNEL_NAME $RUNNEL_IMAGE\" >> {}; echo healthy; ! grep -q $RUNNEL_IMAGE {}",
        log.display(),
        bad.display()
    );
    fleet.publish(2);
    let second = ok(&["images", "--json", fleet.url.rsplit_once('/').unwrap().0]);
    fs::write(&bad, second).unwrap();
    let failed = fleet.pin(&["--health", &command]);
    let text = failed.failure(8, "does not work");
    assert!(text.contains(&format!("is at version {} again", first.as_str().unwrap())), "{text}");
    // Standard output has nothing but the result.
    let result: serde_json::Value = serde_json::from_slice(&failed.0.stdout).unwrap();
    assert_eq!((&result["current"], &result["healthy"]), (&first, &false.into()), "{result}");
    let state = fleet.state();
    assert_eq!(
        (&state["id"], &state["bad"], &state["checked"]),
        (&first, &serde_json::json!([result["id"]]), &true.into())
    );
    let said = fs::read_to_string(&log).unwrap();
    assert_eq!(said, format!("{}:latest {}\n", fleet.url, result["id"].as_str().unwrap()));
    assert_eq!(fleet.pin(&["--health", &command]).success()["held_back"], true);

    fleet.publish(3);
    let late = fleet.pin(&["--health", "sleep 600", "--health-timeout", "1"]);
    late.failure(8, "did not end in 1 s");
    assert_eq!(fleet.state()["id"], first);
    fleet.publish(4);
    let limit = u64::MAX.to_string();
    let good = fleet.pin(&["--health", &command, "--health-timeout", &limit]).success();
    assert_eq!((&good["switched"], &good["healthy"]), (&true.into(), &true.into()), "{good}");
    // Only a new version is checked.
    let before = fs::read(&log).unwrap();
    assert_eq!(fleet.pin(&["--health", &command]).success()["healthy"], serde_json::Value::Null);
    assert_eq!(fs::read(&log).unwrap(), before);
    fleet.pin(&["--health", "true", "--health-timeout", "0"]).failure(2, "--health-timeout");
    fleet.pin(&["--health-timeout", "5"]).failure(2, "--health");
}

#[test]
fn regress_a_check_uses_the_cache_of_its_pin() {
    let fleet = Fleet::pinned();
    fleet.publish(2);
    let ca = fleet.at("ca.pem");
    let cache = fleet.cache();
    let command = format!(
        "test \"$RUNNEL_CACHE\" = '{}' && test \"$RUNNEL_CA\" = '{}' && '{}' cache status | grep -q $RUNNEL_IMAGE",
        cache.display(),
        ca.display(),
        runnel().get_program().display()
    );
    fs::write(&ca, "").unwrap();
    assert_eq!(fleet.pin(&["--ca", ca.to_str().unwrap(), "--health", &command]).success()["healthy"], true);
}

#[test]
fn a_check_that_did_not_end_is_made_by_the_next_pin() {
    let mut fleet = Fleet::pinned();
    let first = fleet.state()["id"].clone();
    fleet.publish(2);
    let began = fleet.at("began");
    let command = format!("echo began > {}; sleep 600; echo late >&2", began.display());
    let start = || {
        let _ = fs::remove_file(&began);
        let mut command = fleet.command("pin", &["--cache-size", "64m", "--health", &command]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_file(&began, &mut child, "the check");
        child
    };
    let mut pin = start();
    let other = fleet.pin(&[]);
    other.failure(1, "another `runnel pin`");
    assert_eq!(other.json()["current"], fleet.state()["id"]);
    send(&pin, Signal::TERM);
    assert_eq!(wait(&mut pin).code(), Some(143));
    let mut pin = start();
    pin.kill().unwrap();
    // The pipe is closed when the check has ended, too.
    let ended = pin.wait_with_output().unwrap();
    assert!(!String::from_utf8_lossy(&ended.stderr).contains("late"), "the check went on");
    let state = fleet.state();
    assert!(state["checked"] == false && state["previous"]["id"] == first, "{state}");
    fleet.stop_server();
    // Without its server, too.
    let failed = fleet.pin(&["--health", "exit 9"]);
    let text = failed.failure(8, "does not work");
    assert!(text.contains("exit status: 9"), "{text}");
    assert_eq!((&failed.json()["current"], &failed.json()["healthy"]), (&first, &false.into()));
    assert_eq!(fleet.state()["id"], first);
}

#[test]
fn regress_an_update_that_is_killed_leaves_the_old_version_in_force() {
    let fleet = Fleet::pinned();
    let first = fleet.state()["id"].clone();
    fleet.publish(2);
    for _ in 0..3 {
        let mut command = fleet.command("pin", &["--cache-size", "64m", "--rate", "20k"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until(&mut child, || fleet.state()["next"]["pinned_bytes"].as_u64().is_some_and(|bytes| bytes > 0));
        child.kill().unwrap();
        child.wait().unwrap();
        let state = fleet.state();
        assert!(state["id"] == first && state["complete"] == true && state["next"]["complete"] == false, "{state}");
    }
    if can_mount("the rest of an_update_that_is_killed") {
        assert_eq!(fleet.mounted(), "1");
        // Whoever starts it is told, without asking the server.
        let run = ["run", "--soft", "1", "--cache"];
        let said = output(runnel().args(run).arg(fleet.cache()).arg(&fleet.url).args(["--", "/no"]));
        let text = String::from_utf8_lossy(&said.stderr);
        assert!(text.contains("not all here") && text.contains(first.as_str().unwrap()), "{text}");
    }
    let update = fleet.pin(&[]).success();
    assert!(update["switched"] == true && update["blocks_present"].as_u64().unwrap() > 0, "{update}");
}

fn wait_until(child: &mut Child, is_so: impl Fn() -> bool) {
    while !is_so() {
        assert!(child.try_wait().unwrap().is_none(), "it ended too early");
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_full_cache_keeps_the_version_that_it_has() {
    let fleet = Fleet::pinned();
    let first = fleet.state()["id"].clone();
    fleet.publish(2);
    let small = |size: &str| Said(output(&mut fleet.command("pin", &["--cache-size", size])));
    small("1500k").failure(1, "needs");
    assert_eq!((&fleet.state()["id"], &fleet.state()["next"]), (&first, &serde_json::Value::Null));
}

/// A small disk, for a cache.
struct Disk(PathBuf);

impl Disk {
    fn mount(path: PathBuf) -> Disk {
        fs::create_dir(&path).unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=6m,mode=700", "tmpfs"];
        assert!(Command::new("mount").args(mount).arg(&path).status().unwrap().success());
        Disk(path)
    }

    /// Fills it, and tells how it became empty again.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = fs::File::create(&path).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn fuse_a_full_disk_keeps_the_version_that_works() {
    if !can_mount("fuse_a_full_disk_keeps_the_version") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::mount(folder.path().join("cache"));
    let mut fleet = Fleet::pinned_in(folder);
    let first = fleet.state()["id"].clone();
    fleet.publish(2);
    let filler = disk.fill();
    let text = fleet.pin(&[]).failure(1, "No space left");
    assert!(text.contains("hint: make room"), "{text}");
    assert!(fleet.state()["id"] == first && fleet.state()["complete"] == true, "{}", fleet.state());
    fs::remove_file(filler).unwrap();
    fleet.pin(&[]).success();
    assert_eq!((&fleet.state()["previous"]["id"], fleet.mounted()), (&first, "2".into()));
    // Now there are two versions, and half of the room that the third one needs.
    let filler = disk.fill();
    let file = fs::OpenOptions::new().write(true).open(filler).unwrap();
    file.set_len(file.metadata().unwrap().len() - (512 << 10)).unwrap();
    let second = fleet.state()["id"].clone();
    fleet.publish(3);
    let update = fleet.pin(&[]);
    assert!(update.success()["switched"] == true && update.text().contains("needs its room"), "{}", update.text());
    assert_eq!((&fleet.state()["previous"]["id"], fleet.mounted()), (&second, "3".into()));
    disk.fill();
    fleet.stop_server();
    assert_eq!(fleet.rollback().success()["id"], second);
    assert_eq!(fleet.mounted(), "2");
}

#[test]
fn regress_what_is_damaged_of_a_pin_is_fetched_again() {
    let fleet = Fleet::pinned();
    let whole = fleet.state();
    let log = fs::read_dir(fleet.cache()).unwrap().map(|entry| entry.unwrap().path());
    let log =
        log.max_by_key(|path| (path.extension() == Some("log".as_ref()), path.metadata().unwrap().len())).unwrap();
    let file = fs::OpenOptions::new().write(true).open(log).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[9; 100], 300 << 10).unwrap();
    let cache = fleet.cache();
    let verify = ["cache", "--cache", cache.to_str().unwrap(), "verify"];
    let text = fails(&verify, 3, "`runnel pin` fetches it again");
    assert!(text.contains(&fleet.url), "{text}");
    assert_eq!(fleet.state()["complete"], false, "{}", fleet.state());
    let repaired = fleet.pin(&[]).success();
    assert!(repaired["blocks_present"].as_u64() < repaired["blocks"].as_u64(), "{repaired}");
    assert_eq!(fleet.state(), whole);
    assert!(ok(&verify).contains(" 0 damaged"));
}

#[test]
fn names_and_folders_of_others_do_no_harm() {
    let fleet = Fleet::pinned();
    let server = fleet.url.rsplit_once('/').unwrap().0;
    let cache = fleet.cache();
    let cache = cache.to_str().unwrap();
    for name in ["../../etc/passwd", "a b", "-x", "app:../x", "$(touch x)", "é", "@00", "", "a\nb", "volume/x"] {
        for command in ["pin", "rollback"] {
            let url = format!("{server}/{name}");
            let said = output(runnel().args([command, "--cache", cache, &url]));
            assert!(!said.status.success(), "{command} {url:?}");
            assert!(!String::from_utf8_lossy(&said.stderr).contains("panicked"), "{command} {url:?}");
        }
    }
    fails(&["rollback", "--cache", cache, "app.rnl"], 2, "images of a server");
    fails(&["rollback", "--cache", "none", &fleet.url], 2, "--cache DIR");
    fails(&["rollback", "--cache", fleet.at("nowhere").to_str().unwrap(), &fleet.url], 4, "nowhere");
    fails(&["rollback", "--cache", cache, &format!("{server}/other")], 4, "not pinned");
    let files = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = files.filter(|name| name.ends_with(".pin")).collect();
    assert_eq!(names.len(), 1, "{names:?}");

    // Its record is tampered with: it counts as not pinned, and the next pin pins it.
    let state = fs::OpenOptions::new().write(true).open(Path::new(cache).join(&names[0])).unwrap();
    for at in [30, 4096 + 30] {
        std::os::unix::fs::FileExt::write_all_at(&state, b"x", at).unwrap();
    }
    fails(&["rollback", "--cache", cache, &fleet.url], 4, "not pinned");
    assert_eq!(fleet.pin(&[]).success()["switched"], true);
    // A folder that others can enter.
    fs::set_permissions(cache, fs::Permissions::from_mode(0o755)).unwrap();
    for command in ["pin", "rollback"] {
        fails(&[command, "--cache", cache, &fleet.url], 1, "nobody else can enter");
    }
    if is_root() {
        fs::set_permissions(cache, fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(cache, Some(1234), None).unwrap();
        for command in ["pin", "rollback"] {
            fails(&[command, "--cache", cache, &fleet.url], 1, "belongs to user 1234");
        }
    }
}

#[test]
fn fuse_a_mount_tells_that_its_cache_is_not_used() {
    if !can_mount("fuse_a_mount_tells_that_its_cache") {
        return;
    }
    let fleet = Fleet::pinned();
    let file = fleet.at("file");
    fs::File::create(&file).unwrap().write_all(b"x").unwrap();
    let mut mount = Mount::start(&fleet.url, &["--cache", file.to_str().unwrap()]);
    let problem = mount.status()["cache_problem"].as_str().unwrap_or_default().to_string();
    assert!(problem.contains(file.to_str().unwrap()), "{}", mount.status());
    let text = ok(&["status".as_ref(), mount.path.as_os_str()]);
    assert!(text.contains("device cache not used"), "{text}");
    mount.terminate();
    let mount = fleet.mount();
    assert_eq!(mount.status()["cache_problem"], serde_json::Value::Null);
}
