//! Writes the reduced object: live atoms in their old order, merged into one section for each class
//! of the linker script.
//!
//! About a hundred sections are left of tens of thousands, so the extended numbering is not needed.
//! References by name stay as they are. References by section are rewritten for the section of
//! their target.

mod file;

use std::collections::{HashMap, HashSet};

use crate::analysis::Analysis;
use crate::arch::Architecture;
use crate::atom::AtomId;
use crate::atoms::Atoms;
use crate::class::class;
use crate::edit::Edit;
use crate::freeze::Placement;
use crate::object::{Object, Section, Symbol, SymbolPlace};
use crate::reference::{Reference, Target};
use crate::schema::Role;
use crate::{SpecialiseError, abi};

use file::{File, Header};

/// What is to be written.
pub(crate) struct Contents<'p> {
    /// What was decided.
    pub analysis: &'p Analysis,
    /// Functions that are written in another order, behind all others.
    pub placement: &'p Placement,
    /// Whether dead code stays in place, filled with traps, and dead data as it is.
    pub trap: bool,
    /// Bytes of the counters that edits write.
    pub counters: u64,
}

/// The section that functions go to which only initialisation calls.
const INIT_TEXT: &[u8] = b".init.text";

/// The section that variables go to which do not begin as zero any more.
const DATA: &[u8] = b".data";

/// The section of the counters, and the symbols at their start and end.
const BSS: &[u8] = b".bss";
const COUNTERS: [&[u8]; 2] = [b"specialise_coverage", b"specialise_coverage_end"];

/// Classes we write: each may have relocations beside it, and indices must do without the extended
/// numbering.
const GROUPS_MAX: usize = (abi::SHN_LORESERVE - 8) / 2;

/// Name, kind, flags and size of entries of a section of the output.
type Key = (Vec<u8>, u32, u64, u64);

/// A section of the output.
struct Group {
    name: Vec<u8>,
    kind: u32,
    flags: u64,
    entry_size: u64,
    align: u64,
    size: u64,
    data: Vec<u8>,
    relocations: Vec<[u64; 3]>,
}

/// Writes the object.
///
/// # Errors
/// A live reference goes to something that is not written.
pub(crate) fn write(
    object: &Object<'_>,
    atoms: &Atoms,
    arch: &dyn Architecture,
    contents: &Contents<'_>,
) -> Result<Vec<u8>, SpecialiseError> {
    let mut writer = Writer::new(object, atoms, arch, contents);
    writer.lay_out();
    let groups = writer.groups.len();
    if groups > GROUPS_MAX {
        return Err(SpecialiseError::TooLarge {
            what: "classes of sections",
            found: groups as u64,
            limit: GROUPS_MAX as u64,
        });
    }
    writer.number_symbols();
    writer.relocate()?;
    Ok(writer.finish())
}

struct Writer<'w, 'a> {
    object: &'w Object<'a>,
    atoms: &'w Atoms,
    arch: &'w dyn Architecture,
    contents: &'w Contents<'w>,
    groups: Vec<Group>,
    /// Group and offset of each atom that is written.
    places: Vec<Option<(u32, u64)>>,
    /// The same for sections without bytes.
    empty: HashMap<u32, (u32, u64)>,
    /// New index of each symbol.
    symbols: Vec<Option<u32>>,
    table: Vec<u8>,
    names: Vec<u8>,
    locals: u32,
    /// Group and offset of the counters, and the symbol at their start.
    counters: (u32, u64, u32),
}

impl<'w, 'a> Writer<'w, 'a> {
    fn new(object: &'w Object<'a>, atoms: &'w Atoms, arch: &'w dyn Architecture, contents: &'w Contents<'w>) -> Self {
        Self {
            object,
            atoms,
            arch,
            contents,
            groups: Vec::new(),
            places: vec![None; atoms.atoms.len()],
            empty: HashMap::new(),
            symbols: vec![None; object.symbols.len()],
            table: vec![0; 24],
            names: vec![0],
            locals: 1,
            counters: (0, 0, 0),
        }
    }

    /// Gives every atom that is written its place, and copies it there.
    fn lay_out(&mut self) {
        let mut known: HashMap<Key, u32> = HashMap::new();
        for (index, section) in self.object.sections.iter().enumerate() {
            if matches!(self.atoms.roles[index], Role::Discarded) {
                continue;
            }
            let flags = section.flags
                & (abi::SHF_WRITE | abi::SHF_ALLOC | abi::SHF_EXECINSTR | abi::SHF_MERGE | abi::SHF_STRINGS);
            let own = (class(section), section.kind, flags, section.entry_size);
            let range = self.atoms.of_section[index].clone();
            if range.is_empty() {
                let group = self.group(&mut known, &own);
                self.empty.insert(index as u32, (group, self.groups[group as usize].size));
            }
            for id in range.filter(|id| !self.contents.placement.placed.contains(id)) {
                self.lay(&mut known, id, section, &own);
            }
        }
        for (name, id) in &self.contents.placement.order {
            let section = &self.object.sections[self.atoms.atoms[*id as usize].section as usize];
            let flags = section.flags & (abi::SHF_ALLOC | abi::SHF_EXECINSTR);
            self.lay(&mut known, *id, section, &(name.to_vec(), section.kind, flags, section.entry_size));
        }
        if self.contents.counters > 0 {
            let flags = abi::SHF_WRITE | abi::SHF_ALLOC;
            let index = self.group(&mut known, &(BSS.to_vec(), abi::SHT_NOBITS, flags, 0));
            let group = &mut self.groups[index as usize];
            self.counters = (index, group.size, 0);
            group.size += self.contents.counters;
        }
    }

    /// Places an atom in the group of `own`, unless it goes elsewhere or nowhere.
    fn lay(&mut self, known: &mut HashMap<Key, u32>, id: AtomId, section: &Section<'_>, own: &Key) {
        let is_part = self.atoms.roles[self.atoms.atoms[id as usize].section as usize].is_parts();
        let live = self.contents.analysis.is_left(id) && !self.contents.analysis.folded.contains_key(&id);
        let trapped = self.contents.trap && is_part && !live;
        if !live && !trapped {
            return;
        }
        let (_, kind, flags, entry_size) = *own;
        let group = if self.contents.analysis.moved.contains(&id) {
            let name = if section.is_code() { INIT_TEXT.to_vec() } else { [b".init", &own.0[..]].concat() };
            self.group(known, &(name, kind, flags, entry_size))
        } else if section.kind == abi::SHT_NOBITS && self.contents.analysis.initial.contains_key(&id) {
            self.group(known, &(DATA.to_vec(), abi::SHT_PROGBITS, flags, entry_size))
        } else {
            self.group(known, own)
        };
        self.place(id, group, section, trapped && section.is_code());
    }

    fn group(&mut self, known: &mut HashMap<Key, u32>, key: &Key) -> u32 {
        if let Some(group) = known.get(key) {
            return *group;
        }
        let (name, kind, flags, entry_size) = key.clone();
        let index = self.groups.len() as u32;
        let (data, relocations) = (Vec::new(), Vec::new());
        self.groups.push(Group { name, kind, flags, entry_size, align: 1, size: 0, data, relocations });
        known.insert(key.clone(), index);
        index
    }

    fn place(&mut self, id: AtomId, index: u32, section: &Section<'_>, trapped: bool) {
        let atom = &self.atoms.atoms[id as usize];
        let group = &mut self.groups[index as usize];
        let at = group.size.next_multiple_of(atom.align);
        group.align = group.align.max(section.align);
        let edit = self.contents.analysis.edits.get(&id).filter(|_| !trapped);
        let bytes = atom.end - atom.start;
        group.size = at + edit.map_or(bytes, |edit| edit.length(bytes));
        self.places[id as usize] = Some((index, at));
        let initial = self.contents.analysis.initial.get(&id).map(|value| value.to_le_bytes());
        let initial = initial.as_ref().and_then(|bytes| bytes.get(..(atom.end - atom.start) as usize));
        let bytes = initial.or_else(|| section.data.get(atom.start as usize..atom.end as usize));
        let Some(bytes) = bytes else { return };
        let filler = if group.flags & abi::SHF_EXECINSTR != 0 { self.arch.filler() } else { 0 };
        group.data.resize(at as usize, filler);
        match edit {
            Some(edit) => group.data.extend(edit.applied(self.arch, bytes, atom.start)),
            None => group.data.extend_from_slice(bytes),
        }
        if trapped {
            self.arch.fill_trap(&mut group.data[at as usize..]);
        }
    }

    /// Writes the symbols that are left: those of sections, local ones, global ones.
    fn number_symbols(&mut self) {
        for group in 0..self.groups.len() {
            self.push_symbol(0, abi::STT_SECTION, 0, group as u16 + 1, 0, 0);
        }
        let used = self.used_undefined();
        for global in [false, true] {
            for index in 0..self.object.symbols.len() {
                let symbol = &self.object.symbols[index];
                let named = !symbol.is_section() && symbol.kind != abi::STT_FILE && index > 0;
                if named && symbol.is_global() == global && !self.contents.analysis.nameless.contains(&(index as u32)) {
                    self.copy_symbol(index, symbol, &used);
                }
            }
            if !global {
                self.locals = (self.table.len() / 24) as u32;
            }
        }
        if self.contents.counters > 0 {
            self.name_counters();
        }
    }

    /// Writes the symbols of the counters, which others may have referred to.
    fn name_counters(&mut self) {
        let (group, at, _) = self.counters;
        let bytes = self.contents.counters;
        self.counters.2 = (self.table.len() / 24) as u32;
        for (name, offset, size) in [(COUNTERS[0], 0, bytes), (COUNTERS[1], bytes, 0)] {
            let index = (self.table.len() / 24) as u32;
            for (symbol, new) in self.object.symbols.iter().zip(&mut self.symbols) {
                if symbol.place == SymbolPlace::Undefined && symbol.name == name {
                    *new = Some(index);
                }
            }
            let name_at = self.names.len() as u32;
            self.names.extend_from_slice(name);
            self.names.push(0);
            let info = abi::STB_GLOBAL << 4 | abi::STT_OBJECT;
            self.push_symbol(name_at, info, 0, group as u16 + 1, at + offset, size);
        }
    }

    fn copy_symbol(&mut self, index: usize, symbol: &Symbol<'_>, used: &HashSet<u32>) {
        let (section, value) = match symbol.place {
            SymbolPlace::Undefined if self.contents.counters > 0 && COUNTERS.contains(&symbol.name) => return,
            SymbolPlace::Undefined if used.contains(&(index as u32)) => (abi::SHN_UNDEF, symbol.value),
            SymbolPlace::Undefined => return,
            SymbolPlace::Absolute => (abi::SHN_ABS, symbol.value),
            SymbolPlace::Common => (abi::SHN_COMMON, symbol.value),
            SymbolPlace::Section(section) => match self.position(section, symbol.value as i64) {
                Some((group, value)) => (group as u16 + 1, value as u64),
                None => return,
            },
        };
        let name = self.names.len() as u32;
        self.names.extend_from_slice(symbol.name);
        self.names.push(0);
        self.symbols[index] = Some((self.table.len() / 24) as u32);
        let size = match symbol.place {
            SymbolPlace::Section(of) => self.size(of, symbol),
            _ => symbol.size,
        };
        self.push_symbol(name, symbol.binding << 4 | symbol.kind, symbol.other, section, value, size);
    }

    /// The bytes that a symbol covers now.
    fn size(&self, section: u32, symbol: &Symbol<'_>) -> u64 {
        let edit = self.atoms.at(section, symbol.value as i64).and_then(|id| self.contents.analysis.edits.get(&id));
        let end = symbol.value.saturating_add(symbol.size);
        edit.map_or(symbol.size, |edit| edit.moved(end).saturating_sub(edit.moved(symbol.value)))
    }

    fn push_symbol(&mut self, name: u32, info: u8, other: u8, section: u16, value: u64, size: u64) {
        self.table.extend_from_slice(&name.to_le_bytes());
        self.table.extend_from_slice(&[info, other]);
        self.table.extend_from_slice(&section.to_le_bytes());
        self.table.extend_from_slice(&value.to_le_bytes());
        self.table.extend_from_slice(&size.to_le_bytes());
    }

    /// Symbols that the object does not define and that something written refers to.
    fn used_undefined(&self) -> HashSet<u32> {
        let placed = (0..self.places.len() as AtomId).filter(|id| self.places[*id as usize].is_some());
        let references = placed.flat_map(|id| self.references(id));
        let symbols = references.filter_map(|reference| match reference.target {
            Target::Symbol(symbol) => Some(symbol),
            Target::Place { .. } => None,
        });
        symbols.filter(|symbol| self.object.symbols[*symbol as usize].place == SymbolPlace::Undefined).collect()
    }

    /// The references of an atom that are written.
    fn references(&self, id: AtomId) -> impl Iterator<Item = &'w Reference> {
        let (atoms, changes) = (self.atoms, &self.contents.analysis.changes);
        let section = atoms.atoms[id as usize].section;
        atoms.references_of(id).iter().filter(move |reference| !changes.is_dead(section, reference.offset))
    }

    /// Where a place of the input is written; `None` if it is not. Folded atoms have no place of
    /// their own.
    fn position(&self, section: u32, offset: i64) -> Option<(u32, i64)> {
        let Some(id) = self.atoms.at(section, offset) else {
            return self.empty.get(&section).map(|(group, at)| (*group, *at as i64));
        };
        self.position_in(id, section, offset)
    }

    /// Where the instruction at a place of the input is written, which control may come to by way
    /// of what is inserted there.
    fn position_of_instruction(&self, section: u32, offset: i64) -> Option<(u32, i64)> {
        let (group, at) = self.position(section, offset)?;
        let edit = self.atoms.at(section, offset).and_then(|id| self.contents.analysis.edits.get(&id));
        let (Some(edit), Ok(offset)) = (edit, u64::try_from(offset)) else { return Some((group, at)) };
        Some((group, at + edit.moved_byte(offset) as i64 - edit.moved(offset) as i64))
    }

    fn position_in(&self, id: AtomId, section: u32, offset: i64) -> Option<(u32, i64)> {
        let (group, at) = self.places[id as usize]?;
        let atom = &self.atoms.atoms[id as usize];
        let edit = self.contents.analysis.edits.get(&id);
        let moved = edit.zip(u64::try_from(offset).ok()).map(|(edit, offset)| edit.moved(offset) as i64);
        let mut inside = moved.unwrap_or(offset) - atom.start as i64;
        // Behind the end of a string lies the empty string, of which there is one in every end.
        if self.object.sections[section as usize].is_strings() && inside >= (atom.end - atom.start) as i64 {
            let width = self.object.sections[section as usize].entry_size.max(1);
            inside = (atom.end - atom.start).saturating_sub(width) as i64;
        }
        Some((group, at as i64 + inside))
    }

    fn relocate(&mut self) -> Result<(), SpecialiseError> {
        let mut references = Vec::new();
        for id in 0..self.places.len() as AtomId {
            let Some((group, at)) = self.places[id as usize] else { continue };
            let atom = &self.atoms.atoms[id as usize];
            let section = atom.section;
            let is_trap = self.contents.trap
                && self.object.sections[section as usize].is_code()
                && (!self.contents.analysis.is_left(id) || self.contents.analysis.folded.contains_key(&id));
            if is_trap {
                continue;
            }
            let edit = self.contents.analysis.edits.get(&id);
            for reference in self.references(id) {
                if reference.implied && reference.atom == Some(id) {
                    continue;
                }
                let (symbol, addend) = self.resolve(id, reference)?;
                let field = edit.map_or(reference.offset, |edit| edit.moved_byte(reference.offset));
                let info = u64::from(symbol) << 32 | u64::from(reference.kind);
                references.push([at + field - atom.start, info, addend as u64]);
            }
            if let Some(edit) = edit.filter(|_| self.contents.counters > 0) {
                references
                    .extend(self.counting(edit).map(|[offset, info, addend]| [at + offset - atom.start, info, addend]));
                references.sort_unstable();
            }
            self.groups[group as usize].relocations.append(&mut references);
        }
        // Placed functions are behind others that come after them in the object.
        for group in &mut self.groups {
            group.relocations.sort_by_key(|relocation| relocation[0]);
        }
        Ok(())
    }

    /// References of what an edit inserts, with offsets as in the section.
    fn counting(&self, edit: &Edit) -> impl Iterator<Item = [u64; 3]> {
        let (bytes, field) = self.arch.counting();
        let info = u64::from(self.counters.2) << 32 | u64::from(self.arch.relative_kind());
        let stores = edit.inserted.iter().filter_map(|insertion| Some((insertion, insertion.counter?)));
        stores.map(move |(insertion, counter)| {
            // The distance counts from the end of the instruction.
            let addend = counter.wrapping_sub(bytes.len() as u64 - field);
            [edit.moved(insertion.at) + field, info, addend]
        })
    }

    /// New symbol and addend of a reference of the atom `from`.
    fn resolve(&self, from: AtomId, reference: &Reference) -> Result<(u32, i64), SpecialiseError> {
        let section = self.atoms.atoms[from as usize].section;
        let missing = || SpecialiseError::Damaged {
            what: "reference",
            section: self.object.sections[section as usize].shown(),
            reason: format!("offset {:#x}: it goes to what is thrown away", reference.offset),
        };
        let target = match self.contents.analysis.changes.retargeted.get(&(section, reference.offset)) {
            Some(symbol) => Target::Symbol(*symbol),
            None => reference.target,
        };
        let mut addend = reference.addend;
        let role = &self.atoms.roles[section as usize];
        let is_key = role.key() == Some(reference.offset % self.atoms.entry_sizes[section as usize]);
        let names_instruction = is_key && role.names_instructions();
        let (place, offset) = match target {
            Target::Symbol(symbol) => {
                let definition = &self.object.symbols[symbol as usize];
                let is_edited = |section| {
                    let id = self.atoms.at(section, definition.value as i64);
                    id.is_some_and(|id| self.contents.analysis.edits.contains_key(&id))
                };
                let is_folded = |section| {
                    let id = self.atoms.at(section, definition.value as i64);
                    id.is_some_and(|id| self.contents.analysis.folded.contains_key(&id))
                };
                match (self.symbols[symbol as usize], definition.place) {
                    // What lies behind a symbol may have moved.
                    (_, SymbolPlace::Section(place))
                        if is_edited(place) && (reference.beyond != 0 || names_instruction) =>
                    {
                        addend -= reference.beyond;
                        (place, definition.value as i64 + reference.beyond)
                    }
                    (_, SymbolPlace::Section(place)) if is_folded(place) => (place, definition.value as i64),
                    (Some(new), _) => return Ok((new, reference.addend)),
                    (None, SymbolPlace::Section(place)) => (place, definition.value as i64),
                    (None, _) => return Err(missing()),
                }
            }
            Target::Place { section, offset } => (section, offset),
        };
        let id = self.atoms.at(place, offset);
        let found = match id.and_then(|id| self.contents.analysis.folded.get(&id).map(|equal| (id, *equal))) {
            Some((folded, equal)) => {
                let inside = offset - self.atoms.atoms[folded as usize].start as i64;
                let equal_atom = &self.atoms.atoms[equal as usize];
                self.position_in(equal, equal_atom.section, equal_atom.start as i64 + inside)
            }
            None if names_instruction => self.position_of_instruction(place, offset),
            None => self.position(place, offset),
        };
        let (group, at) = found.ok_or_else(missing)?;
        Ok((group + 1, at.wrapping_add(addend)))
    }

    /// Puts the file together.
    fn finish(self) -> Vec<u8> {
        let mut file = File::new(self.object.machine);
        let relocated = self.groups.iter().filter(|group| !group.relocations.is_empty()).count();
        let symbols = 1 + self.groups.len() + relocated;
        for group in &self.groups {
            let flags = group.flags;
            let size = if group.kind == abi::SHT_NOBITS { group.size } else { group.data.len() as u64 };
            let header =
                Header { kind: group.kind, flags, size, link: 0, info: 0, align: group.align, entry: group.entry_size };
            file.section(&group.name, header, &group.data);
        }
        for (index, group) in self.groups.iter().enumerate().filter(|(_, group)| !group.relocations.is_empty()) {
            let bytes: Vec<u8> = group.relocations.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
            let (flags, size) = (abi::SHF_INFO_LINK, bytes.len() as u64);
            let (link, info) = (symbols as u32, index as u32 + 1);
            let header = Header { kind: abi::SHT_RELA, flags, size, link, info, align: 8, entry: 24 };
            file.section(&[b".rela", &group.name[..]].concat(), header, &bytes);
        }
        let (link, info, size) = (symbols as u32 + 1, self.locals, self.table.len() as u64);
        let header = Header { kind: abi::SHT_SYMTAB, flags: 0, size, link, info, align: 8, entry: 24 };
        file.section(b".symtab", header, &self.table);
        let size = self.names.len() as u64;
        let header = Header { kind: abi::SHT_STRTAB, flags: 0, size, link: 0, info: 0, align: 1, entry: 0 };
        file.section(b".strtab", header, &self.names);
        file.finish()
    }
}
