//! Counts what the passes removed, and what is left.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::abi;
use crate::analysis::Analysis;
use crate::atom::AtomId;
use crate::edit::Edit;
use crate::graph::Graph;
use crate::pass::{Context, PASSES};
use crate::report::{FreezeReport, PassReport, Removal, Report, Sizes, TableReport};
use crate::schema::Role;

/// Removals that the report names.
const LARGEST_MAX: usize = 100;

/// Beginnings of the names of sections that are freed after the start.
const INITIAL: [&[u8]; 7] =
    [b".init", b".exit", b".altinstr", b".head.text", b".con_initcall", b".x86_cpu_dev", b".apicdrivers"];

/// The report of a run that is finished, with so many bytes of counters.
pub(crate) fn report(
    context: &Context<'_, '_>,
    analysis: &Analysis,
    frozen: Option<FreezeReport>,
    counter_bytes: u64,
) -> Report {
    let (graph, options) = (context.graph, context.options);
    let row = |pass: &&crate::pass::Pass| PassReport {
        name: pass.name,
        on: pass.is_on(options),
        atoms: 0,
        bytes: Sizes::default(),
    };
    let mut tally =
        Tally { before: Sizes::default(), after: Sizes::default(), passes: PASSES.iter().map(row).collect(), left: 0 };
    for id in 0..graph.atoms.atoms.len() as AtomId {
        tally.add(graph, analysis, id);
    }
    tally.after.bss += counter_bytes;
    tally.pass("names").atoms = analysis.nameless.len() as u64;
    let modules = options.modules.then(|| "modules are enabled: all that is exported to them stays".to_string());
    Report {
        release: options.release.clone(),
        sections: graph.object.sections.len() as u64,
        atoms: graph.atoms.atoms.len() as u64,
        atoms_left: tally.left,
        before: tally.before,
        after: tally.after,
        passes: tally.passes,
        tables: tables(graph, analysis),
        device: analysis.device.clone(),
        frozen,
        largest: largest(graph, analysis),
        warnings: graph.atoms.warnings.iter().cloned().chain(modules).collect(),
    }
}

/// Sums while atoms are counted.
struct Tally {
    before: Sizes,
    after: Sizes,
    passes: Vec<PassReport>,
    left: u64,
}

impl Tally {
    /// The row of the pass of this name, which is one of [`PASSES`].
    fn pass(&mut self, name: &str) -> &mut PassReport {
        self.passes.iter_mut().find(|pass| pass.name == name).expect("a pass has this name")
    }

    fn add(&mut self, graph: &Graph<'_, '_>, analysis: &Analysis, id: AtomId) {
        let bytes = size(graph, id);
        count(graph, &mut self.before, id, bytes);
        if let Some(pass) = analysis.removals.removed_by(id) {
            let pass = &mut self.passes[pass];
            pass.atoms += 1;
            count(graph, &mut pass.bytes, id, bytes);
            return;
        }
        self.left += 1;
        let edit = analysis.edits.get(&id);
        let cut = edit.map_or(0, Edit::bytes);
        if cut > 0 {
            let pass = self.pass("blocks");
            pass.atoms += 1;
            count(graph, &mut pass.bytes, id, cut);
        }
        let bytes = edit.map_or(bytes, |edit| edit.length(bytes));
        if analysis.moved.contains(&id) {
            let pass = self.pass("initialisation");
            pass.atoms += 1;
            count(graph, &mut pass.bytes, id, bytes);
            self.after.init += bytes;
        } else {
            count(graph, &mut self.after, id, bytes);
        }
    }
}

fn size(graph: &Graph<'_, '_>, id: AtomId) -> u64 {
    let atom = &graph.atoms.atoms[id as usize];
    atom.end - atom.start
}

/// Adds bytes of an atom to where they belong.
fn count(graph: &Graph<'_, '_>, sizes: &mut Sizes, id: AtomId, bytes: u64) {
    let section = graph.atoms.atoms[id as usize].section as usize;
    let role = graph.atoms.roles[section];
    let section = &graph.object.sections[section];
    let field = match role {
        Role::Table(_) => &mut sizes.tables,
        _ if INITIAL.iter().any(|name| section.name.starts_with(name)) => &mut sizes.init,
        _ if section.is_code() => &mut sizes.text,
        _ if section.kind == abi::SHT_NOBITS => &mut sizes.bss,
        _ if section.flags & abi::SHF_WRITE != 0 => &mut sizes.data,
        _ => &mut sizes.rodata,
    };
    *field += bytes;
}

/// Entries of side tables, kept and dropped.
fn tables(graph: &Graph<'_, '_>, analysis: &Analysis) -> Vec<TableReport> {
    let mut tables: BTreeMap<&'static str, TableReport> = BTreeMap::new();
    for (role, range) in graph.atoms.roles.iter().zip(&graph.atoms.of_section) {
        let Role::Table(table) = role else { continue };
        let empty = TableReport { name: table.name, entries: 0, entries_left: 0, bytes: 0, bytes_left: 0 };
        let row = tables.entry(table.name).or_insert(empty);
        for id in range.clone() {
            let bytes = size(graph, id);
            row.entries += 1;
            row.bytes += bytes;
            if analysis.is_left(id) {
                row.entries_left += 1;
                row.bytes_left += bytes;
            }
        }
    }
    tables.into_values().filter(|table| table.entries > 0).collect()
}

/// The largest atoms that were removed, with something that referred to each.
fn largest(graph: &Graph<'_, '_>, analysis: &Analysis) -> Vec<Removal> {
    let names = graph.names();
    let all = 0..graph.atoms.atoms.len() as AtomId;
    let mut removed: Vec<(AtomId, usize)> =
        all.clone().filter_map(|id| Some((id, analysis.removals.removed_by(id)?))).collect();
    removed.sort_by_key(|(id, _)| (u64::MAX - size(graph, *id), *id));
    removed.truncate(LARGEST_MAX);
    let mut users: HashMap<AtomId, AtomId> = HashMap::new();
    let wanted: HashSet<AtomId> = removed.iter().map(|(id, _)| *id).collect();
    for id in all {
        for reference in graph.atoms.references_of(id) {
            if let Some(target) = reference.atom
                && target != id
                && wanted.contains(&target)
            {
                users.entry(target).or_insert(id);
            }
        }
    }
    let removal = |(id, pass): (AtomId, usize)| Removal {
        name: graph.shown(&names, id),
        section: graph.object.sections[graph.atoms.atoms[id as usize].section as usize].shown(),
        bytes: size(graph, id),
        pass: PASSES[pass].name,
        used_by: users.get(&id).map(|user| graph.shown(&names, *user)),
    };
    removed.into_iter().map(removal).collect()
}
