//! Keys of a role, and how many of them signed a file.

use ring::signature::{ED25519, UnparsedPublicKey};

use crate::digest::{from_hex, short};
use crate::format::{SIGNATURES_MAX, THRESHOLD_MAX};
use crate::json::Json;
use crate::refusal::Flaw;
use crate::rule::{Rule, holds};

/// The start of the SHA-256 of a key id. It says which key to try for a signature, and no more: two
/// ids with the same label cost a verification that fails.
pub(crate) type Label = [u8; 8];

/// An Ed25519 public key and the label of its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub label: Label,
    pub public: [u8; 32],
}

/// The keys of a role and how many of them must sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoleKeys {
    pub threshold: usize,
    pub keys: Vec<Key>,
}

/// The first half of a public key that signed a file.
pub(crate) type Signer = [u8; 16];

impl RoleKeys {
    /// Reads a role's `keyids` and `threshold`. Keys of other types than `ed25519` are left out: no
    /// signature of theirs counts.
    pub fn read(keys: &Json<'_>, role: &Json<'_>) -> Result<RoleKeys, Flaw> {
        let field = |what| Flaw::field("keyids", what);
        let ids = role.get("keyids").and_then(Json::array).ok_or(field("an array"))?;
        let threshold = role.get("threshold").and_then(Json::unsigned).filter(|threshold| *threshold > 0);
        let threshold = threshold.ok_or(Flaw::field("threshold", "a positive integer"))?;
        let threshold = usize::try_from(threshold).unwrap_or(usize::MAX);
        Flaw::limit("keys as a threshold", threshold, THRESHOLD_MAX)?;
        Flaw::limit("keys of a role", ids.len(), SIGNATURES_MAX)?;
        let mut names = Vec::with_capacity(ids.len());
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            let id = id.text().ok_or(field("strings"))?;
            if names.contains(&id) {
                return Err(field("different from each other"));
            }
            names.push(id);
            if let Some(public) = keys.get(id).and_then(ed25519) {
                found.push(Key { label: short(id.as_bytes()), public });
            }
        }
        Ok(RoleKeys { threshold, keys: found })
    }

    /// The distinct keys of this role that made one of the signatures of `message`.
    pub fn signers(&self, message: &[u8], signatures: &[(Label, [u8; 64])]) -> Vec<Signer> {
        let mut found: Vec<Signer> = Vec::new();
        for (label, signature) in signatures {
            for key in self.keys.iter().filter(|key| key.label == *label) {
                let signer = signer(key);
                let is_new = !found.contains(&signer) || !holds(Rule::DistinctKeys);
                if is_new && UnparsedPublicKey::new(&ED25519, key.public).verify(message, signature).is_ok() {
                    found.push(signer);
                }
            }
        }
        found
    }

    /// Whether a file that `signers` signed would still be valid with the keys of today.
    pub fn accept(&self, signers: &[Signer]) -> bool {
        let keys: Vec<Signer> = self.keys.iter().map(signer).collect();
        signers.iter().filter(|signer| keys.contains(signer)).count() >= self.threshold
    }
}

fn signer(key: &Key) -> Signer {
    let mut start = [0; 16];
    start.copy_from_slice(&key.public[..16]);
    start
}

fn ed25519(key: &Json<'_>) -> Option<[u8; 32]> {
    let is_ed25519 = |field| key.get(field).and_then(Json::text) == Some("ed25519");
    if !is_ed25519("keytype") || !is_ed25519("scheme") {
        return None;
    }
    from_hex(key.get("keyval")?.get("public")?.text()?)
}
