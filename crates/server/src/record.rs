//! What a device was sent and is thought to have: pages of images, and blocks of files in volumes.
//!
//! What was sent need not be pushed again. The record is a guess, because the device may drop pages
//! at any time: a demand for a page that was sent shows that it did. It costs bytes when it forgets
//! too much and misses when it forgets too little, never correctness.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

use units::{InodeId, PageId};

use crate::budget::Room;

/// Pages of a file that share an entry of a record.
pub(crate) const GROUP_PAGES: u32 = u64::BITS;

/// Memory of an entry, with what hash tables leave empty.
pub(crate) const GROUP_BYTES: usize = 2 * size_of::<(Group, u64)>();

/// Neighbouring pages of a file: the file, and the index of the first by [`GROUP_PAGES`].
type Group = (InodeId, u32);

/// The pages that a device was sent, by what they are part of: an image, or a file of a volume.
///
/// Invariant: the entries take no more than `memory` and `limits.free_bytes`, and there are no
/// more than `limits.keys_max` keys.
pub(crate) struct Record<K> {
    sent: HashMap<K, Sent>,
    limits: RecordLimits,
    memory: Room,
}

/// What a record may hold.
#[derive(Clone, Copy)]
pub(crate) struct RecordLimits {
    /// Images or files; when there are more, all is forgotten.
    pub keys_max: usize,
    /// Memory of each of them beside its pages, bytes.
    pub key_bytes: usize,
    /// Demands for sent pages after which the device is taken to have nothing of the image or file.
    pub losses_max: u32,
    /// Memory that is not counted, bytes.
    pub free_bytes: usize,
    /// Where there is no memory, all is forgotten, and not the image or file alone that needs it.
    pub forgets_all: bool,
}

/// Pages of one key, 64 neighbours in an entry: most are sent in a row, and then one look at the
/// map is enough for them all.
#[derive(Default)]
struct Sent {
    groups: HashMap<Group, u64>,
    losses: u32,
    /// Version of the file; 0 if none is known.
    version: u64,
}

impl<K: Copy + Eq + Hash> Record<K> {
    /// An empty record that takes more memory like `memory` as it grows.
    pub fn new(limits: RecordLimits, memory: Room) -> Record<K> {
        Record { sent: HashMap::new(), limits, memory }
    }

    /// The device has `pages` now, or soon. Nothing is remembered if there is no memory for it.
    pub fn sent(&mut self, key: K, pages: impl ExactSizeIterator<Item = PageId>) {
        if self.sent.len() >= self.limits.keys_max && !self.sent.contains_key(&key) {
            self.sent.clear();
        }
        if self.make_room(key, pages.len()) {
            self.sent.entry(key).or_default().add(pages);
        }
    }

    /// The same of a file that has this version.
    pub fn sent_version(&mut self, key: K, version: u64, pages: impl ExactSizeIterator<Item = PageId>) {
        self.set_version(key, version, false);
        self.sent(key, pages);
        self.set_version(key, version, false);
    }

    /// A file has this version. Unless the device made it, pages of another one are not what it
    /// has.
    pub fn set_version(&mut self, key: K, version: u64, by_device: bool) {
        if let Some(sent) = self.sent.get_mut(&key) {
            if sent.version != version && sent.version != 0 && !by_device {
                sent.groups.clear();
            }
            sent.version = version;
        }
    }

    /// `page` did not get through, or the device wants it all the same.
    pub fn not_sent(&mut self, key: K, page: PageId) {
        if let Some(sent) = self.sent.get_mut(&key) {
            sent.remove(page);
        }
    }

    /// The device asks for `page` though it is not on its way. `true` if it had been sent, so the
    /// device dropped it.
    pub fn demanded(&mut self, key: K, page: PageId) -> bool {
        let Some(sent) = self.sent.get_mut(&key) else { return false };
        if !sent.remove(page) {
            return false;
        }
        sent.losses += 1;
        if sent.losses >= self.limits.losses_max {
            (sent.losses, sent.groups) = Default::default();
        }
        true
    }

    /// Forgets what was sent of one image or file.
    pub fn forget(&mut self, key: K) {
        self.sent.remove(&key);
    }

    /// Forgets all but what is to be kept.
    pub fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.sent.retain(|key, _| keep(key));
        self.memory.shrink_to(self.needed_bytes(0, 0));
    }

    /// Forgets everything, and gives back its memory.
    pub fn clear(&mut self) {
        self.sent.clear();
        self.memory.shrink_to(0);
    }

    /// Whether the device has `page`.
    pub fn has(&self, key: K, page: PageId) -> bool {
        let (group, bit) = group_of(page);
        self.sent.get(&key).and_then(|sent| sent.groups.get(&group)).is_some_and(|bits| bits & bit != 0)
    }

    /// Whether the device has each of `pages`.
    pub fn has_each(&self, key: K, pages: &[PageId]) -> Vec<bool> {
        match self.sent.get(&key) {
            Some(sent) => sent.has_each(pages),
            None => vec![false; pages.len()],
        }
    }

    /// Images or files.
    #[cfg(test)]
    pub fn keys(&self) -> usize {
        self.sent.len()
    }

    /// Takes memory for `more` entries of `key`. If there is none, what is known of it, or all, is
    /// forgotten; false if even then there is none.
    fn make_room(&mut self, key: K, more: usize) -> bool {
        for _ in 0..2 {
            let lacking = self.needed_bytes(1, more).saturating_sub(self.memory.amount());
            if lacking == 0 {
                return true;
            }
            // In steps of a quarter, so that most pages take none.
            let step = lacking.max(self.memory.amount() / 4);
            let taken = [step, lacking].into_iter().find_map(|bytes| self.memory.try_more(bytes));
            if let Some(room) = taken {
                self.memory.merge(room);
                return true;
            }
            if self.limits.forgets_all {
                self.sent.clear();
            } else {
                self.sent.remove(&key);
            }
        }
        false
    }

    /// Memory for so many more keys and entries.
    fn needed_bytes(&self, keys: usize, groups: usize) -> usize {
        let groups = groups + self.sent.values().map(|sent| sent.groups.len()).sum::<usize>();
        let bytes = (keys + self.sent.len()) * self.limits.key_bytes + groups * GROUP_BYTES;
        bytes.saturating_sub(self.limits.free_bytes)
    }
}

impl Sent {
    fn add(&mut self, pages: impl Iterator<Item = PageId>) {
        let mut row: Option<(Group, u64)> = None;
        for (group, bit) in pages.map(group_of) {
            match &mut row {
                Some((known, bits)) if *known == group => *bits |= bit,
                _ => {
                    if let Some((group, bits)) = row.replace((group, bit)) {
                        *self.groups.entry(group).or_default() |= bits;
                    }
                }
            }
        }
        if let Some((group, bits)) = row {
            *self.groups.entry(group).or_default() |= bits;
        }
    }

    fn has_each(&self, pages: &[PageId]) -> Vec<bool> {
        let mut last = None;
        let mut has = |page: &PageId| {
            let (group, bit) = group_of(*page);
            let bits = match last {
                Some((known, bits)) if known == group => bits,
                _ => self.groups.get(&group).copied().unwrap_or(0),
            };
            last = Some((group, bits));
            bits & bit != 0
        };
        pages.iter().map(&mut has).collect()
    }

    /// Whether it was there.
    fn remove(&mut self, page: PageId) -> bool {
        let (group, bit) = group_of(page);
        let Entry::Occupied(mut entry) = self.groups.entry(group) else { return false };
        let was_there = entry.get() & bit != 0;
        *entry.get_mut() &= !bit;
        if *entry.get() == 0 {
            entry.remove();
        }
        was_there
    }
}

/// Where a page is in a record.
fn group_of(page: PageId) -> (Group, u64) {
    ((page.inode, page.index / GROUP_PAGES), 1 << (page.index % GROUP_PAGES))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::budget::Budget;
    use crate::peer::{Owner, Peer};

    /// What is sent without memory for it: of many files only the last ones stay known, or of an
    /// image nothing.
    #[test]
    fn without_memory_a_record_begins_again_or_forgets_the_key() {
        for forgets_all in [false, true] {
            let budget = Budget::memory(0);
            let owner = |connection| Owner { peer: Peer::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)), connection };
            let _all = budget.try_take(owner(1), 1).unwrap();
            let limits =
                RecordLimits { keys_max: 100, key_bytes: 128, losses_max: 3, free_bytes: 1 << 10, forgets_all };
            let mut record = Record::new(limits, budget.nothing(owner(2)));
            let page = PageId::new(InodeId(0), 7);
            let known: Vec<bool> = (0..20)
                .map(|key| {
                    record.sent(key, [page].into_iter());
                    record.has(key, page)
                })
                .collect();
            assert!(known[0] && known[19] == forgets_all, "{known:?}");
            assert!(record.keys() < 10);
        }
    }
}
