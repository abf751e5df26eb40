//! A root, reduced to what verifying needs: a device keeps no root file.
//!
//! Root files have no useful bound; what a device needs of one are the keys and thresholds of the
//! four top-level roles, its version, and its expiry.

use crate::format::{KEYS_MAX, ROOT_BYTES_MAX};
use crate::key::{RoleKeys, Signer};
use crate::memory::Content;
use crate::metadata::Metadata;
use crate::refusal::{Flaw, Refusal};
use crate::rule::{Rule, holds};
use crate::time::UnixTime;

/// Names of the top-level roles, which no delegated role may have.
pub(crate) const TOP_LEVEL: [&str; 4] = ["root", "timestamp", "snapshot", "targets"];

/// Keys of the top-level roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub version: u64,
    pub expires: UnixTime,
    pub content: Content,
    /// In the order of [`TOP_LEVEL`].
    pub roles: [RoleKeys; 4],
}

impl Root {
    pub fn keys(&self) -> &RoleKeys {
        &self.roles[0]
    }

    pub fn timestamp(&self) -> &RoleKeys {
        &self.roles[1]
    }

    pub fn snapshot(&self) -> &RoleKeys {
        &self.roles[2]
    }

    pub fn targets(&self) -> &RoleKeys {
        &self.roles[3]
    }

    /// Reads a root that must be signed by its own keys, as the first one is.
    pub fn anchor(bytes: &[u8]) -> Result<Root, Refusal> {
        let (file, root) = Root::read(bytes).map_err(|flaw| flaw.of("root"))?;
        require("root", &file, root.keys())?;
        Ok(root)
    }

    /// Reads the root that follows this one: its version is the next, and the keys of both have
    /// signed it.
    pub fn next(&self, bytes: &[u8]) -> Result<Root, Refusal> {
        let (file, root) = Root::read(bytes).map_err(|flaw| flaw.of("root"))?;
        if holds(Rule::RootOldKeys) {
            require("root", &file, self.keys())?;
        }
        if holds(Rule::RootOwnKeys) {
            require("root", &file, root.keys())?;
        }
        let (found, expected) = (root.version, self.version.saturating_add(1));
        if holds(Rule::RootVersion) {
            if found == self.version && root.content == self.content {
                return Err(Refusal::RootTwice { version: found });
            }
            if found < expected {
                return Err(Refusal::Rollback { role: "root".into(), found, expected });
            }
            if found > expected {
                return Err(Refusal::RootGap { found, expected });
            }
        }
        Ok(root)
    }

    fn read(bytes: &[u8]) -> Result<(Metadata<'_>, Root), Flaw> {
        let file = Metadata::read("root", bytes, ROOT_BYTES_MAX)?;
        let keys = file.body.get("keys").filter(|keys| keys.object().is_some());
        let keys = keys.ok_or(Flaw::field("keys", "an object"))?;
        let roles = file.body.get("roles");
        let role = |index: usize| {
            let role = roles.and_then(|roles| roles.get(TOP_LEVEL[index]));
            RoleKeys::read(keys, role.ok_or(Flaw::field("roles", "an object with the four top-level roles"))?)
        };
        let roles = [role(0)?, role(1)?, role(2)?, role(3)?];
        Flaw::limit("keys", roles.iter().map(|role| role.keys.len()).sum(), KEYS_MAX)?;
        let root = Root { version: file.version, expires: file.expires, content: file.content, roles };
        Ok((file, root))
    }
}

/// Demands that enough of `keys` signed the file; returns who did.
pub(crate) fn require(role: &str, file: &Metadata<'_>, keys: &RoleKeys) -> Result<Vec<Signer>, Refusal> {
    let signers = keys.signers(&file.message, &file.signatures);
    let (found, expected) = (signers.len(), keys.threshold);
    if found < expected && holds(Rule::Threshold) {
        return Err(Refusal::Signature { role: role.into(), version: file.version, found, expected });
    }
    Ok(signers)
}
