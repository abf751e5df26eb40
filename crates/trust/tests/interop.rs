//! Repositories made by python-tuf, and the same attacks judged by both clients.
//!
//! The test makes a virtual environment with python-tuf of one version, which needs the network and
//! the Debian packages python3-venv and python3-pip:
//!
//! ```text
//! cargo test -p runnel-trust --test interop -- --ignored
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use trust::{Cache, Known, Stapled, State, UnixTime, Verifier};

/// The packages, each of one version.
const PACKAGES: [&str; 2] = ["tuf==7.0.1", "securesystemslib[crypto]==1.6.0"];

/// A Python that has python-tuf; `None` if this machine cannot make virtual environments.
fn python() -> Option<PathBuf> {
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
        let installed = Command::new(&python).args(["-m", "pip", "--quiet", "install"]).args(PACKAGES).status();
        assert!(installed.is_ok_and(|status| status.success()), "pip cannot install {PACKAGES:?}");
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
#[ignore = "installs python-tuf from PyPI"]
fn interop_python_tuf_repositories() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/repositories.py");
    let output = Command::new(python).arg(script).arg(folder.path()).output().expect("python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let now = UnixTime(i64::try_from(now).expect("a time"));

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
