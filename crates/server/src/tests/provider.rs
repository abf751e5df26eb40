//! The Provider's modes, told apart by what is read from the store and when: before an answer or a
//! piece of a push leaves, or while it is on its way. A gate in the store stands for a disk that is
//! slow.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use image::Metadata;
use predict::Mode;
use store::{Listed, Memory, Object, Store, StoreError, Upload, Version};
use units::{BlockId, PageId, Token};
use wire::{ImageHandle, Reply, Request};

use super::client::Client;
use super::learning::{actions, bundles, set, teach};
use super::rig::{Rig, config, noise};
use crate::{Provider, StoreAt};

/// No test waits so long unless something hangs.
const HANG: Duration = Duration::from_secs(60);

/// Blocks of the image; two of them are a segment.
const BLOCKS: u32 = 16;

/// Blocks of the first segment, which is the one held in memory from the start.
const FIRST: u32 = 2;

/// A store in memory that writes down what is read of the image.
#[derive(Clone)]
struct Watched {
    inner: Memory,
    watch: Arc<Watch>,
}

struct Watch {
    /// Blocks by where they lie in the file.
    blocks: HashMap<u64, u32>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Blocks in the order in which somebody began to read them.
    reads: Vec<u32>,
    /// How often the whole file was said to be needed.
    advised: u32,
    /// Reads of all blocks but the first ones wait.
    shut: bool,
}

impl Watched {
    fn new(inner: Memory, bytes: &[u8]) -> Watched {
        let metadata = Metadata::open(&bytes, &image::Limits::default()).unwrap();
        let place = |block| (metadata.block(BlockId(block)).unwrap().file_offset, block);
        let watch = Watch {
            blocks: (0..metadata.block_count()).map(place).collect(),
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        Watched { inner, watch: Arc::new(watch) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.watch.state.lock().unwrap()
    }

    fn reads(&self) -> Vec<u32> {
        self.lock().reads.clone()
    }

    fn shut(&self, shut: bool) {
        self.lock().shut = shut;
        self.watch.changed.notify_all();
    }

    fn wait(&self, done: impl Fn(&State) -> bool) {
        let (state, waited) = self.watch.changed.wait_timeout_while(self.lock(), HANG, |state| !done(state)).unwrap();
        assert!(!waited.timed_out(), "never happened; read: {:?}", state.reads);
    }

    /// Waits until so many blocks have been begun, and says which.
    fn wait_reads(&self, count: u32) -> Vec<u32> {
        self.wait(|state| state.reads.len() >= count as usize);
        self.reads()
    }
}

impl Store for Watched {
    fn open(&self, key: &str) -> Result<Arc<dyn Object>, StoreError> {
        let object = self.inner.open(key)?;
        if key != "app.rnl" {
            return Ok(object);
        }
        Ok(Arc::new(WatchedImage { inner: object, watch: self.watch.clone() }))
    }

    fn put_if(&self, key: &str, bytes: &[u8], expected: Option<&Version>) -> Result<Version, StoreError> {
        self.inner.put_if(key, bytes, expected)
    }

    fn get_versioned(&self, key: &str, limit: u64) -> Result<(Vec<u8>, Version), StoreError> {
        self.inner.get_versioned(key, limit)
    }

    fn create(&self) -> Result<Box<dyn Upload>, StoreError> {
        self.inner.create()
    }

    fn list(&self, folder: &str) -> Result<Vec<Listed>, StoreError> {
        self.inner.list(folder)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.inner.delete(key)
    }
}

struct WatchedImage {
    inner: Arc<dyn Object>,
    watch: Arc<Watch>,
}

impl Object for WatchedImage {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        if let Some(block) = self.watch.blocks.get(&offset) {
            let mut state = self.watch.state.lock().unwrap();
            state.reads.push(*block);
            self.watch.changed.notify_all();
            if *block >= FIRST {
                // A test that failed leaves the gate as it is: the server must end all the same.
                let opened = self.watch.changed.wait_timeout_while(state, HANG, |state| state.shut);
                drop(opened.unwrap());
            }
        }
        self.inner.read_at(offset, buf)
    }

    fn advise_whole(&self) {
        self.watch.state.lock().unwrap().advised += 1;
        self.watch.changed.notify_all();
    }
}

/// A learned program that reads one file from front to back, and a server in the paper's mode that
/// starts anew.
struct Stage {
    /// Leaves before the server ends, which would wait for it.
    client: Client,
    rig: Rig,
    store: Watched,
    handle: ImageHandle,
    program: Vec<PageId>,
}

impl Stage {
    fn set(provider: Provider) -> Stage {
        let bytes = noise(BLOCKS as usize);
        let (rig, store) = Rig::with_image(&bytes, |config| config.learning.provider = provider);
        let metadata = Metadata::open(&bytes.as_slice(), &image::Limits::default()).unwrap();
        let file = metadata.resolve(b"/noise").unwrap();
        let program: Vec<PageId> = (0..BLOCKS * 16).map(|index| PageId::new(file, index)).collect();
        let (mut teacher, _) = teach(&rig, 1, &program);
        teacher
            .status_until(|status| actions(status) == 1 && bundles(status) == u64::from(provider == Provider::Bundle));
        drop(teacher);
        rig.stop();
        let store = Watched::new(store, &bytes);
        let mut config = config(StoreAt::Open(Arc::new(store.clone())));
        config.learning.predict.mode = Mode::Paper;
        config.learning.provider = provider;
        // Only first segments.
        config.learning.provider_threshold = 2.0;
        let rig = Rig::start(config);
        let mut client = Client::connect(rig.address, 2);
        let handle = client.open("app");
        Stage { client, rig, store, handle, program }
    }

    /// Waits for what is held from the start, and holds back all other reads from then on.
    fn wait_held(&mut self) {
        self.client.status_until(|status| status["memory"]["held_blocks_bytes"] == u64::from(FIRST) * (64 << 10));
        assert_eq!(self.store.reads(), [0, 1]);
        self.store.shut(true);
    }

    fn demand(&mut self, index: usize) {
        let pages = vec![self.program[index]];
        let ask = Request::PullPages { image: self.handle, token: Token(2), pages, force: false };
        assert!(matches!(self.client.ask(ask), Reply::Pages { .. }));
        self.client.have.insert(self.program[index]);
    }

    /// The first two pages, which the Predictor takes for the start of the program: it orders the
    /// rest of the segment.
    fn begin(&mut self) {
        self.demand(0);
        self.demand(1);
    }

    fn touch(&mut self, from: usize, through: usize) {
        let pages = &self.program[from..through];
        self.client.touch(self.handle, Token(2), pages);
    }

    fn until(&mut self, through: usize) {
        let wanted: BTreeSet<PageId> = set(&self.program[..through]);
        self.client.until(|client| client.have == wanted);
        assert!(self.client.closed.is_none());
    }
}

#[test]
fn without_a_provider_a_block_is_read_when_it_is_needed_and_not_before() {
    for provider in [Provider::None, Provider::Madvise] {
        let mut stage = Stage::set(provider);
        if provider == Provider::Madvise {
            stage.store.wait(|state| state.advised > 0);
        }
        assert!(stage.store.reads().is_empty(), "nothing is held from the start");
        stage.demand(0);
        assert_eq!(stage.store.reads(), [0]);
        stage.demand(1);
        stage.until(32);
        assert_eq!(stage.store.reads(), [0, 1]);
        stage.touch(2, 32);
        stage.until(64);
        let status = stage.client.status();
        assert_eq!(stage.store.reads(), [0, 1, 2, 3], "each block once");
        assert_eq!(status["memory"]["held_blocks_bytes"], 0);
        assert_eq!(stage.rig.metrics.blocks_read_ahead.get(), 0);
        assert_eq!(stage.store.lock().advised, u32::from(provider == Provider::Madvise));
    }
}

#[test]
fn normalised_variance_alone_reads_three_segments_before_a_piece_leaves() {
    let mut stage = Stage::set(Provider::Nv);
    stage.wait_held();
    stage.begin();
    assert_eq!(stage.store.wait_reads(3), [0, 1, 2], "the demands and the piece itself need no disk");
    // Whatever was sent before this answer is here by now.
    stage.client.status();
    assert_eq!(stage.client.have.len(), 2, "the piece waits for what comes after it");
    stage.store.shut(false);
    stage.until(32);
    assert_eq!(stage.store.reads(), [0, 1, 2, 3, 4, 5, 6, 7]);
    stage.touch(2, 32);
    stage.until(64);
    assert_eq!(stage.store.reads(), (0..10).collect::<Vec<u32>>(), "one segment further");
}

#[test]
fn asynchronously_the_same_is_read_while_the_piece_is_on_its_way() {
    let mut stage = Stage::set(Provider::NvAsync);
    stage.wait_held();
    stage.begin();
    stage.until(32);
    assert_eq!(stage.store.wait_reads(3), [0, 1, 2], "begun, and nobody waits for it");
    stage.store.shut(false);
    assert_eq!(stage.store.wait_reads(8), [0, 1, 2, 3, 4, 5, 6, 7]);
    stage.touch(2, 32);
    stage.until(64);
    assert_eq!(stage.store.wait_reads(10), (0..10).collect::<Vec<u32>>(), "one segment further, and none twice");
    assert_eq!(stage.rig.metrics.pushes_from_bundle.get(), 0);
}

#[test]
fn bundles_need_no_blocks() {
    let mut stage = Stage::set(Provider::Bundle);
    stage.client.status_until(|status| bundles(status) == 1);
    stage.wait_held();
    stage.begin();
    stage.until(32);
    stage.touch(2, 32);
    stage.until(64);
    stage.client.status();
    assert_eq!(stage.store.reads(), [0, 1]);
    assert_eq!(stage.rig.metrics.pushes_from_bundle.get(), 1);
}
