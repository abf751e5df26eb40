//! Answers to the last transactions of each device. A device that lost its connection and repeats a
//! transaction gets the same answer, and nothing happens twice. Answers are always in memory, and
//! on stable storage: in a record beside those of the transaction, and in the table as of the last
//! checkpoint.
//!
//! Devices, answers of each device, and bytes are limited. A peer may have as many devices as it
//! likes, so devices share room by peer: the peer whose devices take most loses answers first,
//! those that were used longest ago. The last number of a device is kept as long as the device. So
//! a transaction that is older than every kept answer is refused, not repeated.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::{Committed, Peer, Seen, VolumeError, Writer};

/// Devices remembered: about 150 bytes each.
pub const DEVICES_MAX: usize = 4096;

/// Answers kept of each device: how many transactions a device may have under way and repeat.
pub const ANSWERS_MAX: usize = 64;

/// Bytes of all answers: 16 for each operation of a transaction, and a little more.
pub const ANSWERS_BYTES_MAX: usize = 16 << 20;

/// What an answer takes besides its versions, bytes.
const ANSWER_BYTES: usize = 64;

/// What one device was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Device {
    /// Who committed for it last.
    pub peer: Peer,
    /// The last number that was committed.
    pub last: u64,
    /// Numbers and versions of the last transactions, in order of numbers.
    pub answers: VecDeque<(u64, Vec<Seen>)>,
    /// When it last committed, counted by [`Answers`].
    used: u64,
}

/// The devices of one peer.
#[derive(Clone, Debug, Default)]
struct Group {
    /// By when they last committed.
    by_use: BTreeMap<u64, u128>,
    /// Bytes of their answers.
    bytes: usize,
}

/// What all devices were told. Every device is in the group of its peer, under its use; no group is
/// empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    devices: HashMap<u128, Device>,
    groups: BTreeMap<Peer, Group>,
    uses: u64,
    bytes: usize,
}

impl Answers {
    /// What a transaction of this number was answered; `None` if it is a new one.
    pub fn find(&self, writer: Writer) -> Result<Option<Committed>, VolumeError> {
        let Some(device) = self.devices.get(&writer.device).filter(|device| writer.number <= device.last) else {
            return Ok(None);
        };
        match device.answers.binary_search_by_key(&writer.number, |(number, _)| *number) {
            Ok(index) => Ok(Some(Committed { versions: device.answers[index].1.clone() })),
            Err(_) => Err(VolumeError::Outdated { number: writer.number, last: device.last }),
        }
    }

    /// Remembers an answer. One that is known already, since a journal is read again, changes
    /// nothing.
    pub fn insert(&mut self, writer: Writer, peer: Peer, versions: Vec<Seen>) {
        let mut device = match self.devices.get(&writer.device) {
            Some(known) if writer.number <= known.last => return,
            Some(_) => self.take(writer.device).unwrap_or_default(),
            None => Device::default(),
        };
        (device.peer, device.last) = (peer, writer.number);
        device.answers.push_back((writer.number, versions));
        if device.answers.len() > ANSWERS_MAX {
            device.answers.pop_front();
        }
        self.put(writer.device, device);
    }

    /// Puts a device back as a table had it, as the one that committed last.
    pub fn restore(&mut self, id: u128, peer: Peer, last: u64, answers: VecDeque<(u64, Vec<Seen>)>) {
        self.take(id);
        self.put(id, Device { peer, last, answers, used: 0 });
    }

    /// A device goes on with the transactions of a number from before numbers were given out. The
    /// old record stays, so that nobody takes it from its owner by naming it.
    pub fn inherit(&mut self, id: u128, peer: Peer, from: u128) {
        let known = self.devices.get(&from).filter(|known| known.peer == Peer::UNKNOWN);
        if let Some(known) = known.filter(|_| !self.devices.contains_key(&id)) {
            let device = Device { peer, ..known.clone() };
            self.put(id, device);
        }
    }

    /// Whether [`Answers::inherit`] would change anything.
    pub fn can_inherit(&self, id: u128, from: u128) -> bool {
        let known = self.devices.get(&from).is_some_and(|known| known.peer == Peer::UNKNOWN);
        known && !self.devices.contains_key(&id)
    }

    /// All devices, those that committed longest ago first.
    pub fn devices(&self) -> impl Iterator<Item = (u128, &Device)> {
        let mut devices: Vec<_> = self.devices.iter().map(|(id, device)| (*id, device)).collect();
        devices.sort_unstable_by_key(|(_, device)| device.used);
        devices.into_iter()
    }

    /// Takes a device out.
    fn take(&mut self, id: u128) -> Option<Device> {
        let device = self.devices.remove(&id)?;
        let bytes = device.bytes();
        self.bytes -= bytes;
        if let Some(group) = self.groups.get_mut(&device.peer) {
            group.by_use.remove(&device.used);
            group.bytes -= bytes;
            if group.by_use.is_empty() {
                self.groups.remove(&device.peer);
            }
        }
        Some(device)
    }

    /// Puts a device in as the one that committed last, and makes the room that it needs.
    fn put(&mut self, id: u128, mut device: Device) {
        self.uses += 1;
        device.used = self.uses;
        let bytes = device.bytes();
        let group = self.groups.entry(device.peer).or_default();
        group.by_use.insert(device.used, id);
        group.bytes += bytes;
        self.bytes += bytes;
        self.devices.insert(id, device);
        while self.devices.len() > DEVICES_MAX {
            // Of equal ones the one with the oldest device, so never the new device as long as
            // there are others.
            let key = |group: &Group| (group.by_use.len(), std::cmp::Reverse(group.by_use.keys().next().copied()));
            let largest = self.groups.values().max_by_key(|group| key(group));
            let Some(oldest) = largest.and_then(|group| group.by_use.values().next().copied()) else { break };
            self.take(oldest);
        }
        while self.bytes > ANSWERS_BYTES_MAX && self.drop_answers(id) {}
    }

    /// Drops the oldest answers of the peer whose answers take most bytes, until another one's take
    /// more; but not the last answer of `newest`, which nobody was told of yet. False if there are
    /// none.
    fn drop_answers(&mut self, newest: u128) -> bool {
        let kept = self.devices.get(&newest).map(|device| (device.peer, device.answers.back().map_or(0, answer_bytes)));
        let weight =
            |peer: &Peer, group: &Group| group.bytes - kept.filter(|(of, _)| of == peer).map_or(0, |(_, bytes)| bytes);
        let mut weights: Vec<_> = self.groups.iter().map(|(peer, group)| (weight(peer, group), *peer)).collect();
        weights.sort_unstable_by(|a, b| b.cmp(a));
        let Some((mut left, peer)) = weights.first().copied().filter(|(weight, _)| *weight > 0) else { return false };
        let next = weights.get(1).map_or(0, |(weight, _)| *weight);
        let Some(group) = self.groups.get_mut(&peer) else { return false };
        for id in group.by_use.values() {
            let Some(device) = self.devices.get_mut(id) else { continue };
            while self.bytes > ANSWERS_BYTES_MAX
                && left >= next
                && device.answers.len() > usize::from(*id == newest)
                && let Some(answer) = device.answers.pop_front()
            {
                let freed = answer_bytes(&answer);
                left -= freed;
                group.bytes -= freed;
                self.bytes -= freed;
            }
        }
        true
    }
}

impl Device {
    fn bytes(&self) -> usize {
        self.answers.iter().map(answer_bytes).sum()
    }
}

/// Equal if they answer alike and forget in the same order.
impl PartialEq for Answers {
    fn eq(&self, other: &Answers) -> bool {
        let plain = |answers: &Answers| {
            let devices = answers.devices().map(|(id, device)| (id, device.peer, device.last, device.answers.clone()));
            devices.collect::<Vec<_>>()
        };
        plain(self) == plain(other)
    }
}

impl Eq for Answers {}

fn answer_bytes((_, versions): &(u64, Vec<Seen>)) -> usize {
    ANSWER_BYTES + size_of_val(&versions[..])
}
