//! Memory of replies and pushes: how much all connections together may hold.
//!
//! A connection asks for room before it reads from the disk, keeps it while the bytes lie in its queue, and gives it back
//! as the queue drains. Who finds no room waits in line; a client that does not read is cut off by the wire's own stall
//! deadline and so cannot keep the others waiting for ever.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Grain of the account. Small enough that rounding costs nothing, large enough that any budget fits the semaphore.
const UNIT_BYTES: usize = 1024;

/// Bytes that all connections share.
#[derive(Clone)]
pub(crate) struct Budget {
    units: Arc<Semaphore>,
    units_max: usize,
}

/// Bytes taken from a [`Budget`]; they go back on drop.
pub(crate) struct Room {
    permit: OwnedSemaphorePermit,
}

impl Budget {
    /// A budget of `bytes_max`.
    pub fn new(bytes_max: usize) -> Budget {
        let units_max = (bytes_max / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        Budget { units: Arc::new(Semaphore::new(units_max)), units_max }
    }

    /// Waits in line for room. More than the whole budget is cut to it, so that the wait ends.
    pub async fn take(&self, bytes: usize) -> Room {
        let units = units(bytes).min(self.units_max);
        let permit = self.units.clone().acquire_many_owned(units as u32).await.expect("the semaphore is never closed");
        Room { permit }
    }

    /// Bytes that are taken now.
    pub fn taken_bytes(&self) -> usize {
        (self.units_max - self.units.available_permits().min(self.units_max)) * UNIT_BYTES
    }

    /// An account with nothing on it.
    pub fn nothing(&self) -> Room {
        let permit = self.units.clone().try_acquire_many_owned(0).expect("no permits are always there");
        Room { permit }
    }
}

impl Room {
    /// Adds `other` to this account.
    pub fn merge(&mut self, other: Room) {
        self.permit.merge(other.permit);
    }

    /// Gives back all but what `bytes` need.
    pub fn shrink_to(&mut self, bytes: usize) {
        let excess = self.permit.num_permits().saturating_sub(units(bytes));
        drop(self.permit.split(excess));
    }

    /// Bytes on this account.
    pub fn bytes(&self) -> usize {
        self.permit.num_permits() * UNIT_BYTES
    }
}

fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn room_comes_back_when_it_shrinks_or_drops() {
        let budget = Budget::new(10 * UNIT_BYTES);
        let mut held = budget.take(4 * UNIT_BYTES).await;
        held.merge(budget.take(3 * UNIT_BYTES + 1).await);
        assert_eq!((held.bytes(), budget.taken_bytes()), (8 * UNIT_BYTES, 8 * UNIT_BYTES));
        held.shrink_to(UNIT_BYTES + 1);
        assert_eq!(budget.taken_bytes(), 2 * UNIT_BYTES);
        held.shrink_to(5 * UNIT_BYTES);
        assert_eq!(held.bytes(), 2 * UNIT_BYTES, "shrinking never takes more");
        drop(held);
        assert_eq!(budget.taken_bytes(), 0);
    }

    #[tokio::test]
    async fn who_finds_no_room_waits_until_there_is_some() {
        let budget = Budget::new(4 * UNIT_BYTES);
        let held = budget.take(3 * UNIT_BYTES).await;
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { budget.take(usize::MAX / 4).await.bytes() }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(held);
        assert_eq!(waiting.await.unwrap(), 4 * UNIT_BYTES, "an impossible wish is cut to the whole budget");
    }
}
