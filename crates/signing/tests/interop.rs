//! python-tuf as an independent judge: repositories made by it, repositories of ours, and the same
//! attacks on both, judged by its client and by ours.
//!
//! The tests make a virtual environment with python-tuf of one version, which needs PyPI and the
//! Debian packages python3-venv and python3-pip. Where these are missing they say so and end.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use signing::{Delegation, Lifetimes, Repository, SigningKey, Target};
use trust::repository::collect;
use trust::{Cache, Known, Stapled, State, UnixTime, Verifier};
use units::ImageId;

/// The packages, each of one version.
const PACKAGES: [&str; 2] = ["tuf==7.0.1", "securesystemslib[crypto]==1.6.0"];

/// A Python that has python-tuf; `None` if this machine cannot make virtual environments.
fn python() -> Option<PathBuf> {
    static MADE: OnceLock<Option<PathBuf>> = OnceLock::new();
    MADE.get_or_init(make_python).clone()
}

fn make_python() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-tuf-7.0.1");
    let python = folder.join("bin/python");
    let has_tuf =
        || Command::new(&python).args(["-c", "import tuf.ngclient"]).status().is_ok_and(|status| status.success());
    if !has_tuf() {
        let made = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder).output();
        match made {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                println!("skipped: no virtual environment: {}", String::from_utf8_lossy(&output.stdout));
                return None;
            }
            Err(error) => {
                println!("skipped: no python3: {error}");
                return None;
            }
        }
        let installed = Command::new(&python)
            .args(["-m", "pip", "--quiet", "install", "--retries", "1", "--timeout", "20"])
            .args(PACKAGES)
            .status();
        if !installed.is_ok_and(|status| status.success()) {
            println!("skipped: pip cannot install {PACKAGES:?}");
            return None;
        }
    }
    Some(python)
}

/// The answer of a server that has this folder; of hash bins it sends the one of the name.
fn answer(folder: &Path, known: &Known, bin: Option<&str>) -> Stapled {
    let read = |name: String| fs::read(folder.join(name)).ok();
    let mut answer = Stapled::default();
    // A root may be missing on purpose: the server sends those that it has.
    let roots = (known.root_version() + 1..known.root_version() + 33)
        .filter_map(|version| read(format!("{version}.root.json")));
    roots.for_each(|root| answer.push_root(root));
    let Some(timestamp) = read("timestamp.json".into()) else { return answer };
    let listed = |file: &[u8], role: &str| -> Option<u64> {
        let json: Value = serde_json::from_slice(file).ok()?;
        json["signed"]["meta"][format!("{role}.json")]["version"].as_u64()
    };
    let snapshot = listed(&timestamp, "snapshot").and_then(|version| read(format!("{version}.snapshot.json")));
    answer.push("timestamp", timestamp);
    let Some(snapshot) = snapshot else { return answer };
    let json: Value = serde_json::from_slice(&snapshot).expect("a snapshot");
    let roles: Vec<&str> = json["signed"]["meta"]
        .as_object()
        .expect("an object")
        .keys()
        .filter_map(|file| file.strip_suffix(".json"))
        .collect();
    for role in roles {
        if bin.is_some_and(|bin| role.starts_with("bin-") && role != bin) {
            continue;
        }
        if let Some(file) = listed(&snapshot, role).and_then(|version| read(format!("{version}.{role}.json"))) {
            answer.push(role, file);
        }
    }
    answer.push("snapshot", snapshot);
    answer.omit(known);
    answer
}

#[test]
fn interop_python_tuf_repositories() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/repositories.py");
    let output = Command::new(python).arg(script).arg(folder.path()).output().expect("python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let now = now();
    let mut devices: BTreeMap<String, (Verifier, Cache)> = BTreeMap::new();
    let mut count = 0;
    for line in String::from_utf8(output.stdout).expect("text").lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let [case, name, expected] = ["case", "name", "expected"].map(|key| line[key].as_str().expect("a text"));
        let trusted = fs::read(folder.path().join(case).join("trusted.json")).expect("a root");
        let (device, cache) = devices
            .entry(case.to_owned())
            .or_insert_with(|| (Verifier::new(&trusted).expect("a root"), Cache::default()));
        let answer = answer(
            &folder.path().join(case).join(line["answer"].to_string()),
            &cache.known(device.root_version()),
            line["bin"].as_str(),
        );
        let bytes = answer.encode().expect("fits");
        let answer = cache.complete(Stapled::decode(&bytes).expect("an answer"));
        let found = match device.verify(&answer, name, Some(now)) {
            Ok(found) => {
                cache.keep(&answer);
                found.image.to_string()
            }
            Err(refusal) => {
                println!("{case} {}: {refusal}", line["answer"]);
                refusal.kind().to_string()
            }
        };
        assert_eq!(found, expected, "{line}");
        if line["agree"] == true {
            assert_eq!(line["python"].as_str().is_some(), found.len() == 64, "both accept or both refuse: {line}");
            assert!(line["python"].is_null() || line["python"] == found, "{line}");
        }
        *device =
            Verifier::resume(&trusted, State::decode(&device.state().encode()).expect("a state")).expect("a root");
        count += 1;
    }
    assert!(count > 100, "{count} answers");
    println!("{count} answers judged as expected");
}

fn now() -> UnixTime {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    UnixTime(i64::try_from(now).expect("a time"))
}

/// A publisher of ours, who keeps every state of the repository in a folder of its own.
struct Publisher {
    keys: Vec<SigningKey>,
    root: Vec<u8>,
    files: Stapled,
    folder: PathBuf,
    states: usize,
}

impl Publisher {
    fn change(&mut self, edit: impl FnOnce(&mut Repository, &[SigningKey])) -> PathBuf {
        let mut repository = Repository::read(&self.root, &self.files, Lifetimes::default()).expect("read");
        edit(&mut repository, &self.keys);
        self.keep(repository)
    }

    fn keep(&mut self, repository: Repository) -> PathBuf {
        let change = repository.sign(&self.keys, now()).expect("signed");
        let old = self.folder.join(self.states.to_string());
        self.states += 1;
        let folder = self.folder.join(self.states.to_string());
        fs::create_dir(&folder).expect("made");
        for entry in fs::read_dir(old).into_iter().flatten() {
            let entry = entry.expect("listed");
            fs::copy(entry.path(), folder.join(entry.file_name())).expect("copied");
        }
        change.files.iter().for_each(|(name, bytes)| fs::write(folder.join(name), bytes).expect("written"));
        if let Some(root) = change.stapled.roots().last() {
            self.root.clone_from(root);
        }
        let before = std::mem::take(&mut self.files);
        for (role, file) in change.stapled.files().chain(before.files()) {
            self.files.push(role, file.to_vec());
        }
        folder
    }
}

fn key() -> SigningKey {
    SigningKey::generate(None).expect("random numbers").0
}

/// A copy of a state, changed.
fn attack(state: &Path, name: &str, change: impl FnOnce(&Path)) -> PathBuf {
    let folder = state.with_file_name(name);
    fs::create_dir(&folder).expect("made");
    for entry in fs::read_dir(state).expect("listed") {
        let entry = entry.expect("listed");
        fs::copy(entry.path(), folder.join(entry.file_name())).expect("copied");
    }
    change(&folder);
    folder
}

fn target(number: u8) -> Target {
    let digits = format!("{number:064x}");
    Target { id: ImageId([number; 32]), bytes: 4096, sha256: digits.clone(), fs_verity: digits }
}

/// Repositories of ours are read by python-tuf, which refuses what our device refuses.
#[test]
fn interop_our_repositories() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let keys: Vec<SigningKey> = (0..4).map(|_| key()).collect();
    let publics = keys.iter().map(SigningKey::public).collect::<Vec<_>>().try_into().expect("four");
    let (folder_path, files) = (folder.path().to_owned(), Stapled::default());
    let mut publisher = Publisher { keys, root: Vec::new(), files, folder: folder_path, states: 0 };
    publisher.keep(Repository::create(publics, Lifetimes::default()));
    let trusted = publisher.root.clone();
    let set = |publisher: &mut Publisher, name: &str, number: u8| {
        publisher.change(|repository, keys| drop(repository.set_name(name, &target(number), None, keys).expect("set")))
    };
    let first = set(&mut publisher, "app:1", 1);
    let second = set(&mut publisher, "app:1", 2);
    let (theirs, new_root, new_targets) = (key(), key(), key());
    let delegation = Delegation {
        role: "media".into(),
        patterns: vec!["media-*:*".into()],
        keys: vec![theirs.public()],
        threshold: 1,
    };
    publisher.change(|repository, _| repository.delegate(&delegation).expect("delegated"));
    publisher.keys.push(theirs);
    let delegated = set(&mut publisher, "media-player:1", 3);
    let (root, targets) = (new_root.public(), new_targets.public());
    publisher.keys.extend([new_root, new_targets]);
    publisher.change(|repository, _| repository.rotate("root", &[root], 1).expect("rotated"));
    publisher.change(|repository, _| repository.rotate("targets", &[targets], 1).expect("rotated"));
    let rotated = set(&mut publisher, "app:1", 4);
    let removed = publisher.change(|repository, _| drop(repository.remove_name("app:1").expect("removed")));

    let swap = |state: &Path, from: &Path, file: &str| {
        fs::copy(from.join(file), state.join(file)).expect("copied");
    };
    let newest_snapshot = |state: &Path| {
        let file = fs::read(state.join("timestamp.json")).expect("a timestamp");
        let file: Value = serde_json::from_slice(&file).expect("JSON");
        format!("{}.snapshot.json", file["signed"]["meta"]["snapshot.json"]["version"])
    };
    let rollback = attack(&rotated, "rollback", |state| swap(state, &second, "timestamp.json"));
    let forged = attack(&rotated, "forged", |state| {
        let file = state.join(newest_snapshot(state));
        let text = fs::read_to_string(&file).expect("text").replace("\"version\":", "\"version\":1");
        fs::write(&file, text).expect("written");
    });
    let truncated = attack(&rotated, "truncated", |state| {
        let file = state.join("timestamp.json");
        let bytes = fs::read(&file).expect("read");
        fs::write(&file, &bytes[..bytes.len() / 2]).expect("written");
    });
    let gap = attack(&rotated, "gap", |state| fs::remove_file(state.join("2.root.json")).expect("removed"));
    fs::write(folder.path().join("trusted.json"), &trusted).expect("written");
    let judge = |steps: &[(&PathBuf, &str, Option<u8>)]| judged(&python, &folder.path().join("trusted.json"), steps);
    judge(&[
        (&first, "app:1", Some(1)),
        (&first, "other:1", None),
        (&second, "app:1", Some(2)),
        (&first, "app:1", None),
        (&delegated, "media-player:1", Some(3)),
        (&delegated, "app:1", Some(2)),
        (&gap, "app:1", None),
        (&rotated, "app:1", Some(4)),
        (&rollback, "app:1", None),
        (&truncated, "app:1", None),
        (&removed, "app:1", None),
        (&removed, "media-player:1", Some(3)),
        (&rotated, "app:1", None),
    ]);
    judge(&[(&second, "app:1", Some(2)), (&forged, "app:1", None), (&rotated, "app:1", Some(4))]);
}

/// Opens names in folders, in turn, with a new client of python-tuf and a new device of ours.
fn judged(python: &Path, trusted: &Path, steps: &[(&PathBuf, &str, Option<u8>)]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/judge.py");
    let mut judge = Command::new(python);
    judge.arg(script).arg(trusted);
    for (state, name, _) in steps {
        judge.arg(state).arg(name);
    }
    let output = judge.output().expect("python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let theirs: Vec<String> = String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect();
    assert_eq!(theirs.len(), steps.len());
    let trusted = fs::read(trusted).expect("a root");
    let (mut device, mut cache) = (Verifier::new(&trusted).expect("a root"), Cache::default());
    for ((state, name, expected), theirs) in steps.iter().zip(theirs) {
        let known = cache.known(device.root_version());
        let answer = collect::<()>(name, &known, |file| Ok(fs::read(state.join(file)).ok())).expect("read");
        let answer = cache.complete(answer);
        let ours = match device.verify(&answer, name, Some(now())) {
            Ok(found) => {
                cache.keep(&answer);
                found.image.to_string()
            }
            Err(_) => "refused".into(),
        };
        let expected = expected.map_or("refused".into(), |number: u8| ImageId([number; 32]).to_string());
        assert_eq!((&ours, &theirs), (&expected, &expected), "{name} in {}", state.display());
    }
}
