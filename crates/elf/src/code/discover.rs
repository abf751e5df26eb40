//! Finds functions that neither symbols nor unwind tables tell of, as in stripped programs built
//! without such tables.
//!
//! Code that no extent covers is decoded from its start to its end. Compilers fill gaps between
//! functions with instructions that do nothing, so decoding stays in step. An address that is
//! called from anywhere, or taken, is the start of a function. A wrong start costs only precision:
//! control that runs or jumps across one is followed.

use std::collections::BTreeSet;

use super::{Action, Architecture, Extent, Extents, Layout, Use};

/// Functions that are looked for in one object.
const FOUND_MAX: usize = 1 << 20;

/// Adds what is found, and `seeds` (entry points, addresses in data), to the extents of `layout`;
/// gives the starts that were added.
pub fn discover(architecture: &dyn Architecture, layout: &mut Layout<'_>, seeds: &[u64]) -> Vec<u64> {
    if !has_gaps(layout) {
        return Vec::new();
    }
    let is_new = |address: u64| layout.space.is_code(address) && layout.extents.holding(address).is_none();
    let mut starts: BTreeSet<u64> = seeds.iter().copied().filter(|address| is_new(*address)).collect();
    for region in layout.space.regions().iter().filter(|region| region.executable) {
        let mut at = region.address;
        let end = region.address + region.bytes.len() as u64;
        while at < end && starts.len() < FOUND_MAX {
            let Some(step) = architecture.step(layout, at) else {
                at += 1;
                continue;
            };
            if let Action::Call(target) = step.action
                && is_new(target)
            {
                starts.insert(target);
            }
            let taken = step.names.into_iter().flatten().filter(|(_, usage)| *usage == Use::Take);
            starts.extend(taken.map(|(address, _)| address).filter(|address| is_new(*address)));
            // Known functions keep decoding in step.
            let known = layout.extents.next_start(at).unwrap_or(u64::MAX);
            at = if step.next() > known { known } else { step.next() };
        }
    }
    let starts: Vec<u64> = starts.into_iter().collect();
    add_starts(layout, &starts);
    starts
}

/// Adds functions of which only the starts are known; each ends where the next begins.
pub fn add_starts(layout: &mut Layout<'_>, starts: &[u64]) {
    // Ends that were such guesses before are cut where a new function begins.
    let mut all: Vec<Extent> = layout.extents.all().to_vec();
    for start in starts {
        if let Ok(at) | Err(at) = all.binary_search_by_key(start, |extent| extent.start)
            && let Some(before) = at.checked_sub(1).and_then(|before| all.get_mut(before))
            && before.end > *start
        {
            before.end = *start;
        }
    }
    all.extend(starts.iter().map(|start| Extent { start: *start, end: 0, name: None, has_pads: false }));
    let limit = |address: u64| {
        layout.space.region(address).map_or(address, |region| region.address + region.bytes.len() as u64)
    };
    let extents = Extents::new(all, limit);
    layout.extents = extents;
}

/// Whether there is code, and not only padding, outside all extents.
fn has_gaps(layout: &Layout<'_>) -> bool {
    layout.space.regions().iter().filter(|region| region.executable).any(|region| {
        let end = region.address + region.bytes.len() as u64;
        let mut at = region.address;
        while at < end {
            match layout.extents.holding(at) {
                Some(extent) => at = extent.end,
                None => {
                    let next = layout.extents.next_start(at).unwrap_or(end).min(end);
                    if next - at > PADDING_BYTES_MAX || at == region.address {
                        return true;
                    }
                    at = next;
                }
            }
        }
        false
    })
}

/// Bytes between two functions that are taken for padding; compilers align to 64 bytes at most.
const PADDING_BYTES_MAX: u64 = 64;
