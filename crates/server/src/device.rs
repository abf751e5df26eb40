//! What one device has got from us, over all its connections, for as long as it has one. The number
//! in its Hello, which names it, is no secret: it counts among the connections of one peer, so that
//! a stranger who says the same number is another device.
//!
//! A page that was sent need not be pushed again. The record is a guess, since the device may drop
//! pages at any time: a demand for a page that was sent shows that it did. It costs bytes when it
//! forgets too much and misses when it forgets too little, never correctness. How much there is to
//! remember is up to the device, so memory is taken as the record grows; when there is none, it
//! starts anew.
//!
//! A running program's touches may come over any connection of its device, but its push stream lives on one. The
//! *owner* of a token is the connection that pushes to it; the others hand it what the Predictor says.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::mpsc;
use units::{ImageId, InodeId, PageId, Token};

use crate::advice::Advice;
use crate::budget::{Budget, Room};
use crate::lock::locked;
use crate::peer::{self, Peer};

/// Images remembered for one device.
const IMAGES_MAX: usize = 16;

/// Pages of a file that share an entry of a record.
const GROUP_PAGES: u32 = u64::BITS;

/// Memory of an entry, with what hash tables leave empty.
const GROUP_BYTES: usize = 2 * size_of::<(Group, u64)>();

/// Demands for sent pages after which the whole record of the image is dropped: one page may be evicted alone, eight
/// show that the device lost many.
const LOSSES_MAX: u32 = 8;

/// Tokens with an owner, for one device: the streams of a few connections.
const OWNERS_MAX: usize = 256;

/// One device that is connected.
pub(crate) struct Device {
    record: Mutex<Record>,
    owners: Mutex<HashMap<(ImageId, Token), Owner>>,
    devices: Devices,
    /// Under what its connections find it. `None` for a client that did not say who it is.
    key: Option<Key>,
    /// What tells its tokens from the same tokens of others.
    scope: u128,
}

/// What a device was sent.
struct Record {
    images: HashMap<ImageId, Sent>,
    memory: Room,
}

/// Pages of one image that a device was sent, 64 neighbours in an entry: most are sent in a row,
/// and then one look at the map is enough for them all.
#[derive(Default)]
struct Sent {
    groups: HashMap<Group, u64>,
    losses: u32,
}

/// Neighbouring pages of a file: the file, and the index of the first by [`GROUP_PAGES`].
type Group = (InodeId, u32);

struct Owner {
    connection: u64,
    advice: mpsc::UnboundedSender<Box<Advice>>,
}

/// Whose a device is, and the number that it says.
type Key = (Peer, u128);

/// The devices that are connected.
#[derive(Clone)]
pub(crate) struct Devices {
    inner: Arc<Listed>,
}

struct Listed {
    by_key: Mutex<HashMap<Key, Weak<Device>>>,
    memory: Budget,
    /// Nobody can say from it which scope another device has.
    secret: [u8; 32],
    /// Devices so far: what memory of one peer is told apart by.
    count: AtomicU64,
}

impl Devices {
    /// None yet; records of those that come take `memory`. `secret` is random.
    pub fn new(memory: Budget, secret: [u8; 32]) -> Devices {
        Devices { inner: Arc::new(Listed { by_key: Mutex::default(), memory, secret, count: AtomicU64::new(0) }) }
    }

    /// Memory of records.
    pub fn memory(&self) -> &Budget {
        &self.inner.memory
    }

    /// The device of this number, shared with other connections of the peer. Number 0 is a client
    /// that did not say who it is: two of them are not the same device.
    pub fn join(&self, peer: Peer, number: u128) -> Arc<Device> {
        if number == 0 {
            return self.add(peer, None);
        }
        let key = (peer, number);
        let mut devices = locked(&self.inner.by_key);
        if let Some(device) = devices.get(&key).and_then(Weak::upgrade) {
            return device;
        }
        let device = self.add(peer, Some(key));
        devices.insert(key, Arc::downgrade(&device));
        device
    }

    fn add(&self, peer: Peer, key: Option<Key>) -> Arc<Device> {
        let connection = self.inner.count.fetch_add(1, Ordering::Relaxed);
        let memory = self.inner.memory.nothing(peer::Owner { peer, connection });
        let record = Mutex::new(Record { images: HashMap::new(), memory });
        let number = key.map_or(connection.into(), |(_, number)| number);
        let mut hasher = blake3::Hasher::new_keyed(&self.inner.secret);
        hasher.update(&peer.number().0.to_le_bytes()).update(&number.to_le_bytes()).update(&[key.is_some().into()]);
        let hash = hasher.finalize();
        let scope = u128::from_le_bytes(std::array::from_fn(|at| hash.as_bytes()[at]));
        Arc::new(Device { record, owners: Mutex::default(), devices: self.clone(), key, scope })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut devices = locked(&self.devices.inner.by_key);
        // A connection that came after the last of ours went may have listed another one.
        if let Entry::Occupied(entry) = devices.entry(key)
            && entry.get().strong_count() == 0
        {
            entry.remove();
        }
        if devices.len() * 4 < devices.capacity() {
            devices.shrink_to_fit();
        }
    }
}

impl Sent {
    fn add(&mut self, pages: &[PageId]) {
        for row in pages.chunk_by(|one, other| place(*one).0 == place(*other).0) {
            let Some((group, _)) = row.first().map(|page| place(*page)) else { continue };
            *self.groups.entry(group).or_default() |= row.iter().fold(0, |bits, page| bits | place(*page).1);
        }
    }

    fn has(&self, pages: &[PageId]) -> Vec<bool> {
        let mut last = None;
        let mut has = |page: &PageId| {
            let (group, bit) = place(*page);
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
        let (group, bit) = place(page);
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
fn place(page: PageId) -> (Group, u64) {
    ((page.inode, page.index / GROUP_PAGES), 1 << (page.index % GROUP_PAGES))
}

impl Record {
    /// Sees to it that there is memory for `more` entries of `image`. If there is none, what is
    /// known of the image is forgotten; false if even then there is none.
    fn make_room(&mut self, image: ImageId, more: usize) -> bool {
        for _ in 0..2 {
            let groups: usize = self.images.values().map(|sent| sent.groups.len()).sum();
            let lacking = ((groups + more) * GROUP_BYTES).saturating_sub(self.memory.amount());
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
            self.images.remove(&image);
        }
        false
    }
}

impl Device {
    /// What predictors call a token of this device: they hear of the tokens of all devices, and who
    /// learned of another's must not be able to speak for it. The same call leads back.
    pub fn scoped(&self, token: Token) -> Token {
        Token(token.0 ^ self.scope)
    }

    /// The device has `pages` now, or soon.
    pub fn sent(&self, image: ImageId, pages: &[PageId]) {
        let mut record = locked(&self.record);
        if record.images.len() >= IMAGES_MAX && !record.images.contains_key(&image) {
            record.images.clear();
        }
        if record.make_room(image, pages.len()) {
            let sent = record.images.entry(image).or_default();
            sent.add(pages);
        }
    }

    /// `pages` did not get through after all.
    pub fn not_sent(&self, image: ImageId, pages: &[PageId]) {
        if let Some(sent) = locked(&self.record).images.get_mut(&image) {
            for page in pages {
                sent.remove(*page);
            }
        }
    }

    /// The device asks for `page` though it is not on its way. `true` if it had been sent, so the device dropped it.
    pub fn demanded(&self, image: ImageId, page: PageId) -> bool {
        let mut record = locked(&self.record);
        let Some(sent) = record.images.get_mut(&image) else { return false };
        if !sent.remove(page) {
            return false;
        }
        sent.losses += 1;
        if sent.losses >= LOSSES_MAX {
            *sent = Sent::default();
        }
        true
    }

    /// Forgets what was sent of an image: the device starts cold.
    pub fn forget(&self, image: ImageId) {
        locked(&self.record).images.remove(&image);
    }

    /// Whether the device has each of `pages`.
    pub fn has(&self, image: ImageId, pages: &[PageId]) -> Vec<bool> {
        match locked(&self.record).images.get(&image) {
            Some(sent) => sent.has(pages),
            None => vec![false; pages.len()],
        }
    }

    /// Whether `connection` is to act on advice for a token. If another connection owns it, the advice goes there.
    pub fn route(&self, connection: u64, image: ImageId, token: Token, advice: Advice) -> Option<Advice> {
        let mut owners = locked(&self.owners);
        match owners.get(&(image, token)) {
            Some(owner) if owner.connection != connection => match owner.advice.send(Box::new(advice)) {
                Ok(()) => None,
                // Its connection is gone; whoever hears from the token takes over.
                Err(back) => {
                    owners.remove(&(image, token));
                    Some(*back.0)
                }
            },
            _ => Some(advice),
        }
    }

    /// `connection` pushes to the token from now on. `false` if too many tokens have owners.
    pub fn own(
        &self,
        connection: u64,
        image: ImageId,
        token: Token,
        advice: &mpsc::UnboundedSender<Box<Advice>>,
    ) -> bool {
        let mut owners = locked(&self.owners);
        if owners.len() >= OWNERS_MAX {
            owners.retain(|_, owner| !owner.advice.is_closed());
            if owners.len() >= OWNERS_MAX {
                return false;
            }
        }
        owners.insert((image, token), Owner { connection, advice: advice.clone() });
        true
    }

    /// `connection` pushes to the token no more.
    pub fn disown(&self, connection: u64, image: ImageId, token: Token) {
        let mut owners = locked(&self.owners);
        if owners.get(&(image, token)).is_some_and(|owner| owner.connection == connection) {
            owners.remove(&(image, token));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: ImageId = ImageId([1; 32]);

    fn pages(range: std::ops::Range<u32>) -> Vec<PageId> {
        range.map(|index| PageId::new(InodeId(2), index)).collect()
    }

    fn peer(last: u8) -> Peer {
        Peer::at(([192, 0, 2, last], 1).into())
    }

    fn one() -> Arc<Device> {
        Devices::new(Budget::memory(1 << 20), [1; 32]).join(peer(1), 0)
    }

    #[test]
    fn a_demand_for_a_sent_page_shows_that_the_device_dropped_it() {
        let device = one();
        device.sent(IMAGE, &pages(0..20));
        assert!(!device.demanded(IMAGE, pages(30..31)[0]));
        assert!(device.demanded(IMAGE, pages(3..4)[0]));
        assert!(!device.demanded(IMAGE, pages(3..4)[0]), "it is no longer counted as sent");
        assert_eq!(device.has(IMAGE, &pages(2..5)), [true, false, true]);
        for page in pages(4..11) {
            assert!(device.demanded(IMAGE, page));
        }
        assert_eq!(device.has(IMAGE, &pages(15..17)), [false, false], "eight losses: nothing is sure any more");
    }

    #[test]
    fn the_record_is_bounded_by_the_memory_of_all_and_comes_back() {
        let devices = Devices::new(Budget::memory(1 << 20), [1; 32]);
        let device = devices.join(peer(1), 1);
        // Each page in a group of its own.
        let all: Vec<PageId> = (0..100_000).map(|index| PageId::new(InodeId(2), index * GROUP_PAGES)).collect();
        let mut most = 0;
        for part in all.chunks(1000) {
            device.sent(IMAGE, part);
            let known = device.has(IMAGE, &all).iter().filter(|known| **known).count();
            assert!(known * GROUP_BYTES <= devices.memory().taken() && devices.memory().taken() <= 1 << 20);
            most = most.max(known);
        }
        assert!(most >= 1000, "{most}");
        let other = devices.join(peer(2), 1);
        other.sent(IMAGE, &all[..1000]);
        assert_eq!(other.has(IMAGE, &all[999..1000]), [true], "others have room");
        drop(device);
        for number in 0..100 {
            other.sent(ImageId([number; 32]), &all[..1]);
        }
        assert!(locked(&other.record).images.len() <= IMAGES_MAX);
        drop(other);
        assert_eq!(devices.memory().taken(), 0);
    }

    #[test]
    fn neighbouring_pages_take_little() {
        let devices = Devices::new(Budget::memory(1 << 20), [1; 32]);
        let device = devices.join(peer(1), 1);
        let all = pages(0..100_000);
        all.chunks(32).for_each(|part| device.sent(IMAGE, part));
        assert!(device.has(IMAGE, &all).iter().all(|known| *known));
    }

    #[test]
    fn a_device_is_shared_by_its_connections_and_gone_with_the_last() {
        let devices = Devices::new(Budget::memory(1 << 20), [1; 32]);
        let join = |number| devices.join(peer(1), number);
        let first = join(7);
        first.sent(IMAGE, &pages(0..1));
        let second = join(7);
        assert_eq!(second.has(IMAGE, &pages(0..1)), [true]);
        let stranger = devices.join(peer(2), 7);
        assert_eq!(first.scoped(second.scoped(Token(5))), Token(5));
        assert_ne!(first.scoped(Token(5)), stranger.scoped(Token(5)));
        assert_eq!(stranger.has(IMAGE, &pages(0..1)), [false], "a stranger who says the same number");
        assert_eq!(join(8).has(IMAGE, &pages(0..1)), [false]);
        join(0).sent(IMAGE, &pages(0..1));
        assert_eq!(join(0).has(IMAGE, &pages(0..1)), [false], "nobody in particular");
        drop((first, second));
        assert_eq!(join(7).has(IMAGE, &pages(0..1)), [false]);
        assert_eq!(locked(&devices.inner.by_key).len(), 1, "the stranger's");
        let many: Vec<_> = (1..1000).map(join).collect();
        drop((many, stranger));
        assert!(locked(&devices.inner.by_key).capacity() < 16);
    }

    #[test]
    fn advice_goes_to_the_connection_that_owns_the_token() {
        let device = one();
        let token = Token(5);
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let ended = || Advice::ended(IMAGE, token);
        assert!(device.route(1, IMAGE, token, ended()).is_some(), "nobody owns it");
        assert!(device.own(2, IMAGE, token, &sender));
        assert!(device.route(2, IMAGE, token, ended()).is_some(), "the owner acts itself");
        assert!(device.route(1, IMAGE, token, ended()).is_none());
        assert!(receiver.try_recv().is_ok());
        device.disown(1, IMAGE, token);
        drop(receiver);
        assert!(device.route(1, IMAGE, token, ended()).is_some(), "the owner is gone");
    }
}
