//! A map bounded by the bytes of its values; what was used longest ago makes room.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use bytes::Bytes;

/// Bytes by key, at most `bytes_max` of them.
pub(crate) struct Lru<K> {
    bytes_max: usize,
    bytes: usize,
    /// Grows with every use; gives the order.
    clock: u64,
    entries: HashMap<K, (u64, Bytes)>,
    order: BTreeMap<u64, K>,
}

impl<K: Copy + Eq + Hash> Lru<K> {
    /// An empty map for `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Lru<K> {
        Lru { bytes_max, bytes: 0, clock: 0, entries: HashMap::new(), order: BTreeMap::new() }
    }

    /// The value under `key`, which becomes the most recently used.
    pub fn get(&mut self, key: K) -> Option<Bytes> {
        let (used, value) = self.entries.get_mut(&key)?;
        self.order.remove(used);
        self.clock += 1;
        *used = self.clock;
        self.order.insert(self.clock, key);
        Some(value.clone())
    }

    /// Whether `key` is there, without using it.
    pub fn contains(&self, key: K) -> bool {
        self.entries.contains_key(&key)
    }

    /// Puts `value` under `key`. A value that is larger than the whole map is not kept.
    pub fn put(&mut self, key: K, value: Bytes) {
        self.remove(key);
        if value.len() > self.bytes_max {
            return;
        }
        while self.bytes + value.len() > self.bytes_max {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            if let Some((_, gone)) = self.entries.remove(&oldest) {
                self.bytes -= gone.len();
            }
        }
        self.clock += 1;
        self.bytes += value.len();
        self.order.insert(self.clock, key);
        self.entries.insert(key, (self.clock, value));
    }

    /// Forgets `key`.
    pub fn remove(&mut self, key: K) {
        if let Some((used, gone)) = self.entries.remove(&key) {
            self.order.remove(&used);
            self.bytes -= gone.len();
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The map agrees with a list that is kept in order of use.
        #[test]
        fn ref_lru_agrees_with_a_list(steps in prop::collection::vec((0u8..8, prop::option::of(0usize..40)), 0..200)) {
            let mut lru = Lru::new(100);
            let mut list: VecDeque<(u8, usize)> = VecDeque::new();
            for (key, put) in steps {
                let at = list.iter().position(|(found, _)| *found == key);
                match put {
                    Some(bytes) => {
                        lru.put(key, Bytes::from(vec![0; bytes]));
                        if let Some(at) = at {
                            list.remove(at);
                        }
                        list.push_back((key, bytes));
                        while list.iter().map(|(_, bytes)| bytes).sum::<usize>() > 100 {
                            list.pop_front();
                        }
                    }
                    None => {
                        let found = lru.get(key).map(|value| value.len());
                        prop_assert_eq!(found, at.map(|at| list[at].1));
                        if let Some(entry) = at.and_then(|at| list.remove(at)) {
                            list.push_back(entry);
                        }
                    }
                }
                prop_assert_eq!(lru.bytes(), list.iter().map(|(_, bytes)| bytes).sum::<usize>());
                prop_assert_eq!(lru.entries.len(), list.len());
            }
        }
    }

    #[test]
    fn a_value_larger_than_the_map_is_not_kept_and_evicts_nothing() {
        let mut lru = Lru::new(10);
        lru.put(1, Bytes::from_static(b"12345"));
        lru.put(2, Bytes::from_static(b"12345678901"));
        assert!(lru.contains(1) && !lru.contains(2));
        assert_eq!(lru.bytes(), 5);
    }
}
