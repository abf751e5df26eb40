//! An array of fixed-size records, kept as the bytes of its section.

use std::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Records of type `T` in their encoding. All access is by copy or reference into the bytes.
#[derive(Clone)]
pub(crate) struct Table<T> {
    bytes: Box<[u8]>,
    record: PhantomData<T>,
}

impl<T: FromBytes + KnownLayout + Immutable + Unaligned + Copy> Table<T> {
    /// Takes the bytes of a section; a rest shorter than a record is unreachable (callers check the
    /// length).
    pub(crate) fn new(bytes: Box<[u8]>) -> Table<T> {
        Table { bytes, record: PhantomData }
    }

    pub(crate) fn len(&self) -> u32 {
        (self.bytes.len() / size_of::<T>()) as u32
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let start = (index as usize).checked_mul(size_of::<T>())?;
        let record = self.bytes.get(start..start.checked_add(size_of::<T>())?)?;
        T::ref_from_bytes(record).ok()
    }

    /// Records in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.bytes.chunks_exact(size_of::<T>()).filter_map(|record| T::ref_from_bytes(record).ok())
    }

    /// First index in `range` for which `before` is false; the range must be partitioned by it.
    pub(crate) fn partition_point(&self, range: std::ops::Range<u32>, before: impl Fn(&T) -> bool) -> u32 {
        let (mut low, mut high) = (range.start, range.end.max(range.start));
        while low < high {
            let middle = low + (high - low) / 2;
            if self.get(middle).is_some_and(&before) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}
