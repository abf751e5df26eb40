//! Starts and ends of functions, by symbols and unwind tables.

/// The extent of one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its first address.
    pub start: u64,
    /// The first address behind it.
    pub end: u64,
    /// Its name, if a symbol has one. Of several the shortest, then the first in the alphabet.
    pub name: Option<Vec<u8>>,
    /// Whether control may come to places inside that no instruction leads to: landing pads of
    /// exceptions.
    pub has_pads: bool,
}

/// The extents of all known functions, by start.
#[derive(Clone, Debug, Default)]
pub struct Extents {
    list: Vec<Extent>,
}

/// Extents looked back over for one that holds an address: extents may lie in each other, a few
/// deep.
const NESTING_MAX: usize = 16;

impl Extents {
    /// Merges what is known. An extent with `end` not above `start` goes to the next start, or to
    /// what `limit` says of its start.
    pub fn new(mut found: Vec<Extent>, limit: impl Fn(u64) -> u64) -> Extents {
        found.sort_by(|a, b| {
            let length = |extent: &Extent| extent.name.as_ref().map(Vec::len);
            let key = |extent: &Extent| (extent.start, extent.name.is_none(), length(extent));
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
        let mut list: Vec<Extent> = Vec::with_capacity(found.len());
        for extent in found {
            match list.last_mut() {
                Some(last) if last.start == extent.start => {
                    last.end = last.end.max(extent.end);
                    last.has_pads |= extent.has_pads;
                }
                _ => list.push(extent),
            }
        }
        let mut next = None;
        for extent in list.iter_mut().rev() {
            if extent.end <= extent.start {
                extent.end = limit(extent.start).min(next.unwrap_or(u64::MAX)).max(extent.start);
            }
            next = Some(extent.start);
        }
        Extents { list }
    }

    /// All extents, by start.
    pub fn all(&self) -> &[Extent] {
        &self.list
    }

    /// The function that starts at `address`.
    pub fn starting(&self, address: u64) -> Option<&Extent> {
        self.list.binary_search_by_key(&address, |extent| extent.start).ok().map(|at| &self.list[at])
    }

    /// The innermost function that holds `address`.
    pub fn holding(&self, address: u64) -> Option<&Extent> {
        let after = self.list.partition_point(|extent| extent.start <= address);
        self.list[..after].iter().rev().take(NESTING_MAX).find(|extent| address < extent.end)
    }

    /// The first start above `address`.
    pub fn next_start(&self, address: u64) -> Option<u64> {
        let after = self.list.partition_point(|extent| extent.start <= address);
        self.list.get(after).map(|extent| extent.start)
    }
}
