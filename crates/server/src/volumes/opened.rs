//! A volume that a connection has open, and the transactions that wait to be committed there.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};

use units::RequestId;
use wire::ErrorCode;
use wire::volume::VolumeAsk;

use super::{OpenFiles, Present, Served};
use crate::budget::Room;
use crate::clock::Clock;
use crate::done::Cost;
use crate::error::Failure;
use crate::lock::locked;

/// Transactions committed as one batch.
const BATCH_MAX: usize = 64;

/// A volume that a connection has open.
pub(crate) struct OpenVolume {
    pub served: Arc<Served>,
    pub files: Mutex<OpenFiles>,
    pub commits: Commits,
    /// What a proof is made over.
    nonce: u128,
    /// The device, once it was proven.
    proven: OnceLock<Present>,
}

/// Transactions of a connection that wait, in the order in which they came.
///
/// Invariant: while one waits, exactly one worker takes batches. It was told to start by
/// [`Commits::push`], and ends when [`Commits::next_batch`] has none for it.
#[derive(Default)]
pub(crate) struct Commits {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    has_worker: bool,
}

/// A transaction that waits.
pub(crate) struct Waiting {
    pub request: RequestId,
    pub ask: VolumeAsk,
    /// Memory of its changes.
    pub room: Room,
    pub cost: Cost,
}

impl Commits {
    /// Adds a transaction. Whether the caller has to start a worker.
    pub fn push(&self, waiting: Waiting) -> bool {
        let mut queue = locked(&self.queue);
        queue.waiting.push_back(waiting);
        !std::mem::replace(&mut queue.has_worker, true)
    }

    /// The next transactions for the worker; `None` when it has to end.
    pub fn next_batch(&self) -> Option<Vec<Waiting>> {
        let mut queue = locked(&self.queue);
        let count = queue.waiting.len().min(BATCH_MAX);
        queue.has_worker = count > 0;
        (count > 0).then(|| queue.waiting.drain(..count).collect())
    }
}

impl OpenVolume {
    pub fn new(served: Arc<Served>) -> Result<OpenVolume, Failure> {
        let mut nonce = [0; 16];
        let failed = |error| Failure::new(ErrorCode::Internal, format!("there are no random numbers: {error}"));
        getrandom::fill(&mut nonce).map_err(failed)?;
        let (nonce, proven) = (u128::from_le_bytes(nonce), OnceLock::new());
        Ok(OpenVolume { served, files: Mutex::default(), nonce, proven, commits: Commits::default() })
    }

    /// What a proof of a device is made over.
    pub fn nonce(&self) -> u128 {
        self.nonce
    }

    /// The number that was proven, or 0.
    pub fn device(&self) -> u128 {
        self.proven.get().map_or(0, Present::number)
    }

    /// What is done on this handle is done by this device from now on.
    pub fn prove(&self, clock: Clock, number: u128) -> Result<(), Failure> {
        let proven = self.proven.get_or_init(|| Present::new(clock, self.served.clone(), number));
        match proven.number() == number {
            true => Ok(()),
            false => Err(Failure::bad_request("another device number was proven on this handle")),
        }
    }
}
