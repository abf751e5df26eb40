//! A server that signs timestamps, over months of simulated time, and a device that checks them.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use signing::{Lifetimes, Repository, SigningKey};
use store::{Fault, FaultKind, FaultPlan, Memory, Store};
use tokio::sync::watch;
use trust::{Kind, Known, Stapled, Verifier};

use super::rig::config;
use crate::accept::upkeep;
use crate::lock::locked;
use crate::shared::Shared;
use crate::{Config, Logger, ServerError, StoreAt, TimestampKey};

const DAY: Duration = Duration::from_secs(86_400);

/// A publisher with a key for each role, whose files lie in a store, and a device.
struct World {
    store: Memory,
    /// Root, timestamp, snapshot, targets, and those that came later.
    keys: Vec<SigningKey>,
    folder: tempfile::TempDir,
    root: Vec<u8>,
    device: Verifier,
    lines: Arc<Mutex<Vec<String>>>,
}

impl World {
    /// Nothing is published yet.
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let made: Vec<_> = (0..4).map(|_| SigningKey::generate(None).unwrap()).collect();
        std::fs::write(folder.path().join("timestamp.key"), &made[1].1).unwrap();
        let keys: Vec<SigningKey> = made.into_iter().map(|(key, _)| key).collect();
        let change = Repository::create(publics(&keys), Lifetimes::default()).sign(&keys, trust::UnixTime(0)).unwrap();
        let root = change.stapled.roots()[0].clone();
        let device = Verifier::new(&root).unwrap();
        let world = World { store: Memory::new(), keys, folder, root, device, lines: Arc::default() };
        world.permit(0o600);
        world
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("timestamp.key")
    }

    fn permit(&self, mode: u32) {
        std::fs::set_permissions(self.file(), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn config(&self, store: Arc<dyn Store>) -> Config {
        let lines = self.lines.clone();
        Config {
            timestamp_key: Some(TimestampKey { file: self.file(), passphrase: None }),
            upkeep_every: Duration::from_secs(3600),
            log: Logger::new(move |_, line| locked(&lines).push(line.to_owned())),
            ..config(StoreAt::Open(store))
        }
    }

    fn open(&self) -> Result<Arc<Shared>, ServerError> {
        Shared::new(self.config(Arc::new(self.store.clone()))).map(Arc::new)
    }

    /// Why a server does not start.
    fn refusal(&self) -> String {
        self.open().map(drop).unwrap_err().to_string()
    }

    /// A publisher's first files, signed at the server's time.
    fn publish_first(&mut self, shared: &Shared) {
        let repository = Repository::create(publics(&self.keys), Lifetimes::default());
        let change = repository.sign(&self.keys, shared.clock.utc()).unwrap();
        self.root = change.stapled.roots()[0].clone();
        self.device = Verifier::new(&self.root).unwrap();
        self.write(shared, &change.stapled);
    }

    fn publish(&mut self, shared: &Shared, edit: impl FnOnce(&mut Repository)) {
        let mut repository = Repository::read(&self.root, &self.files(), Lifetimes::default()).unwrap();
        edit(&mut repository);
        let change = repository.sign(&self.keys, shared.clock.utc()).unwrap();
        if let Some(root) = change.stapled.roots().last() {
            self.root.clone_from(root);
        }
        self.write(shared, &change.stapled);
    }

    fn write(&self, shared: &Shared, files: &Stapled) {
        shared.catalog.signed.write("", &files.encode().unwrap(), shared.clock.utc()).unwrap();
    }

    /// The files after roots that are in the store.
    fn files(&self) -> Stapled {
        let read = |file: &str| Ok::<_, ()>(self.store.get(&format!("trust/{file}"), 1 << 20).ok());
        trust::repository::collect("", &Known::of_root(u64::MAX), read).unwrap()
    }

    fn version(&self) -> u64 {
        trust::repository::version_of("timestamp", self.files().file("timestamp").unwrap()).unwrap()
    }

    /// What the device says at the server's time.
    fn look(&mut self, shared: &Shared) -> Result<(), Kind> {
        let read = |file: &str| Ok::<_, ()>(self.store.get(&format!("trust/{file}"), 1 << 20).ok());
        let answer = trust::repository::collect("", &Known::of_root(self.device.root_version()), read).unwrap();
        self.device.verify_files(&answer, Some(shared.clock.utc())).map_err(|refusal| refusal.kind())
    }

    fn said(&self, part: &str) -> usize {
        locked(&self.lines).iter().filter(|line| line.contains(part)).count()
    }
}

fn publics(keys: &[SigningKey]) -> [signing::PublicKey; 4] {
    [0, 1, 2, 3].map(|role: usize| keys[role].public())
}

/// Lets time pass; the upkeep does its rounds in it.
async fn pass(days: u32) {
    for _ in 0..days {
        tokio::time::sleep(DAY).await;
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

/// A store whose server looks after it.
fn kept_up(shared: &Arc<Shared>) -> watch::Sender<bool> {
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(upkeep(shared.clone(), stopped));
    stop
}

#[test]
fn sim_a_device_accepts_timestamps_over_many_lives() {
    runtime().block_on(async {
        let mut world = World::new();
        // Before the first publisher came.
        let shared = world.open().unwrap();
        let stop = kept_up(&shared);
        pass(1).await;
        world.publish_first(&shared);
        for day in 0..88 {
            assert_eq!(world.look(&shared), Ok(()), "day {day}");
            pass(1).await;
        }
        // One a week, and none besides.
        assert!((12..=14).contains(&world.version()), "version {}", world.version());
        assert_eq!(world.said("is valid until"), world.version() as usize - 1);
        assert!(world.said("the snapshot of the signed names expires") > 0);
        // No server can have a snapshot live longer.
        pass(4).await;
        assert_eq!(world.look(&shared), Err(Kind::Expired));
        pass(4).await;
        assert!(world.said("devices would refuse it") > 0);
        // Its publisher can.
        world.publish(&shared, |repository| repository.refresh("snapshot").unwrap());
        let version = world.version();
        pass(20).await;
        assert_eq!(world.look(&shared), Ok(()));
        assert!(world.version() > version);
        stop.send_replace(true);
    });
}

#[test]
fn sim_a_full_disk_leaves_the_old_timestamp() {
    runtime().block_on(async {
        let mut world = World::new();
        let fault = Fault::new(Arc::new(world.store.clone()), FaultPlan::default());
        let shared = Arc::new(Shared::new(world.config(Arc::new(fault))).unwrap());
        world.publish_first(&shared);
        // From its first operation on the disk of the second server is full.
        let plan = FaultPlan { at: Some((0, FaultKind::Full)), ..FaultPlan::default() };
        let full = Fault::new(Arc::new(world.store.clone()), plan);
        let shared = Arc::new(Shared::new(world.config(Arc::new(full.clone()))).unwrap());
        let stop = kept_up(&shared);
        let before = world.files();
        pass(9).await;
        assert_eq!(world.files(), before);
        assert_eq!(world.look(&shared), Ok(()));
        // Later and later: two days have 2880 minutes.
        let warned = world.said("is not signed anew");
        assert!((20..=60).contains(&warned), "{warned} warnings");
        full.heal();
        pass(10).await;
        assert_eq!((world.look(&shared), world.version()), (Ok(()), 3));
        stop.send_replace(true);
    });
}

#[test]
fn a_crash_while_a_timestamp_is_written_leaves_one() {
    for kind in [FaultKind::CrashBefore, FaultKind::CrashAfter, FaultKind::ShortWrite, FaultKind::Error] {
        for at in 0.. {
            let mut world = World::new();
            let shared = world.open().unwrap();
            world.publish_first(&shared);
            let plan = FaultPlan { at: Some((at, kind)), ..FaultPlan::default() };
            let fault = Fault::new(Arc::new(world.store.clone()), plan);
            let Ok(crashing) = Shared::new(world.config(Arc::new(fault.clone()))) else { continue };
            let later = trust::UnixTime(shared.clock.utc().0 + 8 * 86_400);
            crashing.catalog.signed.keep_fresh(units::Moment(0), later);
            assert!(world.version() <= 2);
            assert_eq!(world.look(&shared), Ok(()), "{kind:?} at {at}");
            if fault.operations() <= at {
                assert_eq!(world.version(), 2, "nothing failed");
                break;
            }
        }
    }
}

#[test]
fn a_key_that_devices_do_not_know_is_refused_at_the_start() {
    let mut world = World::new();
    let shared = world.open().unwrap();
    world.publish_first(&shared);
    drop(shared);
    assert!(world.open().is_ok());
    let (other, text) = SigningKey::generate(None).unwrap();
    std::fs::write(world.file(), text).unwrap();
    let said = world.refusal();
    let has = |part: &str| assert!(said.contains(part), "{said}");
    [&*other.public().id(), &*world.keys[1].public().id(), "timestamp.key"].into_iter().for_each(has);
    world.permit(0o644);
    assert!(world.refusal().contains("others can read"));
    let (_, text) = SigningKey::generate(Some(b"secret")).unwrap();
    std::fs::write(world.file(), text).unwrap();
    world.permit(0o600);
    assert!(world.refusal().contains("RUNNEL_TRUST_PASSPHRASE_FILE"));
    std::fs::write(world.file(), "nothing").unwrap();
    assert!(world.refusal().contains("no Ed25519 key"));
    std::fs::remove_file(world.file()).unwrap();
    assert!(world.refusal().contains("cannot be read"));
}

#[test]
fn sim_a_new_root_has_the_key_read_again() {
    runtime().block_on(async {
        let mut world = World::new();
        let shared = world.open().unwrap();
        let stop = kept_up(&shared);
        world.publish_first(&shared);
        let (new, text) = SigningKey::generate(None).unwrap();
        let public = new.public();
        world.keys.push(new);
        world.publish(&shared, |repository| repository.rotate("timestamp", &[public], 1).unwrap());
        pass(10).await;
        // The operator was slow.
        assert!(world.said("is no timestamp key of the present root") > 0);
        assert_eq!((world.look(&shared), world.version()), (Ok(()), 2));
        std::fs::write(world.file(), text).unwrap();
        pass(10).await;
        assert_eq!((world.look(&shared), world.version()), (Ok(()), 4));
        // One key of two says nothing.
        let keys = [world.keys[1].public(), public];
        world.publish(&shared, |repository| repository.rotate("timestamp", &keys, 2).unwrap());
        stop.send_replace(true);
        assert!(world.refusal().contains("needs 2 keys"));
    });
}
