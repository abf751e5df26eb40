//! The devices that are connected: what each was sent over all its connections, and which of them
//! pushes to a program.
//!
//! The number in a device's Hello names it and is no secret: it counts among the connections of one
//! peer, so that a stranger who says the same number is another device. How much there is to
//! remember is up to the device, so its record takes memory as it grows.
//!
//! A running program's touches may come over any connection of its device, but its push stream
//! lives on one. The *owner* of a token is the connection that pushes to it; the others send it
//! what the predictor says.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::mpsc;
use units::{ImageId, PageId, Token};

use crate::advice::Advice;
use crate::budget::Budget;
use crate::lock::locked;
use crate::peer::{self, Peer};
use crate::published::Published;
use crate::record::{Record, RecordLimits};
use crate::speed::{Known, Speed};

/// What is remembered of the images of one device. One page may be evicted alone; eight losses show
/// that the device lost many.
const RECORD: RecordLimits =
    RecordLimits { keys_max: 16, key_bytes: 0, losses_max: 8, free_bytes: 0, forgets_all: false };

/// Peers of which is remembered what their link carries.
const REMEMBERED_MAX: usize = 1024;

/// Tokens with an owner, for one device: the streams of a few connections.
const OWNERS_MAX: usize = 256;

/// One device that is connected.
pub(crate) struct Device {
    record: Mutex<Record<ImageId>>,
    /// Of its link and its processor.
    known: Mutex<Known>,
    owners: Mutex<HashMap<(ImageId, Token), Owner>>,
    devices: Devices,
    /// The key by which its connections find it. `None` for a client that did not say who it is.
    key: Option<Key>,
    /// What tells its tokens from the same tokens of others.
    scope: u128,
}

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
    /// What was known of the last device of each peer that went: the next one has the same link, as
    /// a rule.
    remembered: Mutex<HashMap<Peer, Known>>,
    memory: Budget,
    /// Nobody can say from it which scope another device has.
    secret: [u8; 32],
    /// Devices so far: what memory of one peer is told apart by.
    count: AtomicU64,
}

impl Devices {
    /// None yet; records of those that come take `memory`. `secret` is random.
    pub fn new(memory: Budget, secret: [u8; 32]) -> Devices {
        Devices {
            inner: Arc::new(Listed {
                by_key: Mutex::default(),
                remembered: Mutex::default(),
                memory,
                secret,
                count: AtomicU64::new(0),
            }),
        }
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
        let record = Mutex::new(Record::new(RECORD, memory));
        let number = key.map_or(connection.into(), |(_, number)| number);
        let mut hasher = blake3::Hasher::new_keyed(&self.inner.secret);
        hasher.update(&peer.number().0.to_le_bytes()).update(&number.to_le_bytes()).update(&[key.is_some().into()]);
        let hash = hasher.finalize();
        let scope = u128::from_le_bytes(std::array::from_fn(|at| hash.as_bytes()[at]));
        let known = locked(&self.inner.remembered).get(&peer).copied().unwrap_or_default();
        let (devices, known) = (self.clone(), Mutex::new(known));
        Arc::new(Device { record, known, owners: Mutex::default(), devices, key, scope })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut remembered = locked(&self.devices.inner.remembered);
        if remembered.len() >= REMEMBERED_MAX && !remembered.contains_key(&key.0) {
            // Any: what is lost is a first guess.
            let other = remembered.keys().next().copied();
            other.map(|other| remembered.remove(&other));
        }
        remembered.insert(key.0, *locked(&self.known));
        drop(remembered);
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

impl Device {
    /// What predictors call a token of this device. They are told the tokens of all devices, and a
    /// device that knows the token of another one must not act for it. The same call leads back.
    pub fn scoped(&self, token: Token) -> Token {
        Token(token.0 ^ self.scope)
    }

    /// The device has `pages` now, or soon.
    pub fn sent(&self, image: ImageId, pages: &[PageId]) {
        locked(&self.record).sent(image, pages.iter().copied());
    }

    /// `pages` did not get through after all.
    pub fn not_sent(&self, image: ImageId, pages: &[PageId]) {
        let mut record = locked(&self.record);
        pages.iter().for_each(|page| record.not_sent(image, *page));
    }

    /// The device asks for `page` though it is not on its way. `true` if it had been sent, so the
    /// device dropped it.
    pub fn demanded(&self, image: ImageId, page: PageId) -> bool {
        locked(&self.record).demanded(image, page)
    }

    /// Forgets what was sent of an image: the device starts cold.
    pub fn forget(&self, image: ImageId) {
        locked(&self.record).forget(image);
    }

    /// Whether the device has each of `pages`.
    pub fn has(&self, image: ImageId, pages: &[PageId]) -> Vec<bool> {
        locked(&self.record).has_each(image, pages)
    }

    /// Which of `pages` have bytes that the device has not got.
    pub fn lacks(&self, image: &Published, pages: &[PageId]) -> Vec<bool> {
        let has = self.has(image.id, pages);
        pages.iter().zip(has).map(|(page, has)| !has && image.is_stored(*page)).collect()
    }

    /// What a pushed byte costs the device; `rate` is that of the link if the connection measured
    /// it, in bytes a second.
    pub fn speed(&self, rate: Option<u64>) -> Speed {
        locked(&self.known).speed(rate)
    }

    /// Something was learned of its link or its processor.
    pub fn note(&self, note: impl FnOnce(&mut Known)) {
        note(&mut locked(&self.known));
    }

    /// Whether `connection` is to act on advice for a token. If another connection owns it, the
    /// advice goes there.
    pub fn route(&self, connection: u64, image: ImageId, token: Token, advice: Advice) -> Option<Advice> {
        let mut owners = locked(&self.owners);
        match owners.get(&(image, token)) {
            Some(owner) if owner.connection != connection => match owner.advice.send(Box::new(advice)) {
                Ok(()) => None,
                // Its connection is gone; the one that the token was seen on takes over.
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
    use units::InodeId;

    use super::*;
    use crate::record::{GROUP_BYTES, GROUP_PAGES};

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
        assert!(locked(&other.record).keys() <= RECORD.keys_max);
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
    fn what_is_known_of_a_device_is_remembered_for_the_next_one_of_its_peer() {
        let devices = Devices::new(Budget::memory(1 << 20), [1; 32]);
        let speed = |last: u8, number| devices.join(peer(last), number).speed(None);
        let usual = speed(1, 1);
        devices.join(peer(1), 2).note(|known| known.carried(1 << 30));
        assert_eq!(speed(1, 3), devices.join(peer(9), 1).speed(Some(1 << 30)));
        assert_eq!(speed(2, 1), usual);
        (0..3000u32).for_each(|last| drop(devices.join(Peer::at((last.to_be_bytes(), 1).into()), 1)));
        assert_eq!(locked(&devices.inner.remembered).len(), REMEMBERED_MAX);
        devices.join(peer(5), 1).note(|known| known.carried(1 << 30));
        assert_ne!(speed(5, 2), usual, "the last one is remembered all the same");
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
