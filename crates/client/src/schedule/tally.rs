//! A count per key.

use std::collections::HashMap;
use std::hash::Hash;

/// How often each key was added and not taken off. A key whose count is zero is absent.
#[derive(Default)]
pub(super) struct Tally<K>(HashMap<K, u32>);

impl<K: Hash + Eq> Tally<K> {
    /// Counts a key once more. Returns its count.
    pub fn add(&mut self, key: K) -> u32 {
        let count = self.0.entry(key).or_default();
        *count += 1;
        *count
    }

    /// Takes one off the count of a key, if it has one.
    pub fn take_off(&mut self, key: &K) {
        if let Some(count) = self.0.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(key);
            }
        }
    }

    pub fn contains(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
