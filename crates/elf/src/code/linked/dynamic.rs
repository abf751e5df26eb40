//! The dynamic section: symbols, relocations and initialisers, by addresses alone.

use object::LittleEndian;
use object::elf::{self, ProgramHeader64, Sym64};
use object::pod;
use object::read::elf::{Dyn, ProgramHeader, Sym};

use super::{Export, Relocation};
use crate::code::{RELOCATIONS_MAX, SYMBOLS_MAX, Space};
use crate::{DYNAMIC_BYTES_MAX, ElfError, STRING_BYTES_MAX};

const ENDIAN: LittleEndian = LittleEndian;

/// Bytes of a relocation with an addend, and of a symbol.
const RELA_BYTES: u64 = 24;
const SYMBOL_BYTES: u64 = size_of::<Sym64<LittleEndian>>() as u64;

/// DF_1_PIE: a program that may lie anywhere.
const FLAG_PIE: u64 = 0x0800_0000;

/// What the tags say.
#[derive(Default)]
pub(super) struct Dynamic {
    pub(super) is_pie: bool,
    strings: u64,
    strings_bytes: u64,
    symbols: u64,
    hash: u64,
    gnu_hash: u64,
    /// Address and bytes of tables of relocations: all of them, and those of the procedure linkage
    /// table.
    tables: [(u64, u64); 2],
    relative: (u64, u64),
    single: [u64; 2],
    arrays: [(u64, u64); 3],
}

impl Dynamic {
    pub(super) fn parse(
        headers: &[ProgramHeader64<LittleEndian>],
        endian: LittleEndian,
        bytes: &[u8],
        space: &Space<'_>,
    ) -> Result<Dynamic, ElfError> {
        let mut found = Dynamic::default();
        let Some(header) = headers.iter().find(|header| header.p_type(endian) == elf::PT_DYNAMIC) else {
            return Ok(found);
        };
        let (offset, size) = header.file_range(endian);
        if size > DYNAMIC_BYTES_MAX {
            let what = "bytes of the dynamic section";
            return Err(ElfError::TooLarge { what, found: size, limit: DYNAMIC_BYTES_MAX });
        }
        let end = offset.saturating_add(size).min(bytes.len() as u64);
        let raw = bytes.get(offset as usize..end as usize).unwrap_or(space.bytes_at(header.p_vaddr(endian)));
        let count = raw.len() / size_of::<elf::Dyn64<LittleEndian>>();
        let Ok((tags, _)) = pod::slice_from_bytes::<elf::Dyn64<LittleEndian>>(raw, count) else { return Ok(found) };
        for tag in tags {
            let value = tag.d_val(endian);
            match tag.tag(endian) {
                elf::DT_NULL => break,
                elf::DT_STRTAB => found.strings = value,
                elf::DT_STRSZ => found.strings_bytes = value,
                elf::DT_SYMTAB => found.symbols = value,
                elf::DT_HASH => found.hash = value,
                elf::DT_GNU_HASH => found.gnu_hash = value,
                elf::DT_RELA => found.tables[0].0 = value,
                elf::DT_RELASZ => found.tables[0].1 = value,
                elf::DT_JMPREL => found.tables[1].0 = value,
                elf::DT_PLTRELSZ => found.tables[1].1 = value,
                elf::DT_RELR => found.relative.0 = value,
                elf::DT_RELRSZ => found.relative.1 = value,
                elf::DT_INIT => found.single[0] = value,
                elf::DT_FINI => found.single[1] = value,
                elf::DT_INIT_ARRAY => found.arrays[0].0 = value,
                elf::DT_INIT_ARRAYSZ => found.arrays[0].1 = value,
                elf::DT_FINI_ARRAY => found.arrays[1].0 = value,
                elf::DT_FINI_ARRAYSZ => found.arrays[1].1 = value,
                elf::DT_PREINIT_ARRAY => found.arrays[2].0 = value,
                elf::DT_PREINIT_ARRAYSZ => found.arrays[2].1 = value,
                elf::DT_FLAGS_1 => found.is_pie = value & FLAG_PIE != 0,
                _ => {}
            }
        }
        Ok(found)
    }

    pub(super) fn strings(&self) -> (u64, u64) {
        (self.strings, self.strings.saturating_add(self.strings_bytes))
    }

    pub(super) fn initialisers(&self, space: &Space<'_>) -> Vec<u64> {
        self.single.into_iter().filter(|address| space.is_code(*address)).collect()
    }

    /// Where addresses of further initialisers lie.
    pub(super) fn initialiser_words(&self) -> impl Iterator<Item = u64> {
        self.arrays.into_iter().flat_map(|(address, bytes)| {
            (0..(bytes / 8).min(RELOCATIONS_MAX as u64)).filter_map(move |number| address.checked_add(number * 8))
        })
    }

    pub(super) fn relocations(&self, space: &Space<'_>) -> Result<Vec<Relocation>, ElfError> {
        let mut found = Vec::new();
        for (address, bytes) in self.tables {
            let raw = space.bytes_at(address);
            let raw = &raw[..raw.len().min(usize::try_from(bytes).unwrap_or(usize::MAX))];
            let count = raw.len() as u64 / RELA_BYTES;
            if count as usize > RELOCATIONS_MAX {
                return Err(ElfError::TooLarge { what: "relocations", found: count, limit: RELOCATIONS_MAX as u64 });
            }
            found.extend(raw.as_chunks::<{ RELA_BYTES as usize }>().0.iter().map(relocation));
        }
        Ok(found)
    }

    /// Words that hold distances from where the object is loaded (RELR): an address, then bitmaps
    /// of the 63 words behind it.
    pub(super) fn relative(&self, space: &Space<'_>) -> Result<Vec<u64>, ElfError> {
        let raw = space.bytes_at(self.relative.0);
        let raw = &raw[..raw.len().min(usize::try_from(self.relative.1).unwrap_or(usize::MAX))];
        let mut found = Vec::new();
        let mut next = 0u64;
        for word in raw.as_chunks::<8>().0 {
            let word = u64::from_le_bytes(*word);
            if word & 1 == 0 {
                found.push(word);
                next = word.wrapping_add(8);
            } else {
                found.extend((0..63).filter(|bit| word >> (bit + 1) & 1 == 1).map(|bit| next.wrapping_add(bit * 8)));
                next = next.wrapping_add(63 * 8);
            }
            if found.len() > RELOCATIONS_MAX {
                let limit = RELOCATIONS_MAX as u64;
                return Err(ElfError::TooLarge { what: "relocations", found: found.len() as u64, limit });
            }
        }
        Ok(found)
    }

    pub(super) fn symbol_name(&self, space: &Space<'_>, index: u32) -> Option<Vec<u8>> {
        let symbol = self.symbol(space, index.into())?;
        name_at(space, self.strings.checked_add(symbol.st_name(ENDIAN).into())?)
    }

    fn symbol(&self, space: &Space<'_>, index: u64) -> Option<Sym64<LittleEndian>> {
        let raw = space.bytes_at(self.symbols.checked_add(index.checked_mul(SYMBOL_BYTES)?)?);
        pod::from_bytes::<Sym64<LittleEndian>>(raw).ok().map(|(symbol, _)| *symbol)
    }

    pub(super) fn exports(&self, space: &Space<'_>) -> Result<Vec<Export>, ElfError> {
        let count = self.symbol_count(space);
        if count > SYMBOLS_MAX as u64 {
            return Err(ElfError::TooLarge { what: "symbols", found: count, limit: SYMBOLS_MAX as u64 });
        }
        let mut found = Vec::new();
        for index in 1..count {
            let Some(symbol) = self.symbol(space, index) else { break };
            let is_local = symbol.st_bind() == elf::STB_LOCAL;
            let kind = symbol.st_type();
            if symbol.st_shndx(ENDIAN) == elf::SHN_UNDEF || is_local || kind == elf::STT_TLS {
                continue;
            }
            let address = symbol.st_value(ENDIAN);
            let is_code = match kind {
                elf::STT_FUNC | elf::STT_GNU_IFUNC => true,
                elf::STT_NOTYPE => space.is_code(address),
                _ => false,
            };
            if let Some(name) =
                self.strings.checked_add(symbol.st_name(ENDIAN).into()).and_then(|at| name_at(space, at))
            {
                found.push(Export { name, address, bytes: symbol.st_size(ENDIAN), is_code });
            }
        }
        Ok(found)
    }

    /// How many symbols the hash tables know of.
    fn symbol_count(&self, space: &Space<'_>) -> u64 {
        if self.gnu_hash != 0 {
            return self.gnu_symbol_count(space).unwrap_or(0);
        }
        if self.hash == 0 {
            return 0;
        }
        self.hash.checked_add(4).and_then(|at| space.number(at, 4)).unwrap_or(0)
    }

    /// The highest symbol in a chain of the GNU hash table, and one.
    fn gnu_symbol_count(&self, space: &Space<'_>) -> Option<u64> {
        let at = |offset: u64| self.gnu_hash.checked_add(offset);
        let (buckets, first, words) =
            (space.number(self.gnu_hash, 4)?, space.number(at(4)?, 4)?, space.number(at(8)?, 4)?);
        let table = at(16)?.checked_add(words.checked_mul(8)?)?;
        let raw = space.bytes_at(table);
        let raw = raw.get(..usize::try_from(buckets.checked_mul(4)?).ok()?)?;
        let mut last = raw.as_chunks::<4>().0.iter().map(|word| u64::from(u32::from_le_bytes(*word))).max()?;
        if last < first {
            return None;
        }
        let chains = table.checked_add(buckets * 4)?;
        while last < SYMBOLS_MAX as u64 && space.number(chains.checked_add((last - first) * 4)?, 4)? & 1 == 0 {
            last += 1;
        }
        Some(last + 1)
    }
}

/// Reads one entry of a table of relocations with addends.
pub(super) fn relocation(raw: &[u8; RELA_BYTES as usize]) -> Relocation {
    let word = |at: usize| u64::from_le_bytes(raw.as_chunks::<8>().0[at]);
    Relocation { at: word(0), kind: word(1) as u32, symbol: (word(1) >> 32) as u32, addend: word(2) as i64 }
}

/// The string at an address, without its final NUL.
fn name_at(space: &Space<'_>, address: u64) -> Option<Vec<u8>> {
    let bytes = space.bytes_at(address);
    let bytes = &bytes[..bytes.len().min(STRING_BYTES_MAX)];
    let end = bytes.iter().position(|byte| *byte == 0)?;
    (end > 0).then(|| bytes[..end].to_vec())
}
