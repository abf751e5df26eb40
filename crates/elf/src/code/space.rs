//! Memory as a program sees it.

use std::borrow::Cow;

/// A run of addresses with one protection.
#[derive(Clone, Debug)]
pub struct Region<'a> {
    /// Its first address.
    pub address: u64,
    /// What lies there.
    pub bytes: Cow<'a, [u8]>,
    /// Zeros behind `bytes`, as in `.bss`.
    pub zeros: u64,
    /// Whether code may run here.
    pub executable: bool,
    /// Whether the program may write here.
    pub writable: bool,
}

impl Region<'_> {
    /// The first address behind the region.
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes.len() as u64).saturating_add(self.zeros)
    }
}

/// Regions in order of their addresses.
#[derive(Clone, Debug, Default)]
pub struct Space<'a> {
    regions: Vec<Region<'a>>,
}

impl<'a> Space<'a> {
    /// Takes regions in any order. Of two that overlap, the one with the higher start counts from
    /// there on.
    pub fn new(mut regions: Vec<Region<'a>>) -> Space<'a> {
        regions.sort_by_key(|region| region.address);
        Space { regions }
    }

    /// The regions, by address.
    pub fn regions(&self) -> &[Region<'a>] {
        &self.regions
    }

    /// The region that covers `address`.
    pub fn region(&self, address: u64) -> Option<&Region<'a>> {
        let after = self.regions.partition_point(|region| region.address <= address);
        self.regions[..after].last().filter(|region| address < region.end())
    }

    /// All stored bytes from `address` to the end of its region; empty where nothing is stored.
    pub fn bytes_at(&self, address: u64) -> &[u8] {
        let Some(region) = self.region(address) else { return &[] };
        usize::try_from(address - region.address).ok().and_then(|at| region.bytes.get(at..)).unwrap_or(&[])
    }

    /// Whether code may run at `address`, and there are bytes.
    pub fn is_code(&self, address: u64) -> bool {
        self.region(address)
            .is_some_and(|region| region.executable && address - region.address < region.bytes.len() as u64)
    }

    /// An unsigned little-endian number of `bytes` (at most 8) at `address`; zeros of `.bss` count.
    pub fn number(&self, address: u64, bytes: usize) -> Option<u64> {
        let region = self.region(address)?;
        if address.checked_add(bytes as u64)? > region.end() || bytes > 8 {
            return None;
        }
        let mut raw = [0u8; 8];
        let stored = self.bytes_at(address);
        let count = stored.len().min(bytes);
        raw[..count].copy_from_slice(&stored[..count]);
        Some(u64::from_le_bytes(raw))
    }
}
