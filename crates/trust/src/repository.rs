//! The files of a repository: how they are named, and which of them a name needs.
//!
//! Nothing is verified here. A server reads its store with this, and a device the files of a web
//! server; what comes out is for [`Verifier::verify`](crate::Verifier::verify).

use crate::delegation::delegations;

use crate::format::{ROLES_VISITED_MAX, ROOTS_MAX, SNAPSHOT_BYTES_MAX, TARGETS_BYTES_MAX, TIMESTAMP_BYTES_MAX};
use crate::known::Known;
use crate::metadata::{Metadata, positive};
use crate::stapled::Stapled;
use crate::time::UnixTime;
use crate::workflow::{listed_file, target};

pub use crate::delegation::covers;
pub use crate::verifier::is_name;

/// The file of a role in a repository with consistent snapshots (specification, section 6.2).
pub fn file_name(role: &str, version: u64) -> String {
    if role == "timestamp" { "timestamp.json".into() } else { format!("{version}.{role}.json") }
}

/// The version that a file states, whoever signed it; `None` if it is no metadata of this role.
pub fn version_of(role: &str, file: &[u8]) -> Option<u64> {
    Metadata::read(kind_of(role), file, TARGETS_BYTES_MAX).ok().map(|file| file.version)
}

/// When a file expires by its own word, whoever signed it; `None` if it is no metadata of this
/// role.
pub fn expiry_of(role: &str, file: &[u8]) -> Option<UnixTime> {
    Metadata::read(kind_of(role), file, TARGETS_BYTES_MAX).ok().map(|file| file.expires)
}

fn kind_of(role: &str) -> &str {
    if matches!(role, "root" | "timestamp" | "snapshot") { role } else { "targets" }
}

/// The roots that a device lacks, and the files that tell it what `name` stands for; with an empty
/// name those that come before delegated roles. `read` gives a file of the repository by its name.
/// Files that a device would not understand end the search: it will say so.
///
/// # Errors
///
/// Those of `read`.
pub fn collect<E>(
    name: &str,
    known: &Known,
    mut read: impl FnMut(&str) -> Result<Option<Vec<u8>>, E>,
) -> Result<Stapled, E> {
    let mut found = Stapled::default();
    let mut next = known.root_version().saturating_add(1);
    while let Some(root) = read(&file_name("root", next))? {
        if found.roots().len() == ROOTS_MAX {
            found.set_more_roots();
            return Ok(found);
        }
        found.push_root(root);
        next = next.saturating_add(1);
    }
    // A version that no file states reads nothing.
    let mut step = |role: &str, version: u64| -> Result<Option<Vec<u8>>, E> {
        let file = if version == 0 { None } else { read(&file_name(role, version))? };
        file.iter().for_each(|file| found.push(role, file.clone()));
        Ok(file)
    };
    let Some(timestamp) = step("timestamp", u64::MAX)? else { return Ok(found) };
    let version = listed("timestamp", &timestamp, TIMESTAMP_BYTES_MAX, "snapshot");
    let Some(snapshot) = step("snapshot", version)? else { return Ok(found) };
    let mut roles = vec!["targets".to_owned()];
    let mut visited: Vec<String> = Vec::new();
    while let Some(role) = roles.pop() {
        if visited.contains(&role) {
            continue;
        }
        if visited.len() == ROLES_VISITED_MAX {
            break;
        }
        let version = listed("snapshot", &snapshot, SNAPSHOT_BYTES_MAX, &role);
        let Some(bytes) = step(&role, version)? else { break };
        visited.push(role);
        let Ok(file) = Metadata::read("targets", &bytes, TARGETS_BYTES_MAX) else { break };
        if name.is_empty() || target(&file, name).is_some() {
            break;
        }
        let Ok(mut inner) = delegations(&file.body, name) else { break };
        inner.reverse();
        if inner.first().is_some_and(|last| last.is_terminating) {
            roles.clear();
        }
        roles.extend(inner.into_iter().map(|delegation| delegation.role));
    }
    Ok(found)
}

/// The version of a role's file that a snapshot lists; `None` if it lists none.
pub fn listed_version(snapshot: &[u8], role: &str) -> Option<u64> {
    Some(listed("snapshot", snapshot, SNAPSHOT_BYTES_MAX, role)).filter(|version| *version > 0)
}

/// The version of a role that a file lists; 0 if it lists none.
fn listed(kind: &str, file: &[u8], bytes_max: usize, role: &str) -> u64 {
    let Ok(file) = Metadata::read(kind, file, bytes_max) else { return 0 };
    listed_file(&file, role).and_then(|listed| positive(listed, "version")).unwrap_or(0)
}
