//! The device cache with the real server: what was there once is not fetched again.

use std::fs::{self, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cache::{Cache, Kind, Owner};
use connection::Waiting;
use store::{Memory, Store};
use units::PageId;

use super::real_server::{Rig, open_at, order, run};
use super::tree::Tree;
use super::{HANG, plain, read_page};
use crate::{Config, Counters, Granularity, Session};

/// A server with an image, and a device with a cache.
pub(super) struct Device {
    pub tree: Arc<Tree>,
    pub rig: Option<Rig>,
    pub address: SocketAddr,
    folder: tempfile::TempDir,
    token: u128,
}

impl Device {
    fn new() -> Device {
        Device::with(Tree::plain())
    }

    pub fn with(tree: Tree) -> Device {
        let tree = Arc::new(tree);
        let store = Memory::new();
        store.put_atomic("app.rnl", &tree.bytes).unwrap();
        let rig = Rig::start(&store);
        Device { tree, address: rig.address, rig: Some(rig), folder: tempfile::tempdir().unwrap(), token: 1 << 80 }
    }

    pub fn folder(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    pub fn cache(&self) -> Arc<Cache> {
        Arc::new(Cache::open(&self.folder(), Some(4 << 20)).unwrap())
    }

    /// Runs the program once, in a process of its own with a cold page cache.
    pub fn run(&mut self, config: Config) -> Counters {
        self.token += 1;
        let cache = self.cache();
        let (session, sink) = open_at(self.address, config, Some(&cache)).unwrap();
        run(&session, &sink, &self.tree, self.token);
        let counters = session.counters();
        assert_eq!(counters.reads.read_errors, 0);
        end(session, cache);
        counters
    }
}

/// Ends a session when all that came is written. An end that waits no longer than a user would is
/// too short for a test on a busy machine.
pub(super) fn end(session: Arc<Session>, cache: Arc<Cache>) {
    let began = Instant::now();
    let wait_until = |is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(began.elapsed() < HANG, "the cache is never done");
            std::thread::park_timeout(Duration::from_millis(1));
        }
    };
    wait_until(&|| session.shared.kept_bytes.load(Ordering::Acquire) == 0);
    session.shutdown();
    drop(session);
    wait_until(&|| Arc::strong_count(&cache) == 1);
}

/// Each page is asked for by itself, as over a thin link.
pub(super) fn pages() -> Config {
    Config { granularity: Granularity::Page, connections: 2, ..Config::default() }
}

/// The same without a server for long.
pub(super) fn soft(config: Config) -> Config {
    let mut config = Config { waiting: Waiting::Soft(Duration::from_millis(100)), ..config };
    config.connection.open_deadline = Duration::from_secs(1);
    config
}

#[test]
fn the_second_run_asks_for_nothing() {
    for config in [pages(), plain(), Config::default()] {
        let mut device = Device::new();
        let first = device.run(config.clone());
        assert!(first.demand.pages_demanded > 0);
        let second = device.run(config);
        assert_eq!((second.demand.pages_demanded, second.demand.requests, second.demand.verify_failures), (0, 0, 0));
        assert_eq!(second.transfer.pages_touched, 0, "the server would push what is here");
        let (before, after) = (first.transfer.bytes_received, second.transfer.bytes_received);
        assert!(after * 20 < before, "{after} bytes, {before} before");
    }
}

#[test]
fn a_program_that_ran_before_is_pushed_what_comes_next() {
    let mut device = Device::new();
    device.run(pages());
    let cache = device.cache();
    let (session, sink) = open_at(device.address, pages(), Some(&cache)).unwrap();
    let page = |index| PageId::new(device.tree.big(), index);
    assert!(read_page(&session, 7, device.tree.big(), order()[0]).wait().is_ok());
    // The next one is held back: its READ tells how far the program is.
    for index in &order()[2..30] {
        sink.wait_stored(page(*index));
        assert!(sink.page(page(*index)).unwrap() == device.tree.page(page(*index)));
    }
    assert_eq!(session.counters().demand.pages_demanded, 0);
}

#[test]
fn what_ran_before_starts_without_a_server() {
    let mut device = Device::new();
    device.run(pages());
    device.rig = None;
    let counters = device.run(soft(pages()));
    assert_eq!(counters.demand.pages_demanded, 0);
    // What is not there fails as it says, and is not made up.
    let cache = device.cache();
    let (session, _sink) = open_at(device.address, soft(pages()), Some(&cache)).unwrap();
    let other = device.tree.files.iter().find(|(inode, _)| *inode != device.tree.big()).unwrap().0;
    assert!(read_page(&session, 1, other, 0).wait().is_err());
    session.shutdown();
    // An image that never was here cannot start.
    let empty = tempfile::tempdir().unwrap();
    let cache = Arc::new(Cache::open(&empty.path().join("cache"), Some(1 << 20)).unwrap());
    assert!(open_at(device.address, soft(pages()), Some(&cache)).is_err());
}

#[test]
fn a_run_that_goes_on_further_asks_for_the_rest() {
    let mut device = Device::new();
    device.run(pages());
    let cache = device.cache();
    let (session, sink) = open_at(device.address, pages(), Some(&cache)).unwrap();
    run(&session, &sink, &device.tree, 5);
    for (inode, contents) in device.tree.files.iter().filter(|(_, contents)| !contents.is_empty()) {
        let bytes = contents.len().next_multiple_of(units::PAGE_BYTES) as u32;
        assert_eq!(super::read(&session, 5, *inode, 0, bytes).wait().as_ref(), Ok(contents));
    }
    end(session, cache);
    device.rig = None;
    let cache = device.cache();
    let (session, _sink) = open_at(device.address, soft(pages()), Some(&cache)).unwrap();
    for (inode, contents) in device.tree.files.iter().filter(|(_, contents)| !contents.is_empty()) {
        let bytes = contents.len().next_multiple_of(units::PAGE_BYTES) as u32;
        assert_eq!(super::read(&session, 5, *inode, 0, bytes).wait().as_ref(), Ok(contents));
    }
}

#[test]
fn a_server_that_takes_connections_and_says_nothing_is_away() {
    let mut device = Device::new();
    device.run(pages());
    device.rig = None;
    let _deaf = std::net::TcpListener::bind(device.address).unwrap();
    assert_eq!(device.run(soft(pages())).demand.pages_demanded, 0);
}

#[test]
fn what_is_here_is_read_though_the_server_has_lost_the_image() {
    let mut device = Device::new();
    device.run(pages());
    device.rig = None;
    let cache = device.cache();
    let (session, sink) = open_at(device.address, pages(), Some(&cache)).unwrap();
    let address = device.address;
    device.rig = Some(Rig::start_with(&Memory::new(), move |config| config.listen = address));
    // The session sees that the image is gone before it is used.
    let other = device.tree.files.iter().find(|(inode, _)| *inode != device.tree.big()).unwrap().0;
    assert!(read_page(&session, 1, other, 0).wait().is_err());
    run(&session, &sink, &device.tree, 5);
}

/// Writes over the payloads of a cache, here and there.
fn damage(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let file = OpenOptions::new().read(true).write(true).open(entry).unwrap();
        let length = file.metadata().unwrap().len();
        for at in (1000..length.saturating_sub(4000)).step_by(3000) {
            file.write_all_at(b"damaged", at).unwrap();
        }
    }
}

#[test]
fn damaged_and_forged_records_are_fetched_again() {
    let mut device = Device::new();
    device.run(pages());
    damage(&device.folder());
    let counters = device.run(pages());
    assert!(counters.demand.pages_demanded > 0);

    // Whole records with other bytes, as another program of this user could write them.
    let cache = device.cache();
    let owner = Owner(device.tree.metadata.id().0);
    for (kind, forged) in [(Kind::Pages, true), (Kind::Block, true), (Kind::Proof, true), (Kind::Actions, false)] {
        for found in cache.records(&owner, kind) {
            let mut payload = cache.read(kind, &found.key).unwrap();
            let last = payload.len() - 1;
            payload[if forged { last } else { 0 }] ^= 1;
            cache.put(&owner, kind, &found.key, &found.label, &payload).unwrap();
        }
    }
    drop(cache);
    let counters = device.run(pages());
    assert!(counters.demand.pages_demanded > 0);
    // A page that came while its damaged record was still believed in comes once more.
    let whole = (0..4).any(|_| device.run(pages()).demand.pages_demanded == 0);
    assert!(whole, "it becomes whole again");
}
