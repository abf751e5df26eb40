//! The graph of the whole program: which atoms keep which alive.
//!
//! Nodes are atoms. An atom has an edge to each atom that it refers to, by control or by address.
//! An address that is taken anywhere counts as used, so indirect calls need no node of their own.
//! An entry of a side table has an edge *from* the code that it describes: it lives with this code,
//! and what the entry refers to lives with the entry.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use crate::abi;
use crate::atom::{Atom, AtomId};
use crate::atoms::Atoms;
use crate::object::{Object, SymbolPlace};
use crate::reference::{self, Reference};
use crate::schema::{Role, Rule};

/// Changes that passes make to the graph before it is walked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    /// References that go to another symbol, by section and offset.
    pub retargeted: BTreeMap<(u32, u64), u32>,
    /// Entries of tables that are dropped though they are roots.
    pub dropped: HashSet<AtomId>,
    /// Symbols that are roots, with the reason.
    pub roots: Vec<(u32, &'static str)>,
    /// Code inside functions that is never executed, by section: ranges by start, apart from each
    /// other.
    pub dead: Vec<Vec<Range<u64>>>,
}

impl Changes {
    /// Whether an offset lies in code that is never executed.
    pub fn is_dead(&self, section: u32, offset: u64) -> bool {
        let Some(ranges) = self.dead.get(section as usize) else { return false };
        let after = ranges.partition_point(|range| range.start <= offset);
        ranges[..after].last().is_some_and(|range| offset < range.end)
    }

    /// The code of an atom that is never executed.
    pub fn dead_in(&self, atom: &Atom) -> Vec<Range<u64>> {
        let ranges = self.dead.get(atom.section as usize).into_iter().flatten();
        ranges.filter(|range| (atom.start..atom.end).contains(&range.start)).cloned().collect()
    }
}

/// Why an atom lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It does not live.
    Dead,
    /// It is a root, of this kind.
    Root(&'static str),
    /// This atom refers to it.
    UsedBy(AtomId),
    /// It is an entry of a side table that describes this live atom.
    EntryFor(AtomId),
}

/// Which atoms live, and why.
#[derive(Debug)]
pub(crate) struct Liveness {
    /// One for each atom.
    pub reasons: Vec<Reason>,
}

impl Liveness {
    /// All atoms live.
    pub fn all(atoms: usize) -> Self {
        Self { reasons: vec![Reason::Root("all stays"); atoms] }
    }

    /// Whether an atom lives.
    pub fn is_live(&self, id: AtomId) -> bool {
        self.reasons[id as usize] != Reason::Dead
    }

    /// The chain from an atom to a root, the atom first.
    pub fn chain(&self, id: AtomId) -> Vec<(AtomId, Reason)> {
        let mut chain = Vec::new();
        let mut next = Some(id);
        while let Some(id) = next.take() {
            let reason = self.reasons[id as usize];
            chain.push((id, reason));
            if let Reason::UsedBy(from) | Reason::EntryFor(from) = reason
                && chain.len() < self.reasons.len()
            {
                next = Some(from);
            }
        }
        chain
    }
}

/// Entries by the atom that they describe.
#[derive(Debug)]
pub(crate) struct Dependents {
    starts: Vec<u32>,
    entries: Vec<AtomId>,
}

impl Dependents {
    /// The entries that describe an atom.
    pub fn of(&self, id: AtomId) -> &[AtomId] {
        &self.entries[self.starts[id as usize] as usize..self.starts[id as usize + 1] as usize]
    }
}

/// The graph of an object.
#[derive(Debug)]
pub(crate) struct Graph<'o, 'a> {
    /// The object.
    pub object: &'o Object<'a>,
    /// Its atoms.
    pub atoms: &'o Atoms,
    /// Entries of conditional side tables.
    pub dependents: Dependents,
    /// Atoms that live without a reason in the graph.
    pub roots: Vec<(AtomId, &'static str)>,
}

impl<'o, 'a> Graph<'o, 'a> {
    /// The graph of `object`, with what the linker `script` names as roots.
    pub fn new(object: &'o Object<'a>, atoms: &'o Atoms, script: &str) -> Self {
        let mut roots = Vec::new();
        let mut pairs: Vec<(AtomId, AtomId)> = Vec::new();
        for (index, section) in object.sections.iter().enumerate() {
            let range = atoms.of_section[index].clone();
            let mut root_all = |reason: &'static str| roots.extend(range.clone().map(|id| (id, reason)));
            match atoms.roles[index] {
                Role::Whole => root_all("its section stays whole"),
                Role::Unknown => root_all("its section is unknown"),
                Role::Table(table) => match table.rule {
                    Rule::Entry => root_all("entry of a table that the kernel walks"),
                    Rule::Keyed(at) => {
                        for id in range {
                            let offset = atoms.atoms[id as usize].start + at;
                            let key = crate::reference::within(&atoms.references[index], offset..offset + 1);
                            match key.first().and_then(|key| key.atom) {
                                Some(key) => pairs.push((key, id)),
                                None => roots.push((id, "entry that speaks of code elsewhere")),
                            }
                        }
                    }
                    Rule::Paired(with) => {
                        let partner = object.sections.iter().position(|section| section.name == with.as_bytes());
                        let partners = partner.map_or(0..0, |partner| atoms.of_section[partner].clone());
                        pairs.extend(partners.zip(range));
                    }
                },
                Role::Parts | Role::Pieces(_) if section.flags & abi::SHF_GNU_RETAIN != 0 => {
                    root_all("the source asks to keep it");
                }
                Role::Parts | Role::Pieces(_) | Role::Discarded => {}
            }
        }
        let named = identifiers(script);
        for symbol in object.symbols.iter().filter(|symbol| symbol.is_global() && named.contains(symbol.name)) {
            if let SymbolPlace::Section(section) = symbol.place
                && let Some(id) = atoms.at(section, symbol.value as i64)
            {
                roots.push((id, "the linker script names it"));
            }
        }
        Self { object, atoms, dependents: dependents(atoms.atoms.len(), pairs), roots }
    }

    /// The atom that a reference of the section `from` goes to, with what `changes` retarget.
    pub fn target(&self, from: u32, reference: &Reference, changes: &Changes) -> Option<AtomId> {
        if let Some(symbol) = changes.retargeted.get(&(from, reference.offset)) {
            return self.atom_of_symbol(*symbol);
        }
        reference.atom
    }

    /// The atom that contains a symbol.
    pub fn atom_of_symbol(&self, symbol: u32) -> Option<AtomId> {
        let symbol = self.object.symbols.get(symbol as usize)?;
        match symbol.place {
            SymbolPlace::Section(section) => self.atoms.at(section, symbol.value as i64),
            _ => None,
        }
    }

    /// The references of an atom, without those of code that is never executed.
    pub fn references<'g>(&'g self, id: AtomId, changes: &'g Changes) -> impl Iterator<Item = &'g Reference> {
        let section = self.atoms.atoms[id as usize].section;
        self.atoms.references_of(id).iter().filter(move |reference| !changes.is_dead(section, reference.offset))
    }

    /// The place that an entry of a conditional table describes: section and offset.
    pub fn key(&self, entry: AtomId) -> Option<(u32, i64)> {
        let section = self.atoms.atoms[entry as usize].section;
        let key = self.atoms.references_of(entry).iter().find(|reference| self.is_key(section, reference))?;
        reference::exact(self.object, key)
    }

    /// Whether the reference is the key of its entry: it does not keep alive what it describes.
    pub fn is_key(&self, section: u32, reference: &Reference) -> bool {
        let inside = reference.offset % self.atoms.entry_sizes[section as usize];
        self.atoms.roles[section as usize].key() == Some(inside)
    }

    /// Walks the graph from its roots.
    pub fn walk(&self, changes: &Changes) -> Liveness {
        let mut reasons = vec![Reason::Dead; self.atoms.atoms.len()];
        let mut waiting = Vec::new();
        let reach = |reasons: &mut Vec<Reason>, waiting: &mut Vec<AtomId>, id: AtomId, reason: Reason| {
            if reasons[id as usize] == Reason::Dead {
                reasons[id as usize] = reason;
                waiting.push(id);
            }
        };
        for (id, reason) in self.roots.iter().filter(|(id, _)| !changes.dropped.contains(id)) {
            reach(&mut reasons, &mut waiting, *id, Reason::Root(reason));
        }
        for (symbol, reason) in &changes.roots {
            if let Some(id) = self.atom_of_symbol(*symbol) {
                reach(&mut reasons, &mut waiting, id, Reason::Root(reason));
            }
        }
        // Breadth first, so that chains are short.
        let mut next = 0;
        while next < waiting.len() {
            let id = waiting[next];
            next += 1;
            let section = self.atoms.atoms[id as usize].section;
            for reference in self.references(id, changes) {
                if self.is_key(section, reference) {
                    continue;
                }
                if let Some(target) = self.target(section, reference, changes) {
                    reach(&mut reasons, &mut waiting, target, Reason::UsedBy(id));
                }
            }
            for entry in self.dependents.of(id).iter().filter(|entry| !changes.dropped.contains(entry)) {
                reach(&mut reasons, &mut waiting, *entry, Reason::EntryFor(id));
            }
        }
        Liveness { reasons }
    }

    /// Adds the entries that describe an atom, and those that describe them.
    pub fn add_dependents(&self, id: AtomId, found: &mut HashSet<AtomId>) {
        for entry in self.dependents.of(id) {
            if found.insert(*entry) {
                self.add_dependents(*entry, found);
            }
        }
    }

    /// An atom for people: its symbol of `names`, or its section and offset.
    pub fn shown(&self, names: &[Option<u32>], id: AtomId) -> String {
        let atom = &self.atoms.atoms[id as usize];
        match names[id as usize] {
            Some(symbol) => String::from_utf8_lossy(self.object.symbols[symbol as usize].name).into_owned(),
            None => format!("{}+{:#x}", self.object.sections[atom.section as usize].shown(), atom.start),
        }
    }

    /// The symbol that names an atom best: one with a size at its start, else any inside.
    pub fn names(&self) -> Vec<Option<u32>> {
        let mut names: Vec<Option<u32>> = vec![None; self.atoms.atoms.len()];
        let rank = |index: u32, id: AtomId| {
            let symbol = &self.object.symbols[index as usize];
            let at_start = symbol.value == self.atoms.atoms[id as usize].start;
            let prefix = symbol.name.starts_with(b"__pfx_");
            (!prefix, at_start && symbol.size > 0, symbol.size > 0, symbol.is_global())
        };
        for (index, symbol) in self.object.symbols.iter().enumerate() {
            let index = index as u32;
            if symbol.is_section() || symbol.name.is_empty() || symbol.kind == abi::STT_FILE {
                continue;
            }
            let Some(id) = self.atom_of_symbol(index) else { continue };
            let best = &mut names[id as usize];
            if best.is_none_or(|best| rank(best, id) < rank(index, id)) {
                *best = Some(index);
            }
        }
        names
    }
}

fn dependents(count: usize, mut pairs: Vec<(AtomId, AtomId)>) -> Dependents {
    pairs.sort_unstable();
    let mut starts = vec![0u32; count + 1];
    for (key, _) in &pairs {
        starts[*key as usize + 1] += 1;
    }
    for index in 0..count {
        starts[index + 1] += starts[index];
    }
    Dependents { starts, entries: pairs.into_iter().map(|(_, entry)| entry).collect() }
}

/// The identifiers of a linker script.
fn identifiers(script: &str) -> HashSet<&[u8]> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    script.split(|letter| !is_part(letter)).filter(|word| !word.is_empty()).map(str::as_bytes).collect()
}
