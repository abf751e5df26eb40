//! What one device has got from us, over all its connections, for as long as it has one. The number
//! in its Hello, which names it, is no secret: it counts among the connections of one peer, so that
//! a stranger who says the same number is another device.
//!
//! A page that was sent need not be pushed again. The record is a guess, since the device may drop pages at any time: a
//! demand for a page that was sent shows that it did. It costs bytes when it forgets too much and misses when it
//! forgets too little, never correctness.
//!
//! A running program's touches may come over any connection of its device, but its push stream lives on one. The
//! *owner* of a token is the connection that pushes to it; the others hand it what the Predictor says.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::mpsc;
use units::{ImageId, InodeId, PageId, Token};

use crate::blocks::locked;
use crate::peer::Peer;
use crate::push::Advice;

/// Pages remembered for one image on one device: 512 MiB of pages, at most 4 MB of memory. Beyond it the record starts anew.
const PAGES_MAX: usize = 128 << 10;

/// Images remembered for one device.
const IMAGES_MAX: usize = 16;

/// Demands for sent pages after which the whole record of the image is dropped: one page may be evicted alone, eight
/// show that the device lost many.
const LOSSES_MAX: u32 = 8;

/// Tokens with an owner, for one device: the streams of a few connections.
const OWNERS_MAX: usize = 256;

/// One device that is connected.
#[derive(Default)]
pub(crate) struct Device {
    images: Mutex<HashMap<ImageId, Sent>>,
    owners: Mutex<HashMap<(ImageId, Token), Owner>>,
    /// Where its connections find it, and under what.
    listed: Option<(Devices, Key)>,
}

/// Pages of one image that a device was sent.
#[derive(Default)]
struct Sent {
    pages: PageSet,
    losses: u32,
}

/// Pages, 64 neighbours in one entry: most are sent in a row, and then one look at the map is enough for them all.
#[derive(Default)]
struct PageSet {
    runs: HashMap<(InodeId, u32), u64>,
    count: usize,
}

impl PageSet {
    /// The entry of a page, and its bit there.
    fn place(page: PageId) -> ((InodeId, u32), u64) {
        ((page.inode, page.index / 64), 1 << (page.index % 64))
    }

    fn extend(&mut self, pages: &[PageId]) {
        for run in pages.chunk_by(|one, other| PageSet::place(*one).0 == PageSet::place(*other).0) {
            let Some((key, _)) = run.first().map(|page| PageSet::place(*page)) else { continue };
            let bits = run.iter().fold(0, |bits, page| bits | PageSet::place(*page).1);
            let known = self.runs.entry(key).or_default();
            self.count += (bits & !*known).count_ones() as usize;
            *known |= bits;
        }
    }

    /// Whether it was there.
    fn remove(&mut self, page: PageId) -> bool {
        let (key, bit) = PageSet::place(page);
        let Some(known) = self.runs.get_mut(&key).filter(|known| **known & bit != 0) else { return false };
        *known &= !bit;
        self.count -= 1;
        if *known == 0 {
            self.runs.remove(&key);
        }
        true
    }

    fn contains(&self, pages: &[PageId]) -> Vec<bool> {
        let mut last = None;
        let mut contains = |page: &PageId| {
            let (key, bit) = PageSet::place(*page);
            let bits = match last {
                Some((known, bits)) if known == key => bits,
                _ => self.runs.get(&key).copied().unwrap_or(0),
            };
            last = Some((key, bits));
            bits & bit != 0
        };
        pages.iter().map(&mut contains).collect()
    }
}

struct Owner {
    connection: u64,
    advice: mpsc::UnboundedSender<Box<Advice>>,
}

/// Whose a device is, and the number that it says.
type Key = (Peer, u128);

/// The devices that are connected.
#[derive(Clone, Default)]
pub(crate) struct Devices {
    by_key: Arc<Mutex<HashMap<Key, Weak<Device>>>>,
}

impl Devices {
    /// The device of this number, shared with other connections of the peer. Number 0 is a client
    /// that did not say who it is: two of them are not the same device.
    pub fn join(&self, peer: Peer, number: u128) -> Arc<Device> {
        if number == 0 {
            return Arc::default();
        }
        let key = (peer, number);
        let mut devices = locked(&self.by_key);
        if let Some(device) = devices.get(&key).and_then(Weak::upgrade) {
            return device;
        }
        let device =
            Arc::new(Device { images: Mutex::default(), owners: Mutex::default(), listed: Some((self.clone(), key)) });
        devices.insert(key, Arc::downgrade(&device));
        device
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let Some((devices, key)) = &self.listed else { return };
        let mut devices = locked(&devices.by_key);
        // A connection that came after the last of ours went may have listed another one.
        if let Entry::Occupied(entry) = devices.entry(*key)
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
    /// The device has `pages` now, or soon.
    pub fn sent(&self, image: ImageId, pages: &[PageId]) {
        let mut images = locked(&self.images);
        if images.len() >= IMAGES_MAX && !images.contains_key(&image) {
            images.clear();
        }
        let sent = images.entry(image).or_default();
        if sent.pages.count + pages.len() > PAGES_MAX {
            sent.pages = PageSet::default();
        }
        sent.pages.extend(pages);
    }

    /// `pages` did not get through after all.
    pub fn not_sent(&self, image: ImageId, pages: &[PageId]) {
        if let Some(sent) = locked(&self.images).get_mut(&image) {
            for page in pages {
                sent.pages.remove(*page);
            }
        }
    }

    /// The device asks for `page` though it is not on its way. `true` if it had been sent, so the device dropped it.
    pub fn demanded(&self, image: ImageId, page: PageId) -> bool {
        let mut images = locked(&self.images);
        let Some(sent) = images.get_mut(&image) else { return false };
        if !sent.pages.remove(page) {
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
        locked(&self.images).remove(&image);
    }

    /// Whether the device has each of `pages`.
    pub fn has(&self, image: ImageId, pages: &[PageId]) -> Vec<bool> {
        match locked(&self.images).get(&image) {
            Some(sent) => sent.pages.contains(pages),
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

    #[test]
    fn a_demand_for_a_sent_page_shows_that_the_device_dropped_it() {
        let device = Device::default();
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
    fn the_record_is_bounded() {
        let device = Device::default();
        let all = pages(0..PAGES_MAX as u32 + 10);
        for part in all.chunks(1000) {
            device.sent(IMAGE, part);
        }
        let known = device.has(IMAGE, &all).iter().filter(|known| **known).count();
        assert!(known > 0 && known <= PAGES_MAX, "{known}");
        for number in 0..100 {
            device.sent(ImageId([number; 32]), &all[..1]);
        }
        assert!(locked(&device.images).len() <= IMAGES_MAX);
    }

    #[test]
    fn a_device_is_shared_by_its_connections_and_gone_with_the_last() {
        let devices = Devices::default();
        let peer = |last| Peer::at(([192, 0, 2, last], 1).into());
        let join = |number| devices.join(peer(1), number);
        let first = join(7);
        first.sent(IMAGE, &pages(0..1));
        let second = join(7);
        assert_eq!(second.has(IMAGE, &pages(0..1)), [true]);
        let stranger = devices.join(peer(2), 7);
        assert_eq!(stranger.has(IMAGE, &pages(0..1)), [false], "a stranger who says the same number");
        assert_eq!(join(8).has(IMAGE, &pages(0..1)), [false]);
        join(0).sent(IMAGE, &pages(0..1));
        assert_eq!(join(0).has(IMAGE, &pages(0..1)), [false], "nobody in particular");
        drop((first, second));
        assert_eq!(join(7).has(IMAGE, &pages(0..1)), [false]);
        assert_eq!(locked(&devices.by_key).len(), 1, "the stranger's");
        let many: Vec<_> = (1..1000).map(join).collect();
        drop((many, stranger));
        assert!(locked(&devices.by_key).capacity() < 16);
    }

    #[test]
    fn advice_goes_to_the_connection_that_owns_the_token() {
        let device = Device::default();
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
