//! Divides an object into atoms.

mod tables;

use std::collections::HashSet;
use std::ops::Range;

use crate::arch::{Architecture, Code, Use};
use crate::atom::{Atom, AtomId};
use crate::atoms::Atoms;
use crate::object::{Object, Section, SymbolPlace};
use crate::reference::{self, Reference, Target};
use crate::schema::{Role, Schema};
use crate::{SpecialiseError, abi};

use tables::{entry_size, table_fault};

/// Atoms we accept; a mainstream kernel has about 700 thousand.
const ATOMS_MAX: usize = 1 << 24;

/// How far beside an object an address may lie to which an index is added: such an object stays
/// with its neighbour.
const BIAS_BYTES_MAX: i64 = 256;

/// Whether the padding before a function is part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Padding {
    /// It is part of the function: something may write a call into it.
    OfFunction,
    /// It is an atom of its own, which nothing refers to.
    Apart,
}

/// The prefix of symbols of padding.
const PADDING: &[u8] = b"__pfx_";

/// Divides an object. `script` is the text of the kernel's linker script, which must know every
/// side table.
///
/// # Errors
/// An unknown kind of relocation, or too many atoms.
pub(crate) fn divide(
    object: &Object<'_>,
    schema: &Schema,
    arch: &dyn Architecture,
    script: &str,
    padding: Padding,
) -> Result<Atoms, SpecialiseError> {
    let mut divider = Divider::new(object, schema, arch, script, padding);
    let mut cuts = divider.cuts();
    let mut codes: Vec<Option<Code>> = Vec::with_capacity(object.sections.len());
    for (index, section) in object.sections.iter().enumerate() {
        let ready = section.is_code() && divider.is_kept(index) && !matches!(divider.roles[index], Role::Pieces(_));
        codes.push(ready.then(|| divider.decode(index, &cuts[index])));
    }
    let mut references = Vec::with_capacity(object.sections.len());
    for (index, code) in codes.iter().enumerate() {
        references.push(match divider.is_kept(index) {
            true => reference::of_section(object, index, code.as_ref(), arch)?,
            false => Vec::new(),
        });
    }
    divider.cut_pieces(&references, &mut cuts);
    for index in (0..object.sections.len()).filter(|index| matches!(divider.roles[*index], Role::Pieces(_))) {
        if object.sections[index].is_code() {
            codes[index] = Some(divider.decode(index, &cuts[index]));
            references[index] = reference::of_section(object, index, codes[index].as_ref(), arch)?;
        }
    }
    divider.join_code(&codes, &mut cuts);
    divider.join_data(&references, &mut cuts);
    divider.finish(&cuts, references)
}

struct Divider<'o, 'a> {
    object: &'o Object<'a>,
    arch: &'o dyn Architecture,
    padding: Padding,
    roles: Vec<Role>,
    /// Symbols with a size of each section, by value, the longest first.
    sized: Vec<Vec<u32>>,
    warnings: Vec<String>,
}

impl<'o, 'a> Divider<'o, 'a> {
    fn new(
        object: &'o Object<'a>,
        schema: &Schema,
        arch: &'o dyn Architecture,
        script: &str,
        padding: Padding,
    ) -> Self {
        let mut sized = vec![Vec::new(); object.sections.len()];
        for (index, symbol) in object.symbols.iter().enumerate() {
            if let SymbolPlace::Section(section) = symbol.place
                && symbol.size > 0
                && !symbol.is_section()
            {
                sized[section as usize].push(index as u32);
            }
        }
        for symbols in &mut sized {
            symbols.sort_by_key(|index| {
                let symbol = &object.symbols[*index as usize];
                (symbol.value, u64::MAX - symbol.size)
            });
        }
        let mut roles = Vec::with_capacity(object.sections.len());
        let mut warnings = Vec::new();
        for section in &object.sections {
            let role = if section.is_loaded() { schema.role(section.name) } else { Role::Discarded };
            let role = match role {
                Role::Table(table) => match table_fault(object, section, table, script) {
                    None => role,
                    Some(fault) => {
                        warnings.push(format!("{}: {fault}; it is kept whole", section.shown()));
                        Role::Whole
                    }
                },
                Role::Unknown if section.size > 0 => {
                    warnings.push(format!("{}: unknown section; it is kept whole", section.shown()));
                    role
                }
                role => role,
            };
            roles.push(role);
        }
        Self { object, arch, padding, roles, sized, warnings }
    }

    fn is_kept(&self, index: usize) -> bool {
        !matches!(self.roles[index], Role::Discarded)
    }

    /// Where each section is cut at first; pieces are not cut yet.
    fn cuts(&self) -> Vec<Vec<u64>> {
        let sections = self.object.sections.iter().enumerate();
        sections.map(|(index, section)| self.cuts_of(index, section)).collect()
    }

    fn cuts_of(&self, index: usize, section: &Section<'_>) -> Vec<u64> {
        if section.size == 0 || !self.is_kept(index) {
            return Vec::new();
        }
        match self.roles[index] {
            Role::Table(table) => match entry_size(section, table) {
                Some(size) => (0..section.size).step_by(size as usize).collect(),
                None => vec![0],
            },
            Role::Parts if section.is_strings() => string_starts(section),
            Role::Parts if section.flags & abi::SHF_MERGE != 0 => match section.entry_size {
                size if size > 0 && section.size.is_multiple_of(size) => {
                    (0..section.size).step_by(size as usize).collect()
                }
                _ => vec![0],
            },
            // Compilers that divide sections leave these to assembler, whose data may hang
            // together.
            Role::Parts if matches!(section.name, b".data" | b".rodata" | b".bss") => vec![0],
            Role::Parts => self.symbol_starts(index, section),
            _ => vec![0],
        }
    }

    /// Cuts at symbols that have a size and do not lie in another one.
    fn symbol_starts(&self, index: usize, section: &Section<'_>) -> Vec<u64> {
        let mut cuts = vec![0];
        let mut covered = 0;
        // Assembler and C share these, and assembler puts tables together from several symbols.
        let shared = !section.is_code() && (section.name.starts_with(b".init.") || section.name.starts_with(b".ref."));
        for symbol in self.sized[index].iter().map(|index| &self.object.symbols[*index as usize]) {
            let fits = match symbol.kind {
                abi::STT_OBJECT => true,
                abi::STT_FUNC | abi::STT_NOTYPE => section.is_code(),
                _ => false,
            };
            if !fits || symbol.value >= section.size {
                continue;
            }
            let together = shared && !symbol.value.is_multiple_of(4);
            let leading = covered == 0 && !section.is_code();
            if symbol.value >= covered && symbol.value > 0 && !together && !leading {
                cuts.push(symbol.value);
            }
            // The padding before a function, which is called by its own name while it is patched,
            // belongs to the function.
            let prefix = u64::from(self.padding == Padding::OfFunction && symbol.name.starts_with(PADDING));
            covered = covered.max(symbol.value.saturating_add(symbol.size).saturating_add(prefix));
        }
        cuts.dedup();
        cuts
    }

    /// Decodes a section between its cuts.
    fn decode(&self, index: usize, cuts: &[u64]) -> Code {
        let section = &self.object.sections[index];
        let ends = self.ends(index, cuts);
        let ranges: Vec<Range<u64>> = cuts.iter().zip(ends).map(|(start, end)| *start..end).collect();
        self.arch.decode(section, &ranges)
    }

    /// The ends of the contents of the parts between cuts.
    fn ends(&self, index: usize, cuts: &[u64]) -> Vec<u64> {
        let section = &self.object.sections[index];
        let symbols = &self.sized[index];
        let mut ends = Vec::with_capacity(cuts.len());
        let mut next_symbol = 0;
        for (number, start) in cuts.iter().enumerate() {
            let next = cuts.get(number + 1).copied().unwrap_or(section.size);
            let mut end = *start;
            while let Some(symbol) = symbols.get(next_symbol).map(|index| &self.object.symbols[*index as usize]) {
                if symbol.value >= next {
                    break;
                }
                end = end.max(symbol.value.saturating_add(symbol.size).min(next));
                next_symbol += 1;
            }
            let is_last = number + 1 == cuts.len();
            ends.push(if end > *start && self.is_filling(section, end..next, is_last) { end } else { next });
        }
        ends
    }

    /// Whether `gap` behind an object only aligns the next one.
    fn is_filling(&self, section: &Section<'_>, gap: Range<u64>, is_last: bool) -> bool {
        if gap.is_empty() || !section.relocations_in(gap.clone()).is_empty() {
            return gap.is_empty();
        }
        let bytes = section.data.get(gap.start as usize..gap.end as usize);
        if section.is_code() {
            return bytes.is_some_and(|bytes| self.arch.is_padding(bytes));
        }
        let short = gap.end - gap.start < align_at(section, gap.end);
        !is_last && short && bytes.is_none_or(|bytes| bytes.iter().all(|byte| *byte == 0))
    }

    /// Cuts code without symbols at the targets of references.
    fn cut_pieces(&self, references: &[Vec<Reference>], cuts: &mut [Vec<u64>]) {
        for (from, references) in references.iter().enumerate() {
            let section = &self.object.sections[from];
            for reference in references {
                let Target::Place { section: to, offset } = reference.target else { continue };
                let Role::Pieces(by) = self.roles[to as usize] else { continue };
                let begins = match by {
                    Some(by) => section.name == by.as_bytes(),
                    // Tables name places inside, where no piece begins.
                    None => section.is_code(),
                };
                if begins && offset > 0 && (offset as u64) < self.object.sections[to as usize].size {
                    cuts[to as usize].push(offset as u64);
                }
            }
        }
        for (index, cuts) in cuts.iter_mut().enumerate() {
            if matches!(self.roles[index], Role::Pieces(_)) {
                cuts.sort_unstable();
                cuts.dedup();
            }
        }
    }

    /// Removes cuts that control runs over, or that a short jump crosses.
    fn join_code(&self, codes: &[Option<Code>], cuts: &mut [Vec<u64>]) {
        for (index, code) in codes.iter().enumerate() {
            let Some(code) = code else { continue };
            let mut joined: Vec<Range<u64>> = Vec::new();
            // Replacements of instructions end with their length, not with a jump.
            if !matches!(self.roles[index], Role::Pieces(Some(_))) {
                let paddings = self.padding_ends(index);
                joined.extend(code.falls.iter().filter(|end| !paddings.contains(end)).map(|end| {
                    // The code ends before the filling; the cut is behind it.
                    let next = cuts[index].partition_point(|cut| cut < end);
                    let cut = cuts[index].get(next).copied().unwrap_or(*end);
                    end - 1..cut
                }));
            }
            let short = code.locals.iter().filter(|local| local.bytes != 4);
            joined.extend(short.map(|local| local.offset.min(local.target)..local.offset.max(local.target)));
            join(&mut cuts[index], joined);
        }
    }

    /// Where padding that is apart ends in a section.
    fn padding_ends(&self, index: usize) -> HashSet<u64> {
        if self.padding == Padding::OfFunction {
            return HashSet::new();
        }
        let symbols = self.sized[index].iter().map(|index| &self.object.symbols[*index as usize]);
        let paddings = symbols.filter(|symbol| symbol.name.starts_with(PADDING));
        paddings.filter_map(|symbol| symbol.value.checked_add(symbol.size)).collect()
    }

    /// Removes cuts between data that may be reached from each other's addresses.
    fn join_data(&mut self, references: &[Vec<Reference>], cuts: &mut [Vec<u64>]) {
        let is_shared = |index: usize, cuts: &[Vec<u64>]| {
            let section = &self.object.sections[index];
            cuts[index].len() > 1
                && matches!(self.roles[index], Role::Parts)
                && reference::is_data(section)
                && section.flags & abi::SHF_MERGE == 0
        };
        let shared: Vec<bool> = (0..cuts.len()).map(|index| is_shared(index, cuts)).collect();
        let ends: Vec<Vec<u64>> = (0..cuts.len())
            .map(|index| if shared[index] { self.ends(index, &cuts[index]) } else { Vec::new() })
            .collect();
        let mut joined: Vec<Vec<Range<u64>>> = vec![Vec::new(); cuts.len()];
        let mut used: Vec<(u32, usize, bool)> = Vec::new();
        let mut unmatched = vec![false; cuts.len()];
        for (index, references) in references.iter().enumerate() {
            let starts = &cuts[index];
            let mut first = 0;
            while first < references.len() {
                let part = starts.partition_point(|start| *start <= references[first].offset);
                let end = starts.get(part).copied().unwrap_or(u64::MAX);
                let last = first + references[first..].partition_point(|reference| reference.offset < end);
                used.clear();
                for reference in &references[first..last.max(first + 1)] {
                    let Target::Place { section, offset } = reference.target else { continue };
                    if reference.how == Use::Unmatched {
                        unmatched[section as usize] = true;
                    }
                    if !shared[section as usize] {
                        continue;
                    }
                    let start = u64::try_from(offset).unwrap_or(0);
                    let number = cuts[section as usize].partition_point(|cut| *cut <= start).saturating_sub(1);
                    let is_start = cuts[section as usize].get(number) == Some(&start);
                    used.push((section, number, is_start));
                    if reference.how == Use::Indexed && !is_start {
                        joined[section as usize].push(start..start.saturating_add(BIAS_BYTES_MAX as u64));
                    }
                }
                used.sort_unstable();
                for pair in used.windows(2) {
                    let ((section, before, _), (other, after, is_start)) = (pair[0], pair[1]);
                    if section == other && before + 1 == after && is_start {
                        let cut = cuts[section as usize][after];
                        // The end of one object is the start of the next: which is meant is not
                        // known.
                        if ends[section as usize].get(before) == Some(&cut) {
                            joined[section as usize].push(cut - 1..cut);
                        }
                    }
                }
                first = last.max(first + 1);
            }
        }
        for (index, ranges) in joined.into_iter().enumerate() {
            join(&mut cuts[index], ranges);
            let section = &self.object.sections[index];
            if unmatched[index] && cuts[index].len() > 1 && !matches!(self.roles[index], Role::Table(_)) {
                cuts[index].truncate(1);
                self.warnings
                    .push(format!("{}: used by code that cannot be decoded; it is not divided", section.shown()));
            }
        }
    }

    fn finish(self, cuts: &[Vec<u64>], references: Vec<Vec<Reference>>) -> Result<Atoms, SpecialiseError> {
        let mut atoms = Vec::new();
        let mut of_section = Vec::with_capacity(cuts.len());
        for (index, section) in self.object.sections.iter().enumerate() {
            let first = atoms.len();
            if first + cuts[index].len() > ATOMS_MAX {
                let found = (first + cuts[index].len()) as u64;
                return Err(SpecialiseError::TooLarge { what: "atoms", found, limit: ATOMS_MAX as u64 });
            }
            let ends = match self.roles[index] {
                Role::Parts if section.is_strings() => string_ends(section, &cuts[index]),
                Role::Parts if section.flags & abi::SHF_MERGE == 0 => self.ends(index, &cuts[index]),
                _ => cuts[index].iter().skip(1).copied().chain([section.size]).collect(),
            };
            let is_table = matches!(self.roles[index], Role::Table(_));
            for (start, end) in cuts[index].iter().zip(ends) {
                // Entries follow each other without gaps, whatever the alignment of the table.
                let align = if is_table { 1 } else { align_at(section, *start) };
                atoms.push(Atom { section: index as u32, start: *start, end, align });
            }
            of_section.push(first as AtomId..atoms.len() as AtomId);
        }
        let entry_sizes = self.object.sections.iter().zip(&self.roles).map(|(section, role)| match role {
            Role::Table(table) => entry_size(section, table).unwrap_or(1),
            _ => 1,
        });
        let entry_sizes = entry_sizes.collect();
        let padding_symbols = (self.padding == Padding::Apart).then_some(self.object);
        let mut divided = Atoms::new(self.object, atoms, of_section, (self.roles, entry_sizes), references);
        divided.padding = padding_symbols.map_or_else(Vec::new, |object| padding_atoms(object, &divided));
        divided.warnings = self.warnings;
        Ok(divided)
    }
}

/// Atoms that are padding before a function.
fn padding_atoms(object: &Object<'_>, atoms: &Atoms) -> Vec<AtomId> {
    let mut found = Vec::new();
    for symbol in object.symbols.iter().filter(|symbol| symbol.name.starts_with(PADDING) && symbol.size > 0) {
        let SymbolPlace::Section(section) = symbol.place else { continue };
        let Some(id) = atoms.at(section, symbol.value as i64) else { continue };
        let atom = &atoms.atoms[id as usize];
        let is_last = atoms.of_section[section as usize].end == id + 1;
        if !is_last && atom.start == symbol.value && symbol.value.checked_add(symbol.size) == Some(atom.end) {
            found.push(id);
        }
    }
    found.sort_unstable();
    found
}

/// Takes the cuts in `(start, end]` of each range away.
fn join(cuts: &mut Vec<u64>, mut ranges: Vec<Range<u64>>) {
    if ranges.is_empty() || cuts.len() < 2 {
        return;
    }
    ranges.sort_unstable_by_key(|range| range.start);
    let mut next = 0;
    let mut reach = 0;
    cuts.retain(|cut| {
        while let Some(range) = ranges.get(next).filter(|range| range.start < *cut) {
            reach = reach.max(range.end);
            next += 1;
        }
        *cut == 0 || reach < *cut
    });
}

/// The alignment that an offset of a section keeps: that of the section, as far as the offset has
/// it.
fn align_at(section: &Section<'_>, offset: u64) -> u64 {
    if offset == 0 { section.align } else { section.align.min(1 << offset.trailing_zeros()) }
}

/// Where the strings of a section start: behind the end of each, filling skipped.
fn string_starts(section: &Section<'_>) -> Vec<u64> {
    let width = section.entry_size.max(1) as usize;
    let mut starts = vec![0];
    let mut ended = false;
    for (index, character) in section.data.chunks(width).enumerate() {
        let is_zero = character.iter().all(|byte| *byte == 0);
        if ended && !is_zero {
            starts.push((index * width) as u64);
        }
        ended = is_zero;
    }
    starts
}

/// Where they end: behind their zero.
fn string_ends(section: &Section<'_>, starts: &[u64]) -> Vec<u64> {
    let width = section.entry_size.max(1) as usize;
    let end = |(number, start): (usize, &u64)| {
        let next = starts.get(number + 1).copied().unwrap_or(section.size);
        let bytes = section.data.get(*start as usize..next as usize).unwrap_or_default();
        let zero = bytes.chunks(width).position(|character| character.iter().all(|byte| *byte == 0));
        zero.map_or(next, |zero| (start + ((zero + 1) * width) as u64).min(next))
    };
    starts.iter().enumerate().map(end).collect()
}
