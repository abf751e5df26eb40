//! Duplicate functions: of functions with the same bytes and the same references one is kept.
//!
//! Only functions that are called and never named otherwise, so that nobody can compare their addresses, unless the caller
//! allows that addresses become equal; and only where no side table but those of positions speaks of them.

use std::collections::{HashMap, HashSet};

use crate::arch::{Architecture, Use};
use crate::atom::AtomId;
use crate::graph::{Changes, Graph, Liveness, Reason};
use crate::reference::{self, Target};
use crate::schema::Role;

/// Tables whose entries say only where an instruction is: those of the dropped copy go with it.
const POSITIONS: [&[u8]; 8] = [
    b".orc_unwind_ip",
    b".orc_unwind",
    b".return_sites",
    b".call_sites",
    b".retpoline_sites",
    b".ibt_endbr_seal",
    b"__mcount_loc",
    b".smp_locks",
];

/// Rounds after which folding stops: each lets functions become equal whose callees did.
const ROUNDS_MAX: usize = 8;

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
            Reason::SpeaksOf(key) => Some(key),
            _ => None,
        };
        for reference in graph.references(id, changes) {
            if tables.contains(&(section, reference.offset)) {
                continue;
            }
            let Some(target) = graph.target(section, reference, changes) else { continue };
            // What an entry says about the code that it belongs to is no use by others, and a loop is none; but a function
            // may hand out its own address.
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

/// Finds functions for which an equal one stands, with that one.
pub(crate) fn find(
    graph: &Graph<'_, '_>,
    liveness: &Liveness,
    changes: &Changes,
    arch: &dyn Architecture,
    is_edited: &dyn Fn(AtomId) -> bool,
    with_taken: bool,
) -> HashMap<AtomId, AtomId> {
    let incoming = incoming(graph, liveness, changes, &HashSet::new());
    let mut rooted: HashSet<AtomId> = graph.roots.iter().map(|(id, _)| *id).collect();
    rooted.extend(changes.roots.iter().filter_map(|(symbol, _)| graph.atom_of_symbol(*symbol)));
    // One whose address is taken stands only for others of the kind: it may be marked as a target of indirect calls.
    let fits = |id: AtomId| {
        let known = incoming[id as usize];
        !known.inside && (!known.addressed || with_taken && !rooted.contains(&id))
    };
    let candidates: Vec<AtomId> = (0..graph.atoms.atoms.len() as AtomId)
        .filter(|id| !is_edited(*id) && fits(*id) && is_candidate(graph, liveness, *id))
        .collect();
    let mut folded: HashMap<AtomId, AtomId> = HashMap::new();
    for _ in 0..ROUNDS_MAX {
        let mut known: HashMap<Vec<u8>, AtomId> = HashMap::new();
        let before = folded.len();
        for id in &candidates {
            if folded.contains_key(id) {
                continue;
            }
            let mut key = key(graph, changes, arch, &folded, *id);
            key.push(incoming[*id as usize].addressed.into());
            match known.get(&key) {
                Some(first) => drop(folded.insert(*id, *first)),
                None => drop(known.insert(key, *id)),
            }
        }
        if folded.len() == before {
            break;
        }
    }
    // A kept function may have been folded in a later round.
    let last = |mut id: AtomId| {
        while let Some(next) = folded.get(&id) {
            id = *next;
        }
        id
    };
    folded.keys().map(|id| (*id, last(*id))).collect()
}

fn is_candidate(graph: &Graph<'_, '_>, liveness: &Liveness, id: AtomId) -> bool {
    let atom = &graph.atoms.atoms[id as usize];
    let section = &graph.object.sections[atom.section as usize];
    let positions = |entry: &AtomId| {
        let section = graph.atoms.atoms[*entry as usize].section;
        POSITIONS.contains(&graph.object.sections[section as usize].name)
    };
    section.is_code()
        && matches!(graph.atoms.roles[atom.section as usize], Role::Parts)
        && liveness.is_live(id)
        && atom.end > atom.start
        && graph.dependents.of(id).iter().all(positions)
}

/// What two functions must share: class, alignment, bytes outside references, and references.
fn key(
    graph: &Graph<'_, '_>,
    changes: &Changes,
    arch: &dyn Architecture,
    folded: &HashMap<AtomId, AtomId>,
    id: AtomId,
) -> Vec<u8> {
    let atom = &graph.atoms.atoms[id as usize];
    let section = &graph.object.sections[atom.section as usize];
    let mut bytes = section.data.get(atom.start as usize..atom.end as usize).unwrap_or_default().to_vec();
    let mut key = crate::writer::class(section);
    for reference in graph.atoms.references_of(id) {
        let at = (reference.offset - atom.start) as usize;
        let (field, kept) = arch.field(reference.kind).map_or((0, 0), |field| (usize::from(field.bytes), field.kept));
        // A branch that has no relocation counts from itself already, as long as it stays inside.
        if reference.implied && reference.atom == Some(id) {
            continue;
        }
        if let Some(field) = bytes.get_mut(at..at + field) {
            for (byte, kept) in field.iter_mut().zip(u64::from(kept).to_le_bytes()) {
                *byte &= kept;
            }
        }
        let target = graph.target(atom.section, reference, changes);
        let inside = match (target, reference.target) {
            (Some(target), Target::Place { offset, .. }) => offset - graph.atoms.atoms[target as usize].start as i64,
            (Some(target), Target::Symbol(symbol)) => {
                let symbol = changes.retargeted.get(&(atom.section, reference.offset)).copied().unwrap_or(symbol);
                graph.object.symbols[symbol as usize].value as i64 - graph.atoms.atoms[target as usize].start as i64
            }
            (None, _) => 0,
        };
        let node = match (target, reference.target) {
            (Some(target), _) if target == id => -1,
            (Some(target), _) => i64::from(folded.get(&target).copied().unwrap_or(target)),
            (None, Target::Symbol(symbol)) => -2 - i64::from(symbol),
            (None, Target::Place { section, offset }) => offset.wrapping_add(i64::from(section) << 40),
        };
        for number in [at as i64, i64::from(reference.kind), node, inside, reference.addend] {
            key.extend_from_slice(&number.to_le_bytes());
        }
    }
    key.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    key.extend_from_slice(&bytes);
    key
}
