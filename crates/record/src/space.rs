//! Which file lies at which address of a process, from the mappings it made.
//!
//! The kernel's events do not report unmapping, and need not: an address that is used again was
//! mapped again first.

use std::collections::BTreeMap;
use std::ops::Range;

use units::PAGE_BYTES;

use crate::files::FileIndex;

/// A piece of the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    /// First address.
    pub(crate) start: u64,
    /// The address after the last.
    pub(crate) end: u64,
    /// What lies there; `None` for memory without a file, and files that are not recorded.
    pub(crate) file: Option<FileIndex>,
    /// Where in the file `start` lies, bytes.
    pub(crate) offset: u64,
    /// Whether code may run there.
    pub(crate) executable: bool,
    /// Whether a fault maps one page, and not what is around it too.
    pub(crate) exact: bool,
}

/// The mappings of a process, the latest at each address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Space {
    /// By first address; they do not overlap.
    areas: BTreeMap<u64, Area>,
}

impl Space {
    /// Adds a mapping; what was at its addresses is gone.
    pub(crate) fn insert(&mut self, area: Area) {
        if area.start >= area.end {
            return;
        }
        // Areas do not overlap, so of those that start before `area` only the last can reach into
        // it.
        let before = self.areas.range(..area.start).next_back().map(|(_, area)| *area);
        if let Some(before) = before.filter(|before| before.end > area.start) {
            self.areas.insert(before.start, Area { end: area.start, ..before });
            self.keep_end(before, area.end);
        }
        let inside: Vec<Area> = self.areas.range(area.start..area.end).map(|(_, area)| *area).collect();
        for old in inside {
            self.areas.remove(&old.start);
            self.keep_end(old, area.end);
        }
        self.areas.insert(area.start, area);
    }

    /// Keeps of `old` what lies at `from` and after.
    fn keep_end(&mut self, old: Area, from: u64) {
        if old.end > from {
            self.areas.insert(from, Area { start: from, offset: old.offset + (from - old.start), ..old });
        }
    }

    /// The mapping at an address.
    pub(crate) fn at(&self, address: u64) -> Option<&Area> {
        let (_, area) = self.areas.range(..=address).next_back()?;
        (address < area.end).then_some(area)
    }

    /// Faults in mappings that lie within `range` map one page from now on.
    pub(crate) fn make_exact(&mut self, range: &Range<u64>) {
        let inside = self.areas.range_mut(range.clone()).map(|(_, area)| area);
        // The end of a mapping is rounded to pages in one place and not in the other.
        let page = PAGE_BYTES as u64;
        let end = range.end.next_multiple_of(page);
        inside.filter(|area| area.end.next_multiple_of(page) <= end).for_each(|area| area.exact = true);
    }

    /// Faults map what is around again: a new process has the mappings of the old one, but nothing
    /// of how they are watched.
    pub(crate) fn make_inexact(&mut self) {
        self.areas.values_mut().for_each(|area| area.exact = false);
    }

    /// All is unmapped: a new program.
    pub(crate) fn clear(&mut self) {
        self.areas.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(start: u64, end: u64, file: u32) -> Area {
        Area {
            start,
            end,
            file: Some(FileIndex(file)),
            offset: 0x1000 * u64::from(file),
            executable: false,
            exact: false,
        }
    }

    #[test]
    fn a_mapping_replaces_what_it_covers_and_no_more() {
        let mut space = Space::default();
        space.insert(area(0x1000, 0x9000, 1));
        space.insert(area(0x3000, 0x5000, 2));
        let at = |space: &Space, address| space.at(address).map(|area| (area.start, area.end, area.offset));
        assert_eq!(at(&space, 0xfff), None);
        assert_eq!(at(&space, 0x1000), Some((0x1000, 0x3000, 0x1000)));
        assert_eq!(at(&space, 0x4fff), Some((0x3000, 0x5000, 0x2000)));
        assert_eq!(at(&space, 0x5000), Some((0x5000, 0x9000, 0x5000)));
        assert_eq!(at(&space, 0x9000), None);
        space.insert(area(0x2000, 0x6000, 3));
        assert_eq!(at(&space, 0x1fff), Some((0x1000, 0x2000, 0x1000)));
        assert_eq!(at(&space, 0x3000), Some((0x2000, 0x6000, 0x3000)));
        assert_eq!(at(&space, 0x6000), Some((0x6000, 0x9000, 0x6000)));
        space.insert(area(0, 0x10000, 4));
        assert_eq!(at(&space, 0x8000), Some((0, 0x10000, 0x4000)));
    }

    #[test]
    fn exact_is_a_mapping_that_lies_within_until_a_fork() {
        let mut space = Space::default();
        space.insert(area(0x1000, 0x2fff, 1));
        space.insert(area(0x3000, 0x9000, 2));
        space.make_exact(&(0x1000..0x5000));
        let exact = |space: &Space| [0x1000, 0x3000].map(|address| space.at(address).is_some_and(|area| area.exact));
        assert_eq!(exact(&space), [true, false]);
        space.make_exact(&(0x3000..0x9000));
        assert_eq!(exact(&space), [true, true]);
        space.make_inexact();
        assert_eq!(exact(&space), [false, false]);
    }

    #[test]
    fn an_empty_mapping_changes_nothing() {
        let mut space = Space::default();
        space.insert(area(0x1000, 0x2000, 1));
        space.insert(area(0x1800, 0x1800, 2));
        assert_eq!(space.at(0x1800).and_then(|area| area.file), Some(FileIndex(1)));
        space.clear();
        assert_eq!(space.at(0x1800), None);
    }
}
