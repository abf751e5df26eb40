//! The adversary: it has every TLS key, the timestamp keys and all that was ever published.

use units::Rng;

use super::oracle::{Answer, Model};
use super::publisher::{DAY, Publisher, sign};
use super::world::{EVIL, FORGED, File, Release, RootFile, World, epoch, symbols};
use crate::Kind;

/// What the server sends, and what it is called in failures.
pub fn attack(world: &mut World, model: &Model) -> (&'static str, Answer) {
    let release = any(world);
    let mut answer = Answer { roots: some_roots(world, model), files: world.releases[release].clone() };
    let what = match world.below(10) {
        0 | 1 => "replay",
        2 => mix(world, &mut answer),
        3 | 4 => resign(world, model, &mut answer),
        5 => wrong_keys(world, &mut answer),
        6 => damage(world, &mut answer),
        7 => swap(world, &mut answer),
        8 => {
            let roles: Vec<String> = answer.files.keys().cloned().collect();
            let role = &roles[world.below(roles.len() as u64) as usize];
            answer.files.remove(role);
            "leave out"
        }
        _ => wrong_roots(world, model, &mut answer),
    };
    (what, answer)
}

/// A release, mostly a late one.
fn any(world: &mut World) -> usize {
    let count = world.releases.len();
    let back = if world.one_in(3) { world.below(count as u64) } else { world.below(4.min(count as u64)) };
    count - 1 - back as usize
}

/// The roots that follow the device's: all, or some.
fn some_roots(world: &mut World, model: &Model) -> Vec<RootFile> {
    let known = model.root.version as usize;
    let mut last = world.roots.len();
    if world.one_in(3) && last > known {
        last = known + world.below((last - known) as u64) as usize;
    }
    world.roots[known.min(last)..last].to_vec()
}

fn mix(world: &mut World, answer: &mut Answer) -> &'static str {
    for role in answer.files.keys().cloned().collect::<Vec<_>>() {
        let other = any(world);
        if let Some(file) = world.releases[other].get(&role) {
            answer.files.insert(role, file.clone());
        }
    }
    "mix"
}

/// A timestamp of the adversary's, signed with a key that the server has.
fn resign(world: &mut World, model: &Model, answer: &mut Answer) -> &'static str {
    let mut publisher = publisher_of(&answer.files);
    let seen = model.timestamp.as_ref().map_or(0, |seen| seen.version);
    publisher.timestamp.version =
        [seen + 1, seen.max(1), seen.saturating_sub(1).max(1), seen + 1000][world.below(4) as usize];
    publisher.timestamp.expires = world.now + if world.one_in(8) { -DAY } else { DAY };
    let newest = epoch(&world.publisher.timestamp);
    let stolen = if world.one_in(6) { world.below(u64::from(newest) + 1) as u32 } else { newest };
    publisher.timestamp.keys = vec![format!("timestamp-0/{stolen}")];
    // It lists the snapshot of the answer, or another one.
    let listed = if world.one_in(4) { any(world) } else { usize::MAX };
    let snapshot = world.releases.get(listed).unwrap_or(&answer.files)["snapshot"].clone();
    answer.files.insert("timestamp".into(), timestamp(&publisher, &snapshot));
    "new timestamp"
}

fn timestamp(publisher: &Publisher, snapshot: &File) -> File {
    let bodies = Publisher { snapshot: publisher.snapshot.clone(), ..publisher.clone() };
    let files = bodies.edited(|role, body| {
        if role == "timestamp" {
            let listed = &mut body["meta"]["snapshot.json"];
            listed["version"] = snapshot.version.into();
            listed["length"] = snapshot.bytes.len().into();
            listed["hashes"]["sha256"] = snapshot.content.clone().into();
        }
    });
    let mut file = symbols(publisher, &files)["timestamp"].clone();
    file.lists.insert("snapshot".into(), (snapshot.version, snapshot.content.clone()));
    file
}

/// A publisher for the adversary's own bodies; only versions and expiries matter.
fn publisher_of(files: &Release) -> Publisher {
    let mut publisher = Publisher::new();
    publisher.snapshot.version = files["snapshot"].version;
    publisher.snapshot.expires = files["snapshot"].expires;
    publisher
}

/// An image of the adversary's, in files that the timestamp key signed; the timestamp lists them.
fn wrong_keys(world: &mut World, answer: &mut Answer) -> &'static str {
    let key = world.publisher.timestamp.keys.clone();
    let roles: Vec<String> = answer.files.keys().filter(|role| *role != "timestamp").cloned().collect();
    let from = roles[world.below(roles.len() as u64) as usize].clone();
    let is_chain = world.one_in(2);
    for role in [&from, "snapshot", "timestamp"] {
        if role != from && !is_chain {
            break;
        }
        let mut file = answer.files[role].clone();
        let mut body: serde_json::Value = serde_json::from_slice(&file.bytes).expect("JSON");
        let mut body = body["signed"].take();
        file.version += 1;
        body["version"] = file.version.into();
        for (listed, (version, content)) in &mut file.lists {
            let new = &answer.files[listed];
            (*version, *content) = (new.version, new.content.clone());
            let entry = &mut body["meta"][format!("{listed}.json")];
            entry["version"] = new.version.into();
            entry["length"] = new.bytes.len().into();
            entry["hashes"]["sha256"] = new.content.clone().into();
        }
        for (name, image) in &mut file.names {
            *image = EVIL + 1;
            body["targets"][name]["custom"]["runnel"]["id"] = super::publisher::image(EVIL + 1).into();
        }
        file.bytes = sign(&body, &key);
        file.content = super::publisher::sha256(&file.bytes);
        file.epoch = if role == "timestamp" { epoch(&world.publisher.timestamp) } else { FORGED };
        answer.files.insert(role.to_owned(), file);
    }
    "wrong keys"
}

/// One file's bytes are flipped, cut, or endless.
fn damage(world: &mut World, answer: &mut Answer) -> &'static str {
    let roles: Vec<String> = answer.files.keys().cloned().collect();
    let at = world.below((roles.len() + answer.roots.len()) as u64) as usize;
    let (bytes, damage) = match roles.get(at) {
        Some(role) => {
            let file = answer.files.get_mut(role).expect("a file");
            (&mut file.bytes, &mut file.damage)
        }
        None => {
            let root = &mut answer.roots[at - roles.len()];
            (&mut root.bytes, &mut root.damage)
        }
    };
    let place = world.rng.below(bytes.len() as u64) as usize;
    match world.rng.below(4) {
        0 => {
            bytes.truncate(place);
            *damage = vec![Kind::Damaged];
        }
        1 => {
            bytes.resize(300_000, b' ');
            *damage = vec![Kind::Oversized];
        }
        _ => {
            // Bit 5 is left out: it turns small hexadecimal digits into large ones.
            bytes[place] ^= [1, 2, 4, 8, 16, 64, 128][world.rng.below(7) as usize];
            *damage = vec![Kind::Damaged, Kind::Signature, Kind::Oversized];
        }
    }
    "damage"
}

/// A file under the name of another role.
fn swap(world: &mut World, answer: &mut Answer) -> &'static str {
    let roles: Vec<String> = answer.files.keys().cloned().collect();
    let [one, other] = [0; 2].map(|_| world.below(roles.len() as u64) as usize);
    if one != other {
        let mut file = answer.files[&roles[one]].clone();
        // Another type is damage; another role of the same type has other keys.
        let is_targets = |role: &String| role != "timestamp" && role != "snapshot";
        file.epoch = FORGED;
        if !is_targets(&roles[one]) || !is_targets(&roles[other]) {
            file.damage = vec![Kind::Damaged, Kind::Oversized];
        }
        answer.files.insert(roles[other].clone(), file);
    }
    "swap"
}

/// Roots that are old, not in order, or the adversary's.
fn wrong_roots(world: &mut World, model: &Model, answer: &mut Answer) -> &'static str {
    match world.below(3) {
        0 => {
            let at = world.below(world.roots.len() as u64) as usize;
            answer.roots.insert(0, world.roots[at].clone());
        }
        1 => {
            if answer.roots.len() > 1 {
                answer.roots.swap(0, 1);
            }
        }
        _ => {
            let mut publisher = world.publisher.clone();
            publisher.root.version = model.root.version + 1;
            for role in [&mut publisher.root, &mut publisher.timestamp, &mut publisher.snapshot, &mut publisher.targets]
            {
                role.keys = world.publisher.timestamp.keys.clone();
                role.threshold = 1;
            }
            publisher.old_root_keys.clear();
            let root = RootFile {
                version: publisher.root.version,
                epochs: [FORGED; 4],
                signed_by: vec![FORGED],
                expires: publisher.root.expires,
                bytes: publisher.files()["root"].clone(),
                damage: Vec::new(),
            };
            answer.roots.insert(0, root);
        }
    }
    "wrong roots"
}
