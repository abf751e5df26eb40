//! The client workflow of the specification, sections 5.4 to 5.7: from a timestamp to a name.
//!
//! Each file is checked in this order: size and form, signatures, whether it is the one that its
//! parent lists, its version against memory, its expiry. The specification compares hashes before
//! signatures, to read less of foreign files; sizes are bounded here anyway, and in this order a
//! refusal says whether a file is damaged, not signed, or a valid one in the wrong place.
//!
//! In one point this is stricter than the specification: new timestamp keys alone do not forget the
//! snapshot (5.3.11). A server holds the timestamp key, so it could then go back to an old snapshot
//! at each rotation. Nothing is lost: a snapshot's version is remembered only with its signature.

use units::ImageId;

use crate::delegation::{Delegation, delegations};
use crate::digest::{from_hex, matches};
use crate::format::{ROLES_VISITED_MAX, SNAPSHOT_BYTES_MAX, TARGETS_BYTES_MAX, TIMESTAMP_BYTES_MAX};
use crate::json::Json;
use crate::key::{RoleKeys, Signer};
use crate::memory::{Accepted, Listed, RoleId, Visited, remember, role_id};
use crate::metadata::{Metadata, positive};
use crate::refusal::{Flaw, Refusal};
use crate::root::require;
use crate::rule::{Rule, holds};
use crate::stapled::Stapled;
use crate::state::State;
use crate::time::UnixTime;
use crate::verifier::{JudgedBy, SignedName};

/// One verification. The state stays as it is; [`Workflow::run`] says what to remember.
pub(crate) struct Workflow<'a> {
    state: &'a State,
    answer: &'a Stapled,
    now: UnixTime,
    judged_by: JudgedBy,
    /// First expiry of the files so far.
    expires: UnixTime,
}

/// What a state remembers of an accepted name.
pub(crate) struct Update {
    floor: UnixTime,
    timestamp: Accepted,
    snapshot: Accepted,
    targets: Accepted,
    listed: Vec<Listed>,
}

impl Update {
    /// Puts it into the state that it was made from.
    pub fn apply(self, state: &mut State) {
        state.floor = self.floor;
        state.timestamp = Some(self.timestamp);
        state.snapshot = Some(self.snapshot);
        state.targets = Some(self.targets);
        state.listed = self.listed;
    }
}

/// A file and the keys that signed it.
struct Verified<'a> {
    file: Metadata<'a>,
    signers: Vec<Signer>,
}

/// The files that come before those of delegated roles.
struct TopLevel<'a> {
    timestamp: Verified<'a>,
    snapshot: Verified<'a>,
    targets: Verified<'a>,
    /// What the snapshot lists.
    listing: Vec<(RoleId, u64)>,
}

impl Verified<'_> {
    fn accepted(self) -> Accepted {
        Accepted::new(self.file.version, self.file.content, self.signers)
    }
}

impl<'a> Workflow<'a> {
    pub fn new(state: &'a State, answer: &'a Stapled, now: Option<UnixTime>) -> Workflow<'a> {
        let (now, judged_by) = match now {
            Some(now) if now >= state.floor => (now, JudgedBy::Clock),
            _ => (state.floor, JudgedBy::Floor),
        };
        Workflow { state, answer, now, judged_by, expires: state.root.expires }
    }

    /// What the name stands for, and what to remember.
    pub fn run(mut self, name: &str) -> Result<(SignedName, Update), Refusal> {
        let files = self.top_level()?;
        let mut visited = Vec::new();
        let (role, version, target) = self.find(name, &files.snapshot, &files.targets, &mut visited)?;
        let (image, bytes, fs_verity) = read_target(&target).map_err(|flaw| flaw.of(&role))?;
        let (expires, judged_by) = (self.expires, self.judged_by);
        let found = SignedName { image, bytes, fs_verity, role, version, expires, judged_by };
        Ok((found, self.update(files, &visited)))
    }

    /// What to remember of the top-level files, whatever they say of names.
    pub fn run_without_name(mut self) -> Result<Update, Refusal> {
        let files = self.top_level()?;
        Ok(self.update(files, &[]))
    }

    fn top_level(&mut self) -> Result<TopLevel<'a>, Refusal> {
        let root = &self.state.root;
        self.expiry("root", root.version, root.expires)?;
        let timestamp = self.timestamp()?;
        let snapshot = self.snapshot(&timestamp)?;
        let listing = listing(&snapshot.file).map_err(|flaw| flaw.of("snapshot"))?;
        self.listing_rollback(snapshot.file.version, &listing)?;
        let targets = self.targets(&snapshot)?;
        Ok(TopLevel { timestamp, snapshot, targets, listing })
    }

    fn update(&self, files: TopLevel<'a>, visited: &[(String, u64, [u8; 16])]) -> Update {
        let visited: Vec<Visited<'_>> = visited
            .iter()
            .map(|(name, version, content)| Visited { name, version: *version, content: *content })
            .collect();
        let before = self.snapshot_memory().map_or(&[][..], |_| &self.state.listed);
        let listed = remember(&files.listing, &visited, before);
        Update {
            floor: self.now,
            timestamp: files.timestamp.accepted(),
            snapshot: files.snapshot.accepted(),
            targets: files.targets.accepted(),
            listed,
        }
    }

    fn timestamp(&mut self) -> Result<Verified<'a>, Refusal> {
        let keys = self.state.root.timestamp();
        let found = self.load("timestamp", "timestamp", keys, TIMESTAMP_BYTES_MAX)?;
        let memory = self.state.timestamp.as_ref().and_then(|memory| memory.under(keys));
        if let Some(memory) = memory {
            older("timestamp", &found.file, memory, Rule::TimestampVersion)?;
        }
        let listed = listed_file(&found.file, "snapshot").map_err(|flaw| flaw.of("timestamp"))?;
        let version = positive(listed, "version").map_err(|flaw| flaw.of("timestamp"))?;
        if let Some(memory) = self.snapshot_memory() {
            not_below("snapshot", version, memory.version, Rule::SnapshotVersion)?;
        }
        if holds(Rule::TimestampExpiry) {
            self.expiry("timestamp", found.file.version, found.file.expires)?;
        }
        Ok(found)
    }

    fn snapshot(&mut self, timestamp: &Verified<'a>) -> Result<Verified<'a>, Refusal> {
        let found = self.load("snapshot", "snapshot", self.state.root.snapshot(), SNAPSHOT_BYTES_MAX)?;
        if holds(Rule::SnapshotListed) {
            self.is_listed("snapshot", &found.file, "timestamp", &timestamp.file)?;
        }
        if let Some(memory) = self.snapshot_memory() {
            older("snapshot", &found.file, memory, Rule::SnapshotVersion)?;
        }
        self.expiry("snapshot", found.file.version, found.file.expires)?;
        Ok(found)
    }

    /// The snapshot that was accepted before, if its keys are still those of today.
    fn snapshot_memory(&self) -> Option<&'a Accepted> {
        self.state.snapshot.as_ref()?.under(self.state.root.snapshot())
    }

    /// The targets file that was accepted before. It was the snapshot that listed it, so both must
    /// still count.
    fn targets_memory(&self) -> Option<&'a Accepted> {
        self.snapshot_memory()?;
        self.state.targets.as_ref()?.under(self.state.root.targets())
    }

    /// No version that a snapshot listed goes back in the next, and none disappears (5.5.5).
    fn listing_rollback(&self, snapshot: u64, listing: &[(RoleId, u64)]) -> Result<(), Refusal> {
        if self.snapshot_memory().is_none() || !holds(Rule::Listing) {
            return Ok(());
        }
        for old in &self.state.listed {
            match listing.iter().find(|(role, _)| *role == old.role) {
                None => return Err(Refusal::Vanished { version: snapshot, expected: old.version }),
                Some((_, version)) if *version < old.version => {
                    let role = self.role_name(&old.role);
                    return Err(Refusal::Rollback { role, found: *version, expected: old.version });
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// The name of a role that is remembered by its hash, from the files of the answer.
    fn role_name(&self, id: &RoleId) -> String {
        let name = self.answer.files().map(|(role, _)| role).find(|role| role_id(role) == *id);
        name.map_or_else(|| "a delegated role".to_owned(), |name| units::printable_line(name.as_bytes()).into_owned())
    }

    fn targets(&mut self, snapshot: &Verified<'a>) -> Result<Verified<'a>, Refusal> {
        if let Some(memory) = self.targets_memory() {
            let listed = listed_file(&snapshot.file, "targets").and_then(|listed| positive(listed, "version"));
            let listed = listed.map_err(|flaw| flaw.of("snapshot"))?;
            not_below("targets", listed, memory.version, Rule::Listing)?;
        }
        let keys = self.state.root.targets();
        let found = self.targets_file("targets", keys, snapshot)?;
        if let Some(memory) = self.targets_memory() {
            older("targets", &found.file, memory, Rule::Listing)?;
        }
        Ok(found)
    }

    /// A targets file, top-level or delegated, that the snapshot lists.
    fn targets_file(&mut self, role: &str, keys: &RoleKeys, snapshot: &Verified<'a>) -> Result<Verified<'a>, Refusal> {
        let found = self.load(role, "targets", keys, TARGETS_BYTES_MAX)?;
        if holds(Rule::TargetsListed) {
            self.is_listed(role, &found.file, "snapshot", &snapshot.file)?;
        }
        let memory = self.snapshot_memory().and_then(|_| {
            let id = role_id(role);
            self.state.listed.iter().find(|listed| listed.role == id)
        });
        if let Some(memory) = memory
            && memory.version == found.file.version
            && memory.content.is_some_and(|content| content != found.file.content)
            && holds(Rule::Fork)
        {
            return Err(Refusal::Forked { role: role.into(), version: memory.version });
        }
        self.expiry(role, found.file.version, found.file.expires)?;
        Ok(found)
    }

    /// Searches the roles in preorder, each at most once (5.6.7). Returns the role that has the
    /// name, its version, and the target.
    fn find(
        &mut self,
        name: &str,
        snapshot: &Verified<'a>,
        targets: &Verified<'a>,
        visited: &mut Vec<(String, u64, [u8; 16])>,
    ) -> Result<(String, u64, Target), Refusal> {
        if let Some(target) = target(&targets.file, name) {
            return Ok(("targets".into(), targets.file.version, target));
        }
        let mut open = open_delegations("targets", &targets.file, name)?;
        while let Some(Delegation { role, keys, .. }) = open.pop() {
            if visited.iter().any(|(other, ..)| *other == role) {
                continue;
            }
            let found = visited.len() + 2;
            Flaw::limit("roles to ask for this name", found, ROLES_VISITED_MAX).map_err(|flaw| flaw.of("targets"))?;
            let Verified { file, .. } = self.targets_file(&role, &keys, snapshot)?;
            visited.push((role.clone(), file.version, file.content));
            if let Some(target) = target(&file, name) {
                return Ok((role, file.version, target));
            }
            let inner = open_delegations(&role, &file, name)?;
            if inner.first().is_some_and(|last| last.is_terminating) {
                open.clear();
            }
            open.extend(inner);
        }
        Err(Refusal::NotFound { name: name.into() })
    }

    fn load(&self, role: &str, kind: &str, keys: &RoleKeys, bytes_max: usize) -> Result<Verified<'a>, Refusal> {
        let bytes = self.answer.file(role).ok_or_else(|| Refusal::Missing { role: role.into() })?;
        let file = Metadata::read(kind, bytes, bytes_max).map_err(|flaw| flaw.of(role))?;
        let signers = require(role, &file, keys)?;
        Ok(Verified { file, signers })
    }

    /// Whether the file is the one that its parent lists, by version, length and hashes.
    fn is_listed(
        &self,
        role: &str,
        file: &Metadata<'_>,
        parent: &'static str,
        list: &Metadata<'_>,
    ) -> Result<(), Refusal> {
        let mixed = |what| Refusal::MixedContent { role: role.into(), version: file.version, parent, what };
        let Ok(listed) = listed_file(list, role) else { return Err(mixed("it is not listed")) };
        let expected = positive(listed, "version").map_err(|flaw| flaw.of(parent))?;
        if file.version != expected {
            return Err(Refusal::MixedVersion { role: role.into(), parent, found: file.version, expected });
        }
        let bytes = self.answer.file(role).unwrap_or_default();
        let length = listed.get("length").map(|length| length.unsigned());
        if length.is_some_and(|length| length != Some(bytes.len() as u64)) {
            return Err(mixed("another length"));
        }
        let Some(hashes) = listed.get("hashes") else { return Ok(()) };
        let hashes = hashes.object().unwrap_or_default();
        let mut known = 0;
        for (algorithm, hash) in hashes {
            match matches(algorithm, hash.text().unwrap_or_default(), bytes) {
                Some(true) => known += 1,
                Some(false) => return Err(mixed("another hash")),
                None => {}
            }
        }
        if known == 0 { Err(mixed("no hash by SHA-256 or SHA-512")) } else { Ok(()) }
    }

    fn expiry(&mut self, role: &str, version: u64, expires: UnixTime) -> Result<(), Refusal> {
        self.expires = self.expires.min(expires);
        if self.now < expires || !holds(Rule::Expiry) {
            return Ok(());
        }
        Err(Refusal::Expired { role: role.into(), version, expires, now: self.now, judged_by: self.judged_by })
    }
}

/// Refuses a file that is older than the one in memory, or another one with its version.
fn older(role: &str, file: &Metadata<'_>, memory: &Accepted, rule: Rule) -> Result<(), Refusal> {
    not_below(role, file.version, memory.version, rule)?;
    if file.version == memory.version && file.content != memory.content && holds(Rule::Fork) {
        return Err(Refusal::Forked { role: role.into(), version: file.version });
    }
    Ok(())
}

fn not_below(role: &str, found: u64, expected: u64, rule: Rule) -> Result<(), Refusal> {
    if found < expected && holds(rule) {
        return Err(Refusal::Rollback { role: role.into(), found, expected });
    }
    Ok(())
}

/// The entry of `meta` for the file of a role.
pub(crate) fn listed_file<'f>(file: &'f Metadata<'_>, role: &str) -> Result<&'f Json<'f>, Flaw> {
    let listed = file.body.get("meta").and_then(|meta| meta.get(&format!("{role}.json")));
    listed.ok_or(Flaw::field("meta", "an object with the files that this one lists"))
}

/// Delegated roles that a snapshot lists, with their versions.
fn listing(snapshot: &Metadata<'_>) -> Result<Vec<(RoleId, u64)>, Flaw> {
    let meta = snapshot.body.get("meta").and_then(Json::object).ok_or(Flaw::field("meta", "an object"))?;
    let mut found = Vec::with_capacity(meta.len());
    for (file, listed) in meta {
        if let Some(role) = file.strip_suffix(".json").filter(|role| *role != "targets") {
            found.push((role_id(role), positive(listed, "version")?));
        }
    }
    Ok(found)
}

/// The delegations of a file for a name, last first, as a stack has them.
fn open_delegations(role: &str, file: &Metadata<'_>, name: &str) -> Result<Vec<Delegation>, Refusal> {
    let mut found = delegations(&file.body, name).map_err(|flaw| flaw.of(role))?;
    found.reverse();
    Ok(found)
}

/// What a targets file says about a name; `None` for the image if it is not the digits of one.
pub(crate) struct Target {
    image: Option<ImageId>,
    bytes: Option<u64>,
    /// The digest, if there is one; `None` inside if it is not the digits of one.
    fs_verity: Option<Option<[u8; 32]>>,
}

pub(crate) fn target(file: &Metadata<'_>, name: &str) -> Option<Target> {
    let target = file.body.get("targets")?.get(name)?;
    let ours = |field: &str| target.get("custom").and_then(|custom| custom.get("runnel"))?.get(field);
    Some(Target {
        image: ours("id").and_then(Json::text).and_then(ImageId::from_hex),
        bytes: target.get("length").and_then(Json::unsigned),
        fs_verity: ours("fs_verity").map(|digits| digits.text().and_then(from_hex)),
    })
}

fn read_target(target: &Target) -> Result<(ImageId, u64, Option<[u8; 32]>), Flaw> {
    let image = target.image.ok_or(Flaw::field("custom.runnel.id", "64 hexadecimal digits"))?;
    let bytes = target.bytes.ok_or(Flaw::field("length", "an integer"))?;
    let fs_verity = match target.fs_verity {
        Some(digest) => Some(digest.ok_or(Flaw::field("custom.runnel.fs_verity", "64 hexadecimal digits"))?),
        None => None,
    };
    Ok((image, bytes, fs_verity))
}
