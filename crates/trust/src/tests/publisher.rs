//! A repository writer for tests. It shares no code with the verifier: `serde_json` writes the
//! canonical form, which it does for sorted keys and plain text.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use ring::digest::{SHA256, digest};
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Map, Value, json};

use crate::Stapled;

/// Seconds since 1970 at which tests begin: 2026-09-13.
pub const START: i64 = 1_789_300_000;

/// Seconds of a day.
pub const DAY: i64 = 86_400;

pub fn hex(bytes: &[u8]) -> String {
    let digit = |digit: u8| char::from(b"0123456789abcdef"[usize::from(digit)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

thread_local! {
    /// Key pairs by label; making one takes longer than signing.
    static PAIRS: RefCell<HashMap<String, Rc<Ed25519KeyPair>>> = RefCell::default();
}

fn pair(label: &str) -> Rc<Ed25519KeyPair> {
    let made = || {
        let seed = digest(&SHA256, format!("seed of {label}").as_bytes());
        Rc::new(Ed25519KeyPair::from_seed_unchecked(seed.as_ref()).expect("a seed of 32 bytes"))
    };
    PAIRS.with_borrow_mut(|pairs| pairs.entry(label.to_owned()).or_insert_with(made).clone())
}

pub fn key(label: &str) -> Value {
    let public = hex(pair(label).public_key().as_ref());
    json!({"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": public}})
}

pub fn key_id(label: &str) -> String {
    sha256(label.as_bytes())
}

/// A file with the signatures of the keys that have these labels.
pub fn sign(body: &Value, labels: &[String]) -> Vec<u8> {
    let message = serde_json::to_vec(body).expect("JSON");
    let signatures: Vec<Value> = labels
        .iter()
        .map(|label| json!({"keyid": key_id(label), "sig": hex(pair(label).sign(&message).as_ref())}))
        .collect();
    serde_json::to_vec(&json!({"signatures": signatures, "signed": body})).expect("JSON")
}

pub fn expires(time: i64) -> String {
    format!("{}:00Z", units::date(time).replace(' ', "T"))
}

/// A role: its file's version and expiry, and its keys by label.
#[derive(Clone, Debug)]
pub struct Role {
    pub version: u64,
    pub expires: i64,
    pub keys: Vec<String>,
    pub threshold: u64,
}

impl Role {
    pub fn new(label: &str, days: i64) -> Role {
        Role { version: 1, expires: START + days * DAY, keys: vec![label.to_owned()], threshold: 1 }
    }

    pub fn json(&self) -> Value {
        let ids: Vec<String> = self.keys.iter().map(|label| key_id(label)).collect();
        json!({"keyids": ids, "threshold": self.threshold})
    }
}

/// A delegated targets role.
#[derive(Clone, Debug)]
pub struct Delegated {
    pub name: String,
    pub parent: String,
    pub role: Role,
    pub paths: Vec<String>,
    pub terminating: bool,
    pub names: BTreeMap<String, u64>,
}

/// Everything that publishers sign, before it is signed.
#[derive(Clone, Debug)]
pub struct Publisher {
    pub root: Role,
    /// Keys of the root before this one, which sign it too.
    pub old_root_keys: Vec<String>,
    pub timestamp: Role,
    pub snapshot: Role,
    pub targets: Role,
    pub names: BTreeMap<String, u64>,
    pub delegated: Vec<Delegated>,
    pub has_hashes: bool,
}

/// Files by role, `root` among them.
pub type Files = BTreeMap<String, Vec<u8>>;

pub fn image(number: u64) -> String {
    format!("{number:064x}")
}

fn target(number: &u64) -> Value {
    let hash = sha256(&number.to_le_bytes());
    json!({"length": 4096 + number, "hashes": {"sha256": hash}, "custom": {"runnel": {"id": image(*number)}}})
}

impl Publisher {
    /// One key for each role; `app:1` is image 1.
    pub fn new() -> Publisher {
        Publisher {
            root: Role::new("root", 365),
            old_root_keys: Vec::new(),
            timestamp: Role::new("timestamp", 1),
            snapshot: Role::new("snapshot", 7),
            targets: Role::new("targets", 90),
            names: BTreeMap::from([("app:1".to_owned(), 1)]),
            delegated: Vec::new(),
            has_hashes: true,
        }
    }

    /// Delegates names that begin with `prefix` to a role that has image `number` for `name`.
    pub fn delegate(&mut self, parent: &str, name: &str, paths: &[&str], names: &[(&str, u64)]) -> &mut Delegated {
        self.delegated.push(Delegated {
            name: name.to_owned(),
            parent: parent.to_owned(),
            role: Role::new(name, 30),
            paths: paths.iter().map(|path| path.to_string()).collect(),
            terminating: false,
            names: names.iter().map(|(name, number)| (name.to_string(), *number)).collect(),
        });
        self.delegated.last_mut().expect("just pushed")
    }

    pub fn files(&self) -> Files {
        self.edited(|_, _| {})
    }

    /// The files, each body changed by `edit` before it is signed.
    pub fn edited(&self, edit: impl Fn(&str, &mut Value)) -> Files {
        let mut files = Files::new();
        for delegated in &self.delegated {
            let body = self.targets_body(&delegated.name, &delegated.role, &delegated.names);
            add(&mut files, &edit, &delegated.name, body, &delegated.role.keys);
        }
        add(&mut files, &edit, "targets", self.targets_body("targets", &self.targets, &self.names), &self.targets.keys);
        let versions = self.delegated.iter().map(|delegated| (&delegated.name[..], delegated.role.version));
        let versions: Vec<(&str, u64)> = versions.chain([("targets", self.targets.version)]).collect();
        let body = head("snapshot", &self.snapshot, "meta", self.meta(&versions, &files));
        add(&mut files, &edit, "snapshot", body, &self.snapshot.keys);
        let body =
            head("timestamp", &self.timestamp, "meta", self.meta(&[("snapshot", self.snapshot.version)], &files));
        add(&mut files, &edit, "timestamp", body, &self.timestamp.keys);
        let mut signers = self.root.keys.clone();
        signers.extend(self.old_root_keys.iter().filter(|label| !self.root.keys.contains(label)).cloned());
        add(&mut files, &edit, "root", self.root_body(), &signers);
        files
    }

    fn meta(&self, versions: &[(&str, u64)], files: &Files) -> Value {
        let entry = |(role, version): &(&str, u64)| {
            let bytes = &files[*role];
            let listed = match self.has_hashes {
                true => json!({"version": version, "length": bytes.len(), "hashes": {"sha256": sha256(bytes)}}),
                false => json!({"version": version}),
            };
            (format!("{role}.json"), listed)
        };
        Value::Object(versions.iter().map(entry).collect())
    }

    fn root_body(&self) -> Value {
        let roles = [
            ("root", &self.root),
            ("timestamp", &self.timestamp),
            ("snapshot", &self.snapshot),
            ("targets", &self.targets),
        ];
        let labels = roles.iter().flat_map(|(_, role)| &role.keys);
        let keys: Map<String, Value> = labels.map(|label| (key_id(label), key(label))).collect();
        let roles: Map<String, Value> = roles.iter().map(|(name, role)| (name.to_string(), role.json())).collect();
        let mut body = head("root", &self.root, "keys", Value::Object(keys));
        body["roles"] = Value::Object(roles);
        body["consistent_snapshot"] = Value::Bool(true);
        body
    }

    fn targets_body(&self, name: &str, role: &Role, names: &BTreeMap<String, u64>) -> Value {
        let targets = names.iter().map(|(name, number)| (name.clone(), target(number))).collect();
        let mut body = head("targets", role, "targets", Value::Object(targets));
        let children: Vec<&Delegated> = self.delegated.iter().filter(|child| child.parent == name).collect();
        if !children.is_empty() {
            let labels = children.iter().flat_map(|child| &child.role.keys);
            let keys: Map<String, Value> = labels.map(|label| (key_id(label), key(label))).collect();
            let roles = children.iter().map(|child| {
                let mut role = child.role.json();
                role["name"] = json!(child.name);
                role["paths"] = json!(child.paths);
                role["terminating"] = json!(child.terminating);
                role
            });
            body["delegations"] = json!({"keys": keys, "roles": roles.collect::<Vec<Value>>()});
        }
        body
    }
}

fn head(kind: &str, role: &Role, field: &str, value: Value) -> Value {
    let mut body =
        json!({"_type": kind, "spec_version": "1.0.31", "version": role.version, "expires": expires(role.expires)});
    body[field] = value;
    body
}

fn add(files: &mut Files, edit: &impl Fn(&str, &mut Value), role: &str, mut body: Value, keys: &[String]) {
    edit(role, &mut body);
    files.insert(role.to_owned(), sign(&body, keys));
}

/// The answer of a server with these files and no new root.
pub fn stapled(files: &Files) -> Stapled {
    let mut answer = Stapled::default();
    files.iter().filter(|(role, _)| *role != "root").for_each(|(role, file)| answer.push(role, file.clone()));
    answer
}
