//! The ways in which live atoms are referred to by others.

use std::collections::HashSet;

use crate::arch::Use;
use crate::atom::AtomId;
use crate::graph::{Changes, Graph, Liveness, Reason};
use crate::reference;

/// How an atom is referred to, by all that lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Incoming {
    /// Its address is taken or used.
    pub addressed: bool,
    /// Control enters it elsewhere than at its start.
    pub inside: bool,
}

/// How live atoms are referred to by live atoms other than themselves.
///
/// Entries of `tables` are not counted: only the function jumps through them that they lead into.
pub(crate) fn incoming(
    graph: &Graph<'_, '_>,
    liveness: &Liveness,
    changes: &Changes,
    tables: &HashSet<(u32, u64)>,
) -> Vec<Incoming> {
    let mut incoming = vec![Incoming::default(); graph.atoms.atoms.len()];
    for id in (0..graph.atoms.atoms.len() as AtomId).filter(|id| liveness.is_live(*id)) {
        let section = graph.atoms.atoms[id as usize].section;
        let is_entry_of = match liveness.reasons[id as usize] {
            Reason::EntryFor(key) => Some(key),
            _ => None,
        };
        for reference in graph.references(id, changes) {
            if tables.contains(&(section, reference.offset)) {
                continue;
            }
            let Some(target) = graph.target(section, reference, changes) else { continue };
            // What an entry says about the code that it belongs to is no use by others, and a loop
            // is none; but a function may hand out its own address.
            let start = graph.atoms.atoms[target as usize].start as i64;
            let at_start = reference::place(graph.object, reference).is_some_and(|(_, offset)| offset == start);
            let own = target == id && (reference.how == Use::Branch || !at_start);
            if own || is_entry_of == Some(target) {
                continue;
            }
            let from_code = graph.object.sections[section as usize].is_code();
            let known = &mut incoming[target as usize];
            known.addressed |= !from_code || reference.how != Use::Branch;
            known.inside |= !at_start && !changes.retargeted.contains_key(&(section, reference.offset));
        }
    }
    for (id, _) in &graph.roots {
        incoming[*id as usize].addressed = true;
    }
    incoming
}
