//! What of a part changed since it was recorded last.

use std::collections::BTreeSet;

/// Keys of what changed, if anybody records it.
#[derive(Debug)]
pub(super) struct Marks<K>(Option<BTreeSet<K>>);

impl<K> Default for Marks<K> {
    /// Nobody records anything.
    fn default() -> Marks<K> {
        Marks(None)
    }
}

impl<K: Ord> Marks<K> {
    /// Begins to note what changes.
    pub fn begin(&mut self) {
        self.0.get_or_insert_default();
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    pub fn add(&mut self, key: K) {
        if let Some(keys) = &mut self.0 {
            keys.insert(key);
        }
    }

    pub fn take(&mut self) -> BTreeSet<K> {
        self.0.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
