//! What a device remembers of files that it accepted: versions, contents, and who signed them.

use crate::digest::short;
use crate::format::{ROLES_KEPT_MAX, THRESHOLD_MAX};
use crate::key::{RoleKeys, Signer};
use crate::rule::{Rule, holds};

/// The start of the SHA-256 of a file's canonical form.
pub(crate) type Content = [u8; 16];

/// The start of the SHA-256 of a role's name.
pub(crate) type RoleId = [u8; 16];

/// A top-level file that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub version: u64,
    pub content: Content,
    /// Keys that signed it, at most [`THRESHOLD_MAX`].
    pub signers: Vec<Signer>,
}

impl Accepted {
    pub fn new(version: u64, content: Content, mut signers: Vec<Signer>) -> Accepted {
        signers.truncate(THRESHOLD_MAX);
        Accepted { version, content, signers }
    }

    /// This memory, if it still counts: a file that the keys of today would refuse could have been
    /// made by whoever stole the old keys, with a version that no honest file will ever reach
    /// (section 5.3.11 of the specification, recovery from fast-forward attacks).
    pub fn under(&self, keys: &RoleKeys) -> Option<&Accepted> {
        (keys.accept(&self.signers) || !holds(Rule::RotatedKeys)).then_some(self)
    }
}

/// A delegated role that an accepted snapshot listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub role: RoleId,
    pub version: u64,
    /// Its content with this version, if the file was read.
    pub content: Option<Content>,
}

/// A delegated role that was read on the way to a name.
pub(crate) struct Visited<'a> {
    pub name: &'a str,
    pub version: u64,
    pub content: Content,
}

/// The identity of a role's name in a state.
pub(crate) fn role_id(name: &str) -> RoleId {
    short(name.as_bytes())
}

/// What to remember of a new listing: the roles just read, then those remembered before in their
/// order, then others, as far as a state has room. So roles that were read stand before all others.
///
/// A role that is left out is still held by the snapshot's own version, which never goes back: only
/// who has the snapshot keys, too, can list it with a lower version, and only for a role that this
/// device has not read for a long time or never.
pub(crate) fn remember(listing: &[(RoleId, u64)], visited: &[Visited<'_>], before: &[Listed]) -> Vec<Listed> {
    let mut kept: Vec<Listed> = Vec::with_capacity(ROLES_KEPT_MAX);
    let mut keep = |listed: Listed| {
        if kept.len() < ROLES_KEPT_MAX && !kept.iter().any(|other| other.role == listed.role) {
            kept.push(listed);
        }
    };
    for role in visited {
        keep(Listed { role: role_id(role.name), version: role.version, content: Some(role.content) });
    }
    let version_of = |id: &RoleId| listing.iter().find(|(role, _)| role == id).map(|(_, version)| *version);
    for old in before {
        if let Some(version) = version_of(&old.role) {
            let content = old.content.filter(|_| old.version == version);
            keep(Listed { role: old.role, version, content });
        }
    }
    for (role, version) in listing {
        keep(Listed { role: *role, version: *version, content: None });
    }
    kept
}
