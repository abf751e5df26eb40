//! Blocks of objects, in memory and on the disk of this machine.
//!
//! A block is known by the state of its object, so a block in the cache never becomes wrong: what
//! nobody asks for any more makes room. Of those who wait for one block, the first has it fetched
//! (a *flight*). Neighbouring blocks that are missing are fetched by one request.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::path::Path as FilePath;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use foyer::{
    BlockEngineConfig, Code, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder, HybridCachePolicy,
    PsyncIoEngineConfig, Spawner,
};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore};
use tokio::runtime::Handle;

use crate::BLOCK_BYTES;
use crate::failure::Failure;
use crate::health::Health;

/// Most blocks of one request. A reader waits for the whole request, and there may be many.
pub(crate) const RUN_BLOCKS_MAX: u64 = 8;

/// Parts of the cache in memory, each with a lock: readers are few threads.
const SHARDS: usize = 4;

/// Unit in which the disk is given up: the oldest blocks go together.
const REGION_BYTES: usize = 16 << 20;

/// A block of one state of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockKey {
    pub state: [u8; 16],
    pub block: u32,
}

impl Code for BlockKey {
    fn encode(&self, writer: &mut impl Write) -> foyer::Result<()> {
        let written = writer.write_all(&self.state).and_then(|()| writer.write_all(&self.block.to_le_bytes()));
        written.map_err(foyer::Error::io_error)
    }

    fn decode(reader: &mut impl Read) -> foyer::Result<BlockKey> {
        let (mut state, mut block) = ([0; 16], [0; 4]);
        let read = reader.read_exact(&mut state).and_then(|()| reader.read_exact(&mut block));
        read.map_err(foyer::Error::io_error)?;
        Ok(BlockKey { state, block: u32::from_le_bytes(block) })
    }

    fn estimated_size(&self) -> usize {
        20
    }
}

/// One state of an object of the service.
pub(crate) struct Source {
    pub service: Arc<dyn ObjectStore>,
    pub health: Arc<Health>,
    pub path: Path,
    pub e_tag: Option<String>,
    pub bytes: u64,
    /// Tells it from all others.
    pub state: [u8; 16],
}

impl Source {
    pub fn key(&self, block: u64) -> BlockKey {
        // 4 PiB at 1 MiB a block: no service has such objects.
        BlockKey { state: self.state, block: block as u32 }
    }

    fn block_bytes(&self, block: u64) -> u64 {
        (self.bytes - block * BLOCK_BYTES).min(BLOCK_BYTES)
    }
}

/// A block that somebody fetches.
#[derive(Default)]
struct Flight {
    done: Mutex<Option<Result<Bytes, Failure>>>,
    changed: Condvar,
}

impl Flight {
    fn wait(&self) -> Result<Bytes, Failure> {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let done = self.changed.wait_while(done, |done| done.is_none()).unwrap_or_else(PoisonError::into_inner);
        done.clone().unwrap_or_else(|| Err(dropped()))
    }
}

fn dropped() -> Failure {
    Failure::Other("a request to the store was dropped".to_owned())
}

/// The duty to end a flight. Dropping it ends the flight with an error.
struct Ticket {
    cache: Arc<Cache>,
    key: BlockKey,
    block: u64,
    flight: Arc<Flight>,
}

impl Ticket {
    fn end(&self, result: Result<Bytes, Failure>) {
        // A block is in the cache first, so that it is never in neither.
        self.cache.flights().remove(&self.key);
        let mut done = self.flight.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.get_or_insert(result);
        self.flight.changed.notify_all();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let is_done = self.flight.done.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if !is_done {
            self.end(Err(dropped()));
        }
    }
}

/// The cache of a store.
pub(crate) struct Cache {
    blocks: HybridCache<BlockKey, Bytes>,
    flights: Mutex<HashMap<BlockKey, Arc<Flight>>>,
    runtime: Handle,
}

impl Cache {
    /// Opens the cache with what an earlier process left in `folder`.
    pub async fn open(
        folder: &FilePath,
        disk_bytes: u64,
        memory_bytes: usize,
        runtime: Handle,
    ) -> io::Result<Arc<Cache>> {
        let failed = |error: foyer::Error| io::Error::other(error.to_string());
        let device = FsDeviceBuilder::new(folder).with_capacity(disk_bytes as usize).build().map_err(failed)?;
        let blocks = HybridCacheBuilder::new()
            .with_name("store")
            // A server that is killed has its blocks when it starts again.
            .with_policy(HybridCachePolicy::WriteOnInsertion)
            .memory(memory_bytes)
            .with_shards(SHARDS)
            .with_weighter(|_: &BlockKey, bytes: &Bytes| bytes.len().max(1))
            .storage()
            .with_spawner(Spawner::from(runtime.clone()))
            .with_io_engine_config(PsyncIoEngineConfig::new())
            .with_engine_config(BlockEngineConfig::new(device).with_block_size(REGION_BYTES))
            .build()
            .await
            .map_err(failed)?;
        Ok(Arc::new(Cache { blocks, flights: Mutex::default(), runtime }))
    }

    /// A block that is in memory.
    pub fn in_memory(&self, key: &BlockKey) -> Option<Bytes> {
        self.blocks.memory().get(key).map(|entry| entry.value().clone())
    }

    /// Keeps a block.
    pub fn insert(&self, key: BlockKey, bytes: Bytes) {
        self.blocks.insert(key, bytes);
    }

    /// Blocks of an object, from wherever they are: at most [`RUN_BLOCKS_MAX`]. Blocks the thread.
    pub fn read(self: &Arc<Cache>, source: &Arc<Source>, blocks: std::ops::Range<u64>) -> Vec<Result<Bytes, Failure>> {
        enum Found {
            Here(Bytes),
            Coming(Arc<Flight>),
        }
        let (mut found, mut tickets) = (Vec::new(), Vec::new());
        {
            let mut flights = self.flights();
            for block in blocks {
                let key = source.key(block);
                if let Some(flight) = flights.get(&key) {
                    found.push(Found::Coming(flight.clone()));
                } else if let Some(bytes) = self.in_memory(&key) {
                    found.push(Found::Here(bytes));
                } else {
                    let flight = Arc::new(Flight::default());
                    flights.insert(key, flight.clone());
                    tickets.push(Ticket { cache: self.clone(), key, block, flight: flight.clone() });
                    found.push(Found::Coming(flight));
                }
            }
        }
        if !tickets.is_empty() {
            self.runtime.spawn(fetch(self.clone(), source.clone(), tickets));
        }
        let result = |found| match found {
            Found::Here(bytes) => Ok(bytes),
            Found::Coming(flight) => flight.wait(),
        };
        found.into_iter().map(result).collect()
    }

    /// Waits until all blocks are on the disk.
    pub async fn close(&self) {
        // What is not there is fetched again.
        let _ = self.blocks.close().await;
    }

    fn flights(&self) -> MutexGuard<'_, HashMap<BlockKey, Arc<Flight>>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fetches blocks from the disk, and from the service those that are not there.
async fn fetch(cache: Arc<Cache>, source: Arc<Source>, tickets: Vec<Ticket>) {
    let mut runs: Vec<Vec<Ticket>> = Vec::new();
    for ticket in tickets {
        // A disk that fails is a cache without the block.
        if let Ok(Some(entry)) = cache.blocks.get(&ticket.key).await {
            ticket.end(Ok(entry.value().clone()));
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(|last| last.block + 1 == ticket.block) => run.push(ticket),
            _ => runs.push(vec![ticket]),
        }
    }
    for run in runs {
        tokio::spawn(fetch_run(cache.clone(), source.clone(), run));
    }
}

/// Fetches neighbouring blocks by one request.
async fn fetch_run(cache: Arc<Cache>, source: Arc<Source>, run: Vec<Ticket>) {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return };
    let start = first.block * BLOCK_BYTES;
    let end = last.block * BLOCK_BYTES + source.block_bytes(last.block);
    let fetched = match source.health.admit() {
        Ok(()) => {
            let fetched = fetch_range(&source, start..end).await;
            source.health.note(&fetched);
            fetched
        }
        Err(failure) => Err(failure),
    };
    let mut rest = match fetched {
        Ok(bytes) => bytes,
        Err(failure) => return run.iter().for_each(|ticket| ticket.end(Err(failure.clone()))),
    };
    for ticket in &run {
        let block = rest.split_to((source.block_bytes(ticket.block) as usize).min(rest.len()));
        // By itself: a block that stays must not keep its neighbours in memory.
        let block = Bytes::copy_from_slice(&block);
        cache.insert(ticket.key, block.clone());
        ticket.end(Ok(block));
    }
}

async fn fetch_range(source: &Source, range: std::ops::Range<u64>) -> Result<Bytes, Failure> {
    let wanted = range.end - range.start;
    let options =
        GetOptions { range: Some(GetRange::Bounded(range)), if_match: source.e_tag.clone(), ..GetOptions::default() };
    let result = async { source.service.get_opts(&source.path, options).await?.bytes().await }.await;
    let bytes = result.map_err(|error| Failure::of(&error))?;
    match bytes.len() as u64 {
        found if found == wanted => Ok(bytes),
        found => Err(Failure::Other(format!("the store sent {found} bytes where {wanted} were asked for"))),
    }
}
