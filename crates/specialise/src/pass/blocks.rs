//! Blocks: cuts code that is never executed out of functions, and branches that are never taken,
//! and shortens branches. The writer moves the references into such a function.
//!
//! Instructions that the kernel rewrites while it runs keep their form. Only distances in them
//! change.

use std::collections::HashSet;
use std::ops::Range;

use super::{Context, Pass};
use crate::analysis::Analysis;
use crate::arch::{Architecture, Goal, Step, Transfer};
use crate::atom::AtomId;
use crate::edit::Edit;
use crate::entries::{is_unwinder, keys};
use crate::graph::{Changes, Graph};
use crate::object::Section;
use crate::routine::Routine;
use crate::{Options, SpecialiseError};

pub(super) const PASS: Pass = Pass { name: "blocks", is_on: Options::cuts_blocks, run };

/// Rounds in which branches become shorter; each only after another one did.
const ROUNDS_MAX: usize = 16;

/// Cuts dead code out, and drops the entries of the unwinder for it.
fn run(context: &Context<'_, '_>, analysis: &mut Analysis) -> Result<(), SpecialiseError> {
    let (graph, arch) = (context.graph, context.arch);
    for (id, decisions) in &analysis.decisions {
        let Some(routine) = analysis.routines.as_ref().and_then(|routines| routines.get(id)) else { continue };
        let atom = &graph.atoms.atoms[*id as usize];
        let function = Function {
            section: &graph.object.sections[atom.section as usize],
            arch,
            routine,
            ways: &decisions.ways,
            dead: analysis.changes.dead_in(atom),
            fixed: keys(graph, *id),
        };
        if function.dead.is_empty() && decisions.ways.iter().all(|way| !matches!(way, 1 | 2)) {
            continue;
        }
        let edit = function.edit();
        if !edit.cut.is_empty() || !edit.patches.is_empty() {
            unwind(graph, *id, &edit, &mut analysis.changes);
            analysis.edits.insert(*id, edit);
        }
    }
    analysis.walk(graph);
    Ok(())
}

/// Of the unwinder's entries that would come to lie on each other the last one holds.
fn unwind(graph: &Graph<'_, '_>, id: AtomId, edit: &Edit, changes: &mut Changes) {
    let atom = &graph.atoms.atoms[id as usize];
    let of_unwinder = graph.dependents.of(id).iter().filter(|entry| is_unwinder(graph, **entry));
    let mut entries: Vec<(u64, AtomId)> = of_unwinder
        .filter_map(|entry| Some((u64::try_from(graph.key(*entry)?.1).ok()?, *entry)))
        .filter(|(_, entry)| !changes.dropped.contains(entry))
        .collect();
    entries.sort_unstable();
    let moved = |offset: u64| edit.moved(offset);
    // What follows the function has entries of its own.
    let end = moved(atom.end);
    for pair in 0..entries.len() {
        let (offset, entry) = entries[pair];
        let at = moved(offset);
        let next = entries.get(pair + 1).map(|next| moved(next.0));
        if edit.is_cut(offset) && at == end || next == Some(at) && offset != entries[pair + 1].0 {
            changes.dropped.insert(entry);
        }
    }
}

/// One function that is edited.
struct Function<'f, 'a> {
    section: &'f Section<'a>,
    arch: &'f dyn Architecture,
    routine: &'f Routine,
    ways: &'f [u8],
    dead: Vec<Range<u64>>,
    /// Places of instructions that keep their form.
    fixed: Vec<u64>,
}

impl Function<'_, '_> {
    fn edit(&self) -> Edit {
        let mut short: HashSet<u64> = HashSet::new();
        let mut gone: HashSet<u64> = HashSet::new();
        let mut edit = self.with(&short, &gone);
        for _ in 0..ROUNDS_MAX {
            let before = short.len() + gone.len();
            for (step, target) in self.branches() {
                if short.contains(&step.start) && gone.contains(&step.start) {
                    continue;
                }
                let distance = self.distance(&edit, step, target);
                // Bytes of the branch itself count for one that goes back.
                if i8::try_from(distance).is_ok() && step.field_bytes == 4 {
                    short.insert(step.start);
                }
                let is_always = matches!(step.transfer, Transfer::Jump(_)) || self.way(step) == 2;
                if is_always && distance == 0 {
                    gone.insert(step.start);
                }
            }
            edit = self.with(&short, &gone);
            if short.len() + gone.len() == before {
                break;
            }
        }
        for (step, target) in self.branches() {
            let Some(encoding) = self.encoding(step, &short, &gone) else { continue };
            let distance = self.distance(&edit, step, target);
            let bytes = distance.to_le_bytes();
            for (index, byte) in bytes.iter().take(usize::from(encoding.1)).enumerate() {
                let at = encoding.0 + index as u64;
                if self.section.data.get(at as usize) != Some(byte) {
                    edit.patches.push((at, *byte));
                }
            }
        }
        edit.patches.sort_unstable();
        edit
    }

    /// How far a branch goes when all that `edit` cuts is gone.
    fn distance(&self, edit: &Edit, step: &Step, target: u64) -> i64 {
        edit.moved(target) as i64 - edit.moved(step.end) as i64
    }

    fn way(&self, step: &Step) -> u8 {
        self.routine.at(step.start).and_then(|index| self.ways.get(index)).copied().unwrap_or(0)
    }

    fn is_dead(&self, step: &Step) -> bool {
        self.dead.iter().any(|range| range.contains(&step.start))
    }

    fn is_fixed(&self, step: &Step) -> bool {
        self.fixed.iter().any(|key| (step.start..step.end).contains(key)) || self.routine.is_altered(step)
    }

    /// Branches that stay in the function and have no relocation, with their targets.
    fn branches(&self) -> impl Iterator<Item = (&Step, u64)> {
        let lives = self.routine.steps.iter().filter(|step| !self.is_dead(step));
        lives.filter_map(|step| match step.transfer {
            Transfer::Jump(Goal::Inside(target))
            | Transfer::Branch(Goal::Inside(target))
            | Transfer::Call(Goal::Inside(target)) => Some((step, target)),
            _ => None,
        })
    }

    /// Field of the distance of a branch and its bytes; `None` if the branch goes.
    fn encoding(&self, step: &Step, short: &HashSet<u64>, gone: &HashSet<u64>) -> Option<(u64, u8)> {
        if self.is_fixed(step) {
            return Some((step.field, step.field_bytes));
        }
        if gone.contains(&step.start) || (matches!(step.transfer, Transfer::Branch(_)) && self.way(step) == 1) {
            return None;
        }
        let encoded = self.arch.encode(self.section, step, self.way(step) == 2, short.contains(&step.start));
        Some(encoded.map_or((step.field, step.field_bytes), |encoded| (encoded.field, encoded.field_bytes)))
    }

    /// The edit where these branches are short and these are gone, without distances.
    fn with(&self, short: &HashSet<u64>, gone: &HashSet<u64>) -> Edit {
        let mut cut = self.dead.clone();
        let mut patches = Vec::new();
        for step in self.routine.steps.iter().filter(|step| !self.is_dead(step) && !self.is_fixed(step)) {
            let (is_branch, is_inside) = match step.transfer {
                Transfer::Branch(goal) => (true, matches!(goal, Goal::Inside(_))),
                Transfer::Jump(goal) => (false, matches!(goal, Goal::Inside(_))),
                _ => continue,
            };
            let way = if is_branch { self.way(step) } else { 0 };
            if way == 1 || gone.contains(&step.start) {
                cut.push(step.start..step.end);
                continue;
            }
            let is_short = is_inside && short.contains(&step.start);
            if way != 2 && !is_short {
                continue;
            }
            if let Some(encoded) = self.arch.encode(self.section, step, way == 2, is_short) {
                cut.extend(encoded.cut);
                patches.extend(encoded.patches);
            }
        }
        cut.sort_unstable_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in cut {
            match merged.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        Edit { cut: merged, patches, ..Edit::default() }
    }
}
