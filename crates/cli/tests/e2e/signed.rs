//! Signed names as publisher, operator and device use them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::*;

/// A publisher, a server, and a device that trusts the publisher alone.
struct Fleet {
    folder: tempfile::TempDir,
    server: Option<Server>,
}

impl Fleet {
    fn new() -> Fleet {
        let folder = tempfile::tempdir().unwrap();
        let server = Some(Server::start(&folder.path().join("store")));
        let fleet = Fleet { folder, server };
        for (image, file) in [("one", "first"), ("two", "second")] {
            fs::create_dir(fleet.at(image)).unwrap();
            fs::write(fleet.at(image).join(file), image).unwrap();
            ok(&["pack".as_ref(), fleet.at(image).as_os_str(), "-o".as_ref(), fleet.image(image).as_os_str()]);
        }
        fs::write(fleet.at("passphrase"), "a secret\n").unwrap();
        fleet.trust(&["init", fleet.text("publisher").as_str()]);
        fleet
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.at(name).to_str().unwrap().to_owned()
    }

    fn image(&self, name: &str) -> PathBuf {
        self.at(&format!("{name}.rnl"))
    }

    fn url(&self, name: &str) -> String {
        self.server.as_ref().unwrap().url(name)
    }

    fn server_url(&self) -> String {
        self.url("").trim_end_matches('/').to_owned()
    }

    fn publisher(&self) -> Command {
        let mut command = runnel();
        command.env("RUNNEL_TRUST_PASSPHRASE_FILE", self.at("passphrase"));
        command
    }

    fn trust(&self, arguments: &[&str]) -> String {
        let done = output(self.publisher().arg("trust").args(arguments));
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    fn push(&self, image: &str, name: &str) {
        let mut push = self.publisher();
        push.args(["push", "--sign", &self.text("publisher")]).arg(self.image(image)).arg(self.url(name));
        let done = output(&mut push);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert!(String::from_utf8_lossy(&done.stdout).contains("signed by role"));
    }

    fn device(&self) -> Command {
        let mut command = runnel();
        command.env("RUNNEL_TRUST_STATE", self.at("state"));
        command
    }

    fn ls(&self, name: &str) -> (i32, String) {
        let root = self.text("publisher/root.json");
        let done = output(self.device().args(["ls", "--trust", &root, &self.url(name)]));
        let said = [done.stdout, done.stderr].concat();
        (done.status.code().unwrap(), String::from_utf8(said).unwrap())
    }

    fn refused(&self, name: &str, code: i32, what: &str) {
        let (found, said) = self.ls(name);
        assert!(found == code && said.contains(what), "{found}: {said}");
    }

    /// What the server has, as a backup.
    fn backup(&self, name: &str) {
        let copied = Command::new("cp").arg("-r").arg(self.at("store/trust")).arg(self.at(name)).status();
        assert!(copied.unwrap().success());
    }

    fn restore(&self, name: &str) {
        fs::remove_dir_all(self.at("store/trust")).unwrap();
        fs::rename(self.at(name), self.at("store/trust")).unwrap();
    }
}

#[test]
fn a_device_runs_what_its_publisher_signed() {
    let fleet = Fleet::new();
    let keys = fs::read_to_string(fleet.at("publisher/keys/root.key")).unwrap();
    assert!(keys.contains("ENCRYPTED"), "{keys}");
    // Not even the name that is there, since nobody has signed it.
    ok(&["push".as_ref(), fleet.image("one").as_os_str(), fleet.url("app:1").as_ref()]);
    fleet.refused("app:1", 25, "missing");
    fleet.push("one", "app:1");
    assert_eq!(fleet.ls("app:1"), (0, "first\n".into()));
    fleet.refused("app:2", 4, "app:2");
    fleet.backup("old");
    fleet.push("two", "app:1");
    assert_eq!(fleet.ls("app:1"), (0, "second\n".into()));
    // An operator's backup, or an attacker's copy.
    fleet.backup("new");
    fleet.restore("old");
    fleet.refused("app:1", 20, "rollback");
    fleet.restore("new");
    fleet.backup("old");
    // The server has new keys, and the device follows.
    for role in ["timestamp", "snapshot", "targets", "root"] {
        fleet.trust(&["rotate", &fleet.text("publisher"), "--role", role, "--server", &fleet.server_url()]);
    }
    assert_eq!(fleet.ls("app:1"), (0, "second\n".into()));
    fleet.trust(&["refresh", &fleet.text("publisher"), "--server", &fleet.server_url()]);
    let shown = fleet.trust(&["show", &fleet.url("app:1"), "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["roles"][0]["role"], &shown["roles"][0]["version"]), (&"root".into(), &5.into()), "{shown}");
    // Old keys count no more.
    fleet.restore("old");
    fleet.refused("app:1", 24, "signature");
    // A name that another publisher signed.
    let other = Fleet::new();
    other.push("two", "app:1");
    fs::remove_dir_all(fleet.at("store/trust")).unwrap();
    let copied = Command::new("cp").arg("-r").arg(other.at("store/trust")).arg(fleet.at("store/trust")).status();
    assert!(copied.unwrap().success());
    fleet.refused("app:1", 24, "signature");
}

#[test]
fn a_name_that_is_taken_away_is_refused() {
    let fleet = Fleet::new();
    fleet.push("one", "app:1");
    assert_eq!(fleet.ls("app:1").0, 0);
    fleet.trust(&["remove", &fleet.text("publisher"), "app:1", "--server", &fleet.server_url()]);
    fleet.refused("app:1", 4, "no publisher has signed");
    let again = ["trust", "remove", &fleet.text("publisher"), "app:1", "--server", &fleet.server_url()];
    let done = output(fleet.publisher().args(again));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(4) && said.contains("nobody has signed app:1"), "{said}");
}

#[test]
fn commands_that_sign_in_one_folder_wait_for_each_other() {
    let fleet = Fleet::new();
    let (folder, image) = (fleet.text("automatic"), fleet.image("one"));
    fleet.trust(&["init", &folder, "--no-passphrase"]);
    let sign = |name: &str| {
        let mut sign = runnel();
        sign.args(["trust", "sign", &folder, name]).arg(&image).stdout(Stdio::null()).stderr(Stdio::piped());
        sign.spawn().unwrap()
    };
    let lock = fs::File::create(fleet.at("automatic/lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let names = ["a:1", "b:1", "c:1", "d:1"];
    let mut signing: Vec<_> = names.iter().map(|name| sign(name)).collect();
    for one in &mut signing {
        let mut line = String::new();
        BufReader::new(one.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("waiting for another command that signs in"), "{line}");
    }
    drop(lock);
    signing.iter_mut().for_each(|one| assert!(one.wait().unwrap().success()));
    let shown = fleet.trust(&["show", &folder]);
    assert!(names.iter().all(|name| shown.contains(&format!("{name} is"))), "{shown}");
    // Files go as they are: the keys stay closed.
    fleet.trust(&["sign", &fleet.text("publisher"), "app:1", image.to_str().unwrap()]);
    let mut publish = runnel();
    publish.env_remove("RUNNEL_TRUST_PASSPHRASE_FILE");
    let done = output(publish.args(["trust", "publish", &fleet.text("publisher"), "--server", &fleet.server_url()]));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let shown = fleet.trust(&["show", &fleet.url("app:1")]);
    assert!(shown.contains("app:1 is"), "{shown}");
}

#[test]
fn a_publisher_signs_the_names_that_were_delegated() {
    let fleet = Fleet::new();
    let (owner, team) = (fleet.text("publisher"), fleet.text("team"));
    let public = fleet.trust(&["key", &team, "--role", "media"]);
    let delegate = ["delegate", &owner, "--role", "media", "--names", "media-*:*", "--public", public.trim()];
    fleet.trust(&[&delegate[..], &["--server", &fleet.server_url()]].concat());
    for key in ["snapshot", "timestamp"] {
        let key = format!("keys/{key}.key");
        fs::copy(Path::new(&owner).join(&key), Path::new(&team).join(&key)).unwrap();
    }
    fs::copy(Path::new(&owner).join("root.json"), Path::new(&team).join("root.json")).unwrap();
    let push = |name: &str| {
        let image = fleet.image("one");
        output(fleet.publisher().args(["push", "--sign", &team]).arg(&image).arg(fleet.url(name)))
    };
    let done = push("media-player:1");
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("signed by role media"), "{said}");
    assert_eq!(fleet.ls("media-player:1"), (0, "first\n".into()));
    let done = push("app:1");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("targets needs signatures"), "{said}");
    fleet.refused("app:1", 4, "no publisher has signed");
    // The owner goes on from what the team has signed.
    fleet.push("two", "app:1");
    assert_eq!(fleet.ls("app:1"), (0, "second\n".into()));
    assert_eq!(fleet.ls("media-player:1"), (0, "first\n".into()));
}

#[test]
fn a_server_refreshes_with_the_timestamp_key_and_no_other() {
    let mut fleet = Fleet::new();
    fleet.push("one", "app:1");
    drop(fleet.server.take());
    fs::create_dir(fleet.at("key")).unwrap();
    let put = |role: &str| fs::copy(fleet.at(&format!("publisher/keys/{role}.key")), fleet.at("key/its.key")).unwrap();
    let serve = |passphrase: &str| {
        let mut serve = runnel();
        serve.arg("serve").arg(fleet.at("store")).args(["--listen", "127.0.0.1:0", "--timestamp-key"]);
        serve.arg(fleet.at("key/its.key")).env("RUNNEL_TRUST_PASSPHRASE_FILE", passphrase);
        serve.stdin(Stdio::null()).stderr(Stdio::piped());
        serve
    };
    let refused = |mut serve: Command, what: &str| {
        let done = output(&mut serve);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(2) && said.contains(what), "{said}");
    };
    put("snapshot");
    refused(serve(&fleet.text("passphrase")), "is no timestamp key of the present root");
    put("timestamp");
    refused(serve(""), "RUNNEL_TRUST_PASSPHRASE_FILE");
    // As after a publisher that signs with a shorter life: an old timestamp, which is due.
    let file = fleet.at("store/trust/timestamp.json");
    let old: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let key = fs::read_to_string(fleet.at("publisher/keys/timestamp.key")).unwrap();
    let key = signing::SigningKey::read(&key, Some(b"a secret")).unwrap();
    let root = fs::read(fleet.at("publisher/root.json")).unwrap();
    let lifetimes = signing::Lifetimes { timestamp: 3, ..signing::Lifetimes::default() };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let now = trust::UnixTime(now.cast_signed());
    let due = signing::renew_timestamp(&root, &fs::read(&file).unwrap(), &[key], lifetimes, now).unwrap();
    fs::write(&file, due).unwrap();
    let mut child = serve(&fleet.text("passphrase")).arg("--ready-file").arg(fleet.at("ready")).spawn().unwrap();
    let address = wait_for_file(&fleet.at("ready"), &mut child, "the server");
    let new: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let version = |file: &serde_json::Value| file["signed"]["version"].as_u64().unwrap();
    assert_eq!((version(&new), &new["signed"]["meta"]), (version(&old) + 2, &old["signed"]["meta"]));
    let root = fleet.text("publisher/root.json");
    let done = output(fleet.device().args(["ls", "--trust", &root, &format!("runnel://{}/app:1", address.trim())]));
    assert_eq!(String::from_utf8_lossy(&done.stdout), "first\n");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_server_has_a_timestamp_key_of_its_own_beside_its_publishers() {
    let mut fleet = Fleet::new();
    fleet.push("one", "app:1");
    let (publisher, url) = (fleet.text("publisher"), fleet.server_url());
    let public = fleet.trust(&["key", &fleet.text("server"), "--role", "timestamp", "--no-passphrase"]);
    let rotate = ["rotate", &publisher, "--role", "timestamp", "--public", public.trim(), "--server", &url];
    // Two must sign, and one is here: nothing changes.
    let done = output(fleet.publisher().arg("trust").args(rotate).args(["--threshold", "2"]));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("signatures of 2 of its keys, and 1 are here"), "{said}");
    let done = output(fleet.publisher().arg("trust").args(rotate).args(["--threshold", "3"]));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("from 1 to the number of keys"), "{said}");
    assert!(!fleet.at("publisher/keys/timestamp-2.key").exists());
    fleet.trust(&rotate);
    drop(fleet.server.take());
    let key = fleet.text("server/keys/timestamp.key");
    fleet.server = Some(Server::start_at(&fleet.at("store"), "127.0.0.1:0", &["--timestamp-key", &key]));
    // Each signs with its own.
    fleet.push("two", "app:1");
    assert_eq!(fleet.ls("app:1"), (0, "second\n".into()));
}

#[test]
fn three_holders_sign_one_after_another() {
    let fleet = Fleet::new();
    fleet.push("one", "app:1");
    assert_eq!(fleet.ls("app:1"), (0, "first\n".into()));
    let (url, [a, b, c]) = (fleet.server_url(), ["publisher", "b", "c"].map(|folder| fleet.text(folder)));
    let key = |folder: &str, role: &str| fleet.trust(&["key", folder, "--role", role]).trim().to_owned();
    let (root_of_b, root_of_c) = (key(&b, "root"), key(&c, "root"));
    for holder in [&b, &c] {
        fs::copy(fleet.at("publisher/root.json"), Path::new(holder).join("root.json")).unwrap();
    }
    let share = ["rotate", &a, "--role", "root", "--public", &root_of_b, "--public", &root_of_c, "--threshold", "2"];
    let share = [&share[..], &["--server", &url]].concat();
    let said = fleet.trust(&share);
    assert!(said.contains("not yet in force") && said.contains(&root_of_b) && said.contains("--draft"), "{said}");
    let refused = |arguments: &[&str], what: &str| {
        let done = output(fleet.publisher().arg("trust").args(arguments));
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && said.contains(what), "{said}");
    };
    refused(&share, "another change of root still waits");
    assert!(!fleet.at("publisher/keys/root-3.key").exists());
    // Without a server the root is enough to judge the draft of a root.
    let root_draft = fleet.text("publisher/drafts/root.json");
    let said = fleet.trust(&["sign", "--draft", &root_draft, &c, "--check"]);
    assert!(said.contains("root: 2 of 3 keys must sign, and so far 1 of 1"), "{said}");
    fs::copy(&root_draft, fleet.at("root.json")).unwrap();
    fleet.trust(&["sign", "--draft", &root_draft, &c]);
    assert!(!Path::new(&root_draft).exists());
    fleet.trust(&["publish", &c, "--server", &url]);
    let kept = fleet.text("root.json");
    refused(&["sign", "--draft", &kept, &b, "--server", &url], "overtaken");
    // Root and targets change together; the second holder of both has no key of the snapshot.
    let targets_of_b = key(&b, "targets");
    let said = fleet.trust(&[
        "rotate",
        &a,
        "--role",
        "targets",
        "--public",
        &targets_of_b,
        "--threshold",
        "2",
        "--server",
        &url,
        "--json",
    ]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["in_force"], said["drafts"].as_array().map(Vec::len)), (&false.into(), Some(2)), "{said}");
    let drafts = fleet.text("publisher/drafts");
    let said = fleet.trust(&["sign", "--draft", &drafts, &b, "--server", &url]);
    assert!(said.contains("as snapshot, with 1:"), "{said}");
    fleet.trust(&["sign", "--draft", &drafts, &a, "--server", &url]);
    // A push moves the name for those who check nothing.
    let mut push = fleet.publisher();
    push.args(["push", "--sign", &a]).arg(fleet.image("two")).arg(fleet.url("app:1"));
    let done = output(&mut push);
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("not yet in force"), "{said}");
    assert_eq!(fleet.ls("app:1"), (0, "first\n".into()));
    for role in ["snapshot", "timestamp"] {
        let key = format!("keys/{role}.key");
        fs::copy(Path::new(&a).join(&key), Path::new(&b).join(&key)).unwrap();
    }
    let targets_draft = fleet.text("publisher/drafts/targets.json");
    let said = fleet.trust(&["sign", "--draft", &targets_draft, &b, "--server", &url, "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["in_force"], true, "{said}");
    assert!(said["changes"].to_string().contains("name changed: app:1 is"), "{said}");
    assert_eq!(fleet.ls("app:1"), (0, "second\n".into()));
}

#[test]
fn fuse_signed_names_mount_run_and_pin() {
    if !can_mount("fuse_signed_names_mount_run_and_pin") {
        return;
    }
    let mut fleet = Fleet::new();
    fleet.push("one", "app:1");
    let (root, cache) = (fleet.text("publisher/root.json"), fleet.text("cache"));
    let url = fleet.url("app:1");
    let mount = Mount::start_by(fleet.device(), None, &url, &["--trust", &root, "--cache", &cache]);
    assert_eq!(fs::read_to_string(mount.path.join("first")).unwrap(), "one");
    drop(mount);
    let pinned = output(fleet.device().args(["pin", "--trust", &root, "--cache", &cache, &url]));
    assert!(pinned.status.success(), "{}", String::from_utf8_lossy(&pinned.stderr));
    fleet.push("two", "app:1");
    fleet.backup("old");
    // The pinned version, which was signed once.
    fleet.server.take().unwrap().kill();
    let mount = Mount::start_by(fleet.device(), None, &url, &["--trust", &root, "--cache", &cache, "--soft", "1"]);
    assert_eq!(fs::read_to_string(mount.path.join("first")).unwrap(), "one");
    drop(mount);
    let unsigned = output(
        runnel()
            .args(["ls", "--trust", &root, "http://127.0.0.1:9/app.rnl"])
            .env("RUNNEL_TRUST_STATE", fleet.at("state")),
    );
    let said = String::from_utf8_lossy(&unsigned.stderr).into_owned();
    assert!(unsigned.status.code() == Some(5) && said.contains("cannot connect"), "{said}");
}
