//! Which images a tag has pointed to, and since when: a line of `<id> <seconds since 1970>` for
//! each, under `history/<name>/<tag>`. It is written before the tag, so it may have a version that
//! never became one.

use store::{Store, StoreError, Version as StoreVersion};
use units::ImageId;

use super::UnixSeconds;
use crate::error::Failure;

/// Versions of a tag that are remembered, the newest.
pub(super) const VERSIONS_MAX: usize = 1000;

/// Longest file: [`VERSIONS_MAX`] lines of 64 digits and a time.
const BYTES_MAX: u64 = 128 << 10;

/// A version of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub id: ImageId,
    /// When it became the tag's.
    pub since: UnixSeconds,
}

pub(super) fn key(name: &str, tag: &str) -> String {
    format!("history/{name}/{tag}")
}

/// The versions of a tag, the oldest first.
pub(super) fn load(store: &dyn Store, name: &str, tag: &str) -> Result<Vec<Version>, Failure> {
    let loaded = read(store, &key(name, tag))?;
    let damaged = || Failure::corrupt(format!("{} of the store is damaged; delete it", key(name, tag)));
    loaded.0.ok_or_else(damaged)
}

/// Notes that a tag points to an image from now on. Blocks.
pub(crate) fn note(
    store: &dyn Store,
    (name, tag): (&str, &str),
    id: ImageId,
    now: UnixSeconds,
) -> Result<(), StoreError> {
    let key = key(name, tag);
    loop {
        // One that is damaged begins anew.
        let (versions, version) = read(store, &key)?;
        let mut versions = versions.unwrap_or_default();
        if versions.last().is_some_and(|last| last.id == id) {
            return Ok(());
        }
        versions.push(Version { id, since: now });
        let newest = versions.iter().skip(versions.len().saturating_sub(VERSIONS_MAX));
        let text: String = newest.map(|version| format!("{} {}\n", version.id, version.since)).collect();
        match store.put_if(&key, text.as_bytes(), version.as_ref()) {
            Ok(_) => return Ok(()),
            // Somebody else published another version: both are noted.
            Err(error) if error.is_changed() => {}
            Err(error) => return Err(error),
        }
    }
}

type Read = (Option<Vec<Version>>, Option<StoreVersion>);

/// The versions, `None` if the file is damaged.
fn read(store: &dyn Store, key: &str) -> Result<Read, StoreError> {
    match store.get_versioned(key, BYTES_MAX) {
        Ok((bytes, version)) => {
            let line = |line: &str| {
                let (id, since) = line.split_once(' ')?;
                Some(Version { id: ImageId::from_hex(id)?, since: since.parse().ok()? })
            };
            let versions = std::str::from_utf8(&bytes).ok().and_then(|text| text.lines().map(line).collect());
            Ok((versions, Some(version)))
        }
        Err(error) if error.is_not_found() => Ok((Some(Vec::new()), None)),
        Err(error) => Err(error),
    }
}
