//! A day of servers on one store: uploads, tags that go, mounts, and collectors, each of which is
//! interrupted by others between any two calls of the store, or killed there.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use store::{Memory, Object, StoreError, Upload, Version};
use units::{Rng, SplitMix64};

use super::*;
use crate::catalog::names::tag_key;
use crate::lock::locked;
use crate::log::Logger;

/// Days of the ordinary test. `RUNNEL_DAYS` asks for more.
const DAYS: u64 = 10;

/// What runs at once at most.
const DEPTH_MAX: u64 = 3;

/// Images, names and tags that there are in the test.
const IMAGES: u64 = 40;
const NAMES: [&str; 4] = ["app", "base", "lib", "tool"];
const TAGS: [&str; 3] = ["1", "2", "latest"];

fn image(number: u64) -> ImageId {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&number.to_le_bytes());
    ImageId(id)
}

fn images(store: &dyn Store) -> BTreeSet<ImageId> {
    let id = |key: &String| ImageId::from_hex(key.strip_prefix("images/")?.strip_suffix(".rnl")?);
    objects(store, "images").unwrap().iter().filter_map(id).collect()
}

/// The store, the time, and the servers' mounts.
struct World {
    memory: Memory,
    now: AtomicU64,
    rng: Mutex<SplitMix64>,
    depth: AtomicU64,
    /// By server.
    mounted: [Mutex<BTreeSet<ImageId>>; 2],
    freed: AtomicU64,
    killed: AtomicU64,
}

/// The store as one piece of work sees it.
struct Seen {
    world: Arc<World>,
    is_killed: AtomicBool,
}

impl World {
    fn below(&self, bound: u64) -> u64 {
        locked(&self.rng).below(bound)
    }

    fn pass(&self, seconds: u64) {
        self.now.fetch_add(seconds, Ordering::Relaxed);
    }

    fn now(&self) -> UnixSeconds {
        self.now.load(Ordering::Relaxed)
    }

    /// Some work of one of the servers.
    fn work(self: &Arc<World>) {
        if self.depth.fetch_add(1, Ordering::Relaxed) < DEPTH_MAX {
            let seen = Arc::new(Seen { world: self.clone(), is_killed: AtomicBool::new(false) });
            let server = self.below(2) as usize;
            // What fails was killed, or was told to try again.
            let _ = match self.below(20) {
                0..8 => seen.upload(),
                8..11 => seen.remove_tag(),
                11..14 => seen.mount(server),
                14 => seen.unmount(server),
                15..17 => seen.collect(server),
                17 => seen.retag(),
                _ => seen.upkeep(server),
            };
        }
        self.depth.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whoever has a name or is mounted is there.
    fn check(&self) {
        let present = images(&self.memory);
        let names = Names::new(Arc::new(self.memory.clone()), image::Limits::ACCEPTED, Logger::silent());
        for (name, tag) in names.tags(usize::MAX).unwrap() {
            let id = names.tag(&name, &tag).unwrap().unwrap();
            assert!(present.contains(&id), "{name}:{tag} is image {id}, which is gone");
        }
        for mounted in &self.mounted {
            assert!(locked(mounted).is_subset(&present), "a mounted image is gone");
        }
    }
}

impl Seen {
    fn with<T>(
        self: &Arc<Seen>,
        work: impl FnOnce(Collection<'_>, &Names) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let names = Names::new(self.clone(), image::Limits::ACCEPTED, Logger::silent());
        work(Collection { store: &**self, names: &names, forget: &|_| {} }, &names)
    }

    fn now(&self) -> impl Fn() -> UnixSeconds + '_ {
        || self.world.now()
    }

    fn place(&self) -> (&'static str, &'static str) {
        (NAMES[self.world.below(4) as usize], TAGS[self.world.below(3) as usize])
    }

    fn upload(self: &Arc<Seen>) -> Result<(), Failure> {
        let (id, (name, tag)) = (image(self.world.below(IMAGES)), self.place());
        self.with(|collection, names| {
            collection.hold(&BTreeSet::from([id]), &self.now())?;
            self.put_atomic(&learned::key(id), &[1; 10])?;
            self.put_atomic(&image_key(id), &[0; 100])?;
            self.put_atomic(&format!("{}/7.bundle", bundle::folder(id)), &[2; 20])?;
            note_version(&**self, (name, tag), id, self.world.now())?;
            Ok(names.set_tag(name, tag, id)?)
        })
    }

    fn retag(self: &Arc<Seen>) -> Result<(), Failure> {
        let ((name, tag), (other, its)) = (self.place(), self.place());
        self.with(|collection, names| {
            let Some(id) = names.tag(other, its)? else { return Ok(()) };
            collection.hold(&BTreeSet::from([id]), &self.now())?;
            if names.tag(other, its)? == Some(id) {
                note_version(&**self, (name, tag), id, self.world.now())?;
                names.set_tag(name, tag, id)?;
            }
            Ok(())
        })
    }

    fn remove_tag(self: &Arc<Seen>) -> Result<(), Failure> {
        let (name, tag) = self.place();
        self.delete(&tag_key(name, tag))?;
        forget_versions(&**self, name, tag)
    }

    fn mount(self: &Arc<Seen>, server: usize) -> Result<(), Failure> {
        let (name, tag) = self.place();
        let found = self.with(|_, names| names.tag(name, tag))?;
        if let Some(id) = found
            && self.open(&image_key(id)).is_ok()
        {
            locked(&self.world.mounted[server]).insert(id);
        }
        Ok(())
    }

    fn unmount(self: &Arc<Seen>, server: usize) -> Result<(), Failure> {
        locked(&self.world.mounted[server]).pop_first();
        Ok(())
    }

    fn upkeep(self: &Arc<Seen>, server: usize) -> Result<(), Failure> {
        let mounted = locked(&self.world.mounted[server]).clone();
        self.with(|collection, _| collection.hold(&mounted, &self.now()))
    }

    fn collect(self: &Arc<Seen>, server: usize) -> Result<(), Failure> {
        let (mounted, cut) = (locked(&self.world.mounted[server]).clone(), self.world.below(3) == 0);
        let goes_on = || !cut;
        let report = self.with(|collection, _| collection.collect(0, &mounted, false, &goes_on, &self.now()))?;
        self.world.freed.fetch_add(report.freed_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Others work, time passes, and this work may end here.
    fn called(&self) -> Result<&Memory, StoreError> {
        let gone = || StoreError::Gone { folder: "a killed server's".into() };
        if self.is_killed.load(Ordering::Relaxed) {
            return Err(gone());
        }
        if self.world.below(12) == 0 {
            self.world.work();
        }
        self.world.pass(self.world.below(3));
        if self.world.below(200) == 0 {
            self.is_killed.store(true, Ordering::Relaxed);
            self.world.killed.fetch_add(1, Ordering::Relaxed);
            // What was on its way may still arrive: half of those die after the call.
            if self.world.below(2) == 0 {
                return Err(gone());
            }
        }
        Ok(&self.world.memory)
    }
}

impl Store for Seen {
    fn open(&self, key: &str) -> Result<Arc<dyn Object>, StoreError> {
        self.called()?.open(key)
    }

    fn put_atomic(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.called()?.put_atomic(key, bytes)
    }

    fn put_if(&self, key: &str, bytes: &[u8], expected: Option<&Version>) -> Result<Version, StoreError> {
        self.called()?.put_if(key, bytes, expected)
    }

    fn get_versioned(&self, key: &str, limit: u64) -> Result<(Vec<u8>, Version), StoreError> {
        self.called()?.get_versioned(key, limit)
    }

    fn create(&self) -> Result<Box<dyn Upload>, StoreError> {
        self.called()?.create()
    }

    fn list(&self, folder: &str) -> Result<Vec<Listed>, StoreError> {
        self.called()?.list(folder)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.called()?.delete(key)
    }
}

fn world(seed: u64) -> Arc<World> {
    Arc::new(World {
        memory: Memory::new(),
        now: AtomicU64::new(1_700_000_000),
        rng: Mutex::new(SplitMix64(seed)),
        depth: AtomicU64::new(0),
        mounted: Default::default(),
        freed: AtomicU64::new(0),
        killed: AtomicU64::new(0),
    })
}

#[test]
fn sim_a_day_of_collections_loses_nothing_and_frees_the_rest() {
    let (mut freed, mut killed) = (0, 0);
    let days = std::env::var("RUNNEL_DAYS").map_or(DAYS, |days| days.parse().expect("a number"));
    for seed in 0..days {
        let world = world(seed);
        let end = world.now() + 24 * 3600;
        while world.now() < end {
            world.work();
            world.pass(world.below(60));
            // A server looks after its mounts once a minute, whatever else it does.
            for server in 0..2 {
                let seen = Seen { world: world.clone(), is_killed: AtomicBool::new(false) };
                let _ = Arc::new(seen).upkeep(server);
            }
            world.check();
        }
        // Nobody wants anything any more but what is named "app:1" and mounted.
        let names = Names::new(Arc::new(world.memory.clone()), image::Limits::ACCEPTED, Logger::silent());
        for (name, tag) in names.tags(usize::MAX).unwrap() {
            if (name.as_str(), tag.as_str()) != ("app", "1") {
                world.memory.delete(&tag_key(&name, &tag)).unwrap();
            }
        }
        let mounted: BTreeSet<ImageId> = world.mounted.iter().flat_map(|mounted| locked(mounted).clone()).collect();
        let collection = Collection { store: &world.memory, names: &names, forget: &|_| {} };
        for _ in 0..3 {
            world.pass(LEASE_SECONDS + GRACE_SECONDS_MIN);
            collection.collect(0, &mounted, false, &|| true, &|| world.now()).unwrap();
        }
        let wanted: BTreeSet<ImageId> = mounted.iter().copied().chain(names.tag("app", "1").unwrap()).collect();
        assert_eq!(images(&world.memory), wanted, "seed {seed}");
        assert_eq!(collection.present().unwrap(), wanted, "nothing lies about");
        freed += world.freed.load(Ordering::Relaxed);
        killed += world.killed.load(Ordering::Relaxed);
    }
    assert!(freed > 2000 * days && killed > 20 * days, "{freed} bytes freed beside {killed} kills");
}

/// A store with images, and the names of some.
fn stocked(tags: &[(&str, u64)]) -> (Memory, Names) {
    let memory = Memory::new();
    let names = Names::new(Arc::new(memory.clone()), image::Limits::ACCEPTED, Logger::silent());
    for number in 0..IMAGES {
        memory.put_atomic(&image_key(image(number)), &[0; 100]).unwrap();
    }
    for (index, (tag, number)) in tags.iter().enumerate() {
        note_version(&memory, ("app", tag), image(*number), index as u64 * 1000).unwrap();
        names.set_tag("app", tag, image(*number)).unwrap();
    }
    (memory, names)
}

#[test]
fn rules_keep_the_newest_versions_and_those_of_some_days() {
    let (memory, names) = stocked(&[("2", 4), ("2", 5), ("1", 0), ("1", 1), ("1", 2), ("1", 3)]);
    let rule = |names: &str, keep, keep_seconds| Rule { names: names.into(), keep, keep_seconds };
    Rules::change(&memory, rule("app", 1, 0)).unwrap();
    Rules::change(&memory, rule("app:1", 2, 2500)).unwrap();
    let collection = Collection { store: &memory, names: &names, forget: &|_| {} };
    let kept = |now| {
        let wanted = collection.wanted(now).unwrap().keep;
        (0..IMAGES).filter(|number| wanted.contains(&image(*number))).collect::<Vec<_>>()
    };
    // The second version of app:1 was replaced at 4000, the first at 3000.
    assert_eq!(kept(5499), [0, 1, 2, 3, 5]);
    assert_eq!(kept(5500), [1, 2, 3, 5]);
    assert_eq!(kept(6500), [2, 3, 5]);
    // The last rule goes, and the one for all counts again.
    Rules::change(&memory, rule("app:1", 0, 0)).unwrap();
    assert_eq!(kept(6500), [3, 5]);
    assert_eq!(Rules::load(&memory).unwrap().into_rules(), [rule("app", 1, 0)]);
    for wrong in ["", "a/b", "@00", "@*"] {
        assert!(Rules::change(&memory, rule(wrong, 1, 0)).is_err(), "{wrong:?}");
    }
    assert!(Rules::change(&memory, rule("app", 1001, 0)).is_err());
}

#[test]
fn a_dry_run_tells_what_the_next_one_does() {
    let (memory, names) = stocked(&[("1", 0), ("1", 1)]);
    let collection = Collection { store: &memory, names: &names, forget: &|_| {} };
    let collect = |dry_run, now| collection.collect(0, &BTreeSet::new(), dry_run, &|| true, &|| now).unwrap();
    let first = collect(false, 5000);
    assert_eq!((first.wanted, first.waiting_count, first.removed_count), (1, IMAGES as usize - 1, 0));
    assert_eq!(first.waiting[0].name.as_deref(), Some("app:1"));
    let due = 5000 + GRACE_SECONDS_MIN;
    assert_eq!(collect(true, due - 1).removed_count, 0);
    let before = images(&memory);
    let told = collect(true, due);
    assert_eq!(images(&memory), before);
    let done = collect(false, due);
    assert_eq!(done, Report { dry_run: false, ..told });
    assert_eq!((done.removed_count, done.freed_bytes), (IMAGES as usize - 1, (IMAGES - 1) * 100));
    assert_eq!(images(&memory), BTreeSet::from([image(1)]));
    assert_eq!(collected(&memory, image(0)).unwrap(), Some(Some("app:1".to_owned())));
}

#[test]
fn one_collector_is_at_work_and_a_killed_one_is_finished_by_an_upload() {
    let (memory, names) = stocked(&[("1", 0)]);
    let collection = Collection { store: &memory, names: &names, forget: &|_| {} };
    record::edit(&memory, |record| {
        record.condemned.insert(image(7), None);
        record.lease = Some(Lease { owner: 1, until: 900 });
        Ok(Edit::Write(()))
    })
    .unwrap();
    let hold = |now| collection.hold(&BTreeSet::from([image(7)]), &|| now);
    let collect = |now| collection.collect(0, &BTreeSet::new(), false, &|| true, &|| now);
    assert_eq!(hold(899).unwrap_err().code, ErrorCode::Busy);
    assert_eq!(collect(899).unwrap_err().code, ErrorCode::Busy);
    hold(900).unwrap();
    assert!(!images(&memory).contains(&image(7)), "it was deleted before its name comes back");
    // The first one goes on, too late.
    assert_eq!(go_on(&memory, 1, &BTreeSet::new(), None, 901).unwrap_err().code, ErrorCode::Busy);
    assert_eq!(collect(901).unwrap().removed_count, 0);
}

#[test]
fn what_decides_and_cannot_be_read_stops_a_collection() {
    for key in ["tags/app/1", "history/app/1", "retention.json", "collection.json"] {
        let (memory, names) = stocked(&[("1", 0)]);
        memory.put_atomic(key, b"???").unwrap();
        let collection = Collection { store: &memory, names: &names, forget: &|_| {} };
        let failure = collection.collect(0, &BTreeSet::new(), false, &|| true, &|| 1 << 40).unwrap_err();
        assert!(failure.code == ErrorCode::Corrupt && failure.text.contains(key), "{failure}");
        assert_eq!(images(&memory).len(), IMAGES as usize);
    }
}
