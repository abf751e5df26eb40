//! What each device was told of its last transactions, so that a device that was cut off and repeats one gets the same
//! answer, and nothing happens twice. In memory always; on stable storage as a record beside those of the transaction,
//! and in the table as of the last checkpoint.
//!
//! Bounded in devices, in answers of each and in bytes; what was used longest ago is forgotten first. The last number of a
//! device is kept as long as the device, so a transaction that is older than every answer kept is refused, not repeated.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::{Committed, Seen, VolumeError, Writer};

/// Devices remembered: about 100 bytes each.
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
    /// The last number that was committed.
    pub last: u64,
    /// Numbers and versions of the last transactions, in order of numbers.
    pub answers: VecDeque<(u64, Vec<Seen>)>,
    /// When it last committed, counted by [`Answers`].
    used: u64,
}

/// What all devices were told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    devices: HashMap<u128, Device>,
    /// Devices by when they last committed.
    by_use: BTreeMap<u64, u128>,
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

    /// Remembers an answer. One that is known already, since a journal is read again, changes nothing.
    pub fn insert(&mut self, writer: Writer, versions: Vec<Seen>) {
        let device = self.devices.entry(writer.device).or_default();
        if writer.number <= device.last && device.used > 0 {
            return;
        }
        self.by_use.remove(&device.used);
        self.uses += 1;
        (device.last, device.used) = (writer.number, self.uses);
        self.by_use.insert(self.uses, writer.device);
        self.bytes += bytes(&versions);
        device.answers.push_back((writer.number, versions));
        if device.answers.len() > ANSWERS_MAX
            && let Some((_, versions)) = device.answers.pop_front()
        {
            self.bytes -= bytes(&versions);
        }
        self.shrink();
    }

    /// Puts a device back as a table had it, as the one that committed last.
    pub fn restore(&mut self, id: u128, last: u64, answers: VecDeque<(u64, Vec<Seen>)>) {
        self.forget(id);
        self.uses += 1;
        self.by_use.insert(self.uses, id);
        self.bytes += answers.iter().map(|(_, versions)| bytes(versions)).sum::<usize>();
        self.devices.insert(id, Device { last, answers, used: self.uses });
        self.shrink();
    }

    /// All devices, those that committed longest ago first.
    pub fn devices(&self) -> impl Iterator<Item = (u128, &Device)> {
        self.by_use.values().filter_map(|id| self.devices.get(id).map(|device| (*id, device)))
    }

    fn forget(&mut self, id: u128) {
        if let Some(gone) = self.devices.remove(&id) {
            self.by_use.remove(&gone.used);
            self.bytes -= gone.answers.iter().map(|(_, versions)| bytes(versions)).sum::<usize>();
        }
    }

    fn shrink(&mut self) {
        while self.devices.len() > DEVICES_MAX
            && let Some(id) = self.by_use.values().next().copied()
        {
            self.forget(id);
        }
        if self.bytes <= ANSWERS_BYTES_MAX {
            return;
        }
        for id in self.by_use.values() {
            let Some(device) = self.devices.get_mut(id) else { continue };
            while self.bytes > ANSWERS_BYTES_MAX
                && let Some((_, versions)) = device.answers.pop_front()
            {
                self.bytes -= bytes(&versions);
            }
        }
    }
}

/// Equal if they answer alike and forget in the same order.
impl PartialEq for Answers {
    fn eq(&self, other: &Answers) -> bool {
        let plain = |answers: &Answers| {
            let devices = answers.devices().map(|(id, device)| (id, device.last, device.answers.clone()));
            devices.collect::<Vec<_>>()
        };
        plain(self) == plain(other)
    }
}

impl Eq for Answers {}

fn bytes(versions: &[Seen]) -> usize {
    ANSWER_BYTES + size_of_val(versions)
}
