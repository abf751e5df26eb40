//! A server on a thread, and images for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use image::Metadata;
use image::fixture::{Body, Fixture, Node, Part};
use store::{Memory, Store};
use tokio::sync::oneshot;
use units::{PageId, Rng, SplitMix64};

use crate::clock::STOPPED;
use crate::{Config, Logger, Metrics, Reloader, Server, StoreAt};

/// A server that runs until it is dropped or stopped.
pub struct Rig {
    pub address: SocketAddr,
    pub metrics: Arc<Metrics>,
    pub reloader: Reloader,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Settings for tests: upkeep at once, no log.
pub fn config(store: StoreAt) -> Config {
    Config {
        upkeep_every: Duration::from_millis(5),
        log: Logger::silent(),
        ..Config::new(store, SocketAddr::from(([127, 0, 0, 1], 0)))
    }
}

/// Starts a server to which all links are fast: on one that a busy machine makes slow it would send
/// fewer guesses.
pub fn without_time<T>(start: impl FnOnce() -> T) -> T {
    STOPPED.set(true);
    let started = start();
    STOPPED.set(false);
    started
}

impl Rig {
    pub fn start(config: Config) -> Rig {
        let server = Server::bind(config).unwrap();
        let (address, metrics, reloader) = (server.local_addr(), server.metrics(), server.reloader());
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(server.run_until(async { drop(stopped.await) })).unwrap();
        });
        Rig { address, metrics, reloader, stop: Some(stop), thread: Some(thread) }
    }

    /// A server over a store in memory that holds `image` as `app:latest`.
    pub fn with_image(image: &[u8], change: impl FnOnce(&mut Config)) -> (Rig, Memory) {
        let store = Memory::new();
        store.put_atomic("app.rnl", image).unwrap();
        let mut config = config(StoreAt::Open(Arc::new(store.clone())));
        change(&mut config);
        (Rig::start(config), store)
    }

    /// Stops the server in good order and waits for its end.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            if !std::thread::panicking() {
                result.expect("the server ended in good order");
            }
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.end();
    }
}

/// Bytes that compress to about a half.
fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = SplitMix64(seed);
    (0..bytes).map(|_| b"0123456789abcdef"[rng.below(16) as usize]).collect()
}

/// The files of the usual image: some of many pages, short last pages, a hole, an empty file.
pub fn nodes(files: u64) -> Vec<Node> {
    let mut nodes = vec![Node::dir(b"lib"), Node::file(b"empty", b"")];
    for file in 0..files {
        let bytes = 40 * 4096 + 17 * file as usize;
        nodes.push(Node::file(format!("lib/m{file}.so").as_bytes(), &content(file, bytes)));
    }
    let holed = vec![Part::Data(content(90, 8192)), Part::Hole(8 * 4096), Part::Data(content(91, 5000))];
    nodes.push(Node::new(b"holed", Body::File(holed)));
    nodes
}

/// An image of `files` libraries of about 40 pages each.
pub fn image(files: u64) -> Vec<u8> {
    Fixture::default().pack(&nodes(files)).unwrap()
}

/// The same in blocks of 1 MiB.
pub fn large_blocks(files: u64) -> Vec<u8> {
    Fixture { block_bytes: 1 << 20, ..Fixture::default() }.pack(&nodes(files)).unwrap()
}

/// An image that does not compress, of `blocks` blocks of 64 KiB.
pub fn noise(blocks: usize) -> Vec<u8> {
    let mut rng = SplitMix64(7);
    let bytes: Vec<u8> = (0..blocks * (64 << 10) / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    Fixture::default().pack(&[Node::file(b"noise", &bytes)]).unwrap()
}

/// The first touches of a made-up program: every third page of each library in turn, a few of the
/// first again at the end; the same seed gives the same program.
pub fn program(image: &[u8], seed: u64, pages: usize) -> Vec<PageId> {
    let metadata = Metadata::open(&image, &image::Limits::default()).unwrap();
    let mut all = Vec::new();
    for inode in (1..=metadata.inode_count()).map(units::InodeId) {
        let pages = (0..metadata.page_count(inode)).map(|index| PageId::new(inode, index));
        all.extend(pages.filter(|page| metadata.page_chunks(*page).is_some_and(|chunks| !chunks.is_hole())));
    }
    let mut rng = SplitMix64(seed);
    (1..all.len()).rev().for_each(|i| all.swap(i, rng.below(i as u64 + 1) as usize));
    assert!(all.len() >= pages, "the image has {} pages", all.len());
    all.truncate(pages);
    all
}
