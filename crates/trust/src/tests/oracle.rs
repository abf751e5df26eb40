//! What a device must make of an answer: the specification's rules on symbols instead of bytes.

use std::collections::BTreeMap;

use super::world::{File, Release, RootFile, World};
use crate::Kind;

/// A top-level file that a device accepted.
#[derive(Clone, Debug)]
pub struct Seen {
    pub version: u64,
    pub epoch: u32,
    pub content: String,
}

/// What a device knows.
#[derive(Clone, Debug)]
pub struct Model {
    pub root: RootFile,
    pub floor: i64,
    pub timestamp: Option<Seen>,
    pub snapshot: Option<Seen>,
    pub targets: Option<Seen>,
    /// Versions that the last snapshot listed.
    pub listed: BTreeMap<String, u64>,
    /// Highest place of an accepted snapshot in the order of publication.
    pub order: usize,
    /// The files of accepted answers, by role.
    pub cache: Release,
}

/// Roots and files that come from a server.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub roots: Vec<RootFile>,
    pub files: Release,
}

/// Kinds of refusal that are right: one, or several for damaged bytes.
type Refused = Vec<Kind>;

fn refused<T>(kind: Kind) -> Result<T, Refused> {
    Err(vec![kind])
}

fn damaged(damage: &[Kind]) -> Result<(), Refused> {
    if damage.is_empty() { Ok(()) } else { Err(damage.to_vec()) }
}

impl Model {
    pub fn new(world: &World) -> Model {
        Model {
            root: world.roots[0].clone(),
            floor: 0,
            timestamp: None,
            snapshot: None,
            targets: None,
            listed: BTreeMap::new(),
            order: 0,
            cache: Release::new(),
        }
    }

    /// The image that the device must accept, or why it must refuse; remembers what it must.
    pub fn open(&mut self, answer: &Answer, name: &str, clock: Option<i64>) -> Result<u64, Refused> {
        for root in &answer.roots {
            damaged(&root.damage)?;
            if !root.signed_by.contains(&self.root.epochs[0]) || !root.signed_by.contains(&root.epochs[0]) {
                return refused(Kind::Signature);
            }
            let says = |root: &RootFile| (root.version, root.epochs, root.expires);
            if says(root) == says(&self.root) {
                return refused(Kind::Damaged);
            }
            if root.version != self.root.version + 1 {
                return refused(if root.version <= self.root.version { Kind::Rollback } else { Kind::Missing });
            }
            self.root = root.clone();
        }
        let now = clock.filter(|clock| *clock >= self.floor).unwrap_or(self.floor);
        if self.root.expires / 60 * 60 <= now {
            return refused(Kind::Expired);
        }
        // Files that the device has fill the gaps.
        let mut files = self.cache.clone();
        files.extend(answer.files.clone());
        let [_, timestamp_epoch, snapshot_epoch, targets_epoch] = self.root.epochs;
        let snapshot_seen = self.snapshot.clone().filter(|seen| seen.epoch == snapshot_epoch);

        let timestamp = load(&files, "timestamp", timestamp_epoch)?;
        older(timestamp, self.timestamp.as_ref().filter(|seen| seen.epoch == timestamp_epoch))?;
        let listed = &timestamp.lists["snapshot"];
        if snapshot_seen.as_ref().is_some_and(|seen| listed.0 < seen.version) {
            return refused(Kind::Rollback);
        }
        if timestamp.expires <= now {
            return refused(Kind::Freeze);
        }

        let snapshot = load(&files, "snapshot", snapshot_epoch)?;
        is_listed(snapshot, "snapshot", timestamp)?;
        older(snapshot, snapshot_seen.as_ref())?;
        fresh(snapshot, now)?;
        if snapshot_seen.is_some() {
            for (role, version) in &self.listed {
                if role != "targets" && snapshot.lists.get(role).is_none_or(|(found, _)| found < version) {
                    return refused(Kind::Rollback);
                }
            }
        }

        let targets_seen = self.targets.as_ref().filter(|seen| seen.epoch == targets_epoch && snapshot_seen.is_some());
        if targets_seen.is_some_and(|seen| snapshot.lists["targets"].0 < seen.version) {
            return refused(Kind::Rollback);
        }
        let targets = load(&files, "targets", targets_epoch)?;
        is_listed(targets, "targets", snapshot)?;
        fresh(targets, now)?;
        older(targets, targets_seen)?;
        let image = find(&files, targets, snapshot, name, now)?;

        let seen = |file: &File| Some(Seen { version: file.version, epoch: file.epoch, content: file.content.clone() });
        (self.timestamp, self.snapshot, self.targets) = (seen(timestamp), seen(snapshot), seen(targets));
        self.listed = snapshot.lists.iter().map(|(role, (version, _))| (role.clone(), *version)).collect();
        self.floor = now;
        self.cache = files;
        Ok(image)
    }
}

fn find(files: &Release, targets: &File, snapshot: &File, name: &str, now: i64) -> Result<u64, Refused> {
    if let Some(image) = targets.names.get(name) {
        return Ok(*image);
    }
    for edge in targets.edges.iter().filter(|edge| name.starts_with(&edge.prefix)) {
        let file = load(files, &edge.role, edge.epoch)?;
        is_listed(file, &edge.role, snapshot)?;
        fresh(file, now)?;
        if let Some(image) = file.names.get(name) {
            return Ok(*image);
        }
        if edge.is_terminating {
            break;
        }
    }
    refused(Kind::NotFound)
}

fn load<'f>(files: &'f Release, role: &str, epoch: u32) -> Result<&'f File, Refused> {
    let Some(file) = files.get(role) else { return refused(Kind::Missing) };
    damaged(&file.damage)?;
    if file.epoch != epoch { refused(Kind::Signature) } else { Ok(file) }
}

fn older(file: &File, seen: Option<&Seen>) -> Result<(), Refused> {
    match seen {
        Some(seen) if file.version < seen.version => refused(Kind::Rollback),
        Some(seen) if file.version == seen.version && file.content != seen.content => refused(Kind::Forked),
        _ => Ok(()),
    }
}

fn is_listed(file: &File, role: &str, parent: &File) -> Result<(), Refused> {
    match parent.lists.get(role) {
        Some((version, content)) if (*version, content) == (file.version, &file.content) => Ok(()),
        _ => refused(Kind::Mixed),
    }
}

fn fresh(file: &File, now: i64) -> Result<(), Refused> {
    if file.expires <= now { refused(Kind::Expired) } else { Ok(()) }
}
