//! Duplicates: of functions with the same bytes and the same references one is kept.
//!
//! A function is a candidate if it is called and never named otherwise, so that nobody can compare
//! its address, unless the caller allows that addresses become equal. The only side tables that may
//! name it are those of positions.

use std::collections::{HashMap, HashSet};

use super::{Context, Pass};
use crate::SpecialiseError;
use crate::analysis::Analysis;
use crate::atom::AtomId;
use crate::class::class;
use crate::graph::{Graph, Liveness};
use crate::incoming::incoming;
use crate::reference::Target;
use crate::schema::Role;

pub(super) const PASS: Pass = Pass { name: "duplicates", is_on: |options| options.passes.duplicates, run };

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

/// Removes the functions for which an equal one stands, with the entries of tables that describe
/// them.
fn run(context: &Context<'_, '_>, analysis: &mut Analysis) -> Result<(), SpecialiseError> {
    analysis.folded = find(context, analysis);
    let mut orphaned = HashSet::new();
    for id in analysis.folded.keys() {
        analysis.removals.remove(*id);
        context.graph.add_dependents(*id, &mut orphaned);
    }
    for id in orphaned {
        analysis.removals.remove(id);
    }
    Ok(())
}

/// Finds functions for which an equal one stands, with that one.
fn find(context: &Context<'_, '_>, analysis: &Analysis) -> HashMap<AtomId, AtomId> {
    let (graph, changes, liveness) = (context.graph, &analysis.changes, analysis.removals.liveness());
    let with_taken = context.options.passes.duplicates_taken && context.options.padding_is_spare;
    let incoming = incoming(graph, liveness, changes, &HashSet::new());
    let mut rooted: HashSet<AtomId> = graph.roots.iter().map(|(id, _)| *id).collect();
    rooted.extend(changes.roots.iter().filter_map(|(symbol, _)| graph.atom_of_symbol(*symbol)));
    // One whose address is taken stands only for others of the kind: it may be marked as a target
    // of indirect calls.
    let fits = |id: AtomId| {
        let known = incoming[id as usize];
        !known.inside && (!known.addressed || with_taken && !rooted.contains(&id))
    };
    let candidates: Vec<AtomId> = (0..graph.atoms.atoms.len() as AtomId)
        .filter(|id| !analysis.edits.contains_key(id) && fits(*id) && is_candidate(graph, liveness, *id))
        .collect();
    let mut folded: HashMap<AtomId, AtomId> = HashMap::new();
    for _ in 0..ROUNDS_MAX {
        let mut known: HashMap<Vec<u8>, AtomId> = HashMap::new();
        let before = folded.len();
        for id in &candidates {
            if folded.contains_key(id) {
                continue;
            }
            let mut key = key(context, analysis, &folded, *id);
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
fn key(context: &Context<'_, '_>, analysis: &Analysis, folded: &HashMap<AtomId, AtomId>, id: AtomId) -> Vec<u8> {
    let (graph, arch, changes) = (context.graph, context.arch, &analysis.changes);
    let atom = &graph.atoms.atoms[id as usize];
    let section = &graph.object.sections[atom.section as usize];
    let mut bytes = section.data.get(atom.start as usize..atom.end as usize).unwrap_or_default().to_vec();
    let mut key = class(section);
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
