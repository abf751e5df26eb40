//! All atoms of an object, with their references.

use std::ops::Range;

use crate::atom::{Atom, AtomId};
use crate::object::Object;
use crate::reference::{self, Reference};
use crate::schema::Role;

/// An object divided into atoms.
#[derive(Debug)]
pub(crate) struct Atoms {
    /// All atoms, by section and start.
    pub atoms: Vec<Atom>,
    /// The atoms of each section.
    pub of_section: Vec<Range<AtomId>>,
    /// The role of each section.
    pub roles: Vec<Role>,
    /// Bytes of an entry of each section that is a side table, else 1.
    pub entry_sizes: Vec<u64>,
    /// The references of each section, by offset.
    pub references: Vec<Vec<Reference>>,
    /// For each atom the number of its first reference in its section.
    first_references: Vec<u32>,
    /// Atoms that are padding before functions, if it is apart from them.
    pub padding: Vec<AtomId>,
    /// Sections that do not match the schema, for people.
    pub warnings: Vec<String>,
}

impl Atoms {
    /// Connects atoms, given by section and start, with the references of each section, given by
    /// offset.
    pub fn new(
        object: &Object<'_>,
        atoms: Vec<Atom>,
        of_section: Vec<Range<AtomId>>,
        (roles, entry_sizes): (Vec<Role>, Vec<u64>),
        references: Vec<Vec<Reference>>,
    ) -> Self {
        let (first_references, padding, warnings) = (Vec::with_capacity(atoms.len()), Vec::new(), Vec::new());
        let mut this = Self { atoms, of_section, roles, entry_sizes, references, first_references, padding, warnings };
        this.connect(object);
        this
    }

    /// The atom at `offset` of a section; the nearest one if the offset lies outside. `None` for
    /// sections without atoms.
    pub fn at(&self, section: u32, offset: i64) -> Option<AtomId> {
        let range = self.of_section.get(section as usize)?;
        let atoms = &self.atoms[range.start as usize..range.end as usize];
        let offset = u64::try_from(offset).unwrap_or(0);
        let behind = atoms.partition_point(|atom| atom.start <= offset);
        (!atoms.is_empty()).then(|| range.start + behind.saturating_sub(1) as AtomId)
    }

    /// Gives every atom the filling behind it too, so that a section is written as it was.
    pub fn keep_filling(&mut self, object: &Object<'_>) {
        for (section, range) in object.sections.iter().zip(&self.of_section) {
            let atoms = &mut self.atoms[range.start as usize..range.end as usize];
            let mut next = section.size;
            for atom in atoms.iter_mut().rev() {
                atom.end = next;
                next = atom.start;
            }
        }
    }

    /// The references of an atom.
    pub fn references_of(&self, id: AtomId) -> &[Reference] {
        let section = self.atoms[id as usize].section as usize;
        let references = &self.references[section];
        let is_last = id + 1 == self.of_section[section].end;
        let end = if is_last { references.len() } else { self.first_references[id as usize + 1] as usize };
        &references[self.first_references[id as usize] as usize..end]
    }

    /// Finds the target atom of each reference, and the references of each atom.
    fn connect(&mut self, object: &Object<'_>) {
        let mut references = std::mem::take(&mut self.references);
        for reference in references.iter_mut().flatten() {
            let place = reference::place(object, reference);
            reference.atom = place.and_then(|(section, offset)| self.at(section, offset));
        }
        self.references = references;
        for (references, range) in self.references.iter().zip(&self.of_section) {
            let mut first = 0;
            for atom in &self.atoms[range.start as usize..range.end as usize] {
                first += references[first..].iter().take_while(|reference| reference.offset < atom.start).count();
                self.first_references.push(first as u32);
            }
        }
    }
}
