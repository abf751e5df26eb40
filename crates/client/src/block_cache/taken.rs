//! The record of which parts of a block READs took.

/// Bytes of a block that one bit of the record of taken parts stands for: the smallest chunk an
/// image may have. Two tail chunks in one cell make each other count as taken, which only means
/// that one of them is not stored early.
const CELL_BYTES: usize = 256;

/// Which parts of a block were taken by READs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken(Vec<u64>);

impl Taken {
    pub fn of(block_bytes: usize) -> Taken {
        Taken(vec![0; block_bytes.div_ceil(CELL_BYTES).div_ceil(64)])
    }

    /// Whether any byte of the range shares a cell with bytes that were taken.
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
        offset / CELL_BYTES..(offset + bytes).div_ceil(CELL_BYTES)
    }
}
