//! A store in memory that calls a function of the test before each operation: to hold it back, to
//! count it, or to panic in it.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use store::{Listed, Memory, Object, Store, StoreError, Upload, Version};

/// No test waits so long unless something hangs.
const HANG: Duration = Duration::from_secs(60);

/// What the store is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Open,
    Read { offset: u64 },
    Create,
    PutIf,
    List,
    Delete,
}

type Hook = Arc<dyn Fn(&str, Operation) + Send + Sync>;

/// The store. Operations without a key name none.
#[derive(Clone)]
pub struct Hooked {
    inner: Memory,
    hook: Hook,
    /// What it says of the room on its disk.
    pub free: Option<u64>,
    /// Several servers write it.
    pub shared: bool,
}

impl Hooked {
    pub fn new(inner: Memory, hook: impl Fn(&str, Operation) + Send + Sync + 'static) -> Hooked {
        Hooked { inner, hook: Arc::new(hook), free: None, shared: false }
    }
}

impl Store for Hooked {
    fn open(&self, key: &str) -> Result<Arc<dyn Object>, StoreError> {
        (self.hook)(key, Operation::Open);
        let inner = self.inner.open(key)?;
        Ok(Arc::new(HookedObject { inner, key: key.to_owned(), hook: self.hook.clone() }))
    }

    fn put_if(&self, key: &str, bytes: &[u8], expected: Option<&Version>) -> Result<Version, StoreError> {
        (self.hook)(key, Operation::PutIf);
        self.inner.put_if(key, bytes, expected)
    }

    fn get_versioned(&self, key: &str, limit: u64) -> Result<(Vec<u8>, Version), StoreError> {
        (self.hook)(key, Operation::Open);
        self.inner.get_versioned(key, limit)
    }

    fn create(&self) -> Result<Box<dyn Upload>, StoreError> {
        (self.hook)("", Operation::Create);
        self.inner.create()
    }

    fn list(&self, folder: &str) -> Result<Vec<Listed>, StoreError> {
        (self.hook)(folder, Operation::List);
        self.inner.list(folder)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        (self.hook)(key, Operation::Delete);
        self.inner.delete(key)
    }

    fn is_shared(&self) -> bool {
        self.shared
    }

    fn free_bytes(&self) -> Option<u64> {
        self.free
    }
}

struct HookedObject {
    inner: Arc<dyn Object>,
    key: String,
    hook: Hook,
}

impl Object for HookedObject {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        (self.hook)(&self.key, Operation::Read { offset });
        self.inner.read_at(offset, buf)
    }
}

/// A gate that operations wait at.
#[derive(Default)]
pub struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    open: bool,
    arrived: usize,
}

impl Gate {
    /// Waits until the gate is open. A test that failed leaves it as it is: the server must end all
    /// the same.
    pub fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.arrived += 1;
        self.changed.notify_all();
        drop(self.changed.wait_timeout_while(state, HANG, |state| !state.open).unwrap());
    }

    /// Waits until so many operations have come to the gate in all.
    pub fn wait_arrived(&self, count: usize) {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, HANG, |state| state.arrived < count);
        assert!(!waited.unwrap().1.timed_out(), "nobody came to the gate");
    }

    pub fn open(&self) {
        self.state.lock().unwrap().open = true;
        self.changed.notify_all();
    }
}
