//! Cuts what is never executed out of functions: blocks, branches that are never taken, and bytes of branches that became
//! shorter. What refers into such a function is moved by the writer.
//!
//! Instructions that the kernel rewrites while it runs keep their form; only distances in them change.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::arch::{Architecture, Goal, Step, Transfer};
use crate::atom::AtomId;
use crate::graph::{Changes, Graph};
use crate::object::Section;
use crate::pass::constants::Found;
use crate::pass::entries::{is_unwinder, keys};
use crate::routine::Routine;

/// How the bytes of an atom change. Offsets count from the start of its section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edit {
    /// Bytes that go, by start, apart from each other.
    pub cut: Vec<Range<u64>>,
    /// Bytes that are others, in their order.
    pub patches: Vec<(u64, u8)>,
    /// Bytes that stay in place and trap.
    pub filled: Vec<Range<u64>>,
    /// Bytes that are new, by place.
    pub inserted: Vec<Insertion>,
}

/// Bytes that are new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Insertion {
    /// What was at this offset lies behind them.
    pub at: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The number of the counter that they write, if they do that.
    pub counter: Option<u64>,
}

impl Edit {
    /// Where control comes to that came to an offset: before what is inserted there.
    pub fn moved(&self, offset: u64) -> u64 {
        self.shifted(offset, offset)
    }

    /// Where the byte at an offset lies: behind what is inserted there.
    pub fn moved_byte(&self, offset: u64) -> u64 {
        self.shifted(offset, offset.saturating_add(1))
    }

    /// An offset without the bytes that go before it, with those that are inserted before `limit`.
    fn shifted(&self, offset: u64, limit: u64) -> u64 {
        let cut = self.cut.iter().take_while(|range| range.start < offset);
        let cut: u64 = cut.map(|range| range.end.min(offset) - range.start).sum();
        let inserted = self.inserted.iter().take_while(|insertion| insertion.at < limit);
        offset - cut + inserted.map(|insertion| insertion.bytes.len() as u64).sum::<u64>()
    }

    /// How many of `bytes` there are afterwards.
    pub fn length(&self, bytes: u64) -> u64 {
        bytes - self.bytes() + self.inserted.iter().map(|insertion| insertion.bytes.len() as u64).sum::<u64>()
    }

    /// The bytes of an atom that starts at `start`, as they become.
    pub fn applied(&self, arch: &dyn Architecture, bytes: &[u8], start: u64) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for (at, byte) in &self.patches {
            if let Some(patched) = bytes.get_mut((at - start) as usize) {
                *patched = *byte;
            }
        }
        for range in &self.filled {
            if let Some(filled) = bytes.get_mut((range.start - start) as usize..(range.end - start) as usize) {
                arch.fill_trap(filled);
            }
        }
        let mut cuts = self.cut.iter().peekable();
        let mut insertions = self.inserted.iter().peekable();
        let mut applied = Vec::with_capacity(self.length(bytes.len() as u64) as usize);
        for (at, byte) in (start..).zip(bytes) {
            while let Some(insertion) = insertions.next_if(|insertion| insertion.at <= at) {
                applied.extend_from_slice(&insertion.bytes);
            }
            while cuts.next_if(|cut| cut.end <= at).is_some() {}
            if cuts.peek().is_none_or(|cut| at < cut.start) {
                applied.push(byte);
            }
        }
        applied
    }

    /// Whether a byte goes.
    pub fn is_cut(&self, offset: u64) -> bool {
        self.cut.iter().any(|range| range.contains(&offset))
    }

    /// How many bytes go.
    pub fn bytes(&self) -> u64 {
        self.cut.iter().map(|range| range.end - range.start).sum()
    }
}

/// Rounds in which branches become shorter; each only after another one did.
const ROUNDS_MAX: usize = 16;

/// Dead code stays where it is, and traps.
pub(crate) fn fill(
    graph: &Graph<'_, '_>,
    found: &Found,
    arch: &dyn Architecture,
    changes: &Changes,
) -> HashMap<AtomId, Edit> {
    let mut edits = HashMap::new();
    for (id, decisions) in &found.decisions {
        let dead = dead(graph, changes, *id);
        let Some(routine) = found.routines.get(id).filter(|_| !dead.is_empty()) else { continue };
        let mut edit = Edit::default();
        for (step, lives) in routine.steps.iter().zip(&decisions.lives) {
            if !dead.iter().any(|range| range.contains(&step.start)) {
                continue;
            }
            match lives {
                // Each instruction for itself: control may come to any.
                false => edit.filled.push(step.start..step.end),
                true => edit.patches.extend((step.start..step.end).map(|at| (at, arch.nothing()))),
            }
        }
        edits.insert(*id, edit);
    }
    edits
}

/// The dead ranges of an atom.
fn dead(graph: &Graph<'_, '_>, changes: &Changes, id: AtomId) -> Vec<Range<u64>> {
    let atom = &graph.atoms.atoms[id as usize];
    let ranges = changes.dead.get(atom.section as usize).into_iter().flatten();
    ranges.filter(|range| (atom.start..atom.end).contains(&range.start)).cloned().collect()
}

/// Dead code is cut out. Entries of the unwinder for it are dropped in `changes`.
pub(crate) fn cut(
    graph: &Graph<'_, '_>,
    found: &Found,
    arch: &dyn Architecture,
    changes: &mut Changes,
) -> HashMap<AtomId, Edit> {
    let mut edits = HashMap::new();
    for (id, decisions) in &found.decisions {
        let Some(routine) = found.routines.get(id) else { continue };
        let section = &graph.object.sections[graph.atoms.atoms[*id as usize].section as usize];
        let function = Function {
            section,
            arch,
            routine,
            ways: &decisions.ways,
            dead: dead(graph, changes, *id),
            fixed: keys(graph, *id),
        };
        if function.dead.is_empty() && decisions.ways.iter().all(|way| !matches!(way, 1 | 2)) {
            continue;
        }
        let edit = function.edit();
        if !edit.cut.is_empty() || !edit.patches.is_empty() {
            unwind(graph, *id, &edit, changes);
            edits.insert(*id, edit);
        }
    }
    edits
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
