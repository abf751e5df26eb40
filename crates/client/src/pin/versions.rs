//! Which version of a pinned name programs start from: the new one at once when all of it is there,
//! the previous one again when somebody or a check says so.

use std::io;

use cache::{BAD_MAX, Cache, Key, NameClaim, Owner, PinnedName, Version};
use connection::{ImageName, Remote};
use units::ImageId;

use super::PinError;
use crate::cached::{Name, keep_name};

/// What became of a name when its server was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It stands for that version already.
    None,
    /// It stands for that version from now on, and stood for this one before.
    Switched(Option<ImageId>),
    /// The server has a version that was rolled back from; nothing was fetched.
    HeldBack,
}

/// What became of a version that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays.
    Good,
    /// The name stands for this one again.
    Returned(ImageId),
    /// It is bad, and there is none to return to.
    Stays,
    /// The name stands for another version by now.
    Other,
}

/// A return to the previous version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolledBack {
    /// The version that programs started from.
    pub from: ImageId,
    /// The one that they start from now.
    pub to: ImageId,
}

/// Why there is no return.
#[derive(Debug, thiserror::Error)]
pub enum RollbackError {
    /// The name is not pinned.
    #[error("{0} is not pinned\nhint: `runnel cache` lists what is")]
    NotPinned(String),
    /// There is no version before.
    #[error("{0} has no previous version on this device\nhint: `runnel cache` shows the versions of a name")]
    NoPrevious(String),
    /// Part of the version before was lost.
    #[error(
        "{0}: part of the previous version is lost, so the present one stays\nhint: `runnel pin` fetches the newest one"
    )]
    Lost(String),
    /// The disk of the cache fails.
    #[error("the device cache: {0}")]
    Cache(#[from] io::Error),
}

/// The sole right to bring a name up to date.
#[derive(Debug)]
pub struct Claim<'a> {
    pub(super) cache: &'a Cache,
    key: Key,
    target: &'a str,
    _claim: NameClaim<'a>,
}

/// A version in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedVersion {
    /// The image.
    pub id: ImageId,
    /// Bytes of its blocks and metadata, and those of them that are there.
    pub bytes: u64,
    /// See above.
    pub pinned_bytes: u64,
}

/// A name that is pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// Its address.
    pub target: String,
    /// The version that programs start from.
    pub current: Option<PinnedVersion>,
    /// The one to return to.
    pub previous: Option<PinnedVersion>,
    /// The one that is being fetched.
    pub next: Option<PinnedVersion>,
    /// Versions that were rolled back from, the newest last.
    pub bad: Vec<ImageId>,
    /// The check of the present version did not end.
    pub is_unchecked: bool,
}

/// What a name stands for, for a program that starts.
pub(crate) struct InForce {
    pub id: ImageId,
    /// The server had a newer version when it was asked last.
    pub newer: Option<ImageId>,
}

impl PinnedVersion {
    /// Whether all of it is there.
    pub fn is_complete(&self) -> bool {
        self.pinned_bytes >= self.bytes
    }
}

impl<'a> Claim<'a> {
    /// Claims a name; `target` is how people write it.
    ///
    /// # Errors
    /// Another process brings it up to date, or the disk fails.
    pub fn new(cache: &'a Cache, remote: &Remote, target: &'a str) -> Result<Claim<'a>, PinError> {
        let key = key_of(remote);
        let claim = cache.claim_name(&key)?.ok_or_else(|| PinError::Running(target.into()))?;
        Ok(Claim { cache, key, target, _claim: claim })
    }

    /// The version that programs start from, if its check did not end.
    ///
    /// # Errors
    /// What the disk says.
    pub fn unchecked(&self) -> io::Result<Option<ImageId>> {
        let name = self.cache.pinned_name(&self.key)?.filter(|name| name.is_unchecked);
        Ok(name.and_then(|name| name.current).map(|version| id_of(version.owner)))
    }

    /// A version was checked. A bad one is never switched to again, and the previous one is in
    /// force at once.
    ///
    /// # Errors
    /// What the disk says.
    pub fn checked(&self, id: ImageId, is_good: bool) -> io::Result<Verdict> {
        let verdict = self.cache.change_name(&self.key, |name| {
            if name.current.is_none_or(|current| current.owner.0 != id.0) {
                return Verdict::Other;
            }
            if is_good {
                name.is_unchecked = false;
                return Verdict::Good;
            }
            match name.previous.filter(|previous| is_whole(self.cache, previous)) {
                Some(previous) => {
                    return_to(name, previous);
                    Verdict::Returned(id_of(previous.owner))
                }
                None => Verdict::Stays,
            }
        })?;
        tidy(self.cache);
        Ok(verdict)
    }

    /// Whether a version is to be had: not one that was rolled back from.
    pub(super) fn wants(&self, owner: Owner) -> io::Result<bool> {
        let name = self.cache.pinned_name(&self.key)?;
        Ok(name.is_none_or(|name| !name.bad.contains(&owner)))
    }

    /// The server has no version that is to be had.
    pub(super) fn hold_back(&self) -> io::Result<()> {
        self.cache.change_name(&self.key, |name| name.next = None)?;
        tidy(self.cache);
        Ok(())
    }

    /// The previous version, which goes first if room is lacking; not if it is the one that is to
    /// be had.
    pub(super) fn previous(&self, owner: Owner) -> io::Result<Option<Owner>> {
        let name = self.cache.pinned_name(&self.key)?;
        let previous = name.and_then(|name| name.previous).map(|version| version.owner);
        Ok(previous.filter(|previous| *previous != owner))
    }

    /// Gives the room of the previous version to another one. False if a program or another name
    /// uses it: then it stays.
    pub(super) fn give_up_previous(&self, owner: Owner) -> io::Result<bool> {
        let given_up =
            self.cache.change_name(&self.key, |name| name.previous.take_if(|version| version.owner == owner))?;
        self.cache.unpin_unnamed()?;
        let is_gone = !self.cache.pins().contains_key(&owner);
        if !is_gone {
            self.cache.change_name(&self.key, |name| name.previous = given_up)?;
        }
        Ok(is_gone)
    }

    /// A version is fetched from now on, beside the present one.
    pub(super) fn begin(&self, owner: Owner, bytes: u64) -> io::Result<()> {
        self.cache.change_name(&self.key, |name| {
            name.target = shortened(self.target);
            name.bad.retain(|bad| *bad != owner);
            let is_current = name.current.is_some_and(|current| current.owner == owner);
            name.next = (!is_current).then_some(Version { owner, bytes });
        })?;
        // The one that was begun before, if it is another one.
        tidy(self.cache);
        Ok(())
    }

    /// All of a version is there: programs start from it from now on.
    pub(super) fn switch(&self, owner: Owner, is_unchecked: bool) -> io::Result<Change> {
        let bytes = self.cache.pins().get(&owner).copied().unwrap_or(0);
        let change = self.cache.change_name(&self.key, |name| {
            name.next = None;
            let before = name.current.replace(Version { owner, bytes });
            match before {
                Some(before) if before.owner == owner => Change::None,
                before => {
                    name.previous = before;
                    name.is_unchecked = is_unchecked;
                    Change::Switched(before.map(|version| id_of(version.owner)))
                }
            }
        })?;
        tidy(self.cache);
        Ok(change)
    }
}

/// Returns to the version before at once. The present one is not switched to again unless that is
/// forced.
///
/// # Errors
/// [`RollbackError`]; then nothing has changed.
pub fn rollback(cache: &Cache, remote: &Remote, target: &str) -> Result<RolledBack, RollbackError> {
    let key = key_of(remote);
    if cache.pinned_name(&key)?.is_none() {
        return Err(RollbackError::NotPinned(target.into()));
    }
    let outcome = cache.change_name(&key, |name| {
        let (Some(current), Some(previous)) = (name.current, name.previous) else {
            return Err(RollbackError::NoPrevious(target.into()));
        };
        if !is_whole(cache, &previous) {
            return Err(RollbackError::Lost(target.into()));
        }
        return_to(name, previous);
        Ok(RolledBack { from: id_of(current.owner), to: id_of(previous.owner) })
    })??;
    tidy(cache);
    Ok(outcome)
}

/// The names that are pinned in a cache, and images that were and that a program still runs from or
/// that somebody is about to unpin, with the bytes of each.
///
/// # Errors
/// What the disk says.
pub fn pinned(cache: &Cache) -> io::Result<(Vec<Pinned>, Vec<PinnedVersion>)> {
    let mut pins = cache.pins();
    let names: Vec<_> = cache.pinned_names()?.into_iter().map(|(_, name)| name).collect();
    let version = |version: Option<Version>| {
        version.map(|Version { owner, bytes }| {
            let pinned_bytes = pins.get(&owner).copied().unwrap_or(0);
            PinnedVersion { id: id_of(owner), bytes, pinned_bytes }
        })
    };
    let of = |name: &PinnedName| Pinned {
        target: name.target.clone(),
        current: version(name.current),
        previous: version(name.previous),
        next: version(name.next),
        bad: name.bad.iter().copied().map(id_of).collect(),
        is_unchecked: name.is_unchecked,
    };
    let mut found: Vec<Pinned> = names.iter().map(of).collect();
    found.sort_by(|one, other| one.target.cmp(&other.target));
    for named in names.iter().flat_map(|name| [name.current, name.previous, name.next]).flatten() {
        pins.remove(&named.owner);
    }
    let others = pins.into_iter().map(|(owner, bytes)| PinnedVersion { id: id_of(owner), bytes, pinned_bytes: bytes });
    Ok((found, others.collect()))
}

/// Pins a name no more, or all names that stand for this id. Returns how many names that were; what
/// they stood for stays in the cache until its room is needed, and while a program runs from it.
///
/// # Errors
/// What the disk says; somebody brings the name up to date just now.
pub fn unpin(cache: &Cache, remote: &Remote, target: &str) -> Result<usize, PinError> {
    let key = key_of(remote);
    let is_meant = |found: &Key, name: &PinnedName| match remote.image {
        ImageName::Id(id) => *found == key || name.current.is_some_and(|current| current.owner.0 == id.0),
        ImageName::Tagged { .. } => *found == key,
    };
    let mut count = 0;
    for (key, name) in cache.pinned_names()?.into_iter().filter(|(key, name)| is_meant(key, name)) {
        let claim = cache.claim_name(&key)?.ok_or_else(|| PinError::Running(target.into()))?;
        // What it stands for without a server.
        let _ = name.current.map(|current| keep_name(cache, &key, &id_of(current.owner)));
        claim.remove()?;
        count += 1;
    }
    tidy(cache);
    Ok(count)
}

/// The version that a program starts from, as it was when the cache was opened. It stays there as
/// long as the cache is open. `None` if what `remote` names is not pinned.
pub(crate) fn in_force(cache: &Cache, remote: &Remote) -> Option<InForce> {
    let versions = |name: &PinnedName| [name.current, name.previous].into_iter().flatten();
    let found = match remote.image {
        ImageName::Id(id) => {
            let mut owners = cache.names_at_open().values().flat_map(versions).map(|version| version.owner);
            owners.find(|owner| owner.0 == id.0).map(|_| InForce { id, newer: None })
        }
        ImageName::Tagged { .. } => cache.names_at_open().get(&key_of(remote)).and_then(|name| {
            let newer = name.next.map(|version| id_of(version.owner));
            name.current.map(|version| InForce { id: id_of(version.owner), newer })
        }),
    }?;
    // If it was unpinned since, what is missing comes from the server, of this version all the
    // same.
    cache.use_pinned(&Owner(found.id.0));
    Some(found)
}

fn return_to(name: &mut PinnedName, previous: Version) {
    let from = name.current.replace(previous);
    (name.previous, name.is_unchecked) = (None, false);
    if let Some(from) = from {
        name.bad.retain(|bad| *bad != from.owner);
        name.bad.push(from.owner);
        name.bad.drain(..name.bad.len().saturating_sub(BAD_MAX));
    }
}

/// Whether all of a version is pinned: another process may have unpinned it, or logs are lost.
fn is_whole(cache: &Cache, version: &Version) -> bool {
    cache.pins().get(&version.owner).is_some_and(|bytes| *bytes >= version.bytes)
}

/// Unpins what no name has any more. What cannot be done now is done by the next one who changes a
/// name, and is no reason to say that a change failed which is done.
fn tidy(cache: &Cache) {
    let _ = cache.unpin_unnamed();
}

/// The key of a name, or of an id.
fn key_of(remote: &Remote) -> Key {
    Name::key_of(&remote.server, &remote.image)
}

fn id_of(owner: Owner) -> ImageId {
    ImageId(owner.0)
}

/// An address, as far as it is kept.
fn shortened(target: &str) -> String {
    let mut end = target.len().min(cache::TARGET_BYTES_MAX);
    while !target.is_char_boundary(end) {
        end -= 1;
    }
    target[..end].into()
}
