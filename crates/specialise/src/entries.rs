//! Finds the functions that are understood, and where control enters them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use crate::abi;
use crate::arch::{Architecture, Goal, Step, Transfer, Use};
use crate::atom::AtomId;
use crate::graph::{Changes, Graph, Liveness};
use crate::object::SymbolPlace;
use crate::reference::{self, Reference};
use crate::routine::{Routine, Where};
use crate::schema::Role;

/// Functions by atom.
pub(crate) type Routines = BTreeMap<AtomId, Routine>;

/// Sections of code that assembler wrote, or that is written anew while the kernel runs.
const OPAQUE: [&[u8]; 2] = [b".text", b".static_call.text"];

/// Tables of places at which registers and control stay as the instructions say: positions,
/// prefixes, calls that may go elsewhere, and instructions that may trap (what they name beside the
/// place is an entry).
const HARMLESS: [&[u8]; 13] = [
    b"__ex_table",
    b"__bug_table",
    b".static_call_sites",
    b".smp_locks",
    b".retpoline_sites",
    b".return_sites",
    b".call_sites",
    b".ibt_endbr_seal",
    b".orc_unwind_ip",
    b".orc_unwind",
    b"__mcount_loc",
    b"_kprobe_blacklist",
    b"_error_injection_whitelist",
];

/// Replacements of instructions, and where an entry says how many bytes are replaced.
const REPLACEMENTS: (&[u8], u64) = (b".altinstructions", 12);

/// Places that are either a jump or do nothing.
const JUMP_LABELS: &[u8] = b"__jump_table";

/// Bytes of an entry of a jump table.
const TABLE_ENTRY_BYTES: u64 = 8;

/// The functions that live and are understood. Where control enters them is not filled in yet.
pub(crate) fn routines(
    graph: &Graph<'_, '_>,
    liveness: &Liveness,
    changes: &Changes,
    arch: &dyn Architecture,
) -> Routines {
    let mut starts: HashMap<AtomId, u64> = HashMap::new();
    for symbol in graph.object.symbols.iter().filter(|symbol| symbol.kind == abi::STT_FUNC && symbol.size > 0) {
        let SymbolPlace::Section(section) = symbol.place else { continue };
        let name = graph.object.sections[section as usize].name;
        if !matches!(graph.atoms.roles[section as usize], Role::Parts) || OPAQUE.contains(&name) {
            continue;
        }
        let Some(id) = graph.atoms.at(section, symbol.value as i64).filter(|id| liveness.is_live(*id)) else {
            continue;
        };
        if !symbol.name.starts_with(b"__pfx_") {
            starts.entry(id).and_modify(|start| *start = symbol.value.min(*start)).or_insert(symbol.value);
        }
    }
    let mut routines = Routines::new();
    for (id, entry) in starts {
        let atom = &graph.atoms.atoms[id as usize];
        let section = &graph.object.sections[atom.section as usize];
        if !section.is_code() {
            continue;
        }
        let Some(steps) = arch.steps(section, atom.start..atom.end) else { continue };
        let altered = altered(graph, id, &steps);
        let (entries, tables, reached) = (BTreeSet::new(), HashMap::new(), Vec::new());
        let goals = steps.iter().map(|step| goal(graph, changes, arch, id, step)).collect();
        let routine = Routine { id, entry, steps, goals, reached, entries, is_open: true, altered, tables };
        if routine.at(entry).is_some() {
            routines.insert(id, routine);
        }
    }
    find_tables(graph, &mut routines);
    update(graph, liveness, changes, &mut routines);
    routines.retain(|_, routine| {
        let reached = routine.reach();
        // All of a function must be reached in ways that are known; else there are ways that are
        // not.
        let is_known = |(step, reached): (&Step, &bool)| *reached || step.is_filling || step.start < routine.entry;
        routine.reached = reached.unwrap_or_default();
        !routine.reached.is_empty() && routine.steps.iter().zip(&routine.reached).all(is_known)
    });
    // Calls by those that were not understood open others.
    update(graph, liveness, changes, &mut routines);
    routines
}

/// The target of the branch or call of a step.
fn goal(graph: &Graph<'_, '_>, changes: &Changes, arch: &dyn Architecture, id: AtomId, step: &Step) -> Where {
    let field = match step.transfer {
        Transfer::Jump(goal) | Transfer::Branch(goal) | Transfer::Call(goal) => match goal {
            Goal::Inside(offset) => return Where::Inside(offset),
            Goal::Reference(field) => field,
        },
        _ => return Where::Unknown,
    };
    let section = graph.atoms.atoms[id as usize].section;
    let Some(reference) = at(graph, section, field) else { return Where::Unknown };
    if let reference::Target::Symbol(symbol) = reference.target {
        match graph.object.symbols[symbol as usize].name {
            name if name == arch.return_thunk() => return Where::Return,
            name if name == arch.trace_marker() => return Where::Mark,
            _ => {}
        }
    }
    let Some(target) = graph.target(section, reference, changes) else { return Where::Unknown };
    if changes.retargeted.contains_key(&(section, reference.offset)) {
        return Where::Function(target);
    }
    match reference::exact(graph.object, reference) {
        Some((_, offset)) if target == id => u64::try_from(offset).map_or(Where::Unknown, Where::Inside),
        Some(_) => Where::Function(target),
        None => Where::Unknown,
    }
}

/// Ranges of a function that may be rewritten with another meaning.
fn altered(graph: &Graph<'_, '_>, id: AtomId, steps: &[Step]) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    for entry in graph.dependents.of(id) {
        let atom = &graph.atoms.atoms[*entry as usize];
        let section = &graph.object.sections[atom.section as usize];
        if HARMLESS.contains(&section.name) {
            continue;
        }
        let Some(start) = graph.key(*entry).and_then(|(_, offset)| u64::try_from(offset).ok()) else { continue };
        let step = steps.binary_search_by_key(&start, |step| step.start).ok().map(|index| &steps[index]);
        // What does nothing may become a jump to where the entry says, which is an entry then.
        if section.name == JUMP_LABELS && step.is_some_and(|step| step.transfer == Transfer::Next) {
            continue;
        }
        let bytes = match section.name == REPLACEMENTS.0 {
            true => {
                section.data.get((atom.start + REPLACEMENTS.1) as usize).map_or(1, |bytes| u64::from(*bytes).max(1))
            }
            false => 1,
        };
        found.push(start..start + bytes);
    }
    found
}

/// Finds the tables that functions jump through.
fn find_tables(graph: &Graph<'_, '_>, routines: &mut Routines) {
    let mut jumps: Vec<(u32, u64, AtomId, u64)> = Vec::new();
    for routine in routines.values() {
        let section = graph.atoms.atoms[routine.id as usize].section;
        for step in &routine.steps {
            let Transfer::Table { field, .. } = step.transfer else { continue };
            if let Some((data, offset)) =
                at(graph, section, field).and_then(|field| reference::exact(graph.object, field))
                && let Ok(offset) = u64::try_from(offset)
                && !graph.object.sections[data as usize].is_code()
            {
                jumps.push((data, offset, routine.id, step.start));
            }
        }
    }
    jumps.sort_unstable();
    // Where a table ends is not said: the next one of the same function counts too.
    for (data, start, id, jump) in &jumps {
        let mut targets = Vec::new();
        let mut offset = *start;
        while let Some(target) = at(graph, *data, offset).and_then(|entry| inside(graph, entry, *id)) {
            targets.push(target);
            offset += TABLE_ENTRY_BYTES;
        }
        if let Some(routine) = routines.get_mut(id)
            && !targets.is_empty()
        {
            routine.tables.insert(*jump, targets);
        }
    }
}

/// The offset that a reference goes to in a function.
fn inside(graph: &Graph<'_, '_>, reference: &Reference, id: AtomId) -> Option<u64> {
    let (section, offset) = reference::exact(graph.object, reference)?;
    (graph.atoms.at(section, offset) == Some(id)).then(|| u64::try_from(offset).ok()).flatten()
}

/// The reference with its field at an offset.
pub(crate) fn at<'g>(graph: &'g Graph<'_, '_>, section: u32, field: u64) -> Option<&'g Reference> {
    reference::within(&graph.atoms.references[section as usize], field..field + 1).first()
}

/// Entries of tables that only known jumps use: section and offset of each.
pub(crate) fn owned(
    graph: &Graph<'_, '_>,
    liveness: &Liveness,
    changes: &Changes,
    routines: &Routines,
) -> HashSet<(u32, u64)> {
    let mut fields: HashSet<(u32, u64)> = HashSet::new();
    let mut tables: Vec<(AtomId, u32, u64, usize)> = Vec::new();
    for routine in routines.values() {
        let section = graph.atoms.atoms[routine.id as usize].section;
        for step in &routine.steps {
            let Transfer::Table { field, .. } = step.transfer else { continue };
            let Some(targets) = routine.tables.get(&step.start) else { continue };
            let place = at(graph, section, field).and_then(|field| reference::exact(graph.object, field));
            if let Some((data, offset)) = place
                && let Some(id) = graph.atoms.at(data, offset)
                && let Ok(offset) = u64::try_from(offset)
            {
                fields.insert((section, field));
                tables.push((id, data, offset, targets.len()));
            }
        }
    }
    let mut hosts: HashSet<AtomId> = tables.iter().map(|(id, ..)| *id).collect();
    for id in (0..graph.atoms.atoms.len() as AtomId).filter(|id| liveness.is_live(*id)) {
        let section = graph.atoms.atoms[id as usize].section;
        for reference in graph.references(id, changes) {
            if let Some(target) = graph.target(section, reference, changes)
                && hosts.contains(&target)
                && !fields.contains(&(section, reference.offset))
            {
                hosts.remove(&target);
            }
        }
    }
    let known = tables.into_iter().filter(|(id, ..)| hosts.contains(id));
    known
        .flat_map(|(_, data, start, count)| {
            (0..count as u64).map(move |entry| (data, start + entry * TABLE_ENTRY_BYTES))
        })
        .collect()
}

/// Finds where control enters functions, by all that lives; drops those that are referred to in
/// ways that cannot be followed.
pub(crate) fn update(graph: &Graph<'_, '_>, liveness: &Liveness, changes: &Changes, routines: &mut Routines) {
    let owned = owned(graph, liveness, changes, routines);
    let mut known = vec![false; graph.atoms.atoms.len()];
    routines.keys().for_each(|id| known[*id as usize] = true);
    for routine in routines.values_mut() {
        routine.is_open = false;
        routine.entries.clear();
    }
    let mut vague: HashSet<AtomId> = HashSet::new();
    for id in (0..graph.atoms.atoms.len() as AtomId).filter(|id| liveness.is_live(*id)) {
        let section = graph.atoms.atoms[id as usize].section;
        let is_code = graph.object.sections[section as usize].is_code();
        let is_table = matches!(graph.atoms.roles[section as usize], Role::Table(_));
        for reference in graph.references(id, changes) {
            let retargeted = changes.retargeted.contains_key(&(section, reference.offset));
            let target = graph.target(section, reference, changes).filter(|target| known[*target as usize]);
            let Some(target) = target else { continue };
            let Some(routine) = routines.get_mut(&target) else { continue };
            let exact = if retargeted { None } else { reference::exact(graph.object, reference) };
            let offset = match (retargeted, exact) {
                (true, _) => routine.entry,
                (false, Some((_, offset))) => u64::try_from(offset).unwrap_or(u64::MAX),
                (false, None) => u64::MAX,
            };
            let atom = &graph.atoms.atoms[target as usize];
            if is_table && graph.is_key(section, reference) {
                // It describes the place only; but a symbol beside the place could not be moved.
                continue;
            }
            let is_branch = is_code && reference.how == Use::Branch;
            match offset {
                offset if offset == routine.entry && is_branch && known[id as usize] => {}
                offset if offset == routine.entry => routine.is_open = true,
                _ if id == target && is_branch => {}
                _ if owned.contains(&(section, reference.offset)) => {}
                // The end of a function, which tables of ranges name.
                offset if offset == atom.end && !is_branch => {}
                offset if routine.at(offset).is_some() && (is_code || !is_relative(reference) || is_table) => {
                    routine.entries.insert(offset);
                }
                _ => drop(vague.insert(target)),
            }
        }
    }
    for id in &vague {
        routines.remove(id);
    }
    let mut roots: Vec<AtomId> = graph.roots.iter().map(|(id, _)| *id).collect();
    roots.extend(changes.roots.iter().filter_map(|(symbol, _)| graph.atom_of_symbol(*symbol)));
    for id in roots {
        if let Some(routine) = routines.get_mut(&id) {
            routine.is_open = true;
        }
    }
    if !vague.is_empty() {
        update(graph, liveness, changes, routines);
    }
}

/// Whether a reference of data is a distance from an unknown place.
fn is_relative(reference: &Reference) -> bool {
    matches!(reference.kind, 2 | 4 | 24)
}

/// The table of the unwinder.
const UNWINDER: &[u8] = b".orc_unwind_ip";

/// Places of a function that tables describe, other than the unwinder's.
pub(crate) fn keys(graph: &Graph<'_, '_>, id: AtomId) -> Vec<u64> {
    let of_others = graph.dependents.of(id).iter().filter(|entry| !is_unwinder(graph, **entry));
    of_others.filter_map(|entry| graph.key(*entry)).filter_map(|(_, offset)| u64::try_from(offset).ok()).collect()
}

/// Whether an entry is one of the unwinder's table, whose entries hold from their place to the next
/// one.
pub(crate) fn is_unwinder(graph: &Graph<'_, '_>, entry: AtomId) -> bool {
    let table = graph.atoms.atoms[entry as usize].section;
    graph.object.sections[table as usize].name == UNWINDER
}
