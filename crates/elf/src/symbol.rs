//! Finds the function at an offset of an ELF file: for people who read plans, never for a decision.
//!
//! The PT_LOAD segments tell the address of a byte of the file. `.symtab`, or `.dynsym` where that
//! was stripped, tells which symbol covers the address. Both are read whole, which takes a few
//! milliseconds for a large library.

use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{Endianness, pod};

use crate::program::{all, class_of, exact, fill, first, read_program_headers};
use crate::{Bytes, Class, ElfError};

/// Section headers we accept by `e_shnum`; a file with more of them has no symbols for us.
const SECTION_HEADERS_MAX: usize = 65_279;

/// Bytes of a symbol table we accept: 2.8 million symbols. A browser with all its symbols has about
/// half of that.
const SYMBOLS_BYTES_MAX: u64 = 64 << 20;

/// Bytes of a name that are given.
const NAME_BYTES_MAX: usize = 256;

/// A place in a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Name as in the file, at most 256 bytes of it. Of several names for one address the shortest,
    /// then the first in the alphabet.
    pub name: Vec<u8>,
    /// How many bytes behind the start of the function.
    pub offset: u64,
}

/// The function that covers `offset`, in bytes from the start of the ELF file in `bytes`. `None` if
/// no symbol does, or if nothing of the file is loaded from there.
///
/// # Errors
/// No ELF file, or its program headers are damaged. Damaged section headers or symbols are as none.
pub fn symbol_at(bytes: &(impl Bytes + ?Sized), offset: u64) -> Result<Option<Symbol>, ElfError> {
    match class_of(bytes)? {
        Class::Elf32 => find::<FileHeader32<Endianness>>(bytes, offset),
        Class::Elf64 => find::<FileHeader64<Endianness>>(bytes, offset),
    }
}

fn find<Elf: FileHeader<Endian = Endianness>>(
    bytes: &(impl Bytes + ?Sized),
    offset: u64,
) -> Result<Option<Symbol>, ElfError> {
    let raw = exact(bytes, "file header", 0, size_of::<Elf>())?;
    let header: &Elf = first(&raw)?;
    if !header.is_supported() {
        return Err(ElfError::NotElf);
    }
    let endian = header.endian().map_err(|_| ElfError::NotElf)?;
    let raw = read_program_headers(bytes, header, endian)?;
    let segments: &[Elf::ProgramHeader] = all(&raw)?;
    let address = segments.iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD).find_map(|segment| {
        let (start, size) = segment.file_range(endian);
        let inside = offset.checked_sub(start).filter(|inside| *inside < size)?;
        segment.p_vaddr(endian).into().checked_add(inside)
    });
    let Some(address) = address else { return Ok(None) };
    let count = usize::from(header.e_shnum(endian));
    let entry = size_of::<Elf::SectionHeader>();
    if count > SECTION_HEADERS_MAX || usize::from(header.e_shentsize(endian)) != entry {
        return Ok(None);
    }
    let Ok(raw) = exact(bytes, "section headers", header.e_shoff(endian).into(), count * entry) else {
        return Ok(None);
    };
    let sections: &[Elf::SectionHeader] = all(&raw)?;
    // `.symtab` holds all that `.dynsym` has, and more.
    for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
        for table in sections.iter().filter(|section| section.sh_type(endian) == kind) {
            if let Some(symbol) = in_table::<Elf>(bytes, endian, sections, table, address) {
                return Ok(Some(symbol));
            }
        }
    }
    Ok(None)
}

fn in_table<Elf: FileHeader<Endian = Endianness>>(
    bytes: &(impl Bytes + ?Sized),
    endian: Endianness,
    sections: &[Elf::SectionHeader],
    table: &Elf::SectionHeader,
    address: u64,
) -> Option<Symbol> {
    let strings = sections.get(table.sh_link(endian) as usize)?;
    let size: u64 = table.sh_size(endian).into();
    if size > SYMBOLS_BYTES_MAX {
        return None;
    }
    // A size that the file does not have costs no memory.
    let mut last = [0u8];
    let end = table.sh_offset(endian).into().checked_add(size)?;
    if size == 0 || fill(bytes, "symbols", end - 1, &mut last).ok()? == 0 {
        return None;
    }
    let entry = size_of::<Elf::Sym>();
    let raw = exact(bytes, "symbols", table.sh_offset(endian).into(), size as usize / entry * entry).ok()?;
    let symbols: &[Elf::Sym] = pod::slice_from_all_bytes(&raw).ok()?;
    let covering = symbols.iter().filter_map(|symbol| {
        let start = start::<Elf>(symbol, endian)?;
        let inside = address.checked_sub(start).filter(|inside| *inside < symbol.st_size(endian).into())?;
        Some((inside, symbol.st_name(endian)))
    });
    // The innermost one: the start nearest to the address.
    let nearest: Vec<(u64, u32)> = covering.collect();
    let offset = nearest.iter().map(|(inside, _)| *inside).min()?;
    let names = nearest.into_iter().filter(|(inside, _)| *inside == offset);
    let (from, length) = (strings.sh_offset(endian).into(), strings.sh_size(endian).into());
    let names = names.filter_map(|(_, name)| name_of(bytes, from, length, name.into()));
    let name = names.min_by(|left, right| (left.len(), left).cmp(&(right.len(), right)))?;
    Some(Symbol { name, offset })
}

/// The address of a function that the file defines.
fn start<Elf: FileHeader<Endian = Endianness>>(symbol: &Elf::Sym, endian: Endianness) -> Option<u64> {
    let function = matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_GNU_IFUNC);
    let defined = symbol.st_shndx(endian) != elf::SHN_UNDEF;
    (function && defined).then(|| symbol.st_value(endian).into())
}

fn name_of(bytes: &(impl Bytes + ?Sized), strings: u64, length: u64, name: u64) -> Option<Vec<u8>> {
    let room = length.checked_sub(name)?.min(NAME_BYTES_MAX as u64) as usize;
    let mut text = vec![0; room];
    let found = fill(bytes, "name of a symbol", strings.checked_add(name)?, &mut text).ok()?;
    text.truncate(found);
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    text.truncate(end);
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function that is in the symbol table; its name is part of its mangled name.
    const NAME: &[u8] = b"runnel_symbol_for_a_test";

    #[inline(never)]
    fn runnel_symbol_for_a_test(number: u64) -> u64 {
        std::hint::black_box(number) * 3 + 1
    }

    fn is_named(symbol: &Symbol) -> bool {
        symbol.name.windows(NAME.len()).any(|window| window == NAME)
    }

    fn own() -> Vec<u8> {
        std::fs::read("/proc/self/exe").unwrap()
    }

    /// Where in this test program's file the function is, by the kernel's own table of mappings.
    fn offset_of_function() -> u64 {
        let address = runnel_symbol_for_a_test as *const () as u64;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let found = maps.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            let (from, to) = words.next()?.split_once('-')?;
            let offset = hex(words.nth(1)?);
            (hex(from) <= address && address < hex(to)).then(|| offset + address - hex(from))
        });
        found.unwrap()
    }

    #[test]
    fn a_function_is_found_at_its_start_and_inside() {
        assert_eq!(runnel_symbol_for_a_test(2), 7);
        let (bytes, offset) = (own(), offset_of_function());
        for inside in [0, 1] {
            let symbol = symbol_at(bytes.as_slice(), offset + inside).unwrap().unwrap();
            assert!(is_named(&symbol), "{}", symbol.name.escape_ascii());
            assert_eq!(symbol.offset, inside);
        }
        let before = symbol_at(bytes.as_slice(), offset - 1).unwrap();
        assert!(before.is_none_or(|symbol| !is_named(&symbol)));
    }

    #[test]
    fn where_no_function_is_none_is_found() {
        let bytes = own();
        assert_eq!(symbol_at(bytes.as_slice(), 0).unwrap(), None, "the header");
        assert_eq!(symbol_at(bytes.as_slice(), u64::MAX).unwrap(), None);
        assert_eq!(symbol_at(bytes.as_slice(), bytes.len() as u64).unwrap(), None);
        assert!(matches!(symbol_at(&b"#!/bin/sh\n and some more"[..], 3), Err(ElfError::NotElf)));
        // Cut before its section headers it has segments, but no symbols.
        let offset = offset_of_function();
        assert_eq!(symbol_at(&bytes[..offset as usize + 8], offset).unwrap(), None);
    }

    #[test]
    fn exported_functions_of_a_stripped_library_are_found() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let Some(libc) = maps.split_whitespace().find(|word| word.contains("/libc.so")) else {
            eprintln!("skipped: this test program has no libc.so");
            return;
        };
        let bytes = std::fs::read(libc).unwrap();
        let found = (0..bytes.len() as u64)
            .step_by(4096)
            .filter_map(|offset| symbol_at(bytes.as_slice(), offset).unwrap())
            .count();
        assert!(found > 20, "{found} of the pages of {libc} lie in an exported function");
    }

    #[test]
    fn damage_is_an_error_or_another_name_and_never_a_panic() {
        let (mut bytes, offset) = (own(), offset_of_function());
        let shoff = u64::from_le_bytes(*bytes[40..].first_chunk().unwrap()) as usize;
        for at in (0..64).chain((shoff..bytes.len().min(shoff + 4096)).step_by(3)) {
            for value in [0x00, 0x7f, 0xff] {
                let old = std::mem::replace(&mut bytes[at], value);
                let _ = symbol_at(bytes.as_slice(), offset);
                bytes[at] = old;
            }
        }
    }
}
