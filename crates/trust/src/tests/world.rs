//! The honest side of the simulation: a publisher that publishes, rotates keys and delegates, and
//! what its files say, as symbols for the oracle.

use std::collections::BTreeMap;

use units::{Rng, SplitMix64};

use super::publisher::{DAY, Files, Publisher, Role, START, sha256};
use crate::Kind;

/// The keys of nobody whom a device trusts.
pub const FORGED: u32 = u32::MAX;

/// Names that devices open; nobody signs the last.
pub const NAMES: [&str; 5] = ["a:1", "ab:1", "b:1", "c:1", "none:1"];

/// Images from this number on are the adversary's.
pub const EVIL: u64 = 1 << 32;

/// A role that a targets file delegates to.
#[derive(Clone, Debug)]
pub struct Edge {
    pub role: String,
    pub epoch: u32,
    pub prefix: String,
    pub is_terminating: bool,
}

/// A file: what it says, and its bytes.
#[derive(Clone, Debug)]
pub struct File {
    pub version: u64,
    /// Generation of the role's keys that signed it.
    pub epoch: u32,
    pub expires: i64,
    /// Tells files apart.
    pub content: String,
    /// Versions and contents that it lists, by role.
    pub lists: BTreeMap<String, (u64, String)>,
    pub names: BTreeMap<String, u64>,
    pub edges: Vec<Edge>,
    pub bytes: Vec<u8>,
    /// What a device may say of its bytes, if they were damaged.
    pub damage: Vec<Kind>,
}

/// A root, in the same way.
#[derive(Clone, Debug)]
pub struct RootFile {
    pub version: u64,
    /// Generations of the keys of root, timestamp, snapshot and targets.
    pub epochs: [u32; 4],
    /// Generations of root keys that signed it.
    pub signed_by: Vec<u32>,
    pub expires: i64,
    pub bytes: Vec<u8>,
    pub damage: Vec<Kind>,
}

/// The files beside roots, by role.
pub type Release = BTreeMap<String, File>;

/// What publishers signed, and when.
pub struct World {
    pub rng: SplitMix64,
    /// Seconds since 1970.
    pub now: i64,
    pub publisher: Publisher,
    pub roots: Vec<RootFile>,
    pub releases: Vec<Release>,
    /// Snapshots in the order of their publication, by content.
    pub snapshots: Vec<String>,
    image: u64,
}

/// The generation of a role's keys, from the label of the first.
pub fn epoch(role: &Role) -> u32 {
    role.keys[0].rsplit('/').next().and_then(|number| number.parse().ok()).unwrap_or(FORGED)
}

fn new_keys(name: &str, role: &mut Role) {
    let next = epoch(role).wrapping_add(1);
    let count = if name == "root" { 2 } else { 1 };
    role.keys = (0..count).map(|number| format!("{name}-{number}/{next}")).collect();
    role.threshold = count;
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut publisher =
            Publisher { names: NAMES[..3].iter().map(|name| (name.to_string(), 1)).collect(), ..Publisher::new() };
        for (name, role) in [
            ("root", &mut publisher.root),
            ("timestamp", &mut publisher.timestamp),
            ("snapshot", &mut publisher.snapshot),
            ("targets", &mut publisher.targets),
        ] {
            new_keys(name, role);
        }
        let mut world = World {
            rng: SplitMix64(seed),
            now: START,
            publisher,
            roots: Vec::new(),
            releases: Vec::new(),
            snapshots: Vec::new(),
            image: 1,
        };
        world.add_root();
        world.release(true);
        world
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    /// One in `bound`.
    pub fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    fn add_root(&mut self) {
        let publisher = &self.publisher;
        let roles = [&publisher.root, &publisher.timestamp, &publisher.snapshot, &publisher.targets];
        let mut signed_by = vec![epoch(&publisher.root)];
        signed_by
            .extend(publisher.old_root_keys.first().and_then(|label| label.rsplit('/').next()?.parse::<u32>().ok()));
        self.roots.push(RootFile {
            version: publisher.root.version,
            epochs: roles.map(epoch),
            signed_by,
            expires: publisher.root.expires,
            bytes: publisher.files()["root"].clone(),
            damage: Vec::new(),
        });
    }

    /// The publisher changes something and signs.
    pub fn publish(&mut self) {
        let mut is_snapshot_new = false;
        match self.below(12) {
            0..4 => {
                is_snapshot_new = true;
                self.push_name();
            }
            4 | 5 => is_snapshot_new = self.delegate(),
            6 => {
                is_snapshot_new = true;
                self.rotate();
            }
            7 => {
                // New keys of a delegated role, which its parent gives out.
                let count = self.publisher.delegated.len() as u64;
                if count > 0 {
                    let at = self.below(count) as usize;
                    let delegated = &mut self.publisher.delegated[at];
                    let name = delegated.name.clone();
                    new_keys(&name, &mut delegated.role);
                    delegated.role.version += 1;
                    self.publisher.targets.version += 1;
                    is_snapshot_new = true;
                }
            }
            _ => {}
        }
        self.release(is_snapshot_new);
    }

    fn push_name(&mut self) {
        self.image += 1;
        let image = self.image;
        let name = NAMES[self.below(4) as usize].to_owned();
        let at = self.below(1 + self.publisher.delegated.len() as u64) as usize;
        match self.publisher.delegated.get_mut(at) {
            Some(delegated) => {
                // A publisher signs any name, also one that it was not given.
                let prefix = delegated.paths[0].trim_end_matches('*');
                let image = if name.starts_with(prefix) { image } else { EVIL + image };
                delegated.names.insert(name, image);
                delegated.role.version += 1;
            }
            None => {
                self.publisher.names.insert(name, image);
                self.publisher.targets.version += 1;
            }
        }
    }

    fn delegate(&mut self) -> bool {
        let number = self.publisher.delegated.len();
        if number >= 5 {
            return false;
        }
        let prefix = ["a", "ab", "b", "c", ""][self.below(5) as usize];
        let is_terminating = self.one_in(4);
        let name = format!("role{number}");
        let delegated = self.publisher.delegate("targets", &name, &[&format!("{prefix}*")], &[]);
        delegated.terminating = is_terminating;
        new_keys(&name, &mut delegated.role);
        delegated.role.expires = self.now + 30 * DAY;
        self.publisher.targets.version += 1;
        // Names move to delegated roles over time.
        let name = NAMES[self.below(4) as usize];
        if let Some(image) = self.publisher.names.remove(name)
            && name.starts_with(prefix)
            && let Some(delegated) = self.publisher.delegated.last_mut()
        {
            delegated.names.insert(name.to_owned(), image);
        }
        true
    }

    /// New keys of a top-level role: after a theft its versions may begin again.
    fn rotate(&mut self) {
        let begins_again = self.one_in(2);
        let which = self.below(4) as usize;
        self.publisher.old_root_keys = self.publisher.root.keys.clone();
        self.publisher.root.version += 1;
        self.publisher.root.expires = self.now + 365 * DAY;
        let publisher = &mut self.publisher;
        let (name, role) = [
            ("root", &mut publisher.root),
            ("timestamp", &mut publisher.timestamp),
            ("snapshot", &mut publisher.snapshot),
            ("targets", &mut publisher.targets),
        ]
        .into_iter()
        .nth(which)
        .expect("four roles");
        new_keys(name, role);
        if name != "root" {
            role.version = if begins_again { 1 } else { role.version + 1 };
        }
        self.add_root();
    }

    /// Signs what changed, what expires soon, and a timestamp.
    fn release(&mut self, mut is_snapshot_new: bool) {
        let now = self.now;
        let publisher = &mut self.publisher;
        let delegated = publisher.delegated.iter_mut().map(|delegated| &mut delegated.role);
        for role in delegated.chain([&mut publisher.targets]) {
            if role.expires < now + 8 * DAY {
                role.version += 1;
                role.expires = now + 30 * DAY;
                is_snapshot_new = true;
            }
        }
        if is_snapshot_new || publisher.snapshot.expires < now + 2 * DAY {
            publisher.snapshot.version += 1;
            publisher.snapshot.expires = now + 7 * DAY;
        }
        publisher.timestamp.version += 1;
        publisher.timestamp.expires = now + DAY;
        let release = symbols(publisher, &publisher.files());
        let snapshot = &release["snapshot"].content;
        if self.snapshots.last() != Some(snapshot) {
            self.snapshots.push(snapshot.clone());
        }
        self.releases.push(release);
    }

    /// The place of a snapshot in the order of publication, and what the publisher means by `name`
    /// in it.
    pub fn truth(&self, snapshot: &str, name: &str) -> Option<(usize, u64)> {
        let order = self.snapshots.iter().position(|content| content == snapshot)?;
        let release = self.releases.iter().find(|release| release["snapshot"].content == snapshot)?;
        Some((order, meaning(release, name)?))
    }
}

/// The image that a release has for a name.
pub fn meaning(release: &Release, name: &str) -> Option<u64> {
    let targets = &release["targets"];
    if let Some(image) = targets.names.get(name) {
        return Some(*image);
    }
    for edge in targets.edges.iter().filter(|edge| name.starts_with(&edge.prefix)) {
        if let Some(image) = release[&edge.role].names.get(name) {
            return Some(*image);
        }
        if edge.is_terminating {
            break;
        }
    }
    None
}

/// The files of a publisher with what they say.
pub fn symbols(publisher: &Publisher, files: &Files) -> Release {
    let role = |name: &str| match name {
        "timestamp" => Some(&publisher.timestamp),
        "snapshot" => Some(&publisher.snapshot),
        "targets" => Some(&publisher.targets),
        name => publisher.delegated.iter().find(|delegated| delegated.name == name).map(|delegated| &delegated.role),
    };
    let entry = |name: &str, role: &Role| (name.to_owned(), (role.version, sha256(&files[name])));
    let delegated = || publisher.delegated.iter().map(|delegated| (&delegated.name[..], &delegated.role));
    let file = |(name, bytes): (&String, &Vec<u8>)| {
        let role = role(name)?;
        let lists = match &name[..] {
            "timestamp" => BTreeMap::from([entry("snapshot", &publisher.snapshot)]),
            "snapshot" => {
                delegated().chain([("targets", &publisher.targets)]).map(|(name, role)| entry(name, role)).collect()
            }
            _ => BTreeMap::new(),
        };
        let names = match &name[..] {
            "targets" => publisher.names.clone(),
            name => publisher
                .delegated
                .iter()
                .find(|delegated| delegated.name == name)
                .map(|delegated| delegated.names.clone())
                .unwrap_or_default(),
        };
        let edges = publisher.delegated.iter().filter(|delegated| delegated.parent == *name).map(|delegated| Edge {
            role: delegated.name.clone(),
            epoch: epoch(&delegated.role),
            prefix: delegated.paths[0].trim_end_matches('*').to_owned(),
            is_terminating: delegated.terminating,
        });
        let file = File {
            version: role.version,
            epoch: epoch(role),
            expires: role.expires / 60 * 60,
            content: sha256(bytes),
            lists,
            names,
            edges: edges.collect(),
            bytes: bytes.clone(),
            damage: Vec::new(),
        };
        Some((name.clone(), file))
    };
    files.iter().filter_map(file).collect()
}
