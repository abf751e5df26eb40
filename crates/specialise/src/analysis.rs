//! The order of things: read, divide, walk after each pass, write.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::arch::{self, Architecture};
use crate::atom::{self, AtomId, Atoms, Padding};
use crate::graph::{Changes, Graph, Liveness, Reason};
use crate::object::{Object, Place};
use crate::pass::blocks::{self, Edit};
use crate::pass::entries::{self, Routines};
use crate::pass::freeze::{self, FreezeReport, Placement};
use crate::pass::instrument::{self, CountedFunction};
use crate::pass::{constants, drivers, duplicates, initialisation, names, parameters, quirks, syscalls, variables};
use crate::report::{PassReport, Removal, Report, Sizes, TableReport};
use crate::schema::{Role, Schema};
use crate::writer::{self, Plan};
use crate::{Options, SpecialiseError, abi};

/// Removals that the report names.
const LARGEST_MAX: usize = 100;

/// Functions below which an object says nothing about how it was compiled.
const FUNCTIONS_MIN: usize = 64;

/// What [`specialise`] made.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The reduced object.
    pub object: Vec<u8>,
    /// What was removed.
    pub report: Report,
    /// What counts, in the order of the counters; empty if nothing is to be counted.
    pub counters: Vec<CountedFunction>,
}

/// Reduces the object in `bytes` to what the device of `options` can reach.
///
/// # Errors
/// The object is refused: damaged, stripped, built without function sections, of an unknown release or processor, or with
/// relocations that are not known; or the options name what it does not have.
pub fn specialise(bytes: &[u8], options: &Options) -> Result<Outcome, SpecialiseError> {
    let input = Input::read(bytes, options)?;
    let graph = Graph::new(&input.object, &input.atoms, &options.script);
    let analysis = Analysis::run(&input, &graph, options)?;
    let is_live = |id: AtomId| analysis.is_left(id);
    let object = writer::write(
        &input.object,
        &input.atoms,
        input.arch,
        &Plan {
            is_live: &is_live,
            changes: &analysis.changes,
            folded: &analysis.folded,
            edits: &analysis.edits,
            initial: &analysis.initial,
            moved: &analysis.moved,
            nameless: &analysis.nameless,
            placement: &analysis.placement,
            trap: options.trap,
            counters: instrument::bytes(&analysis.counters),
        },
    )?;
    let report = analysis.report(&input, &graph, options);
    Ok(Outcome { object, report, counters: analysis.counters })
}

/// The chain that keeps `symbol` alive, one step a line, the symbol first; says so if it is removed.
///
/// # Errors
/// As [`specialise`]; or there is no such symbol.
pub fn why(bytes: &[u8], options: &Options, symbol: &str) -> Result<Vec<String>, SpecialiseError> {
    let input = Input::read(bytes, options)?;
    let graph = Graph::new(&input.object, &input.atoms, &options.script);
    let analysis = Analysis::run(&input, &graph, options)?;
    let is_it = |index: &u32| {
        let found = &input.object.symbols[*index as usize];
        found.name == symbol.as_bytes() && matches!(found.place, Place::Section(_))
    };
    // Of several with the name, one that lives.
    let mut ids: Vec<AtomId> =
        (0..input.object.symbols.len() as u32).filter(is_it).filter_map(|index| graph.atom_of_symbol(index)).collect();
    ids.sort_by_key(|id| !analysis.is_left(*id));
    let not_found = || SpecialiseError::NotFound { what: "symbol", name: symbol.to_string() };
    let id = *ids.first().ok_or_else(not_found)?;
    let names = graph.names();
    let shown = |id: AtomId| shown(&input, &names, id);
    if let Some(equal) = analysis.folded.get(&id) {
        return Ok(vec![format!("{symbol}: removed, {} is the same function", shown(*equal))]);
    }
    let Some(liveness) = &analysis.liveness else { return Ok(vec![format!("{symbol}: no pass ran")]) };
    let step = |(id, reason): (AtomId, Reason)| match reason {
        Reason::Dead => format!("{}: removed, nothing that lives refers to it", shown(id)),
        Reason::Root(reason) => format!("{}: root, {reason}", shown(id)),
        Reason::UsedBy(from) => format!("{} <- used by {}", shown(id), shown(from)),
        Reason::SpeaksOf(key) => format!("{} <- entry of a table for {}", shown(id), shown(key)),
    };
    Ok(liveness.chain(id).into_iter().map(step).collect())
}

/// An object that was read and divided.
struct Input<'a> {
    object: Object<'a>,
    atoms: Atoms,
    arch: &'static dyn Architecture,
    schema: &'static Schema,
}

impl<'a> Input<'a> {
    fn read(bytes: &'a [u8], options: &Options) -> Result<Self, SpecialiseError> {
        let object = Object::read(bytes)?;
        let arch = arch::of_machine(object.machine)?;
        let schema = Schema::of(&options.release, object.machine)?;
        if options.instrument && !arch.follows_control() {
            return Err(SpecialiseError::Uncounted);
        }
        check_function_sections(&object)?;
        let padding = if options.drops_padding() { Padding::Apart } else { Padding::OfFunction };
        let mut atoms = atom::divide(&object, schema, arch, &options.script, padding)?;
        if !options.passes.unreachable {
            atoms.keep_filling(&object);
        }
        Ok(Self { object, atoms, arch, schema })
    }
}

/// One section for most functions; assembler and attributes put some together.
fn check_function_sections(object: &Object<'_>) -> Result<(), SpecialiseError> {
    let of_code =
        |place: Place| matches!(place, Place::Section(section) if object.sections[section as usize].is_code());
    let is_function = |symbol: &&crate::object::Symbol<'_>| symbol.kind == abi::STT_FUNC && symbol.size > 0;
    let functions = object.symbols.iter().filter(is_function).filter(|symbol| of_code(symbol.place)).count();
    let sections = object.sections.iter().filter(|section| section.is_code() && section.size > 0).count();
    if functions >= FUNCTIONS_MIN && sections < functions / 4 {
        return Err(SpecialiseError::NoFunctionSections { functions, sections });
    }
    Ok(())
}

/// What the passes decided.
struct Analysis {
    changes: Changes,
    /// `None` if nothing is to be removed.
    liveness: Option<Liveness>,
    folded: HashMap<AtomId, AtomId>,
    /// Functions that are understood.
    routines: Option<Routines>,
    /// Functions whose bytes change.
    edits: HashMap<AtomId, Edit>,
    /// What counts, by their edits.
    counters: Vec<CountedFunction>,
    /// Variables that begin with another number.
    initial: HashMap<AtomId, u64>,
    /// Entries of side tables that spoke of folded functions.
    orphaned: HashSet<AtomId>,
    moved: HashSet<AtomId>,
    /// Symbols that are not written.
    nameless: HashSet<u32>,
    /// Where functions go that ran, and that did not.
    placement: Placement,
    frozen: Option<FreezeReport>,
    /// The pass that removed each atom, by its number in `passes`; [`KEPT`] for those that are left.
    removed_by: Vec<u8>,
    passes: Vec<(&'static str, bool)>,
    syscalls: syscalls::Removed,
    parameters: Vec<String>,
    quirks: usize,
    drivers: Vec<String>,
    branches: usize,
    warnings: Vec<String>,
}

/// The list of calls for tracking them.
const CALL_SITES: &[u8] = b".call_sites";

/// In `removed_by`: not removed.
const KEPT: u8 = u8::MAX;

impl Analysis {
    fn run(input: &Input<'_>, graph: &Graph<'_, '_>, options: &Options) -> Result<Self, SpecialiseError> {
        let passes = options.passes;
        let mut this = Self {
            changes: Changes::default(),
            liveness: None,
            folded: HashMap::new(),
            routines: None,
            edits: HashMap::new(),
            counters: Vec::new(),
            initial: HashMap::new(),
            branches: 0,
            orphaned: HashSet::new(),
            moved: HashSet::new(),
            nameless: HashSet::new(),
            placement: Placement::default(),
            frozen: None,
            removed_by: vec![KEPT; input.atoms.atoms.len()],
            passes: Vec::new(),
            syscalls: syscalls::Removed::default(),
            parameters: Vec::new(),
            quirks: 0,
            drivers: Vec::new(),
            warnings: Vec::new(),
        };
        this.extra_roots(input, options)?;
        this.walk(graph, "unreachable", passes.unreachable);
        let calls = options.syscalls.as_ref().filter(|_| passes.unreachable && passes.syscalls);
        if let Some(kept) = calls {
            this.syscalls = syscalls::retarget(graph, input.schema, kept, &mut this.changes)?;
        }
        this.walk(graph, "syscalls", calls.is_some());
        let line = options.command_line.as_ref().filter(|_| passes.unreachable && passes.parameters);
        if let Some(line) = line {
            this.parameters = parameters::drop_unused(graph, line, &mut this.changes).into_iter().collect();
        }
        this.walk(graph, "parameters", line.is_some());
        let devices = options.devices.as_ref().filter(|_| passes.unreachable && passes.quirks);
        if let Some(devices) = devices {
            this.quirks = quirks::drop_absent(graph, devices, &mut this.changes);
        }
        this.walk(graph, "quirks", devices.is_some());
        let devices = options.devices.as_ref().filter(|_| passes.unreachable && passes.drivers);
        if let Some(devices) = devices {
            this.drivers = drivers::drop_absent(graph, input.schema.driver_table_at, devices, &mut this.changes);
        }
        this.walk(graph, "drivers", devices.is_some());
        this.decide(input, graph, options)?;
        this.drop_padding(input, graph, options);
        let number = this.passes.len() as u8;
        this.passes.push(("duplicates", passes.unreachable && passes.duplicates));
        this.passes.push(("initialisation", passes.unreachable && passes.initialisation));
        if let Some(liveness) = &this.liveness {
            if passes.duplicates {
                this.folded = duplicates::find(
                    graph,
                    liveness,
                    &this.changes,
                    input.arch,
                    &|id| this.edits.contains_key(&id),
                    passes.duplicates_taken && options.padding_is_spare,
                );
                for id in this.folded.keys() {
                    this.removed_by[*id as usize] = number;
                    orphan(graph, *id, &mut this.orphaned);
                }
                for id in &this.orphaned {
                    this.removed_by[*id as usize] = number;
                }
            }
            if passes.initialisation {
                let routines = this
                    .routines
                    .take()
                    .unwrap_or_else(|| entries::routines(graph, liveness, &this.changes, input.arch));
                let tables = entries::owned(graph, liveness, &this.changes, &routines);
                this.moved =
                    initialisation::find(graph, liveness, &this.changes, input.arch, &tables, input.schema.call_tables);
                this.moved.retain(|id| !this.folded.contains_key(id));
                // A function that stands for folded ones is called by their callers too.
                let shared: HashSet<AtomId> = this.folded.values().copied().collect();
                this.moved.retain(|id| !shared.contains(id));
                let readers = input.schema.readers;
                let messages =
                    initialisation::messages(graph, liveness, &this.changes, input.arch, readers, &this.moved);
                let tables = initialisation::tables(graph, liveness, &this.changes, &tables, &this.moved);
                this.moved.extend(messages);
                this.moved.extend(tables);
            }
        }
        this.passes.push(("names", options.drops_names()));
        if options.drops_names() {
            this.nameless = names::initial(graph, &|id| this.is_left(id), &this.moved);
        }
        if let Some(freeze) = &options.freeze {
            let cut = |id| this.edits.get(&id).map_or(0, Edit::bytes);
            let bytes =
                |id: AtomId| input.atoms.atoms[id as usize].end - input.atoms.atoms[id as usize].start - cut(id);
            let is_written = |id: AtomId| this.is_left(id) || options.trap;
            let (placement, report) =
                freeze::place(graph, input.schema, freeze, &this.folded, &is_written, &this.moved, &bytes);
            this.folded.extend(&placement.equal);
            this.placement = placement;
            this.frozen = Some(report);
        }
        if options.instrument {
            let stays = |id: AtomId| this.is_left(id) && !this.moved.contains(&id);
            (this.edits, this.counters) =
                instrument::count(graph, this.liveness.as_ref(), &this.changes, input.arch, &stays);
        }
        Ok(this)
    }

    fn extra_roots(&mut self, input: &Input<'_>, options: &Options) -> Result<(), SpecialiseError> {
        let mut by_name: HashMap<&[u8], u32> = HashMap::new();
        for (index, symbol) in input.object.symbols.iter().enumerate() {
            if matches!(symbol.place, Place::Section(_)) {
                by_name.insert(symbol.name, index as u32);
            }
        }
        for name in &options.roots {
            let not_found = || SpecialiseError::NotFound { what: "symbol", name: name.clone() };
            let index = by_name.get(name.as_bytes()).ok_or_else(not_found)?;
            self.changes.roots.push((*index, "the policy keeps it"));
        }
        if options.modules {
            self.warnings.push("modules are enabled: all that is exported to them stays".to_string());
            let exports = input.object.sections.iter().filter(|section| section.name.starts_with(b".export_symbol"));
            // They are thrown away by the link, so that they have no atoms and no relocations of ours.
            for relocation in exports.flat_map(|section| &section.relocations) {
                self.changes.roots.push((relocation.symbol, "it is exported to modules"));
            }
        }
        Ok(())
    }

    /// Walks the graph again; what died since the walk before is the pass's.
    fn walk(&mut self, graph: &Graph<'_, '_>, name: &'static str, on: bool) {
        let number = self.passes.len() as u8;
        self.passes.push((name, on));
        if !on {
            return;
        }
        let liveness = graph.walk(&self.changes);
        self.take(liveness, number);
    }

    /// What died since the walk before is this pass's.
    fn take(&mut self, liveness: Liveness, number: u8) {
        for (id, removed_by) in self.removed_by.iter_mut().enumerate() {
            if liveness.is_live(id as AtomId) {
                // A reference that the pass changed may go to what nothing needed before.
                *removed_by = KEPT;
            } else if *removed_by == KEPT {
                *removed_by = number;
            }
        }
        self.liveness = Some(liveness);
    }

    /// Decides branches, and takes out of functions what is never executed then.
    fn decide(&mut self, input: &Input<'_>, graph: &Graph<'_, '_>, options: &Options) -> Result<(), SpecialiseError> {
        let passes = options.passes;
        // What is counted is whole.
        let on = passes.unreachable && passes.constants && !options.instrument;
        let number = self.passes.len() as u8;
        self.passes.push(("constants", on));
        self.passes.push(("blocks", on && passes.blocks && !options.trap));
        let Some(liveness) = self.liveness.take_if(|_| on) else { return Ok(()) };
        let fixed = variables::fixed(graph, &liveness, &self.changes, &options.fixed)?;
        let (found, after) =
            constants::find(graph, &liveness, &mut self.changes, input.arch, &fixed, &options.arguments);
        self.branches = found.branches;
        self.take(after.unwrap_or(liveness), number);
        self.edits = match passes.blocks && !options.trap {
            true => blocks::cut(graph, &found, input.arch, &mut self.changes),
            false => blocks::fill(graph, &found, input.arch, &self.changes),
        };
        // Entries of the unwinder for what was cut.
        let walked = graph.walk(&self.changes);
        self.take(walked, number + 1);
        self.initial = variables::differing(graph, fixed);
        self.routines = Some(found.routines);
        Ok(())
    }

    /// Padding of live functions is this pass's, and so are the calls that would be patched to go through it.
    fn drop_padding(&mut self, input: &Input<'_>, graph: &Graph<'_, '_>, options: &Options) {
        let number = self.passes.len() as u8;
        self.passes.push(("padding", options.drops_padding()));
        let Some(liveness) = self.liveness.as_ref().filter(|_| options.drops_padding()) else { return };
        let mut spare = HashSet::new();
        for id in input.atoms.padding.iter().filter(|id| !liveness.is_live(**id) && liveness.is_live(**id + 1)) {
            spare.insert(*id);
            orphan(graph, *id, &mut spare);
        }
        for (section, range) in input.object.sections.iter().zip(&input.atoms.of_section) {
            if section.name == CALL_SITES {
                spare.extend(range.clone().filter(|id| liveness.is_live(*id)));
            }
        }
        for id in spare {
            self.removed_by[id as usize] = number;
        }
    }

    fn is_left(&self, id: AtomId) -> bool {
        self.removed_by[id as usize] == KEPT
    }

    fn report(&self, input: &Input<'_>, graph: &Graph<'_, '_>, options: &Options) -> Report {
        let mut before = Sizes::default();
        let mut after = Sizes::default();
        let mut passes: Vec<PassReport> = self
            .passes
            .iter()
            .map(|(name, on)| PassReport { name, on: *on, atoms: 0, bytes: Sizes::default() })
            .collect();
        let mut left = 0;
        let moving = passes.iter().position(|pass| pass.name == "initialisation").unwrap_or_default();
        for (id, atom) in input.atoms.atoms.iter().enumerate() {
            let bytes = atom.end - atom.start;
            let edit = self.edits.get(&(id as AtomId));
            let cut = edit.map_or(0, Edit::bytes);
            count(input, &mut before, id as AtomId, bytes);
            let removed_by = self.removed_by[id];
            if removed_by == KEPT {
                left += 1;
                if cut > 0
                    && let Some(pass) = passes.iter_mut().find(|pass| pass.name == "blocks")
                {
                    pass.atoms += 1;
                    count(input, &mut pass.bytes, id as AtomId, cut);
                }
                let bytes = edit.map_or(bytes, |edit| edit.length(bytes));
                if self.moved.contains(&(id as AtomId)) {
                    passes[moving].atoms += 1;
                    count(input, &mut passes[moving].bytes, id as AtomId, bytes);
                    after.init += bytes;
                } else {
                    count(input, &mut after, id as AtomId, bytes);
                }
            } else if let Some(pass) = passes.get_mut(usize::from(removed_by)) {
                pass.atoms += 1;
                count(input, &mut pass.bytes, id as AtomId, bytes);
            }
        }
        after.bss += instrument::bytes(&self.counters);
        if let Some(pass) = passes.iter_mut().find(|pass| pass.name == "names") {
            pass.atoms = self.nameless.len() as u64;
        }
        let warnings = input.atoms.warnings.iter().chain(&self.warnings).cloned().collect();
        Report {
            release: options.release.clone(),
            sections: input.object.sections.len() as u64,
            atoms: input.atoms.atoms.len() as u64,
            atoms_left: left,
            before,
            after,
            passes,
            tables: self.tables(input),
            syscalls_kept: self.syscalls.kept.iter().cloned().collect(),
            syscalls_removed: self.syscalls.removed.iter().cloned().collect(),
            parameters_removed: self.parameters.clone(),
            quirks_removed: self.quirks as u64,
            drivers_removed: self.drivers.clone(),
            frozen: self.frozen.clone(),
            largest: self.largest(input, graph),
            warnings,
        }
    }

    /// Entries of side tables, kept and dropped.
    fn tables(&self, input: &Input<'_>) -> Vec<TableReport> {
        let mut tables: BTreeMap<&'static str, TableReport> = BTreeMap::new();
        for (role, range) in input.atoms.roles.iter().zip(&input.atoms.of_section) {
            let Role::Table(table) = role else { continue };
            let empty = TableReport { name: table.name, entries: 0, entries_left: 0, bytes: 0, bytes_left: 0 };
            let row = tables.entry(table.name).or_insert(empty);
            for id in range.clone() {
                let atom = &input.atoms.atoms[id as usize];
                let bytes = atom.end - atom.start;
                row.entries += 1;
                row.bytes += bytes;
                if self.is_left(id) {
                    row.entries_left += 1;
                    row.bytes_left += bytes;
                }
            }
        }
        tables.into_values().filter(|table| table.entries > 0).collect()
    }

    fn largest(&self, input: &Input<'_>, graph: &Graph<'_, '_>) -> Vec<Removal> {
        let names = graph.names();
        let size = |id: &AtomId| input.atoms.atoms[*id as usize].end - input.atoms.atoms[*id as usize].start;
        let mut removed: Vec<AtomId> = (0..input.atoms.atoms.len() as AtomId).filter(|id| !self.is_left(*id)).collect();
        removed.sort_by_key(|id| (u64::MAX - size(id), *id));
        removed.truncate(LARGEST_MAX);
        let mut users: HashMap<AtomId, AtomId> = HashMap::new();
        let wanted: HashSet<AtomId> = removed.iter().copied().collect();
        for id in 0..input.atoms.atoms.len() as AtomId {
            for reference in input.atoms.references_of(id) {
                if let Some(target) = reference.atom
                    && target != id
                    && wanted.contains(&target)
                {
                    users.entry(target).or_insert(id);
                }
            }
        }
        let removal = |id: &AtomId| Removal {
            name: shown(input, &names, *id),
            section: input.object.sections[input.atoms.atoms[*id as usize].section as usize].shown(),
            bytes: size(id),
            pass: self.passes.get(usize::from(self.removed_by[*id as usize])).map_or("", |(name, _)| name),
            used_by: users.get(id).map(|user| shown(input, &names, *user)),
        };
        removed.iter().map(removal).collect()
    }
}

/// Adds the entries that speak of `id`, and those that speak of them.
fn orphan(graph: &Graph<'_, '_>, id: AtomId, orphaned: &mut HashSet<AtomId>) {
    for entry in graph.dependents.of(id) {
        if orphaned.insert(*entry) {
            orphan(graph, *entry, orphaned);
        }
    }
}

/// Adds the bytes of an atom to where they belong.
fn count(input: &Input<'_>, sizes: &mut Sizes, id: AtomId, bytes: u64) {
    let section = input.atoms.atoms[id as usize].section as usize;
    let role = input.atoms.roles[section];
    let section = &input.object.sections[section];
    let is_initial =
        [&b".init"[..], b".exit", b".altinstr", b".head.text", b".con_initcall", b".x86_cpu_dev", b".apicdrivers"];
    let field = match role {
        Role::Table(_) => &mut sizes.tables,
        _ if is_initial.iter().any(|name| section.name.starts_with(name)) => &mut sizes.init,
        _ if section.is_code() => &mut sizes.text,
        _ if section.kind == abi::SHT_NOBITS => &mut sizes.bss,
        _ if section.flags & abi::SHF_WRITE != 0 => &mut sizes.data,
        _ => &mut sizes.rodata,
    };
    *field += bytes;
}

/// An atom for people: its symbol, or its section and offset.
fn shown(input: &Input<'_>, names: &[Option<u32>], id: AtomId) -> String {
    let atom = &input.atoms.atoms[id as usize];
    match names[id as usize] {
        Some(symbol) => String::from_utf8_lossy(input.object.symbols[symbol as usize].name).into_owned(),
        None => format!("{}+{:#x}", input.object.sections[atom.section as usize].shown(), atom.start),
    }
}
