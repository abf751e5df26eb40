//! Facts that only sections tell, in files that have some.

use object::LittleEndian;
use object::elf;
use object::read::elf::{FileHeader, SectionHeader, Sym};

use super::{Header, Relocation, dynamic};
use crate::code::{Extent, RELOCATIONS_MAX, SYMBOLS_MAX};

/// What sections say.
#[derive(Default)]
pub(super) struct Sections {
    /// Functions of `.symtab`; an end of 0 is unknown.
    pub(super) functions: Vec<Extent>,
    /// Relocations of a static program, which fills them itself.
    pub(super) relocations: Vec<Relocation>,
    /// Address of `.eh_frame`.
    pub(super) unwind_table: Option<u64>,
    /// Whether Go made the file.
    pub(super) is_go: bool,
    /// Procedure linkage tables.
    stubs: Vec<(u64, u64)>,
}

impl Sections {
    pub(super) fn parse(header: &Header, endian: LittleEndian, bytes: &[u8]) -> Sections {
        let mut found = Sections::default();
        let Ok(sections) = header.sections(endian, bytes) else { return found };
        let is_static = !sections.iter().any(|section| section.sh_type(endian) == elf::SHT_DYNAMIC);
        for section in sections.iter() {
            let name = sections.section_name(endian, section).unwrap_or_default();
            let (address, size) = (section.sh_addr(endian), section.sh_size(endian));
            if name.starts_with(b".plt") || name == b".iplt" {
                found.stubs.push((address, address.saturating_add(size)));
            }
            found.is_go |= name == b".gopclntab" || name == b".go.buildinfo";
            if name == b".eh_frame" && address != 0 {
                found.unwind_table = Some(address);
            }
            let is_loaded = section.sh_flags(endian).contains(elf::SHF_ALLOC);
            if section.sh_type(endian) == elf::SHT_RELA && is_static && is_loaded {
                let raw = section.data(endian, bytes).unwrap_or_default();
                found.relocations.extend(raw.as_chunks().0.iter().take(RELOCATIONS_MAX).map(dynamic::relocation));
            }
        }
        if let Ok(symbols) = sections.symbols(endian, bytes, elf::SHT_SYMTAB) {
            for symbol in symbols.iter().take(SYMBOLS_MAX) {
                let is_function = matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_GNU_IFUNC);
                let is_defined = symbol.st_shndx(endian) != elf::SHN_UNDEF;
                if is_function && is_defined {
                    let start = symbol.st_value(endian);
                    let size = symbol.st_size(endian);
                    let end = if size == 0 { 0 } else { start.saturating_add(size) };
                    let name = symbol.name(endian, symbols.strings()).ok().filter(|name| !name.is_empty());
                    found.functions.push(Extent { start, end, name: name.map(<[u8]>::to_vec), has_pads: false });
                }
            }
        }
        found
    }

    /// Whether `address` lies in a procedure linkage table.
    pub(super) fn is_stub(&self, address: u64) -> bool {
        self.stubs.iter().any(|(start, end)| (*start..*end).contains(&address))
    }
}
