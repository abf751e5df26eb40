//! The record of which parts of a block READs took.

/// Bytes of a block that one bit of the record of taken parts stands for: the smallest chunk an
/// image may have. A cell belongs to the part in which it begins, so no part counts as taken
/// because the end of its neighbour was. The tail of a file that begins no cell never counts as
/// taken, which only means that it is stored although the kernel has it.
const CELL_BYTES: usize = 256;

/// Which parts of a block were taken by READs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken(Vec<u64>);

impl Taken {
    pub fn of(block_bytes: usize) -> Taken {
        Taken(vec![0; block_bytes.div_ceil(CELL_BYTES).div_ceil(64)])
    }

    /// Whether any cell of the range was taken.
    pub fn any(&self, offset: usize, bytes: usize) -> bool {
        Taken::cells(offset, bytes).any(|cell| self.0.get(cell / 64).is_some_and(|word| word >> (cell % 64) & 1 == 1))
    }

    /// Whether every part of a block of this size was taken.
    pub fn is_all(&self, block_bytes: usize) -> bool {
        Taken::cells(0, block_bytes).all(|cell| self.0.get(cell / 64).is_some_and(|word| word >> (cell % 64) & 1 == 1))
    }

    pub fn mark(&mut self, offset: usize, bytes: usize) {
        for cell in Taken::cells(offset, bytes) {
            if let Some(word) = self.0.get_mut(cell / 64) {
                *word |= 1 << (cell % 64);
            }
        }
    }

    fn cells(offset: usize, bytes: usize) -> std::ops::Range<usize> {
        offset.div_ceil(CELL_BYTES)..(offset + bytes).div_ceil(CELL_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_does_not_count_as_taken_for_its_neighbours() {
        let block_bytes = 8192;
        let parts = [(0, 4000), (4000, 300), (4300, block_bytes - 4300)];
        for (index, (offset, bytes)) in parts.into_iter().enumerate() {
            let mut taken = Taken::of(block_bytes);
            taken.mark(offset, bytes);
            let found = parts.map(|(offset, bytes)| taken.any(offset, bytes));
            assert_eq!(found, [0, 1, 2].map(|other| other == index));
            parts.into_iter().for_each(|(offset, bytes)| taken.mark(offset, bytes));
            assert!(taken.is_all(block_bytes));
        }
    }
}
