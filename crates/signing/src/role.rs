//! Roles: who may sign what, for how long.

use serde_json::{Map, Value, json};

use crate::error::SigningError;
use crate::file::File;
use crate::key::{PublicKey, SigningKey};

/// The roles that a root names.
pub const TOP_LEVEL: [&str; 4] = ["root", "timestamp", "snapshot", "targets"];

/// For how many days a file that is signed now is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Of a root.
    pub root: u32,
    /// Of targets, and of delegated roles.
    pub targets: u32,
    /// Of a snapshot: for so long a server without its key can withhold news.
    pub snapshot: u32,
    /// Of a timestamp: for so long anybody on the way can.
    pub timestamp: u32,
}

impl Default for Lifetimes {
    fn default() -> Lifetimes {
        Lifetimes { root: 730, targets: 365, snapshot: 90, timestamp: 14 }
    }
}

impl Lifetimes {
    /// Days of a role.
    pub fn days(&self, role: &str) -> u32 {
        match role {
            "root" => self.root,
            "snapshot" => self.snapshot,
            "timestamp" => self.timestamp,
            _ => self.targets,
        }
    }
}

/// The keys of a role, by id, and how many of them must sign.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleKeys {
    /// Ids of the keys.
    pub ids: Vec<String>,
    /// How many of them must sign.
    pub threshold: usize,
}

impl RoleKeys {
    /// Those of a top-level role by a root, which the caller has verified.
    ///
    /// # Errors
    /// The file is no root.
    pub fn of_root(root: &[u8], role: &str) -> Result<RoleKeys, SigningError> {
        Ok(RoleKeys::read(&File::read("root", root)?.body["roles"][role]))
    }

    /// Reads the object of a role.
    pub(crate) fn read(role: &Value) -> RoleKeys {
        let ids = role["keyids"].as_array().into_iter().flatten();
        let ids = ids.filter_map(|id| id.as_str().map(str::to_owned)).collect();
        RoleKeys { ids, threshold: role["threshold"].as_u64().unwrap_or(1) as usize }
    }

    /// Those that are here; an error if they are too few.
    pub(crate) fn among<'k>(&self, role: &str, keys: &'k [SigningKey]) -> Result<Vec<&'k SigningKey>, SigningError> {
        let found: Vec<_> = keys.iter().filter(|key| self.ids.contains(&key.public().id())).collect();
        if found.len() >= self.threshold {
            return Ok(found);
        }
        Err(SigningError::TooFewKeys { role: role.into(), needed: self.threshold, found: found.len() })
    }
}

/// Gives a role new keys in `role`, and adds them to `keys` of the same file.
pub(crate) fn set_keys(role: &mut Value, keys: &mut Value, new: &[PublicKey], threshold: usize) {
    role["keyids"] = json!(new.iter().map(PublicKey::id).collect::<Vec<_>>());
    role["threshold"] = json!(threshold);
    if !keys.is_object() {
        *keys = Value::Object(Map::new());
    }
    for key in new {
        keys[key.id()] = key.to_json();
    }
}

/// Drops keys that no role uses.
pub(crate) fn drop_unused(keys: &mut Value, roles: &[RoleKeys]) {
    if let Some(keys) = keys.as_object_mut() {
        keys.retain(|id, _| roles.iter().any(|role| role.ids.contains(id)));
    }
}
