//! A relocatable object as it is in the file: sections, symbols, relocations.
//!
//! A kernel with one section per function has more sections than the 16 bits of an ELF header can
//! count. So sections, and the sections of symbols, are read by the extended numbering. Every count
//! is checked against the length of the file first, so a small hostile file costs little memory.

use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, SectionHeader, Sym};

use crate::{SpecialiseError, abi};

/// Sections we accept; a mainstream kernel has 82 thousand, one with everything built in about a
/// million.
const SECTIONS_MAX: u64 = 4 << 20;

/// Bytes without contents (`.bss`) we accept, in all sections together. The kernel's image may have
/// 1 GiB.
const EMPTY_BYTES_MAX: u64 = 1 << 30;

/// A section.
#[derive(Clone, Debug)]
pub(crate) struct Section<'a> {
    /// Name, not always UTF-8.
    pub name: &'a [u8],
    /// `SHT_…`.
    pub kind: u32,
    /// `SHF_…`.
    pub flags: u64,
    /// Bytes that it takes when loaded.
    pub size: u64,
    /// Alignment in bytes, a power of two.
    pub align: u64,
    /// Bytes of an entry, for sections of equal entries.
    pub entry_size: u64,
    /// Contents; empty without contents.
    pub data: &'a [u8],
    /// Its relocations, by offset.
    pub relocations: Vec<Relocation>,
}

/// A relocation, with its addend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relocation {
    /// Where, in bytes from the start of the section.
    pub offset: u64,
    /// Index of the symbol.
    pub symbol: u32,
    /// `R_…` of the processor.
    pub kind: u32,
    /// What is added.
    pub addend: i64,
}

/// Where a symbol lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SymbolPlace {
    /// Elsewhere.
    Undefined,
    /// Nowhere: the value is a number.
    Absolute,
    /// In memory that the linker makes.
    Common,
    /// At `value` in the section of this index.
    Section(u32),
}

/// A symbol.
#[derive(Clone, Debug)]
pub(crate) struct Symbol<'a> {
    /// Name; empty for sections.
    pub name: &'a [u8],
    /// Offset in the section, a number, or an alignment.
    pub value: u64,
    /// Bytes that it covers.
    pub size: u64,
    /// Where it lies.
    pub place: SymbolPlace,
    /// `STT_…`.
    pub kind: u8,
    /// `STB_…`.
    pub binding: u8,
    /// `st_other`: visibility.
    pub other: u8,
}

impl Symbol<'_> {
    /// Whether other objects see the name.
    pub fn is_global(&self) -> bool {
        self.binding != abi::STB_LOCAL
    }

    /// Whether it stands for its section, so that the addend alone says what is meant.
    pub fn is_section(&self) -> bool {
        self.kind == abi::STT_SECTION
    }
}

/// A relocatable object.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    /// `EM_…`.
    pub machine: u16,
    /// Sections by index; the first is the null section.
    pub sections: Vec<Section<'a>>,
    /// Symbols by index; the first is the null symbol.
    pub symbols: Vec<Symbol<'a>>,
}

impl Section<'_> {
    /// Whether the kernel has it in memory.
    pub fn is_loaded(&self) -> bool {
        self.flags & abi::SHF_ALLOC != 0
    }

    /// Whether it holds code.
    pub fn is_code(&self) -> bool {
        self.flags & abi::SHF_EXECINSTR != 0
    }

    /// Whether it holds strings that the linker may merge.
    pub fn is_strings(&self) -> bool {
        self.flags & abi::SHF_STRINGS != 0 && self.flags & abi::SHF_MERGE != 0
    }

    /// Name for messages.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(self.name).into_owned()
    }

    /// The relocations with offsets in `range`.
    pub fn relocations_in(&self, range: std::ops::Range<u64>) -> &[Relocation] {
        let from = self.relocations.partition_point(|relocation| relocation.offset < range.start);
        let to = self.relocations.partition_point(|relocation| relocation.offset < range.end);
        &self.relocations[from..to.max(from)]
    }
}

fn damaged(what: &'static str, section: &[u8], reason: impl Into<String>) -> SpecialiseError {
    SpecialiseError::Damaged { what, section: String::from_utf8_lossy(section).into_owned(), reason: reason.into() }
}

impl<'a> Object<'a> {
    /// Reads the object in `bytes`.
    ///
    /// # Errors
    /// Not a relocatable object of 64 bits, stripped, too large, or damaged.
    pub fn read(bytes: &'a [u8]) -> Result<Self, SpecialiseError> {
        let header = FileHeader64::<LittleEndian>::parse(bytes)
            .map_err(|error| SpecialiseError::NotRelocatable { found: error.to_string() })?;
        let endian = header.endian().map_err(|error| SpecialiseError::NotRelocatable { found: error.to_string() })?;
        if header.e_type(endian) != elf::ET_REL {
            let found = format!("file type {}", header.e_type(endian).0);
            return Err(SpecialiseError::NotRelocatable { found });
        }
        let headers =
            header.sections(endian, bytes).map_err(|error| damaged("section headers", b"", error.to_string()))?;
        let count = headers.len() as u64;
        if count > SECTIONS_MAX {
            return Err(SpecialiseError::TooLarge { what: "sections", found: count, limit: SECTIONS_MAX });
        }
        let mut sections = Vec::with_capacity(headers.len());
        let (mut filled, mut empty) = (0u64, 0u64);
        for section in headers.iter() {
            let name = headers
                .section_name(endian, section)
                .map_err(|error| damaged("name of a section", b"", error.to_string()))?;
            let kind = section.sh_type(endian);
            let has_contents = kind != elf::SHT_NOBITS && kind != elf::SHT_NULL;
            let data = if has_contents {
                section.data(endian, bytes).map_err(|error| damaged("contents", name, error.to_string()))?
            } else {
                &[]
            };
            let size = if kind == elf::SHT_NULL { 0 } else { section.sh_size(endian) };
            let (sum, limit) =
                if has_contents { (&mut filled, bytes.len() as u64) } else { (&mut empty, EMPTY_BYTES_MAX) };
            *sum = sum.saturating_add(size);
            if *sum > limit {
                return Err(SpecialiseError::TooLarge { what: "bytes of sections", found: *sum, limit });
            }
            let align = section.sh_addralign(endian).max(1);
            if !align.is_power_of_two() || align > EMPTY_BYTES_MAX {
                return Err(damaged("alignment", name, format!("{align} is no power of two")));
            }
            let flags = section.sh_flags(endian).0;
            if flags & abi::SHF_ALLOC != 0 && !abi::LOADED_KINDS.contains(&kind.0) {
                return Err(damaged("section header", name, format!("a section of kind {} is not loaded", kind.0)));
            }
            sections.push(Section {
                name,
                kind: kind.0,
                flags,
                size,
                align,
                entry_size: section.sh_entsize(endian),
                data,
                relocations: Vec::new(),
            });
        }
        let symbols = read_symbols(bytes, &headers, endian, sections.len())?;
        read_relocations(bytes, &headers, endian, &mut sections, symbols.len())?;
        Ok(Self { machine: header.e_machine(endian).0, sections, symbols })
    }
}

type Headers<'a> = object::read::elf::SectionTable<'a, FileHeader64<LittleEndian>>;

fn read_symbols<'a>(
    bytes: &'a [u8],
    headers: &Headers<'a>,
    endian: LittleEndian,
    sections: usize,
) -> Result<Vec<Symbol<'a>>, SpecialiseError> {
    let table = headers
        .symbols(endian, bytes, elf::SHT_SYMTAB)
        .map_err(|error| damaged("symbol table", b"", error.to_string()))?;
    if table.is_empty() {
        return Err(SpecialiseError::Stripped);
    }
    let mut symbols = Vec::with_capacity(table.len());
    for (index, symbol) in table.enumerate() {
        let name =
            table.symbol_name(endian, symbol).map_err(|error| damaged("name of a symbol", b"", error.to_string()))?;
        let place = match symbol.st_shndx(endian) {
            elf::SHN_UNDEF => SymbolPlace::Undefined,
            elf::SHN_ABS => SymbolPlace::Absolute,
            elf::SHN_COMMON => SymbolPlace::Common,
            _ => {
                let section = table
                    .symbol_section(endian, symbol, index)
                    .map_err(|error| damaged("section of a symbol", name, error.to_string()))?;
                let section = section.map_or(0, |section| section.0);
                if section == 0 || section >= sections {
                    let reason = format!("symbol {} lies in section {section} of {sections}", index.0);
                    return Err(damaged("symbol table", b"", reason));
                }
                SymbolPlace::Section(section as u32)
            }
        };
        symbols.push(Symbol {
            name,
            value: symbol.st_value(endian),
            size: symbol.st_size(endian),
            place,
            kind: symbol.st_type().0,
            binding: symbol.st_bind().0,
            other: symbol.st_other().0,
        });
    }
    Ok(symbols)
}

fn read_relocations<'a>(
    bytes: &'a [u8],
    headers: &Headers<'a>,
    endian: LittleEndian,
    sections: &mut [Section<'a>],
    symbols: usize,
) -> Result<(), SpecialiseError> {
    // Tables may lie on each other in a damaged file: without this limit each would be read again
    // for every header.
    let limit = bytes.len() as u64 / size_of::<elf::Rela64<LittleEndian>>() as u64;
    let mut found = 0u64;
    for header in headers.iter() {
        let target = header.sh_info(endian) as usize;
        if header.sh_type(endian) == elf::SHT_REL && sections.get(target).is_some_and(Section::is_loaded) {
            return Err(damaged("relocations", sections[target].name, "they have no addends"));
        }
        let relocations = header.rela(endian, bytes).map_err(|error| damaged("relocations", b"", error.to_string()))?;
        let Some((relocations, _)) = relocations else { continue };
        let Some(section) = sections.get_mut(target).filter(|_| target != 0) else {
            return Err(damaged("relocations", b"", format!("they are of section {target}, which does not exist")));
        };
        if !section.is_loaded() {
            continue;
        }
        found = found.saturating_add(relocations.len() as u64);
        if found > limit {
            return Err(SpecialiseError::TooLarge { what: "relocations", found, limit });
        }
        section.relocations.reserve(relocations.len());
        for relocation in relocations {
            let offset = relocation.r_offset.get(endian);
            let symbol = relocation.r_sym(endian, false);
            if offset >= section.size || section.data.is_empty() || symbol as usize >= symbols {
                let reason = format!("offset {offset:#x}, symbol {symbol}: outside the section or the symbols");
                return Err(damaged("relocation", section.name, reason));
            }
            let kind = relocation.r_type(endian, false).0;
            let addend = relocation.r_addend.get(endian);
            section.relocations.push(Relocation { offset, symbol, kind, addend });
        }
        section.relocations.sort_by_key(|relocation| relocation.offset);
    }
    Ok(())
}
