//! The phases of a run: read, divide, decide, arrange, write. Each borrows the results of the one
//! before.

use crate::analysis::Analysis;
use crate::arch::{self, Architecture};
use crate::atom::AtomId;
use crate::atoms::Atoms;
use crate::divide::{self, Padding};
use crate::freeze::{self, Placement};
use crate::graph::{Graph, Reason};
use crate::instrument::{self, CountedFunction};
use crate::object::{Object, Symbol, SymbolPlace};
use crate::pass::{self, Context};
use crate::report::{FreezeReport, Report};
use crate::schema::Schema;
use crate::writer::{self, Contents};
use crate::{Options, SpecialiseError, abi, tally};

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
/// The object is refused: damaged, stripped, built without function sections, of an unknown release
/// or processor, or with relocations that are not known; or the options name what it does not have.
pub fn specialise(bytes: &[u8], options: &Options) -> Result<Outcome, SpecialiseError> {
    let input = Input::read(bytes, options)?;
    let graph = Graph::new(&input.object, &input.atoms, &options.script);
    let context = input.context(&graph, options);
    let (analysis, Arrangement { placement, frozen, counters }) = decide(&context)?;
    let counter_bytes = instrument::bytes(&counters);
    let contents = Contents { analysis: &analysis, placement: &placement, trap: options.trap, counters: counter_bytes };
    let object = writer::write(&input.object, &input.atoms, input.arch, &contents)?;
    let report = tally::report(&context, &analysis, frozen, counter_bytes);
    Ok(Outcome { object, report, counters })
}

/// The chain that keeps `symbol` alive, one step a line, the symbol first; says so if it is
/// removed.
///
/// # Errors
/// As [`specialise`]; or there is no such symbol.
pub fn why(bytes: &[u8], options: &Options, symbol: &str) -> Result<Vec<String>, SpecialiseError> {
    let input = Input::read(bytes, options)?;
    let graph = Graph::new(&input.object, &input.atoms, &options.script);
    let (analysis, _) = decide(&input.context(&graph, options))?;
    let is_it = |index: &u32| {
        let found = &input.object.symbols[*index as usize];
        found.name == symbol.as_bytes() && matches!(found.place, SymbolPlace::Section(_))
    };
    // Of several with the name, one that lives.
    let mut ids: Vec<AtomId> =
        (0..input.object.symbols.len() as u32).filter(is_it).filter_map(|index| graph.atom_of_symbol(index)).collect();
    ids.sort_by_key(|id| !analysis.is_left(*id));
    let not_found = || SpecialiseError::NotFound { what: "symbol", name: symbol.to_string() };
    let id = *ids.first().ok_or_else(not_found)?;
    let names = graph.names();
    let shown = |id: AtomId| graph.shown(&names, id);
    if let Some(equal) = analysis.folded.get(&id) {
        return Ok(vec![format!("{symbol}: removed, {} is the same function", shown(*equal))]);
    }
    if !options.passes.unreachable {
        return Ok(vec![format!("{symbol}: no pass ran")]);
    }
    let step = |(id, reason): (AtomId, Reason)| match reason {
        Reason::Dead => format!("{}: removed, nothing that lives refers to it", shown(id)),
        Reason::Root(reason) => format!("{}: root, {reason}", shown(id)),
        Reason::UsedBy(from) => format!("{} <- used by {}", shown(id), shown(from)),
        Reason::EntryFor(key) => format!("{} <- entry of a table for {}", shown(id), shown(key)),
    };
    Ok(analysis.removals.liveness().chain(id).into_iter().map(step).collect())
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
        let mut atoms = divide::divide(&object, schema, arch, &options.script, padding)?;
        if !options.passes.unreachable {
            atoms.keep_filling(&object);
        }
        Ok(Self { object, atoms, arch, schema })
    }

    fn context<'c>(&self, graph: &'c Graph<'c, 'a>, options: &'c Options) -> Context<'c, 'a> {
        Context { graph, arch: self.arch, schema: self.schema, options }
    }
}

/// One section for most functions; assembler and attributes put some together.
fn check_function_sections(object: &Object<'_>) -> Result<(), SpecialiseError> {
    let is_of_code = |symbol: &&Symbol<'_>| matches!(symbol.place, SymbolPlace::Section(section) if object.sections[section as usize].is_code());
    let is_function = |symbol: &&Symbol<'_>| symbol.kind == abi::STT_FUNC && symbol.size > 0;
    let functions = object.symbols.iter().filter(is_function).filter(is_of_code).count();
    let sections = object.sections.iter().filter(|section| section.is_code() && section.size > 0).count();
    if functions >= FUNCTIONS_MIN && sections < functions / 4 {
        return Err(SpecialiseError::NoFunctionSections { functions, sections });
    }
    Ok(())
}

/// Where functions go, and what is inserted into them: decided when it is known what is left.
struct Arrangement {
    placement: Placement,
    frozen: Option<FreezeReport>,
    counters: Vec<CountedFunction>,
}

/// Runs the passes, and arranges what they leave.
fn decide(context: &Context<'_, '_>) -> Result<(Analysis, Arrangement), SpecialiseError> {
    let mut analysis = pass::run(context)?;
    let mut arrangement = Arrangement { placement: Placement::default(), frozen: None, counters: Vec::new() };
    if let Some(freeze) = &context.options.freeze {
        let (placement, report) = freeze::place(context, freeze, &analysis);
        analysis.folded.extend(&placement.equal);
        (arrangement.placement, arrangement.frozen) = (placement, Some(report));
    }
    if context.options.instrument {
        (analysis.edits, arrangement.counters) = instrument::count(context, &analysis);
    }
    Ok((analysis, arrangement))
}
