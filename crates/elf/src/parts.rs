//! The parts of an ELF file: its sections by kind, or its segments where section headers were
//! stripped.
//!
//! Similar data compresses well together: code with code, relocations with relocations. A packer
//! asks here where one kind ends and the next begins. Only headers are read, a few kilobytes of a
//! file however large.

use object::Endianness;
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};

use crate::program::{all, class_of, exact, fill, first, read_program_headers};
use crate::{Bytes, Class, ElfError, Machine};

/// Section headers we accept by `e_shnum`; files with more say 0 there and are described by their
/// segments.
const SECTION_HEADERS_MAX: usize = 65_279;

/// Bytes of section names we read; names beyond are taken as unknown.
const NAMES_BYTES_MAX: u64 = 1 << 20;

/// Kinds of bytes in an ELF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartKind {
    /// Instructions.
    Code,
    /// Constants.
    ReadOnly,
    /// How to unwind the stack: `.eh_frame`, exception tables.
    Exceptions,
    /// The sorted index of `.eh_frame`: pairs of 32-bit numbers.
    ExceptionIndex,
    /// Relocations.
    Relocations,
    /// Symbols, their hash tables and versions.
    Symbols,
    /// Names of symbols and sections.
    Strings,
    /// Initial values of variables, pointer tables.
    Data,
    /// All else: debug information, notes, what no section covers.
    Other,
}

/// A stretch of a file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it starts.
    pub start: u64,
    /// Where it ends, exclusive.
    pub end: u64,
    /// What it holds.
    pub kind: PartKind,
}

/// The parts of one ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Processor architecture.
    pub machine: Machine,
    /// Word size.
    pub class: Class,
    /// In file order, without overlap; what lies between them is [`PartKind::Other`].
    pub list: Vec<Part>,
}

impl Parts {
    /// Reads the parts of the ELF file in `bytes`.
    ///
    /// # Errors
    /// No ELF file, or its program headers are damaged or lie outside.
    pub fn parse(bytes: &(impl Bytes + ?Sized)) -> Result<Parts, ElfError> {
        match class_of(bytes)? {
            Class::Elf32 => parse_class::<FileHeader32<Endianness>>(bytes),
            Class::Elf64 => parse_class::<FileHeader64<Endianness>>(bytes),
        }
    }

    /// What most bytes of `start..end` are.
    pub fn majority(&self, start: u64, end: u64) -> PartKind {
        let first = self.list.partition_point(|part| part.end <= start);
        let (mut best, mut best_bytes, mut covered) = (PartKind::Other, 0, 0);
        for part in self.list[first..].iter().take_while(|part| part.start < end) {
            let bytes = part.end.min(end) - part.start.max(start);
            covered += bytes;
            if bytes > best_bytes {
                (best, best_bytes) = (part.kind, bytes);
            }
        }
        // What no part covers is padding between parts, mostly zeros: it says nothing unless there
        // is nothing else.
        if covered == 0 { PartKind::Other } else { best }
    }
}

fn parse_class<Elf: FileHeader<Endian = Endianness>>(bytes: &(impl Bytes + ?Sized)) -> Result<Parts, ElfError> {
    let raw = exact(bytes, "file header", 0, size_of::<Elf>())?;
    let header: &Elf = first(&raw)?;
    if !header.is_supported() {
        return Err(ElfError::NotElf);
    }
    let endian = header.endian().map_err(|_| ElfError::NotElf)?;
    let machine = Machine(header.e_machine(endian).0);
    // Stripped or cut off, sections may be missing; what is loaded must be there.
    let mut list = sections(bytes, header, endian).unwrap_or_default();
    if list.is_empty() {
        list = segments(bytes, header, endian)?;
    }
    list.sort_by_key(|part| (part.start, part.end));
    // Damaged headers may let parts overlap; the first one counts.
    let mut end = 0;
    list.retain_mut(|part| {
        part.start = part.start.max(end);
        end = end.max(part.end);
        part.start < part.end
    });
    let class = if header.is_type_64() { Class::Elf64 } else { Class::Elf32 };
    Ok(Parts { machine, class, list })
}

fn sections<Elf: FileHeader<Endian = Endianness>>(
    bytes: &(impl Bytes + ?Sized),
    header: &Elf,
    endian: Endianness,
) -> Result<Vec<Part>, ElfError> {
    let count = usize::from(header.e_shnum(endian));
    let entry = size_of::<Elf::SectionHeader>();
    if count == 0 || count > SECTION_HEADERS_MAX || usize::from(header.e_shentsize(endian)) != entry {
        return Ok(Vec::new());
    }
    let raw = exact(bytes, "section headers", header.e_shoff(endian).into(), count * entry)?;
    let headers: &[Elf::SectionHeader] = all(&raw)?;
    let names = match headers.get(usize::from(header.e_shstrndx(endian).0)) {
        Some(names) => {
            let size: u64 = names.sh_size(endian).into();
            let mut text = vec![0; size.min(NAMES_BYTES_MAX) as usize];
            let found = fill(bytes, "section names", names.sh_offset(endian).into(), &mut text)?;
            text.truncate(found);
            text
        }
        None => Vec::new(),
    };
    let parts = headers.iter().filter_map(|section| {
        let (start, size) = section.file_range(endian)?;
        let end = start.checked_add(size).filter(|_| size > 0)?;
        let name = names.get(section.sh_name(endian) as usize..).unwrap_or_default();
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let flags = section.sh_flags(endian).0;
        Some(Part { start, end, kind: kind_of(section.sh_type(endian).0, flags, name) })
    });
    Ok(parts.collect())
}

fn kind_of(section_type: u32, flags: u64, name: &[u8]) -> PartKind {
    let has = |flag: u32| flags & u64::from(flag) != 0;
    if name == b".eh_frame_hdr" {
        return PartKind::ExceptionIndex;
    }
    let exceptions: [&[u8]; 3] = [b".eh_frame", b".gcc_except_table", b".ARM.ex"];
    if exceptions.iter().any(|prefix| name.starts_with(prefix)) {
        return PartKind::Exceptions;
    }
    match section_type {
        SHT_RELA | SHT_REL | SHT_RELR => PartKind::Relocations,
        SHT_SYMTAB | SHT_DYNSYM | SHT_HASH | SHT_GNU_HASH | SHT_GNU_VERSYM | SHT_GNU_VERNEED | SHT_GNU_VERDEF => {
            PartKind::Symbols
        }
        SHT_STRTAB => PartKind::Strings,
        _ if has(SHF_EXECINSTR) => PartKind::Code,
        _ if has(SHF_ALLOC) && has(SHF_WRITE) => PartKind::Data,
        _ if has(SHF_ALLOC) => PartKind::ReadOnly,
        _ => PartKind::Other,
    }
}

fn segments<Elf: FileHeader<Endian = Endianness>>(
    bytes: &(impl Bytes + ?Sized),
    header: &Elf,
    endian: Endianness,
) -> Result<Vec<Part>, ElfError> {
    let raw = read_program_headers(bytes, header, endian)?;
    let headers: &[Elf::ProgramHeader] = all(&raw)?;
    let loads = headers.iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD);
    let parts = loads.filter_map(|segment| {
        let (start, size) = segment.file_range(endian);
        let end = start.checked_add(size)?;
        let flags = segment.p_flags(endian).0;
        let kind = match (flags & PF_X != 0, flags & PF_W != 0) {
            (true, _) => PartKind::Code,
            (false, true) => PartKind::Data,
            (false, false) => PartKind::ReadOnly,
        };
        Some(Part { start, end, kind })
    });
    Ok(parts.collect())
}

// Plain numbers of the System V ABI, of its GNU extensions, and of the RELR proposal.
const SHT_SYMTAB: u32 = 2;
const SHT_STRTAB: u32 = 3;
const SHT_RELA: u32 = 4;
const SHT_HASH: u32 = 5;
const SHT_REL: u32 = 9;
const SHT_DYNSYM: u32 = 11;
const SHT_RELR: u32 = 19;
const SHT_GNU_HASH: u32 = 0x6fff_fff6;
const SHT_GNU_VERDEF: u32 = 0x6fff_fffd;
const SHT_GNU_VERNEED: u32 = 0x6fff_fffe;
const SHT_GNU_VERSYM: u32 = 0x6fff_ffff;
const SHF_WRITE: u32 = 1;
const SHF_ALLOC: u32 = 2;
const SHF_EXECINSTR: u32 = 4;
const PF_X: u32 = 1;
const PF_W: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_program_has_code_constants_and_symbols_in_order() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let parts = Parts::parse(bytes.as_slice()).unwrap();
        for kind in [PartKind::Code, PartKind::ReadOnly, PartKind::Exceptions, PartKind::Symbols, PartKind::Strings] {
            assert!(parts.list.iter().any(|part| part.kind == kind), "{kind:?}");
        }
        assert!(parts.list.windows(2).all(|two| two[0].end <= two[1].start));
        let code =
            parts.list.iter().filter(|part| part.kind == PartKind::Code).max_by_key(|part| part.end - part.start);
        let code = code.unwrap();
        assert_eq!(parts.majority(code.start - 10, code.start + 4086), PartKind::Code);
        assert_eq!(parts.majority(u64::MAX - 1, u64::MAX), PartKind::Other);
    }

    #[test]
    fn damage_is_an_error_or_changes_kinds_and_nothing_else() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let shoff = u64::from_le_bytes(*bytes[40..].first_chunk().unwrap()) as usize;
        assert!(matches!(Parts::parse(&b"#!/bin/sh\n and some more"[..]), Err(ElfError::NotElf)));
        let cut = Parts::parse(&bytes[..shoff]).unwrap();
        assert!(cut.list.iter().any(|part| part.kind == PartKind::Code), "described by its segments");
        assert!(cut.list.iter().all(|part| part.kind != PartKind::Symbols));
        assert!(Parts::parse(&bytes[..100]).is_err(), "without program headers");
        let mut damaged = bytes.clone();
        for at in (0..64).chain(shoff..damaged.len().min(shoff + 2048)) {
            for value in [0x00, 0x7f, 0xff] {
                let old = std::mem::replace(&mut damaged[at], value);
                if let Ok(parts) = Parts::parse(damaged.as_slice()) {
                    assert!(parts.list.windows(2).all(|two| two[0].end <= two[1].start));
                }
                damaged[at] = old;
            }
        }
    }
}
