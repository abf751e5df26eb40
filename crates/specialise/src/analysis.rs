//! What passes decide about the atoms of an object.

use std::collections::{HashMap, HashSet};

use crate::SpecialiseError;
use crate::atom::AtomId;
use crate::decisions::Decisions;
use crate::edit::Edit;
use crate::entries::Routines;
use crate::graph::{Changes, Graph, Liveness};
use crate::object::SymbolPlace;
use crate::options::Options;
use crate::report::DeviceReport;

/// What the passes decided so far. The graph stays as it is; what a pass changes of it is in
/// `changes`.
pub(crate) struct Analysis {
    /// References that go elsewhere, entries that are dropped, code that is never executed, more
    /// roots.
    pub changes: Changes,
    /// Which atoms are left.
    pub removals: Removals,
    /// Functions that are understood, once a pass has decoded them.
    pub routines: Option<Routines>,
    /// Decisions about the instructions of functions.
    pub decisions: HashMap<AtomId, Decisions>,
    /// Functions whose bytes change.
    pub edits: HashMap<AtomId, Edit>,
    /// Variables that begin with another number.
    pub initial: HashMap<AtomId, u64>,
    /// Duplicates, with the equal atom that replaces each.
    pub folded: HashMap<AtomId, AtomId>,
    /// Functions that go into `.init.text`, and their strings and tables.
    pub moved: HashSet<AtomId>,
    /// Symbols that are not written.
    pub nameless: HashSet<u32>,
    /// What the device does not use, by name.
    pub device: DeviceReport,
}

impl Analysis {
    /// Nothing is decided but the roots that the options name.
    ///
    /// # Errors
    /// There is no such symbol.
    pub fn new(graph: &Graph<'_, '_>, options: &Options) -> Result<Self, SpecialiseError> {
        Ok(Self {
            changes: Changes { roots: roots(graph, options)?, ..Changes::default() },
            removals: Removals::new(graph.atoms.atoms.len()),
            routines: None,
            decisions: HashMap::new(),
            edits: HashMap::new(),
            initial: HashMap::new(),
            folded: HashMap::new(),
            moved: HashSet::new(),
            nameless: HashSet::new(),
            device: DeviceReport::default(),
        })
    }

    /// Walks the graph again, with all changes so far.
    pub fn walk(&mut self, graph: &Graph<'_, '_>) {
        self.removals.take(graph.walk(&self.changes));
    }

    /// Whether an atom is left.
    pub fn is_left(&self, id: AtomId) -> bool {
        self.removals.is_left(id)
    }
}

/// Symbols that live whatever refers to them, with the reason.
fn roots(graph: &Graph<'_, '_>, options: &Options) -> Result<Vec<(u32, &'static str)>, SpecialiseError> {
    let mut by_name: HashMap<&[u8], u32> = HashMap::new();
    for (index, symbol) in graph.object.symbols.iter().enumerate() {
        if matches!(symbol.place, SymbolPlace::Section(_)) {
            by_name.insert(symbol.name, index as u32);
        }
    }
    let mut roots = Vec::new();
    for name in &options.roots {
        let not_found = || SpecialiseError::NotFound { what: "symbol", name: name.clone() };
        let index = by_name.get(name.as_bytes()).ok_or_else(not_found)?;
        roots.push((*index, "the policy keeps it"));
    }
    if options.modules {
        let exports = graph.object.sections.iter().filter(|section| section.name.starts_with(b".export_symbol"));
        // The link discards these sections, so they have no atoms; their relocations are still
        // there.
        for relocation in exports.flat_map(|section| &section.relocations) {
            roots.push((relocation.symbol, "it is exported to modules"));
        }
    }
    Ok(roots)
}

/// In [`Removals`]: not removed.
const KEPT: u8 = u8::MAX;

/// Which atoms live, and which pass removed each of the others.
///
/// A removed atom has the number of the pass that ran when it died, or that took it
/// away. An atom that a walk finds is left. So all atoms that are left live, and one that lives
/// without being left was taken away since the last walk.
#[derive(Debug)]
pub(crate) struct Removals {
    liveness: Liveness,
    removed_by: Vec<u8>,
    pass: u8,
}

impl Removals {
    fn new(atoms: usize) -> Self {
        Self { liveness: Liveness::all(atoms), removed_by: vec![KEPT; atoms], pass: 0 }
    }

    /// The pass of this number runs now.
    pub fn begin(&mut self, pass: usize) {
        self.pass = pass as u8;
    }

    /// Takes the result of a walk: the pass that runs removed what died since the walk before.
    pub fn take(&mut self, liveness: Liveness) {
        for (id, removed_by) in self.removed_by.iter_mut().enumerate() {
            if liveness.is_live(id as AtomId) {
                // A reference that the pass changed may go to what nothing needed before.
                *removed_by = KEPT;
            } else if *removed_by == KEPT {
                *removed_by = self.pass;
            }
        }
        self.liveness = liveness;
    }

    /// The pass that runs takes an atom away, though it lives.
    pub fn remove(&mut self, id: AtomId) {
        self.removed_by[id as usize] = self.pass;
    }

    /// As of the last walk; before the first one everything lives.
    pub fn liveness(&self) -> &Liveness {
        &self.liveness
    }

    /// Whether an atom is left.
    pub fn is_left(&self, id: AtomId) -> bool {
        self.removed_by[id as usize] == KEPT
    }

    /// The number of the pass that removed an atom; `None` if it is left.
    pub fn removed_by(&self, id: AtomId) -> Option<usize> {
        Some(self.removed_by[id as usize]).filter(|pass| *pass != KEPT).map(usize::from)
    }
}
