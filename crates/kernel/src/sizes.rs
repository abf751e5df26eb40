//! Sizes of a linked kernel by use: the rows of Table I of the paper.

use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, SectionHeader, Sym};
use serde::Serialize;

/// Runs of the linker's filler in code from this length on are padding; shorter ones align
/// functions.
const PADDING_MIN: usize = 64;

/// Bytes of a linked kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelSizes {
    /// Code, without padding.
    pub text: u64,
    /// Constants and their tables, without names of symbols.
    pub rodata: u64,
    /// Names of symbols (kallsyms).
    pub kallsyms: u64,
    /// Variables with a value.
    pub data: u64,
    /// Tables of the stack unwinder.
    pub orc: u64,
    /// Variables that begin as zero, without padding.
    pub bss: u64,
    /// Code that is freed after the start.
    pub init_text: u64,
    /// Data that is freed after the start.
    pub init_data: u64,
    /// Padding of code and of zeros.
    pub padding: u64,
}

impl KernelSizes {
    /// What remains in memory after the start, without padding.
    pub fn resident(&self) -> u64 {
        self.text + self.rodata + self.kallsyms + self.data + self.orc + self.bss
    }

    /// Measures the linked kernel in `bytes`; `None` if it is none.
    pub fn measure(bytes: &[u8]) -> Option<Self> {
        let header = FileHeader64::<LittleEndian>::parse(bytes).ok()?;
        let endian = header.endian().ok()?;
        let sections = header.sections(endian, bytes).ok()?;
        let table = sections.symbols(endian, bytes, elf::SHT_SYMTAB).ok()?;
        let mut symbols: Vec<(u64, &[u8])> = Vec::new();
        for symbol in table.iter() {
            symbols.push((symbol.st_value(endian), table.symbol_name(endian, symbol).ok()?));
        }
        symbols.sort_unstable();
        let at = |name: &[u8]| symbols.iter().find(|symbol| symbol.1 == name).map(|symbol| symbol.0);
        let (init_begin, init_end) = (at(b"__init_begin")?, at(b"__init_end")?);
        let word_at = |address: u64| {
            let holds = |section: &&elf::SectionHeader64<LittleEndian>| {
                let start = section.sh_addr(endian);
                (start..start.saturating_add(section.sh_size(endian))).contains(&address)
            };
            let section = sections.iter().find(holds)?;
            let data = section.data(endian, bytes).ok()?;
            let offset = (address - section.sh_addr(endian)) as usize;
            data.get(offset..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
        };
        let mut sizes = Self { kallsyms: names(&symbols, word_at), ..Self::default() };
        for section in sections.iter() {
            if !section.sh_flags(endian).contains(elf::SHF_ALLOC) {
                continue;
            }
            let name = sections.section_name(endian, section).ok()?;
            let (size, address) = (section.sh_size(endian), section.sh_addr(endian));
            let is_initial = (init_begin..init_end).contains(&address) || name == b".data..percpu";
            let is_code = section.sh_flags(endian).contains(elf::SHF_EXECINSTR);
            if is_initial {
                *(if is_code { &mut sizes.init_text } else { &mut sizes.init_data }) += size;
            } else if is_code {
                let padding = padding(section.data(endian, bytes).ok()?);
                sizes.text += size - padding;
                sizes.padding += padding;
            } else if name.starts_with(b".orc_") {
                sizes.orc += size;
            } else if name == b".bss" {
                let used = used_zeros(&symbols, address, size);
                sizes.bss += used;
                sizes.padding += size - used;
            } else if name == b".brk" || name == b".init.scratch" || name == b".smp_locks" {
                // Given back by the kernel itself.
            } else if section.sh_flags(endian).contains(elf::SHF_WRITE) && name != b".rodata" && name != b"__modver" {
                sizes.data += size;
            } else {
                sizes.rodata += size;
            }
        }
        // Frozen names are behind code.
        let first = at(b"kallsyms_num_syms").unwrap_or(0);
        let in_text = (at(b"_stext")?..at(b"_etext")?).contains(&first);
        let holds = if in_text { &mut sizes.text } else { &mut sizes.rodata };
        *holds = holds.saturating_sub(sizes.kallsyms);
        Some(sizes)
    }
}

/// Bytes of all symbols of the linked kernel in `bytes` whose name contains `part`; `None` if it is
/// none.
pub(crate) fn symbol_bytes(bytes: &[u8], part: &str) -> Option<u64> {
    let header = FileHeader64::<LittleEndian>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, bytes).ok()?;
    let table = sections.symbols(endian, bytes, elf::SHT_SYMTAB).ok()?;
    let mut sum = 0;
    for symbol in table.iter() {
        let name = table.symbol_name(endian, symbol).ok()?;
        if name.windows(part.len()).any(|window| window == part.as_bytes()) {
            sum += symbol.st_size(endian);
        }
    }
    Some(sum)
}

/// Bytes of the tables of names: from their first symbol to their last one, which has three bytes
/// for each name.
fn names(symbols: &[(u64, &[u8])], count_at: impl Fn(u64) -> Option<u32>) -> u64 {
    let at = |name: &[u8]| symbols.iter().find(|symbol| symbol.1 == name).map(|symbol| symbol.0);
    // As scripts/kallsyms writes them.
    let (Some(first), Some(last)) = (at(b"kallsyms_num_syms"), at(b"kallsyms_seqs_of_names")) else { return 0 };
    let count = count_at(first).unwrap_or(0);
    last.saturating_sub(first) + 3 * u64::from(count)
}

/// Bytes of long runs of the filler.
fn padding(code: &[u8]) -> u64 {
    let runs = code.chunk_by(|one, other| *one == 0xcc && *other == 0xcc);
    runs.filter(|run| run.len() >= PADDING_MIN && run[0] == 0xcc).map(|run| run.len() as u64).sum()
}

/// Bytes of zeros up to where those for encrypted guests are aligned.
fn used_zeros(symbols: &[(u64, &[u8])], start: u64, size: u64) -> u64 {
    let end = start + size;
    let decrypted = symbols.iter().find(|symbol| symbol.1 == b"__start_bss_decrypted").map_or(end, |symbol| symbol.0);
    let unused =
        symbols.iter().find(|symbol| symbol.1 == b"__start_bss_decrypted_unused").map_or(decrypted, |symbol| symbol.0);
    // The last variable before says how far the others reach, to a page: sizes of symbols are not
    // needed for more.
    let before = symbols.partition_point(|symbol| symbol.0 < decrypted);
    let last = symbols[..before].iter().rev().find(|symbol| symbol.0 >= start).map_or(start, |symbol| symbol.0);
    let used = (last + 1).next_multiple_of(4096).min(decrypted).saturating_sub(start);
    used + unused.saturating_sub(decrypted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_of_filler_are_padding() {
        let code = [&[0x90; 3][..], &[0xcc; 80], &[0xc3], &[0xcc; 10]].concat();
        assert_eq!(padding(&code), 80);
        assert_eq!(padding(&[0x90; 100]), 0, "other bytes are code");
    }

    #[test]
    fn what_is_no_kernel_has_no_sizes() {
        assert_eq!(KernelSizes::measure(b"\x7fELF"), None);
        let program = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(KernelSizes::measure(&program), None);
        assert!(symbol_bytes(&program, "symbol_bytes").unwrap() > 0 && symbol_bytes(b"\x7fELF", "a").is_none());
    }
}
