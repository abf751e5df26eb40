//! A device against an adversary that holds every TLS key, the timestamp key and all old metadata.
//!
//! One seed makes a whole life: a publisher publishes, rotates and delegates; the device opens
//! names, reboots, loses its cache, misses versions, has a clock or none; the server is honest or
//! attacks. Two things must hold. An oracle that works on symbols says what the device must answer,
//! the kind of its refusal included. And, whatever the oracle says, an accepted image is what the
//! publisher meant in a snapshot that is not older than any that the device has accepted.
//!
//! `RUNNEL_TRUST_SEEDS` sets the number of seeds, `RUNNEL_TRUST_SEED` the first; alone it runs one.

use std::collections::BTreeMap;

use super::attack::attack;
use super::oracle::{Answer, Model};
use super::world::{NAMES, World};
use crate::rule::{Rule, without};
use crate::{Cache, Known, Stapled, State, UnixTime, Verifier};

/// Openings of one seed.
const STEPS: u32 = 30;

/// How openings ended, by attack and outcome.
type Counts = BTreeMap<String, u64>;

struct Device {
    anchor: Vec<u8>,
    verifier: Verifier,
    cache: Cache,
    model: Model,
    has_clock: bool,
}

/// Runs one seed; an error says what went wrong.
fn run(seed: u64, counts: &mut Counts) -> Result<(), String> {
    let mut world = World::new(seed);
    let anchor = world.roots[0].bytes.clone();
    let verifier = Verifier::new(&anchor).map_err(|refusal| refusal.to_string())?;
    let model = Model::new(&world);
    let mut device = Device { anchor, verifier, cache: Cache::default(), model, has_clock: true };
    for step in 0..STEPS {
        world.now += world.rng_seconds();
        for _ in 0..world.below(3) {
            world.publish();
        }
        device.live(&mut world)?;
        let name = NAMES[world.below(NAMES.len() as u64) as usize];
        let (what, answer) =
            if world.below(5) < 2 { honest(&world, &device.model) } else { attack(&mut world, &device.model) };
        let outcome = device
            .open(&mut world, &answer, name, what)
            .map_err(|error| format!("seed {seed}, step {step}, {what}, {name}: {error}"))?;
        *counts.entry(format!("{what}: {outcome}")).or_default() += 1;
    }
    Ok(())
}

impl World {
    /// Time to the next opening: hours, sometimes days.
    fn rng_seconds(&mut self) -> i64 {
        let hours = if self.one_in(8) { self.below(100) } else { self.below(8) };
        hours as i64 * 3600 + 60
    }
}

/// The newest of everything.
fn honest(world: &World, model: &Model) -> (&'static str, Answer) {
    let roots = world.roots[model.root.version as usize..].to_vec();
    ("honest", Answer { roots, files: world.releases[world.releases.len() - 1].clone() })
}

impl Device {
    /// Reboots, lost caches, clocks that come and go.
    fn live(&mut self, world: &mut World) -> Result<(), String> {
        if world.one_in(4) {
            let state = State::decode(&self.verifier.state().encode()).map_err(|error| error.to_string())?;
            self.verifier = Verifier::resume(&self.anchor, state).map_err(|refusal| refusal.to_string())?;
            self.cache = Cache::decode(&self.cache.encode());
            self.has_clock = !world.one_in(3);
        }
        if world.one_in(12) {
            self.cache = Cache::default();
            self.model.cache.clear();
        }
        Ok(())
    }

    fn open(&mut self, world: &mut World, answer: &Answer, name: &str, what: &str) -> Result<String, String> {
        let clock = if self.has_clock { Some(world.now) } else { [None, Some(5)][world.below(2) as usize] };
        let known =
            Known::decode(&self.cache.known(self.verifier.root_version()).encode()).map_err(|e| e.to_string())?;
        let mut stapled = Stapled::default();
        answer.roots.iter().for_each(|root| stapled.push_root(root.bytes.clone()));
        answer.files.iter().for_each(|(role, file)| stapled.push(role, file.bytes.clone()));
        // A file under a wrong name would be left out for the right one.
        if what != "swap" {
            stapled.omit(&known);
        }
        let bytes = stapled.encode().map_err(|error| error.to_string())?;
        let stapled = self.cache.complete(Stapled::decode(&bytes).map_err(|error| error.to_string())?);

        let found = self.verifier.verify(&stapled, name, clock.map(UnixTime));
        let before = self.model.clone();
        let expected = self.model.open(answer, name, clock);
        if self.verifier.root_version() != self.model.root.version {
            return Err(format!("root {}, expected {}", self.verifier.root_version(), self.model.root.version));
        }
        match (found, expected) {
            (Ok(found), expected) => {
                self.cache.keep(&stapled);
                let image =
                    u64::from_str_radix(&found.image.to_string()[48..], 16).map_err(|error| error.to_string())?;
                let mut files = before.cache.clone();
                files.extend(answer.files.clone());
                let snapshot = files.get("snapshot").ok_or("accepted without a snapshot")?;
                match world.truth(&snapshot.content, name) {
                    Some((order, meant)) if meant == image && order >= before.order => self.model.order = order,
                    other => {
                        return Err(format!("accepted {image}, the publisher meant {other:?} from {}", before.order));
                    }
                }
                match expected {
                    Ok(expected) if expected == image => Ok("accepted".into()),
                    other => Err(format!("accepted {image}, expected {other:?}")),
                }
            }
            (Err(refusal), Err(kinds)) if kinds.contains(&refusal.kind()) => Ok(refusal.kind().to_string()),
            (Err(refusal), expected) => Err(format!("refused ({refusal}), expected {expected:?}")),
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn sim_trust() {
    let first = number("RUNNEL_TRUST_SEED");
    let count = number("RUNNEL_TRUST_SEEDS").unwrap_or(if first.is_some() { 1 } else { 2000 });
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let part = |thread: u64| {
        let mut counts = Counts::new();
        let first = first.unwrap_or(0);
        for seed in (first..first + count).filter(|seed| seed % threads == thread) {
            if let Err(error) = run(seed, &mut counts) {
                panic!("{error}\nRUNNEL_TRUST_SEED={seed} cargo test -p runnel-trust sim_trust");
            }
        }
        counts
    };
    let mut counts = Counts::new();
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads).map(|thread| scope.spawn(move || part(thread))).collect();
        for (what, more) in parts.into_iter().flat_map(|part| part.join().expect("no seed fails")) {
            *counts.entry(what).or_default() += more;
        }
    });
    counts.iter().for_each(|(what, count)| println!("{count:8} {what}"));
}

/// A verifier without one of its rules must be found. The rules that are not here matter only
/// against thieves of other keys; each has a test of its own.
#[test]
fn sim_trust_canary() {
    for rule in [
        Rule::RootOldKeys,
        Rule::RootVersion,
        Rule::Threshold,
        Rule::TimestampVersion,
        Rule::TimestampExpiry,
        Rule::SnapshotVersion,
        Rule::SnapshotListed,
        Rule::TargetsListed,
        Rule::Fork,
        Rule::Expiry,
        Rule::Pattern,
        Rule::RotatedKeys,
    ] {
        let found = without(rule, || (0..300).find(|seed| run(*seed, &mut Counts::new()).is_err()));
        println!("{rule:?}: found by seed {found:?}");
        assert!(found.is_some(), "no seed finds that {rule:?} is off");
    }
}
