//! Names: drops the symbols of functions that are freed after the start. The kernel's table of
//! names is never freed, and serves messages about running code.
//!
//! Until it is freed, such a function appears in messages as a distance from the start of its
//! section.

use std::collections::HashSet;

use super::{Context, Pass};
use crate::analysis::Analysis;
use crate::atom::AtomId;
use crate::object::SymbolPlace;
use crate::schema::Role;
use crate::{Options, SpecialiseError, abi};

pub(super) const PASS: Pass = Pass { name: "names", is_on: Options::drops_names, run };

/// Sections of code that is freed.
const FREED: [&[u8]; 2] = [b".init.text", b".exit.text"];

/// Drops the symbols of functions in memory that is freed, without those that the linker script
/// names.
fn run(context: &Context<'_, '_>, analysis: &mut Analysis) -> Result<(), SpecialiseError> {
    let (graph, moved) = (context.graph, &analysis.moved);
    let roots: HashSet<AtomId> = graph.roots.iter().map(|(id, _)| *id).collect();
    let is_freed = |section: u32, id: AtomId| {
        let of = &graph.object.sections[section as usize];
        let is_part = matches!(graph.atoms.roles[section as usize], Role::Parts);
        of.is_code() && is_part && (moved.contains(&id) || FREED.contains(&of.name))
    };
    let mut found = HashSet::new();
    for (index, symbol) in graph.object.symbols.iter().enumerate() {
        let SymbolPlace::Section(section) = symbol.place else { continue };
        let Some(id) = graph.atoms.at(section, symbol.value as i64) else { continue };
        let is_function = matches!(symbol.kind, abi::STT_FUNC | abi::STT_NOTYPE) && !symbol.name.is_empty();
        if is_function && analysis.is_left(id) && !roots.contains(&id) && is_freed(section, id) {
            found.insert(index as u32);
        }
    }
    analysis.nameless = found;
    Ok(())
}
