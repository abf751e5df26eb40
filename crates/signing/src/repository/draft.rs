//! Changes that several holders sign one after another.
//!
//! A draft is the next version of a file with the signatures so far. Nothing of it counts before
//! each role has its threshold. A holder who gets one trusts nobody who had it before: it must be
//! the next version of what is in force, its signatures must be right, and it is told in words what
//! it changes before it is signed.

use serde_json::Value;
use trust::repository::version_of;

use super::words::{root_in_words, targets_in_words};
use super::{Change, Repository};
use crate::canonical::canonical;
use crate::error::SigningError;
use crate::file::File;
use crate::key::PublicKey;
use crate::role::{RoleKeys, TOP_LEVEL};

/// What became of a change.
#[derive(Clone, Debug)]
pub enum Signed {
    /// It has all signatures, and counts where it is published.
    Complete(Change),
    /// It waits for other holders.
    Draft(Draft),
}

/// A change that waits for signatures.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The new files by role, with the signatures so far; they come into force together.
    pub files: Vec<(String, Vec<u8>)>,
    /// What is missing.
    pub missing: Vec<Missing>,
}

/// Signatures that a draft lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The role.
    pub role: String,
    /// Whether the keys are those of the root before, whose holders must agree to a new one.
    pub is_before: bool,
    /// How many of the keys must sign.
    pub threshold: usize,
    /// How many of them must still sign.
    pub needed: usize,
    /// Keys that have not signed: id, and the key if it is of a known type.
    pub keys: Vec<(String, Option<PublicKey>)>,
}

impl Draft {
    /// The error of those who take no drafts.
    pub(super) fn too_few(&self) -> SigningError {
        let first = self.missing.first();
        let (role, needed, found) = first.map_or(Default::default(), |missing| {
            (missing.role.clone(), missing.threshold, missing.threshold - missing.needed)
        });
        SigningError::TooFewKeys { role, needed, found }
    }

    /// The error of a holder who can add nothing.
    pub(super) fn not_needed(&self) -> SigningError {
        let roles: Vec<&str> = self.missing.iter().map(|missing| missing.role.as_str()).collect();
        let ids = self.missing.iter().flat_map(|missing| &missing.keys);
        let mut ids: Vec<&str> = ids.map(|(id, _)| id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        SigningError::NotNeeded { role: roles.first().unwrap_or(&"").to_string(), waits_for: ids.join(", ") }
    }
}

impl Repository {
    /// Goes on from drafts of other holders, by role. Returns what they change, in words; texts of
    /// theirs are in it as they are.
    ///
    /// # Errors
    /// A draft does not follow what is in force, a signature is wrong, or the drafts do not belong
    /// together.
    pub fn take_drafts(&mut self, drafts: &[(String, Vec<u8>)]) -> Result<Vec<String>, SigningError> {
        let rank = |role: &str| match role {
            "root" => 0,
            "targets" => 1,
            _ => 2,
        };
        let mut drafts: Vec<_> = drafts.iter().collect();
        drafts.sort_by_key(|(role, _)| rank(role));
        let mut words = Vec::new();
        for (role, bytes) in &drafts {
            words.extend(self.take_draft(role, bytes)?);
        }
        if self.changed.contains("targets") && !self.drafted.contains_key("targets") {
            let what = "the draft of root gives it other keys, and its own draft is not among these";
            return Err(SigningError::BadRole { role: "targets".into(), what: what.into() });
        }
        for (role, _) in drafts {
            self.check_signatures(role)?;
        }
        Ok(words)
    }

    fn take_draft(&mut self, role: &str, bytes: &[u8]) -> Result<Vec<String>, SigningError> {
        let bad = |what: &str| SigningError::BadRole { role: role.into(), what: what.into() };
        if ["snapshot", "timestamp"].contains(&role) {
            return Err(bad("no drafts are made of it"));
        }
        if self.drafted.contains_key(role) {
            return Err(bad("it has two drafts"));
        }
        let mut file = File::read(role, bytes)?;
        let signatures = file.signatures(role)?;
        // From here on it is what a holder signs, without whatever stood beside it.
        file.write(&signatures);
        if version_of(role, &file.bytes) != Some(file.version()) {
            return Err(SigningError::NotMetadata { role: role.into(), what: "a device could not read it".into() });
        }
        let before = match role {
            "root" => self.root.clone(),
            role => {
                // A role that has signed nothing yet gets an empty file to compare with.
                self.role_keys(role)?;
                self.edit(role)?;
                self.files[role].clone()
            }
        };
        let (draft, present) = (file.version(), before.version());
        if draft <= present {
            return Err(SigningError::Overtaken { role: role.into(), draft, present });
        }
        if draft > present + 1 {
            return Err(SigningError::Ahead { role: role.into(), draft, present });
        }
        let words = match role {
            "root" => {
                check_ids(role, &before.body["keys"], &file.body["keys"])?;
                self.note_new_keys(&before.body, &file.body);
                self.old_root = Some(std::mem::replace(&mut self.root, file));
                root_in_words(&before.body, &self.root.body)
            }
            role => {
                let keys = |body: &Value| body["delegations"]["keys"].clone();
                check_ids(role, &keys(&before.body), &keys(&file.body))?;
                let words = targets_in_words(role, &before.body, &file.body);
                self.files.insert(role.into(), file);
                words
            }
        };
        self.changed.insert(role.into());
        self.drafted.insert(role.into(), signatures);
        Ok(words)
    }

    /// Files of roles that a new root gives other keys are to be signed anew.
    fn note_new_keys(&mut self, before: &Value, after: &Value) {
        for role in &TOP_LEVEL[1..] {
            if RoleKeys::read(&before["roles"][*role]) != RoleKeys::read(&after["roles"][*role]) {
                self.changed.insert(role.to_string());
            }
        }
    }

    fn check_signatures(&self, role: &str) -> Result<(), SigningError> {
        let wanted = self.wanted(role)?;
        let file = if role == "root" { &self.root } else { &self.files[role] };
        let message = canonical(&file.body);
        for signature in self.drafted.get(role).into_iter().flatten() {
            let bad = |what| SigningError::BadSignature { role: role.into(), what, key: signature.key.clone() };
            let mut theirs = wanted.iter().filter(|wanted| wanted.keys.ids.contains(&signature.key));
            let public = theirs.find_map(|wanted| wanted.public(&signature.key));
            let public = public.ok_or_else(|| bad("of none of its keys"))?;
            if !public.verifies(&message, &signature.hex) {
                return Err(bad("wrong"));
            }
        }
        Ok(())
    }
}

/// Refuses keys under ids of others: words name a key by its id.
fn check_ids(role: &str, before: &Value, after: &Value) -> Result<(), SigningError> {
    for (id, key) in after.as_object().into_iter().flatten() {
        let is_right = PublicKey::from_json(key).is_some_and(|public| public.id() == *id);
        if !is_right && before.get(id) != Some(key) {
            let what = format!("key {id} has not the id of its contents");
            return Err(SigningError::BadRole { role: role.into(), what });
        }
    }
    Ok(())
}
