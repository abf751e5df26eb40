//! How what changed is signed: at once, or as a draft for the next holder.

use serde_json::{Value, json};
use trust::repository::file_name;
use trust::{Stapled, UnixTime, Verifier};

use super::{Change, Draft, Missing, Repository, Signed};
use crate::error::SigningError;
use crate::file::File;
use crate::key::{PublicKey, SigningKey};
use crate::role::{RoleKeys, TOP_LEVEL};

/// Keys of which enough must sign a file.
pub(super) struct Wanted<'a> {
    pub keys: RoleKeys,
    /// The object that has the keys by their ids.
    pub publics: &'a Value,
    /// Whether they are those of the root before, which sign its successor, too.
    pub is_before: bool,
}

impl Wanted<'_> {
    pub fn public(&self, id: &str) -> Option<PublicKey> {
        PublicKey::from_json(self.publics.get(id)?)
    }

    /// What is missing if the keys `signed` have signed.
    fn missing(&self, role: &str, signed: &[&str]) -> Option<Missing> {
        let (found, left): (Vec<&String>, Vec<&String>) =
            self.keys.ids.iter().partition(|id| signed.contains(&id.as_str()));
        let threshold = self.keys.threshold;
        let needed = threshold.saturating_sub(found.len());
        let key = |id: &String| (id.clone(), self.public(id));
        let keys = left.into_iter().map(key).collect();
        (needed > 0).then(|| Missing { role: role.into(), is_before: self.is_before, threshold, needed, keys })
    }
}

impl Repository {
    /// Signs what changed, and what lists it.
    ///
    /// # Errors
    /// Too few keys of a role are among `keys`, or a device would refuse the result.
    pub fn sign(self, keys: &[SigningKey], now: UnixTime) -> Result<Change, SigningError> {
        match self.sign_or_draft(keys, now)? {
            Signed::Complete(change) => Ok(change),
            Signed::Draft(draft) => Err(draft.too_few()),
        }
    }

    /// Signs what changed as far as `keys` can. If that is enough, what lists it is signed, too;
    /// else the result is for the next holder. A snapshot and a timestamp grow old too quickly to
    /// travel between holders: whoever signs them needs as many keys as they demand.
    ///
    /// # Errors
    /// No key for a file is among `keys`, or a device would refuse the result.
    pub fn sign_or_draft(mut self, keys: &[SigningKey], now: UnixTime) -> Result<Signed, SigningError> {
        let is_travelling = |role: &&String| !["root", "snapshot", "timestamp"].contains(&role.as_str());
        let others: Vec<String> = self.changed.iter().filter(is_travelling).cloned().collect();
        let root = self.changed.contains("root").then(|| "root".to_owned());
        let roles: Vec<String> = root.into_iter().chain(others.iter().cloned()).collect();
        let mut missing = Vec::new();
        let mut has_signed = false;
        for role in &roles {
            has_signed |= self.sign_file(role, keys, now, &mut missing)?;
        }
        for role in &others {
            let version = self.version(role);
            self.edit("snapshot")?["meta"][format!("{role}.json")] = json!({"version": version});
        }
        if self.changed.contains("snapshot") {
            self.edit("timestamp")?;
        }
        if missing.is_empty() || self.drafted.is_empty() {
            let listing = self.missing_listing(keys, !roles.is_empty())?;
            if missing.is_empty() {
                missing = listing;
            }
        }
        if missing.is_empty() {
            return self.complete(&roles, keys, now).map(Signed::Complete);
        }
        let files = roles.iter().map(|role| (role.clone(), self.file(role).bytes.clone())).collect();
        let draft = Draft { files, missing };
        if has_signed { Ok(Signed::Draft(draft)) } else { Err(draft.not_needed()) }
    }

    /// Adds the signatures of `keys` to the file of a role, and what it still lacks to `missing`;
    /// returns whether there were any.
    fn sign_file(
        &mut self,
        role: &str,
        keys: &[SigningKey],
        now: UnixTime,
        missing: &mut Vec<Missing>,
    ) -> Result<bool, SigningError> {
        let lifetimes = self.lifetimes;
        let drafted = self.drafted.get(role).cloned();
        if drafted.is_none() {
            self.file_mut(role)?.advance(role, &lifetimes, now);
        }
        let wanted = self.wanted(role)?;
        let is_new = drafted.is_none();
        let mut signatures = drafted.unwrap_or_default();
        let before = signatures.len();
        for key in keys {
            let id = key.public().id();
            let is_wanted = wanted.iter().any(|wanted| wanted.keys.ids.contains(&id));
            if is_wanted && !signatures.iter().any(|signature| signature.key == id) {
                signatures.push(self.file(role).signature(key));
            }
        }
        let signed: Vec<&str> = signatures.iter().map(|signature| signature.key.as_str()).collect();
        let lacking: Vec<Missing> = wanted.iter().filter_map(|wanted| wanted.missing(role, &signed)).collect();
        if is_new && signed.is_empty() {
            let needed = wanted.iter().map(|wanted| wanted.keys.threshold).max().unwrap_or(1);
            return Err(SigningError::TooFewKeys { role: role.into(), needed, found: 0 });
        }
        missing.extend(lacking);
        let has_signed = signatures.len() > before;
        self.file_mut(role)?.write(&signatures);
        Ok(has_signed)
    }

    /// What the files lack that list the others. If there is no draft that could wait for their
    /// keys, or some of them are here, that is an error.
    fn missing_listing(&self, keys: &[SigningKey], has_draft: bool) -> Result<Vec<Missing>, SigningError> {
        let mut missing = Vec::new();
        for role in ["snapshot", "timestamp"].into_iter().filter(|role| self.changed.contains(*role)) {
            let found = keys.iter().map(|key| key.public().id());
            for wanted in self.wanted(role)? {
                let found = found.clone().filter(|id| wanted.keys.ids.contains(id)).count();
                let needed = wanted.keys.threshold;
                if found < needed && (found > 0 || !has_draft) {
                    return Err(SigningError::TooFewKeys { role: role.into(), needed, found });
                }
                missing.extend(wanted.missing(role, &[]).filter(|_| found < needed));
            }
        }
        Ok(missing)
    }

    /// Signs the files that list the others, which have all their signatures.
    fn complete(mut self, roles: &[String], keys: &[SigningKey], now: UnixTime) -> Result<Change, SigningError> {
        let mut change = Change::default();
        for role in roles {
            let file = self.file(role);
            change.files.push((file_name(role, file.version()), file.bytes.clone()));
            if role == "root" {
                change.stapled.push_root(file.bytes.clone());
            }
        }
        if self.changed.contains("snapshot") {
            self.sign_role("snapshot", keys, now, &mut change)?;
            let version = self.version("snapshot");
            self.edit("timestamp")?["meta"] = json!({"snapshot.json": {"version": version}});
        }
        if self.changed.contains("timestamp") {
            self.sign_role("timestamp", keys, now, &mut change)?;
        }
        for (role, file) in &self.files {
            change.stapled.push(role, file.bytes.clone());
        }
        // As a device sees it: one that has the root before, and one that has the newest.
        let mut roots = Stapled::default();
        change.stapled.roots().iter().for_each(|root| roots.push_root(root.clone()));
        if let Some(old) = &self.old_root {
            Verifier::new(&old.bytes)?.take_roots(&roots)?;
        }
        let mut device = Verifier::new(&self.root.bytes)?;
        if !self.files.is_empty() {
            device.verify_files(&change.without_roots(), Some(now))?;
        }
        Ok(change)
    }

    fn sign_role(
        &mut self,
        role: &str,
        keys: &[SigningKey],
        now: UnixTime,
        change: &mut Change,
    ) -> Result<(), SigningError> {
        let signers = self.role_keys(role)?.among(role, keys)?;
        let lifetimes = self.lifetimes;
        let file = self.file_mut(role)?;
        file.sign(role, &signers, &lifetimes, now);
        change.files.push((file_name(role, file.version()), file.bytes.clone()));
        Ok(())
    }

    /// The keys that must sign a file: of a root its own and those of the one before.
    pub(super) fn wanted(&self, role: &str) -> Result<Vec<Wanted<'_>>, SigningError> {
        let publics = match TOP_LEVEL.contains(&role) {
            true => &self.root.body["keys"],
            false => &self.body("targets")["delegations"]["keys"],
        };
        let mut wanted = vec![Wanted { keys: self.role_keys(role)?, publics, is_before: false }];
        if let Some(old) = self.old_root.as_ref().filter(|_| role == "root") {
            let keys = RoleKeys::read(&old.body["roles"]["root"]);
            if keys != wanted[0].keys {
                wanted.insert(0, Wanted { keys, publics: &old.body["keys"], is_before: true });
            }
        }
        Ok(wanted)
    }

    fn file(&self, role: &str) -> &File {
        if role == "root" { &self.root } else { &self.files[role] }
    }

    fn file_mut(&mut self, role: &str) -> Result<&mut File, SigningError> {
        match role {
            "root" => Ok(&mut self.root),
            role => self.files.get_mut(role).ok_or_else(|| SigningError::Missing(role.into())),
        }
    }
}
