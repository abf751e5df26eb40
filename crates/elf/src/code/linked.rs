//! An executable or a shared library as a [`Layout`], with its imports, exports and entry points.
//!
//! It is read as `ld.so` reads it: program headers, the dynamic section, relocations (RELA and
//! RELR). Sections add to that where they are there: `.symtab`, `.eh_frame` without a header,
//! relocations of static programs.

mod dynamic;
mod sections;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};

use super::{Extent, Extents, Layout, REGION_BYTES_MAX, Region, Space, Word, frames};
use crate::{ElfError, Machine, PROGRAM_HEADERS_MAX, Program};

type Header = FileHeader64<LittleEndian>;

/// What kind of file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program: `execve` of it makes sense.
    Program,
    /// A shared library, or a dynamic linker.
    Library,
}

/// A symbol that other objects can find by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name, without a version.
    pub name: Vec<u8>,
    /// Its address.
    pub address: u64,
    /// Its size in bytes; 0 is unknown.
    pub bytes: u64,
    /// Whether it is a function or the resolver of one, and no data.
    pub is_code: bool,
}

/// A linked ELF file of 64 bits, least significant byte first.
#[derive(Clone, Debug)]
pub struct Linked<'a> {
    /// What lies where.
    pub layout: Layout<'a>,
    /// Processor architecture.
    pub machine: Machine,
    /// Program or library.
    pub kind: Kind,
    /// Where a program, or a dynamic linker, begins; 0 if it does not.
    pub entry: u64,
    /// Functions that run when the file is loaded or unloaded.
    pub initialisers: Vec<u64>,
    /// Names of symbols that relocations refer to; [`Word::Symbol`] is an index here.
    pub imports: Vec<Vec<u8>>,
    /// What others can find.
    pub exports: Vec<Export>,
    /// Words of the global offset table that hold addresses of symbols: instructions name them one
    /// by one.
    pub slots: BTreeSet<u64>,
    /// First and last address, the last not included, of the strings of symbols and needed
    /// libraries.
    pub strings: (u64, u64),
    /// What the file needs to be loaded.
    pub program: Program,
    /// Bytes of the headers at the start of the file, which hold addresses of segments.
    headers: u64,
}

impl<'a> Linked<'a> {
    /// Reads a file.
    ///
    /// # Errors
    /// Not such an ELF file, or damaged where it matters. Damaged symbols, sections and unwind
    /// tables are as none.
    pub fn parse(bytes: &'a [u8]) -> Result<Linked<'a>, ElfError> {
        let program = Program::parse(bytes)?;
        let header = Header::parse(bytes).map_err(|_| ElfError::NotElf)?;
        let endian = header.endian().map_err(|_| ElfError::NotElf)?;
        if !header.is_type_64() || header.e_phnum(endian) as usize > PROGRAM_HEADERS_MAX {
            return Err(ElfError::NotElf);
        }
        let headers = header.program_headers(endian, bytes).map_err(|_| ElfError::NotElf)?;
        let space = space(headers, endian, bytes)?;
        let dynamic = dynamic::Dynamic::parse(headers, endian, bytes, &space)?;
        let sections = sections::Sections::parse(header, endian, bytes);
        let is_absolute = header.e_type(endian) == elf::ET_EXEC;
        let is_program = is_absolute || dynamic.is_pie || (program.interpreter.is_some() && program.soname.is_none());
        let mut linked = Linked {
            layout: Layout { is_absolute, keeps_no_registers: sections.is_go, ..Layout::default() },
            machine: program.machine,
            kind: if is_program { Kind::Program } else { Kind::Library },
            entry: header.e_entry(endian),
            initialisers: dynamic.initialisers(&space),
            imports: Vec::new(),
            exports: Vec::new(),
            slots: BTreeSet::new(),
            strings: dynamic.strings(),
            headers: header.e_phoff(endian).saturating_add(size_of_val(headers) as u64),
            program,
        };
        let mut names = HashMap::new();
        for relocation in dynamic.relocations(&space)?.into_iter().chain(sections.relocations.iter().copied()) {
            linked.relocate(relocation, &dynamic, &space, &mut names);
        }
        for at in dynamic.relative(&space)? {
            if let Some(address) = space.number(at, 8) {
                linked.layout.words.insert(at, Word::Address(address));
            }
        }
        linked.exports = dynamic.exports(&space)?;
        linked.layout.extents = extents(headers, endian, &space, &sections, &linked.exports);
        linked.layout.space = space;
        // Initialisers of a relocatable file are addresses that relocations fill.
        let words = dynamic.initialiser_words();
        let filled: Vec<u64> = words.filter_map(|at| linked.layout.pointer(at)).collect();
        linked.initialisers.extend(filled.into_iter().filter(|address| linked.layout.space.is_code(*address)));
        linked.initialisers.sort_unstable();
        linked.initialisers.dedup();
        Ok(linked)
    }

    fn relocate(
        &mut self,
        relocation: Relocation,
        dynamic: &dynamic::Dynamic,
        space: &Space<'_>,
        names: &mut HashMap<u32, u32>,
    ) {
        let Relocation { at, kind, symbol, addend } = relocation;
        let word = match what(self.machine, kind) {
            What::Ignored => return,
            What::Relative => Word::Address(addend as u64),
            What::Resolver => Word::Resolver(addend as u64),
            What::Symbol | What::Slot => {
                let number = *names.entry(symbol).or_insert_with(|| {
                    self.imports.push(dynamic.symbol_name(space, symbol).unwrap_or_default());
                    self.imports.len() as u32 - 1
                });
                Word::Symbol(number, addend)
            }
        };
        if matches!(what(self.machine, kind), What::Slot) {
            self.slots.insert(at);
        }
        self.layout.words.insert(at, word);
    }

    /// Code addresses that lie in the file's data, by where they lie: those that relocations fill,
    /// and, in a file that runs only where it was linked, every aligned word that reads as one.
    pub fn pointers(&self) -> Vec<(u64, u64)> {
        let layout = &self.layout;
        let mut found: Vec<(u64, u64)> = Vec::new();
        for (at, word) in &layout.words {
            if let Word::Address(address) | Word::Resolver(address) = word
                && layout.space.is_code(*address)
            {
                found.push((*at, *address));
            }
        }
        if layout.is_absolute {
            let file = layout.space.regions().iter().find(|region| region.bytes.starts_with(&elf::ELFMAG));
            let headers = file.map(|region| region.address..region.address.saturating_add(self.headers));
            let is_header = |at: &u64| headers.as_ref().is_some_and(|headers| headers.contains(at));
            for region in layout.space.regions() {
                let skip = region.address.next_multiple_of(8).wrapping_sub(region.address) as usize;
                let words = region.bytes.get(skip..).unwrap_or_default().as_chunks::<8>().0;
                for (number, word) in words.iter().enumerate() {
                    let address = u64::from_le_bytes(*word);
                    let at = region.address + skip as u64 + number as u64 * 8;
                    if layout.space.is_code(address) && !is_header(&at) {
                        found.push((at, address));
                    }
                }
            }
        }
        found
    }
}

/// One relocation of a linked file.
#[derive(Clone, Copy, Debug)]
struct Relocation {
    at: u64,
    kind: u32,
    symbol: u32,
    addend: i64,
}

/// What a relocation puts into a word.
enum What {
    Relative,
    Resolver,
    Symbol,
    Slot,
    Ignored,
}

/// Relocation types by processor (the psABI of each).
fn what(machine: Machine, kind: u32) -> What {
    match (machine, kind) {
        (Machine::X86_64, 8 | 38) | (Machine::AARCH64, 1027) => What::Relative,
        (Machine::X86_64, 37) | (Machine::AARCH64, 1032) => What::Resolver,
        (Machine::X86_64, 1) | (Machine::AARCH64, 257) => What::Symbol,
        (Machine::X86_64, 6 | 7) | (Machine::AARCH64, 1025 | 1026) => What::Slot,
        _ => What::Ignored,
    }
}

fn space<'a>(
    headers: &[elf::ProgramHeader64<LittleEndian>],
    endian: LittleEndian,
    bytes: &'a [u8],
) -> Result<Space<'a>, ElfError> {
    let mut regions = Vec::new();
    for header in headers.iter().filter(|header| header.p_type(endian) == elf::PT_LOAD) {
        let (offset, stored) = header.file_range(endian);
        let (address, size) = (header.p_vaddr(endian), header.p_memsz(endian));
        if size > REGION_BYTES_MAX || address.checked_add(size).is_none() {
            return Err(ElfError::TooLarge { what: "bytes of a segment", found: size, limit: REGION_BYTES_MAX });
        }
        let found = bytes.len() as u64;
        let truncated =
            ElfError::Truncated { what: "segment", offset, expected: stored, found: found.saturating_sub(offset) };
        let end = offset.checked_add(stored).filter(|end| *end <= found).ok_or(truncated)?;
        let stored = &bytes[offset as usize..end as usize];
        let stored = &stored[..stored.len().min(size as usize)];
        let flags = header.p_flags(endian);
        regions.push(Region {
            address,
            bytes: Cow::Borrowed(stored),
            zeros: size - stored.len() as u64,
            executable: flags.contains(elf::PF_X),
            writable: flags.contains(elf::PF_W),
        });
    }
    Ok(Space::new(regions))
}

fn extents(
    headers: &[elf::ProgramHeader64<LittleEndian>],
    endian: LittleEndian,
    space: &Space<'_>,
    sections: &sections::Sections,
    exports: &[Export],
) -> Extents {
    let mut found: Vec<Extent> = sections.functions.clone();
    found.extend(exports.iter().filter(|export| export.is_code).map(|export| Extent {
        start: export.address,
        end: if export.bytes == 0 { 0 } else { export.address.saturating_add(export.bytes) },
        name: Some(export.name.clone()),
        has_pads: false,
    }));
    let index = headers.iter().find(|header| header.p_type(endian) == elf::PT_GNU_EH_FRAME);
    let table = index.and_then(|header| unwind_table(space, header.p_vaddr(endian))).or(sections.unwind_table);
    for frame in table.map(|table| frames(space, table)).unwrap_or_default() {
        // A procedure linkage table has one entry for all its stubs.
        if !sections.is_stub(frame.start) {
            found.push(Extent { start: frame.start, end: frame.end, name: None, has_pads: frame.has_pads });
        }
    }
    found.retain(|extent| space.is_code(extent.start));
    let limit =
        |address: u64| space.region(address).map_or(address, |region| region.address + region.bytes.len() as u64);
    for extent in &mut found {
        extent.end = extent.end.min(limit(extent.start));
    }
    Extents::new(found, limit)
}

/// The address of `.eh_frame` by its header: version, three encodings, the address (always a
/// distance of 4 bytes from itself).
fn unwind_table(space: &Space<'_>, header: u64) -> Option<u64> {
    const DISTANCE: u8 = 0x1b;
    let bytes = space.bytes_at(header);
    if bytes.first() != Some(&1) || bytes.get(1) != Some(&DISTANCE) {
        return None;
    }
    let at = header.checked_add(4)?;
    Some(at.wrapping_add_signed(i64::from(space.number(at, 4)? as u32 as i32)))
}
