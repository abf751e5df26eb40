//! Quirks: drops quirks of PCI devices that are not in the inventory.

use super::{Context, Pass};
use crate::SpecialiseError;
use crate::analysis::Analysis;
use crate::schema::QUIRKS;

pub(super) const PASS: Pass =
    Pass { name: "quirks", is_on: |options| options.passes.quirks && options.devices.is_some(), run };

/// Drops the quirks of devices that are not in the inventory.
fn run(context: &Context<'_, '_>, analysis: &mut Analysis) -> Result<(), SpecialiseError> {
    let graph = context.graph;
    let Some(inventory) = &context.options.devices else { return Ok(()) };
    let changes = &mut analysis.changes;
    let prefix = QUIRKS.trim_end_matches('*').as_bytes();
    let before = changes.dropped.len();
    for (index, section) in graph.object.sections.iter().enumerate() {
        if !section.name.starts_with(prefix) {
            continue;
        }
        for id in graph.atoms.of_section[index].clone() {
            let start = graph.atoms.atoms[id as usize].start as usize;
            let half = |at: usize| section.data.get(at..at + 2).and_then(|bytes| bytes.first_chunk::<2>().copied());
            let word = |at: usize| section.data.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>().copied());
            let fields = (half(start), half(start + 2), word(start + 4), word(start + 8));
            let (Some(vendor), Some(device), Some(class), Some(shift)) = fields else { continue };
            let (vendor, device) = (u16::from_le_bytes(vendor), u16::from_le_bytes(device));
            let (class, shift) = (u32::from_le_bytes(class), u32::from_le_bytes(shift));
            if !inventory.iter().any(|entry| entry.is_meant(vendor, device, class, shift)) {
                changes.dropped.insert(id);
            }
        }
    }
    analysis.device.quirks_removed = (changes.dropped.len() - before) as u64;
    analysis.walk(graph);
    Ok(())
}
