//! One piece of memory for many blocks of bytes of different sizes.
//!
//! Taking and giving back thousands of blocks of 10 to 60 KB leaves holes in the heap that nothing
//! fits into; on a device that is short of memory the holes cost as much as the blocks. So the
//! memory is taken once, cut into slots, and bytes are spread over any slots that are free. Memory
//! that was never used is never touched, and costs nothing.

/// Bytes of a slot: small, so that the last slot of a block wastes little, and large enough that
/// copying is quick.
pub(crate) const SLOT_BYTES: usize = 1024;

/// The memory.
#[derive(Debug)]
pub(crate) struct Slab {
    memory: Vec<u8>,
    /// Slots that are free, the one to be taken next last.
    free: Vec<u32>,
}

/// Where some bytes lie.
#[derive(Debug)]
pub(crate) struct Slots {
    numbers: Box<[u32]>,
    bytes: usize,
}

impl Slots {
    /// Bytes that were put.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Slab {
    /// A slab of at most so many bytes.
    pub fn new(capacity_bytes: usize) -> Slab {
        let slots = (capacity_bytes / SLOT_BYTES).min(u32::MAX as usize);
        Slab { memory: vec![0; slots * SLOT_BYTES], free: (0..slots as u32).rev().collect() }
    }

    /// Room that some bytes take up.
    pub fn held_bytes(bytes: usize) -> usize {
        bytes.div_ceil(SLOT_BYTES) * SLOT_BYTES
    }

    pub fn capacity_bytes(&self) -> usize {
        self.memory.len()
    }

    #[cfg(test)]
    pub fn free_bytes(&self) -> usize {
        self.free.len() * SLOT_BYTES
    }

    /// Copies bytes into the slab. `None` if there is no room.
    pub fn put(&mut self, bytes: &[u8]) -> Option<Slots> {
        let first = self.free.len().checked_sub(bytes.len().div_ceil(SLOT_BYTES))?;
        let numbers: Box<[u32]> = self.free.drain(first..).collect();
        for (number, part) in numbers.iter().zip(bytes.chunks(SLOT_BYTES)) {
            let start = *number as usize * SLOT_BYTES;
            self.memory[start..start + part.len()].copy_from_slice(part);
        }
        Some(Slots { numbers, bytes: bytes.len() })
    }

    /// Copies bytes out of the slab into `out`, which is cleared first.
    pub fn read(&self, slots: &Slots, out: &mut Vec<u8>) {
        out.clear();
        for number in &slots.numbers {
            let start = *number as usize * SLOT_BYTES;
            let bytes = SLOT_BYTES.min(slots.bytes - out.len());
            out.extend_from_slice(&self.memory[start..start + bytes]);
        }
    }

    /// Gives the room back.
    pub fn free(&mut self, slots: Slots) {
        self.free.extend_from_slice(&slots.numbers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::{Rng, SplitMix64};

    #[test]
    fn ref_bytes_come_out_as_they_went_in() {
        let mut rng = SplitMix64(3);
        let mut slab = Slab::new(64 * SLOT_BYTES + 7);
        let mut kept: Vec<(Slots, Vec<u8>)> = Vec::new();
        let (mut puts, mut refusals) = (0, 0);
        for _ in 0..2000 {
            if rng.below(2) == 0 {
                let bytes: Vec<u8> = (0..rng.below(9000)).map(|_| rng.next_u64() as u8).collect();
                match slab.put(&bytes) {
                    Some(slots) => kept.push((slots, bytes)),
                    None => refusals += 1,
                }
                puts += 1;
            } else if !kept.is_empty() {
                let (slots, _) = kept.swap_remove(rng.below(kept.len() as u64) as usize);
                slab.free(slots);
            }
            let mut out = vec![1];
            for (slots, bytes) in &kept {
                slab.read(slots, &mut out);
                assert!(out == *bytes && slots.bytes() == bytes.len());
            }
            let held: usize = kept.iter().map(|(_, bytes)| Slab::held_bytes(bytes.len())).sum();
            assert_eq!(slab.free_bytes() + held, slab.capacity_bytes());
        }
        assert!(refusals > 0 && refusals < puts);
    }
}
