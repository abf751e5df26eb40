//! Frozen code: functions that never ran are placed in pages of their own, which the kernel keeps
//! compressed. Functions that ran are placed close together.
//!
//! This is the "frozen code" of Chanet et al., TECS 6(4), 2007. Their regions have stubs at their
//! entries. Here the kernel (`frozen-text/mm/frozen_text.c`) restores a page at its own address
//! when it faults. So any function may be frozen, except those that run before the fault handler
//! has done its work, and those that run where no fault may be taken.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use crate::abi;
use crate::analysis::Analysis;
use crate::atom::AtomId;
use crate::class::class;
use crate::edit::Edit;
use crate::graph::Graph;
use crate::object::{Section, SymbolPlace};
use crate::options::Freeze;
use crate::pass::Context;
use crate::report::FreezeReport;
use crate::schema::{Role, Schema};

/// The section of frozen functions, and that of functions that ran.
pub(crate) const FROZEN: &[u8] = b".text..frozen";
pub(crate) const HOT: &[u8] = b".text.hot";
/// The section of their strings.
const FROZEN_DATA: &[u8] = b".text..frozen_data";

/// Functions that are placed: the class that each goes to, in the order in which they are written.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    /// Section and atom, in order.
    pub order: Vec<(&'static [u8], AtomId)>,
    /// All of them.
    pub placed: HashSet<AtomId>,
    /// Strings for which an equal one stands.
    pub equal: HashMap<AtomId, AtomId>,
}

/// Functions that thaw pages: what they reach stays. Their names are those of
/// `frozen-text/mm/frozen_text.h`.
const THAWING: [&str; 4] = ["frozen_lock", "frozen_unlock", "frozen_thaw", "frozen_text_decode"];

/// Takes the lock under which pages come and go.
const LOCK: &str = "frozen_lock";

/// How far what functions call that send interrupts stays: behind that is what reports faults of
/// hypervisors.
const SENDING_STEPS: usize = 3;

/// What is called in these is not followed: it ends the kernel, or follows a thaw.
const NOT_FOLLOWED: [&str; 8] = [
    "panic",
    "_printk",
    "__warn_printk",
    "__stack_chk_fail",
    "dump_stack",
    "do_trace_write_msr",
    "do_trace_read_msr",
    "__warn",
];

/// Classes whose functions may be frozen: not those that have a section because of where they run.
const CLASSES: [&[u8]; 5] = [b".text", b".text.unlikely", b".text.hot", b".text.unknown", FROZEN];

/// Decides for each function that is written and stays after the start. A function for which an
/// equal one stands runs as that one.
pub(crate) fn place(context: &Context<'_, '_>, freeze: &Freeze, analysis: &Analysis) -> (Placement, FreezeReport) {
    let graph = context.graph;
    let mut names = Names::of(graph);
    let pinned = pinned(graph, context.schema, &names, &analysis.folded);
    // What ran by the name of the one runs as the other now.
    for (id, equal) in &analysis.folded {
        let more: Vec<String> = names.of_atom(*id).cloned().collect();
        names.by_atom.entry(*equal).or_default().extend(more);
    }
    let known = |name: &&String| names.by_name.contains_key(name.as_bytes());
    let unknown = freeze.service.keys().chain(freeze.start.keys()).filter(|name| !known(name)).count() as u64;
    let stays = |id: AtomId| (analysis.is_left(id) || context.options.trap) && !analysis.moved.contains(&id);
    let mut sorting = Sorting {
        names: &names,
        pinned: &pinned,
        freeze,
        hot: Vec::new(),
        frozen: Vec::new(),
        report: FreezeReport { unknown, ..FreezeReport::default() },
    };
    for (index, section) in graph.object.sections.iter().enumerate() {
        let is_resident =
            section.is_code() && !section.name.starts_with(b".init") && !section.name.starts_with(b".exit");
        let role = graph.atoms.roles[index];
        if !is_resident || matches!(role, Role::Discarded) || section.name.starts_with(b".altinstr") {
            continue;
        }
        let kind = SectionKind::of(section, role);
        for id in graph.atoms.of_section[index].clone().filter(|id| stays(*id)) {
            let atom = &graph.atoms.atoms[id as usize];
            let cut = analysis.edits.get(&id).map_or(0, Edit::bytes);
            sorting.add(id, &kind, atom.end - atom.start - cut);
        }
    }
    let Sorting { mut hot, mut frozen, mut report, .. } = sorting;
    if !freeze.for_image {
        hot.sort_unstable();
        frozen.sort_unstable();
    }
    let order = hot.iter().map(|(_, id)| (HOT, *id)).chain(frozen.iter().map(|(_, id)| (FROZEN, *id))).collect();
    let mut placement = Placement { order, placed: HashSet::new(), equal: HashMap::new() };
    placement.placed = placement.order.iter().map(|(_, id)| *id).collect();
    let mut first: HashMap<&[u8], AtomId> = HashMap::new();
    for id in strings(context, analysis, &frozen) {
        placement.placed.insert(id);
        let text = text(graph, id);
        match first.get(text) {
            Some(same) => drop(placement.equal.insert(id, *same)),
            None => {
                first.insert(text, id);
                report.strings += text.len() as u64;
                placement.order.push((FROZEN_DATA, id));
            }
        }
    }
    (placement, report)
}

/// What a section says of the functions in it.
struct SectionKind {
    /// They are to be frozen.
    is_frozen: bool,
    /// They are not to be frozen.
    is_hot: bool,
    /// Assembler, whose parts may hang together.
    is_plain: bool,
    /// Nothing speaks against it.
    may_freeze: bool,
}

impl SectionKind {
    fn of(section: &Section<'_>, role: Role) -> Self {
        let class = class(section);
        let is_plain = section.name == b".text";
        Self {
            is_frozen: class == FROZEN,
            is_hot: class == HOT,
            is_plain,
            may_freeze: CLASSES.contains(&class.as_slice()) && !is_plain && role.is_parts(),
        }
    }
}

/// Functions that are placed so far, with their ranks.
struct Sorting<'s> {
    names: &'s Names,
    pinned: &'s HashSet<AtomId>,
    freeze: &'s Freeze,
    hot: Vec<(u32, AtomId)>,
    frozen: Vec<(u32, AtomId)>,
    report: FreezeReport,
}

impl Sorting<'_> {
    /// Adds a function of so many bytes.
    fn add(&mut self, id: AtomId, section: &SectionKind, size: u64) {
        let report = &mut self.report;
        report.text += size;
        let rank =
            |ranks: &BTreeMap<String, u32>| self.names.of_atom(id).filter_map(|name| ranks.get(name)).min().copied();
        let (service, start) = (rank(&self.freeze.service), rank(&self.freeze.start));
        match (service, start) {
            (Some(_), _) => report.ran_in_service += size,
            (None, Some(_)) => report.ran_in_start += size,
            (None, None) => report.never_ran += size,
        }
        let kept = match () {
            () if section.is_frozen => None,
            () if self.pinned.contains(&id) => Some("needed to thaw, or where no fault may be"),
            () if section.is_plain => Some("assembler without sections"),
            () if section.is_hot => Some("its section says that it is hot"),
            () if !section.may_freeze => Some("its section says where it runs"),
            () => None,
        };
        if let Some(why) = kept
            && service.is_none()
            && start.is_none()
        {
            *report.kept.entry(why).or_default() += size;
        }
        if kept.is_none() && (service.is_none() || section.is_frozen) {
            report.frozen += size;
            report.functions += 1;
            report.never_ran_frozen += if start.is_none() && service.is_none() { size } else { 0 };
            self.frozen.push((start.unwrap_or(u32::MAX), id));
        } else if section.may_freeze {
            self.hot.push((service.or(start).unwrap_or(u32::MAX), id));
        }
    }
}

/// The bytes of an atom.
fn text<'a>(graph: &Graph<'_, 'a>, id: AtomId) -> &'a [u8] {
    let atom = &graph.atoms.atoms[id as usize];
    let data = graph.object.sections[atom.section as usize].data;
    data.get(atom.start as usize..atom.end as usize).unwrap_or_default()
}

/// Strings that only frozen functions use, and initial ones, in the order of the functions. Nothing
/// but code reads them then, and never by their physical addresses.
fn strings(context: &Context<'_, '_>, analysis: &Analysis, frozen: &[(u32, AtomId)]) -> Vec<AtomId> {
    let (graph, moved) = (context.graph, &analysis.moved);
    let is_left = |id: AtomId| analysis.is_left(id) || context.options.trap;
    let section_of = |id: AtomId| &graph.object.sections[graph.atoms.atoms[id as usize].section as usize];
    let is_string = |id: &AtomId| {
        let section = section_of(*id);
        // One byte a character: others are merged apart.
        section.is_strings() && section.entry_size == 1 && section.name.starts_with(b".rodata") && is_left(*id)
    };
    let cold: HashSet<AtomId> = frozen.iter().map(|(_, id)| *id).collect();
    let is_initial = |id: AtomId| {
        let section = section_of(id);
        moved.contains(&id) || section.is_code() && section.name.starts_with(b".init")
    };
    let mut kept: HashSet<AtomId> = HashSet::new();
    for id in (0..graph.atoms.atoms.len() as AtomId).filter(|id| is_left(*id)) {
        if !cold.contains(&id) && !is_initial(id) {
            kept.extend(graph.atoms.references_of(id).iter().filter_map(|reference| reference.atom).filter(is_string));
        }
    }
    let mut found = Vec::new();
    let mut seen: HashSet<AtomId> = HashSet::new();
    for (_, id) in frozen {
        let used = graph.atoms.references_of(*id).iter().filter_map(|reference| reference.atom).filter(is_string);
        found.extend(used.filter(|id| !kept.contains(id) && !moved.contains(id) && seen.insert(*id)));
    }
    found
}

/// Names of functions.
struct Names {
    by_name: HashMap<Vec<u8>, Vec<AtomId>>,
    by_atom: HashMap<AtomId, Vec<String>>,
    /// How many functions with a size each atom has.
    functions: HashMap<AtomId, usize>,
}

impl Names {
    fn of(graph: &Graph<'_, '_>) -> Self {
        let mut names = Self { by_name: HashMap::new(), by_atom: HashMap::new(), functions: HashMap::new() };
        for (index, symbol) in graph.object.symbols.iter().enumerate() {
            let SymbolPlace::Section(section) = symbol.place else { continue };
            let is_function = matches!(symbol.kind, abi::STT_FUNC | abi::STT_NOTYPE);
            if !is_function || !graph.object.sections[section as usize].is_code() {
                continue;
            }
            let Some(id) = graph.atom_of_symbol(index as u32) else { continue };
            if symbol.kind == abi::STT_FUNC && symbol.size > 0 {
                *names.functions.entry(id).or_default() += 1;
            }
            names.by_name.entry(symbol.name.to_vec()).or_default().push(id);
            names.by_atom.entry(id).or_default().push(String::from_utf8_lossy(symbol.name).into_owned());
        }
        names
    }

    fn of_atom(&self, id: AtomId) -> impl Iterator<Item = &String> {
        self.by_atom.get(&id).into_iter().flatten()
    }

    /// Assembler that cannot be divided refers to more than the function of it that is called.
    /// Those that are called while a page is thawed copy, compare and clean caches, and call
    /// nothing.
    fn is_joined(&self, graph: &Graph<'_, '_>, id: AtomId) -> bool {
        let section = &graph.object.sections[graph.atoms.atoms[id as usize].section as usize];
        section.name == b".text" && self.functions.get(&id).is_some_and(|functions| *functions > 1)
    }

    fn all(&self, name: &str) -> impl Iterator<Item = AtomId> {
        self.by_name.get(name.as_bytes()).into_iter().flatten().copied()
    }
}

/// Functions that must be there before a fault can be handled.
fn pinned(graph: &Graph<'_, '_>, schema: &Schema, names: &Names, folded: &HashMap<AtomId, AtomId>) -> HashSet<AtomId> {
    let stops: HashSet<AtomId> = NOT_FOLLOWED.iter().flat_map(|name| names.all(name)).collect();
    let sends =
        |name: &[u8]| schema.sending.iter().any(|part| name.windows(part.len()).any(|found| found == part.as_bytes()));
    let sending = names.by_name.iter().filter(|(name, _)| sends(name)).flat_map(|(_, ids)| ids.iter().copied());
    let mut pinned: HashSet<AtomId> = HashSet::new();
    let mut left: VecDeque<(AtomId, usize)> = sending.map(|id| (id, SENDING_STEPS)).collect();
    left.extend(THAWING.iter().flat_map(|name| names.all(name)).map(|id| (id, usize::MAX)));
    let mut steps_of: HashMap<AtomId, usize> = HashMap::new();
    while let Some((id, steps)) = left.pop_front() {
        // Again only with more steps to go.
        if steps_of.get(&id).is_some_and(|before| *before >= steps) {
            continue;
        }
        steps_of.insert(id, steps);
        pinned.insert(id);
        if steps > 0 && !names.is_joined(graph, id) {
            let called = callees(graph, id).into_iter().filter(|id| !stops.contains(id));
            left.extend(called.map(|id| (id, if steps == usize::MAX { steps } else { steps - 1 })));
        }
    }
    for id in schema.on_the_way.iter().flat_map(|name| names.all(name)) {
        pinned.insert(id);
        pinned.extend(callees(graph, id).into_iter().filter(|id| !stops.contains(id)));
    }
    // Who takes the lock must not fault while it is held.
    let lock: HashSet<AtomId> = names.all(LOCK).collect();
    let takes = |id: &AtomId| {
        graph.atoms.references_of(*id).iter().any(|reference| reference.atom.is_some_and(|id| lock.contains(&id)))
    };
    pinned.extend((0..graph.atoms.atoms.len() as AtomId).filter(takes));
    let equal: Vec<AtomId> = pinned.iter().filter_map(|id| folded.get(id)).copied().collect();
    pinned.extend(equal);
    pinned
}

/// Code that an atom refers to, itself or where its alternatives do.
fn callees(graph: &Graph<'_, '_>, id: AtomId) -> Vec<AtomId> {
    let section_of = |id: AtomId| &graph.object.sections[graph.atoms.atoms[id as usize].section as usize];
    let mut found = Vec::new();
    for from in [id].iter().chain(graph.dependents.of(id)) {
        found.extend(graph.atoms.references_of(*from).iter().filter_map(|reference| reference.atom));
    }
    found.retain(|target| *target != id && section_of(*target).is_code());
    found
}
