//! Drivers: drops the initcalls of PCI drivers none of whose devices are in the inventory. Code and
//! data that only they use go with them.
//!
//! Only initcalls that do nothing but register a driver are dropped, as `module_pci_driver` makes
//! them. Of a driver only its table of devices is read: `struct pci_driver`, in which releases
//! differ, and `struct pci_device_id`.

use super::{Context, Pass};
use crate::SpecialiseError;
use crate::analysis::Analysis;
use crate::arch::Use;
use crate::atom::AtomId;
use crate::device::Device;
use crate::graph::Graph;
use crate::reference::{self, Reference, Target};

pub(super) const PASS: Pass =
    Pass { name: "drivers", is_on: |options| options.passes.drivers && options.devices.is_some(), run };

/// Sections of initcalls begin so.
const INITCALLS: &[u8] = b".initcall";

/// What registers a driver.
const REGISTER: &[u8] = b"__pci_register_driver";

/// What else an initcall may call: what the compiler puts into every function.
const PLUMBING: [&[u8]; 2] = [b"__x86_return_thunk", b"__fentry__"];

/// Bytes of an entry of that table.
const ENTRY_BYTES: usize = 40;

/// Entries of a table that are read; the longest has about a thousand.
const ENTRIES_MAX: usize = 1 << 16;

/// Any, in a table of devices.
const ANY: u32 = 0xffff_ffff;

/// Drops the initcalls.
fn run(context: &Context<'_, '_>, analysis: &mut Analysis) -> Result<(), SpecialiseError> {
    let (graph, table_at) = (context.graph, context.schema.driver_table_at);
    let Some(inventory) = &context.options.devices else { return Ok(()) };
    let names = graph.names();
    let mut dropped = Vec::new();
    for (index, section) in graph.object.sections.iter().enumerate() {
        if !section.name.starts_with(INITCALLS) {
            continue;
        }
        for id in graph.atoms.of_section[index].clone() {
            let [entry] = graph.atoms.references_of(id) else { continue };
            let Some(function) = entry.atom else { continue };
            let Some(driver) = registered(graph, function) else { continue };
            if is_absent(graph, driver, table_at, inventory) == Some(true) {
                analysis.changes.dropped.insert(id);
                let name = names[function as usize].map(|symbol| graph.object.symbols[symbol as usize].name);
                dropped.push(String::from_utf8_lossy(name.unwrap_or_default()).into_owned());
            }
        }
    }
    dropped.sort();
    analysis.device.drivers_removed = dropped;
    analysis.walk(graph);
    Ok(())
}

/// The driver that a function registers, if it does nothing else: its section and offset.
fn registered(graph: &Graph<'_, '_>, function: AtomId) -> Option<(u32, i64)> {
    let mut driver = None;
    let mut registers = false;
    for reference in graph.atoms.references_of(function) {
        match (reference.how, reference.target) {
            (Use::Branch, Target::Symbol(symbol)) => {
                let name = graph.object.symbols[symbol as usize].name;
                registers |= name == REGISTER;
                if name != REGISTER && !PLUMBING.contains(&name) {
                    return None;
                }
            }
            (Use::Address, _) => {
                let (section, offset) = full_place(graph, reference)?;
                let section_of = graph.object.sections.get(section as usize)?;
                if section_of.is_strings() {
                    continue;
                }
                if driver.replace((section, offset)).is_some() || section_of.is_code() {
                    return None;
                }
            }
            _ => return None,
        }
    }
    driver.filter(|_| registers)
}

/// Where a reference of data, or an absolute one of code, goes.
fn full_place(graph: &Graph<'_, '_>, reference: &Reference) -> Option<(u32, i64)> {
    let (section, offset) = reference::place(graph.object, reference)?;
    match reference.target {
        Target::Symbol(_) => Some((section, offset.checked_add(reference.addend)?)),
        Target::Place { .. } => Some((section, offset)),
    }
}

/// Whether none of the devices of a driver is there, which names its table of them at the offset
/// `table_at`; `None` if its table is not understood.
fn is_absent(graph: &Graph<'_, '_>, driver: (u32, i64), table_at: i64, inventory: &[Device]) -> Option<bool> {
    let (section, offset) = driver;
    let field = u64::try_from(offset.checked_add(table_at)?).ok()?;
    let [pointer] = reference::within(&graph.atoms.references[section as usize], field..field.checked_add(1)?) else {
        return None;
    };
    let (section, offset) = full_place(graph, pointer)?;
    let section = graph.object.sections.get(section as usize)?;
    let table = section.data.get(usize::try_from(offset).ok()?..)?;
    for entry in table.chunks_exact(ENTRY_BYTES).take(ENTRIES_MAX) {
        let word = |at: usize| entry[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let [vendor, device, subvendor, class, mask] = [0, 4, 8, 16, 20].map(word);
        if vendor == 0 && subvendor == 0 && mask == 0 {
            return Some(true);
        }
        let same = |wanted: u32, own: u16| wanted == ANY || wanted == u32::from(own);
        let is_meant = |own: &Device| {
            let same_class = own.class.is_none_or(|own| (own ^ class) & mask == 0);
            same(vendor, own.vendor) && same(device, own.device) && same_class
        };
        if inventory.iter().any(is_meant) {
            return Some(false);
        }
    }
    None
}
