//! Initialisation: moves functions that only initialisation calls into `.init.text`, whose memory
//! is freed after the start.
//!
//! A function that may still run then never moves: one whose address is taken, one in `.ref.text`
//! (`rest_init` becomes the idle task), one that does not return, and all functions that any of
//! these calls.
//!
//! Strings move too if only such functions use them, and only as arguments of functions that read
//! them and keep no address, such as `_printk`.

use std::collections::{HashMap, HashSet};

use super::{Context, Pass};
use crate::SpecialiseError;
use crate::analysis::Analysis;
use crate::atom::AtomId;
use crate::class::class;
use crate::entries;
use crate::graph::{Changes, Graph, Liveness, Reason};
use crate::incoming::incoming;
use crate::reference::{self, Target};
use crate::schema::Role;

pub(super) const PASS: Pass = Pass { name: "initialisation", is_on: |options| options.passes.initialisation, run };

/// Entries of tables: section and offset of each.
type Entries = HashSet<(u32, u64)>;

/// Moves functions, and the messages and jump tables that only they use.
fn run(context: &Context<'_, '_>, analysis: &mut Analysis) -> Result<(), SpecialiseError> {
    let (graph, liveness, changes) = (context.graph, analysis.removals.liveness(), &analysis.changes);
    let routines =
        analysis.routines.take().unwrap_or_else(|| entries::routines(graph, liveness, changes, context.arch));
    let entries = entries::owned(graph, liveness, changes, &routines);
    let mut moved = functions(context, analysis, &entries);
    moved.retain(|id| !analysis.folded.contains_key(id));
    // A function that stands for folded ones is called by their callers too.
    let shared: HashSet<AtomId> = analysis.folded.values().copied().collect();
    moved.retain(|id| !shared.contains(id));
    let messages = messages(context, analysis, &moved);
    let tables = tables(graph, liveness, changes, &entries, &moved);
    moved.extend(messages);
    moved.extend(tables);
    analysis.moved = moved;
    Ok(())
}

/// Finds the functions that may move.
fn functions(context: &Context<'_, '_>, analysis: &Analysis, tables: &Entries) -> HashSet<AtomId> {
    let (graph, arch, call_tables) = (context.graph, context.arch, context.schema.call_tables);
    let (liveness, changes) = (analysis.removals.liveness(), &analysis.changes);
    let mut owners = owners(graph, liveness, changes);
    let called_by_table = call_tables_of(graph, liveness, changes, call_tables, &mut owners);
    let incoming = incoming(graph, liveness, changes, &tables.union(&called_by_table).copied().collect());
    let names = graph.names();
    let is_initial = |id: AtomId| {
        let section = graph.atoms.atoms[id as usize].section;
        graph.object.sections[section as usize].name.starts_with(b".init.text")
    };
    let is_candidate = |id: &AtomId| {
        let atom = &graph.atoms.atoms[*id as usize];
        let section = &graph.object.sections[atom.section as usize];
        let class = class(section);
        let is_cold = names[*id as usize]
            .is_some_and(|symbol| graph.object.symbols[symbol as usize].name.windows(5).any(|part| part == b".cold"));
        let bytes = section.data.get(atom.start as usize..atom.end as usize).unwrap_or_default();
        liveness.is_live(*id)
            && matches!(graph.atoms.roles[atom.section as usize], Role::Parts)
            && (class == b".text" || class == b".text.unlikely")
            && section.is_code()
            && !incoming[*id as usize].addressed
            && (is_cold || arch.returns(bytes) || jumps_to_thunk(graph, *id))
    };
    let mut moved: HashSet<AtomId> = (0..graph.atoms.atoms.len() as AtomId).filter(is_candidate).collect();
    // All that stays and refers to a candidate keeps it, over and over: the largest set that
    // nothing outside refers to.
    loop {
        let mut kept = HashSet::new();
        for id in (0..graph.atoms.atoms.len() as AtomId).filter(|id| liveness.is_live(*id)) {
            let stays = |id: &AtomId| !moved.contains(id) && !is_initial(*id);
            if !stays(&id) || owners.get(&id).is_some_and(|owners| !owners.iter().any(stays)) {
                continue;
            }
            let section = graph.atoms.atoms[id as usize].section;
            let key = match liveness.reasons[id as usize] {
                Reason::EntryFor(key) => Some(key),
                _ => None,
            };
            for reference in graph.references(id, changes) {
                if tables.contains(&(section, reference.offset)) {
                    continue;
                }
                if let Some(target) = graph.target(section, reference, changes)
                    && Some(target) != key
                    && moved.contains(&target)
                {
                    kept.insert(target);
                }
            }
        }
        if kept.is_empty() {
            return moved;
        }
        moved.retain(|id| !kept.contains(id));
    }
}

/// Entries of tables of functions; what refers to a table owns it.
fn call_tables_of(
    graph: &Graph<'_, '_>,
    liveness: &Liveness,
    changes: &Changes,
    names: &[&str],
    owners: &mut HashMap<AtomId, Vec<AtomId>>,
) -> Entries {
    let mut entries = HashSet::new();
    let mut tables = HashSet::new();
    for (index, symbol) in graph.object.symbols.iter().enumerate() {
        let name = symbol.name.split(|byte| *byte == b'.').next().unwrap_or_default();
        if !names.iter().any(|known| known.as_bytes() == name) {
            continue;
        }
        let Some(id) = graph.atom_of_symbol(index as u32).filter(|id| liveness.is_live(*id)) else { continue };
        let section = graph.atoms.atoms[id as usize].section;
        if graph.object.sections[section as usize].name.starts_with(b".rodata") {
            entries.extend(graph.references(id, changes).map(|reference| (section, reference.offset)));
            tables.insert(id);
        }
    }
    for id in (0..graph.atoms.atoms.len() as AtomId).filter(|id| !tables.is_empty() && liveness.is_live(*id)) {
        let section = graph.atoms.atoms[id as usize].section;
        for reference in graph.references(id, changes) {
            if let Some(table) = graph.target(section, reference, changes).filter(|target| tables.contains(target)) {
                owners.entry(table).or_default().push(id);
            }
        }
    }
    entries
}

/// The functions whose instructions each replacement replaces: it is freed after the start, but
/// lives on in them.
fn owners(graph: &Graph<'_, '_>, liveness: &Liveness, changes: &Changes) -> HashMap<AtomId, Vec<AtomId>> {
    let mut owners: HashMap<AtomId, Vec<AtomId>> = HashMap::new();
    for id in (0..graph.atoms.atoms.len() as AtomId).filter(|id| liveness.is_live(*id)) {
        for entry in graph.dependents.of(id).iter().filter(|entry| liveness.is_live(**entry)) {
            let section = graph.atoms.atoms[*entry as usize].section;
            for reference in graph.references(*entry, changes).filter(|reference| !graph.is_key(section, reference)) {
                let Some(piece) = graph.target(section, reference, changes) else { continue };
                let role = graph.atoms.roles[graph.atoms.atoms[piece as usize].section as usize];
                if matches!(role, Role::Pieces(Some(_))) {
                    owners.entry(piece).or_default().push(id);
                }
            }
        }
    }
    owners
}

/// Finds the jump tables that may move when the functions of `moved` do: only those jump through
/// them.
fn tables(
    graph: &Graph<'_, '_>,
    liveness: &Liveness,
    changes: &Changes,
    entries: &Entries,
    moved: &HashSet<AtomId>,
) -> HashSet<AtomId> {
    let mut tables: HashSet<AtomId> =
        entries.iter().filter_map(|(section, offset)| graph.atoms.at(*section, *offset as i64)).collect();
    tables.retain(|id| {
        let section = graph.atoms.atoms[*id as usize].section as usize;
        graph.object.sections[section].name.starts_with(b".rodata") && matches!(graph.atoms.roles[section], Role::Parts)
    });
    for id in (0..graph.atoms.atoms.len() as AtomId).filter(|id| liveness.is_live(*id) && !moved.contains(id)) {
        let section = graph.atoms.atoms[id as usize].section;
        for reference in graph.references(id, changes) {
            if let Some(target) = graph.target(section, reference, changes) {
                tables.remove(&target);
            }
        }
    }
    tables
}

/// Finds the strings that may move when the functions of `moved` do.
fn messages(context: &Context<'_, '_>, analysis: &Analysis, moved: &HashSet<AtomId>) -> HashSet<AtomId> {
    let (graph, arch, readers) = (context.graph, context.arch, context.schema.readers);
    let (liveness, changes) = (analysis.removals.liveness(), &analysis.changes);
    let section_of = |id: AtomId| {
        let section = graph.atoms.atoms[id as usize].section;
        (section, &graph.object.sections[section as usize])
    };
    let is_string = |id: AtomId| {
        let (index, section) = section_of(id);
        section.is_strings()
            && section.name.starts_with(b".rodata")
            && matches!(graph.atoms.roles[index as usize], Role::Parts)
    };
    let mut read_only_here: HashSet<AtomId> = HashSet::new();
    let mut used_otherwise: HashSet<AtomId> = HashSet::new();
    for id in (0..graph.atoms.atoms.len() as AtomId).filter(|id| liveness.is_live(*id)) {
        let (index, section) = section_of(id);
        let atom = &graph.atoms.atoms[id as usize];
        let is_initial = section.is_code() && (moved.contains(&id) || section.name.starts_with(b".init.text"));
        let read: HashSet<u64> = match is_initial {
            true => {
                let calls = arch.arguments(section, atom.start..atom.end).into_iter();
                calls
                    .filter(|(_, call)| calls_reader(graph, index, *call, readers))
                    .map(|(operand, _)| operand)
                    .collect()
            }
            false => HashSet::new(),
        };
        for reference in graph.references(id, changes) {
            let Some(target) = graph.target(index, reference, changes).filter(|target| is_string(*target)) else {
                continue;
            };
            let set = if read.contains(&reference.offset) { &mut read_only_here } else { &mut used_otherwise };
            set.insert(target);
        }
    }
    for (id, _) in &graph.roots {
        used_otherwise.insert(*id);
    }
    read_only_here.retain(|id| !used_otherwise.contains(id));
    read_only_here
}

/// Whether the call with its field at `offset` goes to one of `readers`.
fn calls_reader(graph: &Graph<'_, '_>, section: u32, offset: u64, readers: &[&str]) -> bool {
    let references = reference::within(&graph.atoms.references[section as usize], offset..offset + 1);
    references.iter().any(|reference| match reference.target {
        Target::Symbol(symbol) => {
            readers.iter().any(|reader| reader.as_bytes() == graph.object.symbols[symbol as usize].name)
        }
        Target::Place { .. } => false,
    })
}

/// Whether a function ends in the thunk that stands for a return where that is mitigated.
fn jumps_to_thunk(graph: &Graph<'_, '_>, id: AtomId) -> bool {
    graph.atoms.references_of(id).iter().any(|reference| match reference.target {
        Target::Symbol(symbol) => graph.object.symbols[symbol as usize].name == b"__x86_return_thunk",
        Target::Place { .. } => false,
    })
}
