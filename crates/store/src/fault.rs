//! A store that fails on purpose, the same way each time.
//!
//! Every call on the store and on its uploads is one operation, counted from 0. A plan names the
//! operation that fails, and how. Besides, calls may fail at random from a seed. After a crash, a
//! reader finds what was committed in the wrapped store and nothing else, and every later call
//! fails. To look at the store after the crash, keep a clone of the wrapped one.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use units::{Rng, SplitMix64};

use crate::error::UPLOAD;
use crate::{Listed, Object, Store, StoreError, Upload, Version};

/// How the chosen operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An input/output error, once.
    Error,
    /// Half of the bytes are written, then an error; an error as above on operations that write
    /// nothing.
    ShortWrite,
    /// From here on every write finds the disk full, until [`Fault::heal`].
    Full,
    /// The machine stops before the operation has any effect.
    CrashBefore,
    /// The machine stops when the operation has taken effect, before the caller is told.
    CrashAfter,
}

/// What fails, and when.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultPlan {
    /// The operation that fails (counted from 0) and how.
    pub at: Option<(u64, FaultKind)>,
    /// Calls in a million that fail with an error besides.
    pub errors_per_million: u32,
    /// Seed of those random errors.
    pub seed: u64,
}

/// Wraps a store; clones share the plan and the count.
#[derive(Clone)]
pub struct Fault {
    inner: Arc<dyn Store>,
    state: Arc<Mutex<State>>,
}

struct State {
    plan: FaultPlan,
    rng: SplitMix64,
    operations: u64,
    crashed: bool,
    full: bool,
}

/// What an operation is to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Run,
    /// Write half, then fail.
    Short,
    /// Take effect, then be down.
    RunThenCrash,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

impl Fault {
    /// `inner`, failing as `plan` says.
    pub fn new(inner: Arc<dyn Store>, plan: FaultPlan) -> Fault {
        let state = State { plan, rng: SplitMix64(plan.seed), operations: 0, crashed: false, full: false };
        Fault { inner, state: Arc::new(Mutex::new(state)) }
    }

    /// Operations so far; run once without faults to learn how many there are to fail.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Whether the simulated machine is down.
    pub fn crashed(&self) -> bool {
        self.state().crashed
    }

    /// Mends the disk: there is room again and nothing more fails. A crash stays a crash.
    pub fn heal(&self) {
        let mut state = self.state();
        state.full = false;
        state.plan = FaultPlan::default();
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one operation and says what becomes of it.
    fn step(&self, access: Access, key: &str) -> Result<Verdict, StoreError> {
        let mut state = self.state();
        if state.crashed {
            return Err(StoreError::Crashed);
        }
        let operation = state.operations;
        state.operations += 1;
        let random = state.rng.below(1_000_000) < u64::from(state.plan.errors_per_million);
        let verdict = match state.plan.at {
            Some((at, kind)) if at == operation => match kind {
                FaultKind::Error => return Err(broken(key)),
                FaultKind::ShortWrite if access == Access::Read => return Err(broken(key)),
                FaultKind::ShortWrite => Verdict::Short,
                FaultKind::Full => {
                    state.full = true;
                    Verdict::Run
                }
                FaultKind::CrashBefore => {
                    state.crashed = true;
                    return Err(StoreError::Crashed);
                }
                FaultKind::CrashAfter => {
                    state.crashed = true;
                    Verdict::RunThenCrash
                }
            },
            _ if random => return Err(broken(key)),
            _ => Verdict::Run,
        };
        if state.full && access == Access::Write {
            return Err(StoreError::Full { key: key.to_owned() });
        }
        Ok(verdict)
    }

    /// Runs one operation that cannot be half done.
    fn whole<T>(
        &self,
        access: Access,
        key: &str,
        run: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match self.step(access, key)? {
            Verdict::Run => run(),
            Verdict::Short => Err(broken(key)),
            Verdict::RunThenCrash => {
                run()?;
                Err(StoreError::Crashed)
            }
        }
    }
}

fn broken(key: &str) -> StoreError {
    StoreError::Io { what: "use", key: key.to_owned(), source: io::Error::other("a planned fault") }
}

impl Store for Fault {
    fn open(&self, key: &str) -> Result<Arc<dyn Object>, StoreError> {
        let object = self.whole(Access::Read, key, || self.inner.open(key))?;
        Ok(Arc::new(FaultObject { key: key.to_owned(), inner: object, fault: self.clone() }))
    }

    fn put_if(&self, key: &str, bytes: &[u8], expected: Option<&Version>) -> Result<Version, StoreError> {
        self.whole(Access::Write, key, || self.inner.put_if(key, bytes, expected))
    }

    fn get_versioned(&self, key: &str, limit: u64) -> Result<(Vec<u8>, Version), StoreError> {
        self.whole(Access::Read, key, || self.inner.get_versioned(key, limit))
    }

    fn create(&self) -> Result<Box<dyn Upload>, StoreError> {
        let upload = self.whole(Access::Write, UPLOAD, || self.inner.create())?;
        Ok(Box::new(FaultUpload { inner: upload, fault: self.clone() }))
    }

    fn list(&self, folder: &str) -> Result<Vec<Listed>, StoreError> {
        self.whole(Access::Read, folder, || self.inner.list(folder))
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        // A removal needs no room, so a full disk does not stop it.
        self.whole(Access::Read, key, || self.inner.delete(key))
    }
}

struct FaultObject {
    key: String,
    inner: Arc<dyn Object>,
    fault: Fault,
}

impl Object for FaultObject {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.fault.whole(Access::Read, &self.key, || self.inner.read_at(offset, buf))
    }

    fn advise_whole(&self) {
        self.inner.advise_whole();
    }
}

struct FaultUpload {
    inner: Box<dyn Upload>,
    fault: Fault,
}

impl Upload for FaultUpload {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        match self.fault.step(Access::Write, UPLOAD)? {
            Verdict::Run => self.inner.write_at(offset, bytes),
            Verdict::Short => {
                self.inner.write_at(offset, &bytes[..bytes.len() / 2])?;
                Err(broken(UPLOAD))
            }
            // The bytes went to a temporary, which the crash takes away.
            Verdict::RunThenCrash => Err(StoreError::Crashed),
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.fault.whole(Access::Read, UPLOAD, || self.inner.read_at(offset, buf))
    }

    fn commit(self: Box<Self>, key: &str) -> Result<(), StoreError> {
        let FaultUpload { inner, fault } = *self;
        fault.whole(Access::Write, key, || inner.commit(key))
    }
}
