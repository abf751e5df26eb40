//! Names of functions that are freed after the start: the kernel's table of names is for messages about running code, and
//! keeps those for good.
//!
//! Until then such a function appears in messages as a distance from the start of its section.

use std::collections::HashSet;

use crate::abi;
use crate::atom::AtomId;
use crate::graph::Graph;
use crate::object::Place;
use crate::schema::Role;

/// Sections of code that is freed.
const FREED: [&[u8]; 2] = [b".init.text", b".exit.text"];

/// The symbols of functions in memory that is freed, without those that the linker script names.
pub(crate) fn initial(
    graph: &Graph<'_, '_>,
    is_left: &dyn Fn(AtomId) -> bool,
    moved: &HashSet<AtomId>,
) -> HashSet<u32> {
    let roots: HashSet<AtomId> = graph.roots.iter().map(|(id, _)| *id).collect();
    let is_freed = |section: u32, id: AtomId| {
        let of = &graph.object.sections[section as usize];
        let is_part = matches!(graph.atoms.roles[section as usize], Role::Parts);
        of.is_code() && is_part && (moved.contains(&id) || FREED.contains(&of.name))
    };
    let mut found = HashSet::new();
    for (index, symbol) in graph.object.symbols.iter().enumerate() {
        let Place::Section(section) = symbol.place else { continue };
        let Some(id) = graph.atoms.at(section, symbol.value as i64) else { continue };
        let is_function = matches!(symbol.kind, abi::STT_FUNC | abi::STT_NOTYPE) && !symbol.name.is_empty();
        if is_function && is_left(id) && !roots.contains(&id) && is_freed(section, id) {
            found.insert(index as u32);
        }
    }
    found
}
