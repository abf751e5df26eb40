//! Which devices have a connection. The leases and locks of a device end soon after its last one.

use std::collections::HashMap;
use std::sync::Arc;

use volume::Holder;

use super::Served;
use crate::clock::Clock;
use crate::lock::locked;

/// How many handles there are on which a device was proven; no entry is 0.
pub(super) type Counts = HashMap<u128, usize>;

/// A device that was proven on a handle. As long as there is one, the device keeps its leases and
/// locks. Requests that are being worked on hold it, so that none of them takes a lease or lock
/// after it has gone.
pub(crate) struct Present {
    clock: Clock,
    served: Arc<Served>,
    number: u128,
}

impl Present {
    pub fn new(clock: Clock, served: Arc<Served>, number: u128) -> Present {
        // Leases are told under the lock, so that coming and leaving stay in order. A volume that
        // is being opened again has no leases.
        let mut counts = locked(&served.present);
        *counts.entry(number).or_default() += 1;
        if let Ok(volume) = served.volume() {
            volume.leases().returned(Holder(number), clock.now());
            volume.locks().returned(Holder(number), clock.now());
        }
        drop(counts);
        Present { clock, served, number }
    }

    /// The number of the device.
    pub fn number(&self) -> u128 {
        self.number
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut counts = locked(&self.served.present);
        let Some(count) = counts.get_mut(&self.number) else { return };
        *count -= 1;
        if *count == 0 {
            counts.remove(&self.number);
            if let Ok(volume) = self.served.volume() {
                volume.leases().left(Holder(self.number), self.clock.now());
                volume.locks().left(Holder(self.number), self.clock.now());
            }
        }
    }
}
