//! Instrumentation: each basic block begins with a store of 1 into its byte of an array.
//!
//! The store changes no register and no flag, so it may stand between any two instructions. A
//! branch to a block goes to its store. A table that names the first instruction of a block still
//! names that instruction. Functions that are not understood have no counters, and neither has code
//! that must not be touched. Whoever reads the counters takes such code for executed.
//!
//! These are not touched: memory that is freed after the start, code that may run without the
//! kernel's page tables (entries, and functions that the kernel's head calls before it has them),
//! code that tracing must not enter, and assembler.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::abi;
use crate::analysis::Analysis;
use crate::arch::{Architecture, Goal, Step, Transfer, Use};
use crate::atom::AtomId;
use crate::class::class;
use crate::edit::{Edit, Insertion};
use crate::entries;
use crate::graph::Graph;
use crate::object::{Section, SymbolPlace};
use crate::pass::Context;
use crate::reference;
use crate::routine::{Routine, Where};

/// A function, and what counts in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedFunction {
    /// Its name, which others may have too.
    pub name: String,
    /// Its bytes in the original object.
    pub bytes: u64,
    /// What is counted, in the order of the counters; empty if nothing is, so that it must be taken
    /// for executed.
    pub blocks: Vec<CountedBlock>,
}

/// What one counter counts: instructions that follow each other. With a single one for a function:
/// all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedBlock {
    /// Its start, in bytes from that of the original function.
    pub offset: u32,
    /// Its bytes in the original function.
    pub bytes: u32,
}

/// Sections whose functions are counted.
const COUNTED: [&[u8]; 9] = [
    b".text",
    b".text.unlikely",
    b".text.hot",
    b".ref.text",
    b".sched.text",
    b".spinlock.text",
    b".kprobes.text",
    b".irqentry.text",
    b".softirqentry.text",
];

/// Sections that are freed after the start, or run before it: they are not listed.
const INITIAL: [&[u8]; 6] = [b".init.", b".exit.", b".head.text", b".text.startup", b".text.exit", b".altinstr"];

/// Where the kernel starts, with other page tables.
const HEAD: &[u8] = b".head.text";

/// Places that tracing makes calls of: they stay the first instruction.
const TRACED: &[u8] = b"__mcount_loc";

/// Places that are either a jump or do nothing, and where an entry says where it goes.
const LABELS: (&[u8], u64) = (b"__jump_table", 4);

/// Replacements of instructions.
const REPLACEMENTS: &[u8] = b".altinstructions";

/// What the names of padding begin with.
const PADDING: &[u8] = b"__pfx_";

/// Bytes of the counters.
pub(crate) fn bytes(functions: &[CountedFunction]) -> u64 {
    functions.iter().map(|function| function.blocks.len() as u64).sum()
}

/// Puts counters into all functions that are understood and stay after the start.
pub(crate) fn count(context: &Context<'_, '_>, analysis: &Analysis) -> (HashMap<AtomId, Edit>, Vec<CountedFunction>) {
    let (graph, arch) = (context.graph, context.arch);
    let stays = |id: AtomId| analysis.is_left(id) && !analysis.moved.contains(&id);
    let routines = entries::routines(graph, analysis.removals.liveness(), &analysis.changes, arch);
    let early = early(graph);
    let mut edits = HashMap::new();
    let mut counted: Vec<CountedFunction> = Vec::new();
    let mut counters = 0;
    for (id, symbols) in functions(graph, &stays) {
        let section = &graph.object.sections[graph.atoms.atoms[id as usize].section as usize];
        let start = symbols.first().map_or(0, |(start, ..)| *start);
        let end = symbols.iter().map(|(start, bytes, _)| start.saturating_add(*bytes)).max().unwrap_or(start);
        let is_counted = COUNTED.contains(&&class(section)[..]) && !early.contains(&id);
        let made = routines.get(&id).filter(|_| is_counted).and_then(|routine| {
            let function = Function::new(graph, section, arch, routine)?;
            let points = function.points().and_then(|mut points| {
                // What lies behind the end of the symbol has no name to be listed under.
                points.retain(|point| point.leader < end);
                Some((function.edit(&points, counters)?, points))
            });
            points.or_else(|| {
                // Who enters it elsewhere would not be seen.
                let only = symbols.len() == 1 && routine.entries.is_empty();
                let entry = vec![function.entry().filter(|_| only)?];
                Some((function.edit(&entry, counters)?, entry))
            })
        });
        let Some((edit, points)) = made else {
            counted.extend(symbols.into_iter().map(|(_, bytes, name)| CountedFunction {
                name,
                bytes,
                blocks: Vec::new(),
            }));
            continue;
        };
        let ends = points.iter().skip(1).map(|point| point.leader).chain([end]);
        let block = |(point, end): (&Point, u64)| CountedBlock {
            offset: (point.leader - start) as u32,
            bytes: end.saturating_sub(point.leader) as u32,
        };
        let blocks: Vec<CountedBlock> = points.iter().zip(ends).map(block).collect();
        let name = symbols.into_iter().next().map_or_else(String::new, |(.., name)| name);
        counters += blocks.len() as u64;
        edits.insert(id, edit);
        counted.push(CountedFunction { name, bytes: end - start, blocks });
    }
    (edits, counted)
}

/// Start, bytes and name of each function of an atom, by start.
type Symbols = Vec<(u64, u64, String)>;

/// The functions to list, by atom; of several names for one place the first.
fn functions(graph: &Graph<'_, '_>, stays: &dyn Fn(AtomId) -> bool) -> BTreeMap<AtomId, Symbols> {
    let mut functions: BTreeMap<AtomId, Symbols> = BTreeMap::new();
    for (index, symbol) in graph.object.symbols.iter().enumerate() {
        let SymbolPlace::Section(section) = symbol.place else { continue };
        let section = &graph.object.sections[section as usize];
        let is_listed = section.is_code() && !INITIAL.iter().any(|initial| section.name.starts_with(initial));
        if symbol.kind != abi::STT_FUNC || symbol.size == 0 || symbol.name.starts_with(PADDING) || !is_listed {
            continue;
        }
        if let Some(id) = graph.atom_of_symbol(index as u32).filter(|id| stays(*id)) {
            let name = String::from_utf8_lossy(symbol.name).into_owned();
            functions.entry(id).or_default().push((symbol.value, symbol.size, name));
        }
    }
    for symbols in functions.values_mut() {
        symbols.sort_by_key(|(start, ..)| *start);
        symbols.dedup_by_key(|(start, ..)| *start);
    }
    functions
}

/// Functions that the kernel's head calls.
fn early(graph: &Graph<'_, '_>) -> HashSet<AtomId> {
    let heads = graph.object.sections.iter().zip(&graph.atoms.references).filter(|(section, _)| section.name == HEAD);
    let references = heads.flat_map(|(_, references)| references);
    references.filter(|reference| reference.how == Use::Branch).filter_map(|reference| reference.atom).collect()
}

/// The start of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    /// Its first instruction.
    leader: u64,
    /// The instruction before which it is counted.
    at: u64,
}

/// A function that is counted. Offsets count from the start of its section.
struct Function<'f, 'a> {
    section: &'f Section<'a>,
    arch: &'f dyn Architecture,
    routine: &'f Routine,
    /// Places of tracing.
    traced: HashSet<u64>,
    /// Places that are a jump or do nothing, with where the jump goes if that is inside.
    labels: HashMap<u64, Option<u64>>,
    /// Starts of replaced instructions.
    replaced: HashSet<u64>,
}

impl<'f, 'a> Function<'f, 'a> {
    /// `None` if it has distances that are not found.
    fn new(
        graph: &Graph<'_, '_>,
        section: &'f Section<'a>,
        arch: &'f dyn Architecture,
        routine: &'f Routine,
    ) -> Option<Self> {
        let mut this =
            Self { section, arch, routine, traced: HashSet::new(), labels: HashMap::new(), replaced: HashSet::new() };
        for entry in graph.dependents.of(routine.id) {
            let atom = &graph.atoms.atoms[*entry as usize];
            let Some(key) = graph.key(*entry).and_then(|(_, offset)| u64::try_from(offset).ok()) else { continue };
            match graph.object.sections[atom.section as usize].name {
                TRACED => drop(this.traced.insert(key)),
                REPLACEMENTS => drop(this.replaced.insert(key)),
                name if name == LABELS.0 => {
                    let field = atom.start + LABELS.1;
                    let target = graph.atoms.references_of(*entry).iter().find(|target| target.offset == field)?;
                    let inside = reference::exact(graph.object, target).filter(|_| target.atom == Some(routine.id));
                    this.labels.insert(key, inside.and_then(|(_, offset)| u64::try_from(offset).ok()));
                }
                _ => {}
            }
        }
        let ranges: Vec<_> = routine.steps.iter().map(|step| step.start..step.end).collect();
        let inside = routine.steps.first()?.start..routine.steps.last()?.end;
        let is_hidden = arch.decode(section, &ranges).locals.iter().any(|local| {
            let moves = !local.branch && inside.contains(&local.target);
            moves || (local.branch && local.bytes != 1 && local.bytes != 4)
        });
        let is_short = |step: &Step| {
            let (Transfer::Jump(goal) | Transfer::Branch(goal) | Transfer::Call(goal)) = step.transfer else {
                return false;
            };
            matches!(goal, Goal::Reference(_)) && step.field_bytes != 4
        };
        (!is_hidden && !routine.steps.iter().any(is_short)).then_some(this)
    }

    /// Whether an instruction is a part of such as may be replaced, and not their start.
    fn is_within(&self, step: &Step) -> bool {
        self.routine.altered.iter().any(|range| range.start < step.start && step.start < range.end)
    }

    /// Where the function itself is counted.
    fn entry(&self) -> Option<Point> {
        self.point(self.routine.at(self.routine.entry)?)
    }

    /// Where a block is counted that starts with this instruction.
    fn point(&self, leader: usize) -> Option<Point> {
        let steps = &self.routine.steps[leader..];
        let stays_first = |step: &Step| {
            let bytes = self.section.data.get(step.start as usize..step.end as usize);
            let index = self.routine.at(step.start);
            bytes == Some(self.arch.landing())
                || self.traced.contains(&step.start)
                || index.is_some_and(|index| self.routine.goals[index] == Where::Mark)
        };
        let at = steps.iter().find(|step| !stays_first(step)).filter(|step| !self.is_within(step))?;
        Some(Point { leader: steps[0].start, at: at.start })
    }

    /// All blocks; `None` if one starts where nothing can be inserted.
    fn points(&self) -> Option<Vec<Point>> {
        let routine = self.routine;
        let mut leads = vec![false; routine.steps.len()];
        let goals = routine.goals.iter().filter_map(|goal| match goal {
            Where::Inside(offset) => Some(offset),
            _ => None,
        });
        let targets = goals.chain(&routine.entries).chain(routine.tables.values().flatten());
        for target in targets.chain([&routine.entry]) {
            let index = routine.at(*target)?;
            if self.is_within(&routine.steps[index]) || *target < routine.entry {
                return None;
            }
            leads[index] = true;
        }
        for (index, pair) in routine.steps.windows(2).enumerate() {
            let [step, next] = pair else { continue };
            let goes_on =
                matches!(step.transfer, Transfer::Next | Transfer::Call(_) | Transfer::CallAny | Transfer::Foreign);
            // What is replaced may jump.
            let ends = !goes_on
                || self.labels.contains_key(&step.start)
                || routine.altered.iter().any(|range| range.end == step.end);
            leads[index + 1] |=
                ends && step.start >= routine.entry && routine.reached[index + 1] && !self.is_within(next);
        }
        let leaders = leads.iter().enumerate().filter(|(_, leads)| **leads);
        let points: Option<Vec<Point>> = leaders.map(|(index, _)| self.point(index)).collect();
        let mut points = points?;
        points.dedup_by_key(|point| point.at);
        Some(points)
    }

    /// Branches with a distance that no relocation names, with their targets.
    fn branches(&self) -> impl Iterator<Item = (&Step, Option<u64>)> {
        self.routine.steps.iter().filter_map(|step| match step.transfer {
            Transfer::Jump(Goal::Inside(target))
            | Transfer::Branch(Goal::Inside(target))
            | Transfer::Call(Goal::Inside(target)) => Some((step, Some(target))),
            Transfer::Next if step.end - step.start == 2 => Some((step, *self.labels.get(&step.start)?)),
            _ => None,
        })
    }

    fn bytes(&self, step: &Step) -> &[u8] {
        self.section.data.get(step.start as usize..step.end as usize).unwrap_or_default()
    }

    /// Whether a branch is a short one, or stands for one.
    fn is_short(&self, step: &Step) -> bool {
        step.field_bytes == 1 || step.transfer == Transfer::Next
    }

    /// The edit that counts at `points`; `None` if a branch would go too far.
    fn edit(&self, points: &[Point], first: u64) -> Option<Edit> {
        let mut wide: BTreeMap<u64, i32> = BTreeMap::new();
        let mut edit = self.with(points, first, &wide)?;
        // Each round widens a branch.
        loop {
            let before = wide.len();
            for (step, target) in self.branches() {
                let distance = target.map(|target| edit.moved(target) as i64 - edit.moved(step.end) as i64);
                if self.is_short(step) && distance.is_none_or(|distance| i8::try_from(distance).is_err()) {
                    wide.insert(step.start, 0);
                }
            }
            if wide.len() == before {
                break;
            }
            edit = self.with(points, first, &wide)?;
        }
        let mut distances = Vec::new();
        for (step, target) in self.branches() {
            let Some(target) = target else { continue };
            let distance = i32::try_from(edit.moved(target) as i64 - edit.moved(step.end) as i64).ok()?;
            match wide.get_mut(&step.start) {
                Some(wide) => *wide = distance,
                // What stands for a jump says no distance.
                None if step.transfer == Transfer::Next => {}
                None => {
                    let field = distance.to_le_bytes().into_iter().take(usize::from(step.field_bytes));
                    distances.extend((step.field..).zip(field));
                }
            }
        }
        let mut edit = self.with(points, first, &wide)?;
        edit.patches.extend(distances);
        Some(edit)
    }

    /// The edit with these branches widened, of short ones without their distances.
    fn with(&self, points: &[Point], first: u64, wide: &BTreeMap<u64, i32>) -> Option<Edit> {
        let mut edit = Edit::default();
        for (point, counter) in points.iter().zip(first..) {
            let bytes = self.arch.counting().0.to_vec();
            edit.inserted.push(Insertion { at: point.at, bytes, counter: Some(counter) });
        }
        for (start, distance) in wide {
            let step = &self.routine.steps[self.routine.at(*start)?];
            if self.replaced.iter().any(|key| key == start) || self.is_within(step) {
                return None;
            }
            let bytes = self.arch.widen(self.bytes(step), *distance)?;
            // The first and the last byte stay in place: nothing comes between this instruction and
            // its neighbours.
            let [head, middle @ .., tail] = &bytes[..] else { return None };
            edit.patches.extend([(step.start, *head), (step.end - 1, *tail)]);
            edit.inserted.push(Insertion { at: step.start + 1, bytes: middle.to_vec(), counter: None });
        }
        edit.inserted.sort_unstable_by_key(|insertion| insertion.at);
        Some(edit)
    }
}
