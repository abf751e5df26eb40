//! A repository as its owner changes it.

mod draft;
mod sign;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use trust::Stapled;
use trust::repository::{covers, is_name};
use units::ImageId;

use crate::error::SigningError;
use crate::file::{File, Signature};
use crate::key::{PublicKey, SigningKey};
use crate::role::{Lifetimes, RoleKeys, TOP_LEVEL, drop_unused, set_keys};

pub use self::draft::{Draft, Missing, Signed};

/// The version of the specification that is followed.
const SPEC_VERSION: &str = "1.0.31";

/// Longest name of a delegated role, and of what it is made: it becomes part of the name of a file.
const ROLE_BYTES_MAX: usize = 64;

/// The metadata files of a repository, and what is to change in them.
pub struct Repository {
    /// The newest root.
    root: File,
    /// The root before it, whose keys must sign the new one too.
    old_root: Option<File>,
    /// The other files, by role.
    files: BTreeMap<String, File>,
    changed: BTreeSet<String>,
    /// Changed files that others have made and signed, with their signatures.
    drafted: BTreeMap<String, Vec<Signature>>,
    lifetimes: Lifetimes,
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The image.
    pub id: ImageId,
    /// Bytes of its file.
    pub bytes: u64,
    /// SHA-256 of its file, for other clients of The Update Framework, as hexadecimal digits.
    pub sha256: String,
    /// What Linux's fs-verity has for its file, as hexadecimal digits ([`crate::fs_verity_of`]): a
    /// device that seals the file compares.
    pub fs_verity: String,
}

/// A role that others may sign names for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegation {
    /// Its name.
    pub role: String,
    /// Patterns of the names that it may sign, such as `media-*:*`.
    pub patterns: Vec<String>,
    /// Its keys.
    pub keys: Vec<PublicKey>,
    /// How many of them must sign.
    pub threshold: usize,
}

/// Files that were signed now.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// By their names in a repository, in the order in which they are to be written: the timestamp,
    /// which makes the others count, comes last.
    pub files: Vec<(String, Vec<u8>)>,
    /// The same as a server takes them, with the other files that a device needs.
    pub stapled: Stapled,
}

impl Repository {
    /// A new repository without names. The keys are those of root, timestamp, snapshot and targets.
    pub fn create(keys: [PublicKey; 4], lifetimes: Lifetimes) -> Repository {
        let mut body = json!({"_type": "root", "spec_version": SPEC_VERSION, "version": 0,
            "consistent_snapshot": true, "keys": {}, "roles": {}});
        let mut all = body["keys"].take();
        for (role, key) in TOP_LEVEL.iter().zip(&keys) {
            let mut entry = json!({});
            set_keys(&mut entry, &mut all, &[*key], 1);
            body["roles"][*role] = entry;
        }
        body["keys"] = all;
        let file = |body| File { body, bytes: Vec::new() };
        let empty = |kind: &str, field: &str| {
            file(json!({"_type": kind, "spec_version": SPEC_VERSION, "version": 0, field: {}}))
        };
        let files = BTreeMap::from([
            ("timestamp".into(), empty("timestamp", "meta")),
            ("snapshot".into(), empty("snapshot", "meta")),
            ("targets".into(), empty("targets", "targets")),
        ]);
        let changed = TOP_LEVEL.iter().map(|role| role.to_string()).collect();
        Repository { root: file(body), old_root: None, files, changed, drafted: BTreeMap::new(), lifetimes }
    }

    /// A repository from its newest root and the other files, which the caller has verified. With
    /// the root alone, nothing but drafts of the next root can be signed.
    ///
    /// # Errors
    /// A file is none, or missing beside others.
    pub fn read(root: &[u8], others: &Stapled, lifetimes: Lifetimes) -> Result<Repository, SigningError> {
        let root = File::read("root", root)?;
        let mut files = BTreeMap::new();
        for (role, bytes) in others.files() {
            files.insert(role.to_owned(), File::read(role, bytes)?);
        }
        let is_missing = |role: &&&str| !files.is_empty() && !files.contains_key(**role);
        if let Some(role) = TOP_LEVEL[1..].iter().find(is_missing) {
            return Err(SigningError::Missing(role.to_string()));
        }
        let (changed, drafted) = (BTreeSet::new(), BTreeMap::new());
        Ok(Repository { root, old_root: None, files, changed, drafted, lifetimes })
    }

    /// Lets a name stand for an image. `role` signs it; without one, the delegated role that may
    /// sign the name and whose keys are among `keys`, else `targets`. Returns the role.
    ///
    /// # Errors
    /// It is no name, or no role whose keys are here may sign it.
    pub fn set_name(
        &mut self,
        name: &str,
        target: &Target,
        role: Option<&str>,
        keys: &[SigningKey],
    ) -> Result<String, SigningError> {
        if !is_name(name) {
            return Err(SigningError::BadName(name.into()));
        }
        let role = match role {
            Some(role) => role.to_owned(),
            None => self.role_for(name, keys)?,
        };
        self.check_signer(name, &role)?;
        let entry = json!({"length": target.bytes, "hashes": {"sha256": target.sha256},
            "custom": {"runnel": {"id": target.id.to_string(), "fs_verity": target.fs_verity}}});
        self.edit(&role)?["targets"][name] = entry;
        Ok(role)
    }

    /// Takes a name away: devices then refuse it. Returns the role that had it.
    ///
    /// # Errors
    /// No file here has the name.
    pub fn remove_name(&mut self, name: &str) -> Result<String, SigningError> {
        let has = |file: &File| file.body["targets"].get(name).is_some();
        let role = self.files.iter().find(|(_, file)| has(file)).map(|(role, _)| role.clone());
        let role = role.ok_or_else(|| SigningError::NotSigned(name.into()))?;
        if let Some(targets) = self.edit(&role)?["targets"].as_object_mut() {
            targets.remove(name);
        }
        Ok(role)
    }

    /// Lets other keys sign names that match patterns. A delegation of the same name is replaced;
    /// devices take its names again once its new keys have signed them.
    ///
    /// # Errors
    /// The name of the role or a pattern cannot be, or there is no key.
    pub fn delegate(&mut self, delegation: &Delegation) -> Result<(), SigningError> {
        let Delegation { role, patterns, keys, threshold } = delegation;
        let bad = |what: &str| SigningError::BadRole { role: role.clone(), what: what.into() };
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        if !(1..=ROLE_BYTES_MAX).contains(&role.len()) || !role.bytes().all(is_plain) {
            return Err(bad("a role is named with small letters, digits, '-' and '_', at most 64"));
        }
        if TOP_LEVEL.contains(&role.as_str()) {
            return Err(bad("this role is not delegated: `rotate` gives it other keys"));
        }
        if keys.is_empty() || *threshold == 0 || *threshold > keys.len() {
            return Err(bad("the threshold is from 1 to the number of keys"));
        }
        let is_pattern = |pattern: &String| !pattern.is_empty() && pattern.bytes().all(|byte| byte.is_ascii_graphic());
        if patterns.is_empty() || !patterns.iter().all(is_pattern) {
            return Err(bad("it needs patterns of names, such as 'media-*:*'"));
        }
        let body = self.edit("targets")?;
        let delegations = body.as_object_mut().map(|body| body.entry("delegations").or_insert_with(|| json!({})));
        let delegations = delegations.ok_or_else(|| SigningError::Missing("targets".into()))?;
        let mut all = delegations["keys"].take();
        let mut entry = json!({"name": role, "paths": patterns, "terminating": false});
        set_keys(&mut entry, &mut all, keys, *threshold);
        let mut roles: Vec<Value> = delegations["roles"].as_array().cloned().unwrap_or_default();
        match roles.iter_mut().find(|other| other["name"] == json!(role)) {
            Some(other) => *other = entry,
            None => roles.push(entry),
        }
        drop_unused(&mut all, &roles.iter().map(RoleKeys::read).collect::<Vec<_>>());
        *delegations = json!({"keys": all, "roles": roles});
        Ok(())
    }

    /// Gives a top-level role other keys. Files that the old keys have signed are signed anew.
    ///
    /// # Errors
    /// It is no top-level role, or there is no key.
    pub fn rotate(&mut self, role: &str, keys: &[PublicKey], threshold: usize) -> Result<(), SigningError> {
        let bad = |what: &str| SigningError::BadRole { role: role.into(), what: what.into() };
        if !TOP_LEVEL.contains(&role) {
            return Err(bad("`delegate` gives other keys to a delegated role"));
        }
        if keys.is_empty() || threshold == 0 || threshold > keys.len() {
            return Err(bad("the threshold is from 1 to the number of keys"));
        }
        let old = self.root.clone();
        let body = &mut self.root.body;
        let mut all = body["keys"].take();
        set_keys(&mut body["roles"][role], &mut all, keys, threshold);
        let used: Vec<_> = TOP_LEVEL.iter().map(|role| RoleKeys::read(&body["roles"][*role])).collect();
        drop_unused(&mut all, &used);
        body["keys"] = all;
        self.old_root.get_or_insert(old);
        self.changed.extend(["root".to_owned(), role.to_owned()]);
        Ok(())
    }

    /// Signs a role anew, with a later expiry.
    ///
    /// # Errors
    /// There is no such role here.
    pub fn refresh(&mut self, role: &str) -> Result<(), SigningError> {
        if role == "root" {
            self.old_root.get_or_insert(self.root.clone());
            self.changed.insert(role.into());
            return Ok(());
        }
        self.edit(role).map(drop)
    }

    /// The role that signs a name: a delegated one that may and whose keys are here, else targets.
    fn role_for(&self, name: &str, keys: &[SigningKey]) -> Result<String, SigningError> {
        if self.body("targets")["targets"].get(name).is_some() {
            return Ok("targets".into());
        }
        let is_signable = |role: &str| self.role_keys(role).is_ok_and(|wanted| wanted.among(role, keys).is_ok());
        let delegated = self.delegations().filter(|entry| speaks_for(entry, name));
        let mut delegated = delegated.filter_map(|entry| entry["name"].as_str());
        Ok(delegated.find(|role| is_signable(role)).unwrap_or("targets").to_owned())
    }

    /// Whether devices would look for the name in this role.
    fn check_signer(&self, name: &str, role: &str) -> Result<(), SigningError> {
        if role == "targets" {
            return Ok(());
        }
        let bad = |what: String| SigningError::BadRole { role: role.into(), what };
        if self.body("targets")["targets"].get(name).is_some() {
            return Err(bad(format!("targets itself has {name}, and comes first; remove it there")));
        }
        for entry in self.delegations().filter(|entry| speaks_for(entry, name)) {
            if entry["name"] == json!(role) {
                return Ok(());
            }
            let other = entry["name"].as_str().unwrap_or_default();
            if self.files.get(other).is_some_and(|file| file.body["targets"].get(name).is_some()) {
                return Err(bad(format!("role {other} has {name}, and comes first; remove it there")));
            }
        }
        Err(bad(format!("nobody delegates {name} to it")))
    }

    fn delegations(&self) -> impl Iterator<Item = &Value> {
        self.body("targets")["delegations"]["roles"].as_array().into_iter().flatten()
    }

    /// The keys that may sign a role.
    fn role_keys(&self, role: &str) -> Result<RoleKeys, SigningError> {
        let entry = match TOP_LEVEL.contains(&role) {
            true => Some(&self.root.body["roles"][role]),
            false => self.delegations().find(|entry| entry["name"] == json!(role)),
        };
        let unknown = || SigningError::BadRole { role: role.into(), what: "there is no such role".into() };
        entry.map(RoleKeys::read).ok_or_else(unknown)
    }

    /// What the file of a role says.
    fn body(&self, role: &str) -> &Value {
        self.files.get(role).map_or(&Value::Null, |file| &file.body)
    }

    fn version(&self, role: &str) -> u64 {
        self.files.get(role).map_or(0, File::version)
    }

    /// What the file of a role says, to be changed.
    fn edit(&mut self, role: &str) -> Result<&mut Value, SigningError> {
        let is_new = self.delegations().any(|entry| entry["name"] == json!(role))
            && self.body("snapshot")["meta"].get(format!("{role}.json")).is_none();
        if is_new {
            let body = json!({"_type": "targets", "spec_version": SPEC_VERSION, "version": 0, "targets": {}});
            self.files.entry(role.into()).or_insert(File { body, bytes: Vec::new() });
        }
        let file = self.files.get_mut(role).ok_or_else(|| SigningError::Missing(role.into()))?;
        self.changed.insert(role.into());
        Ok(&mut file.body)
    }
}

impl Change {
    /// The files beside roots.
    fn without_roots(&self) -> Stapled {
        let mut others = Stapled::default();
        self.stapled.files().for_each(|(role, file)| others.push(role, file.to_vec()));
        others
    }
}

/// Whether a delegation covers a name.
fn speaks_for(entry: &Value, name: &str) -> bool {
    let patterns = entry["paths"].as_array().into_iter().flatten();
    patterns.filter_map(Value::as_str).any(|pattern| covers(pattern, name))
}
