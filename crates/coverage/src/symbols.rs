//! Addresses of the functions of a linked kernel.

use std::collections::HashMap;
use std::ops::Range;

use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};

use crate::CoverageError;
use crate::format::{FUNCTION_BYTES_MAX, FUNCTIONS_MAX};
use crate::writer::{is_label, is_name};

/// What the kernel's banner begins with; its release follows.
const BANNER: &[u8] = b"Linux version ";

/// Sections of code that are looked at; a linked kernel has about ten.
const SECTIONS_MAX: usize = 1 << 10;

/// A function of a linked kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) name: String,
}

/// Sizes of the functions that have one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copies {
    /// The largest.
    pub(crate) bytes: u64,
    /// Whether there are others.
    pub(crate) differ: bool,
}

struct Code {
    address: u64,
    /// What to add to an address for where it is loaded.
    loaded: u64,
    bytes: Vec<u8>,
}

/// Functions of a linked kernel (`vmlinux`), and its code.
///
/// Of several symbols for one address the largest counts, of those a global one, of those the least
/// name; symbols inside of a function do not count.
pub struct Symbols {
    release: String,
    is_aarch64: bool,
    functions: Vec<Symbol>,
    copies: HashMap<String, Copies>,
    code: Vec<Code>,
}

impl Symbols {
    /// Reads the linked kernel in `bytes`.
    ///
    /// # Errors
    /// It is no ELF file for x86-64 or AArch64 with symbols, or has no banner.
    pub fn read(bytes: &[u8]) -> Result<Self, CoverageError> {
        let wrong = |reason| move |_: object::Error| CoverageError::Kernel { reason };
        let header = FileHeader64::<LittleEndian>::parse(bytes).map_err(wrong("no ELF file of 64 bits"))?;
        let endian = header.endian().map_err(wrong("not little endian"))?;
        let machine = header.e_machine(endian);
        if !matches!(machine, elf::EM_X86_64 | elf::EM_AARCH64) {
            return Err(CoverageError::Kernel { reason: "another processor" });
        }
        let sections = header.sections(endian, bytes).map_err(wrong("damaged sections"))?;
        let segments = header.program_headers(endian, bytes).map_err(wrong("damaged segments"))?;
        let loaded = |address: u64| {
            let holds = |segment: &&elf::ProgramHeader64<LittleEndian>| {
                let start = segment.p_vaddr(endian);
                segment.p_type(endian) == elf::PT_LOAD
                    && (start..start.saturating_add(segment.p_memsz(endian))).contains(&address)
            };
            segments.iter().find(holds).map(|segment| segment.p_paddr(endian).wrapping_sub(segment.p_vaddr(endian)))
        };
        let mut code = Vec::new();
        // Sections of a file may be the same bytes; those of a kernel are not.
        let mut left = bytes.len();
        for section in sections.iter().take(SECTIONS_MAX) {
            let flags = section.sh_flags(endian);
            if !flags.contains(elf::SHF_ALLOC) || !flags.contains(elf::SHF_EXECINSTR) {
                continue;
            }
            let address = section.sh_addr(endian);
            let bytes = section.data(endian, bytes).map_err(wrong("damaged code"))?;
            left = left.checked_sub(bytes.len()).ok_or(CoverageError::Kernel { reason: "more code than bytes" })?;
            if address.checked_add(bytes.len() as u64).is_none() {
                return Err(CoverageError::Kernel { reason: "code lies outside of memory" });
            }
            code.push(Code { address, loaded: loaded(address).unwrap_or(0), bytes: bytes.to_vec() });
        }
        let table = sections.symbols(endian, bytes, elf::SHT_SYMTAB).map_err(wrong("damaged symbols"))?;
        let mut found = Vec::new();
        for symbol in table.iter() {
            let (address, size) = (symbol.st_value(endian), symbol.st_size(endian));
            let is_code =
                code.iter().any(|code| code.address <= address && address - code.address < code.bytes.len() as u64);
            let is_sized = size > 0 && size <= FUNCTION_BYTES_MAX;
            if !is_code || !is_sized || !matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_NOTYPE) {
                continue;
            }
            let name = table.symbol_name(endian, symbol).map_err(wrong("damaged names"))?;
            if let Some(name) = std::str::from_utf8(name).ok().filter(|name| is_name(name)) {
                found.push((address, size, symbol.st_bind() != elf::STB_GLOBAL, name));
            }
        }
        let release = release(bytes).ok_or(CoverageError::Kernel { reason: "it has no banner with a release" })?;
        Self::new(release, machine == elf::EM_AARCH64, found, code)
    }

    fn new(
        release: String,
        is_aarch64: bool,
        mut found: Vec<(u64, u64, bool, &str)>,
        code: Vec<Code>,
    ) -> Result<Self, CoverageError> {
        found.sort_unstable_by_key(|(address, bytes, is_local, name)| (*address, u64::MAX - bytes, *is_local, *name));
        let mut functions: Vec<Symbol> = Vec::new();
        let mut copies: HashMap<String, Copies> = HashMap::new();
        for (address, bytes, _, name) in found {
            if functions.last().is_some_and(|last| last.address.saturating_add(last.bytes) > address) {
                continue;
            }
            let all = copies.entry(name.to_string()).or_insert(Copies { bytes, differ: false });
            *all = Copies { bytes: all.bytes.max(bytes), differ: all.differ || all.bytes != bytes };
            functions.push(Symbol { address, bytes, name: name.to_string() });
        }
        match functions.len() {
            0 => Err(CoverageError::Kernel { reason: "it has no functions" }),
            count if count > FUNCTIONS_MAX => {
                Err(CoverageError::Limit { what: "functions", max: FUNCTIONS_MAX as u64 })
            }
            _ => Ok(Self { release, is_aarch64, functions, copies, code }),
        }
    }

    /// Its release.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Whether it is for AArch64, else for x86-64.
    pub fn is_aarch64(&self) -> bool {
        self.is_aarch64
    }

    /// Whether it has a function of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.copies.contains_key(name)
    }

    /// Functions and their bytes.
    pub fn totals(&self) -> (usize, u64) {
        (self.functions.len(), self.functions.iter().map(|function| function.bytes).sum())
    }

    /// Where code lies: where it is linked for, and then where it is loaded, which it runs at when
    /// it starts.
    pub fn ranges(&self) -> [Range<u64>; 2] {
        let span = |loaded: bool| {
            let start = |code: &Code| if loaded { code.address.wrapping_add(code.loaded) } else { code.address };
            let from = self.code.iter().map(start).min().unwrap_or(0);
            let to =
                self.code.iter().map(|code| start(code).saturating_add(code.bytes.len() as u64)).max().unwrap_or(0);
            from..to
        };
        [span(false), span(true)]
    }

    /// The functions, by address.
    pub(crate) fn functions(&self) -> &[Symbol] {
        &self.functions
    }

    /// The functions of a name.
    pub(crate) fn copies(&self, name: &str) -> Option<Copies> {
        self.copies.get(name).copied()
    }

    /// For what address an instruction is linked that is executed where it is loaded.
    pub(crate) fn linked(&self, address: u64) -> Option<u64> {
        let linked = |code: &Code| {
            let linked = address.wrapping_sub(code.loaded);
            (code.address <= linked && linked - code.address < code.bytes.len() as u64).then_some(linked)
        };
        self.code.iter().find_map(linked)
    }

    /// Whether there is code at `address`, and if so whether it is `bytes`.
    pub(crate) fn holds(&self, address: u64, bytes: &[u8]) -> Option<bool> {
        let inside = |code: &&Code| code.address <= address && address - code.address < code.bytes.len() as u64;
        let code = self.code.iter().find(inside)?;
        Some(code.bytes[(address - code.address) as usize..].starts_with(bytes))
    }
}

/// The release that the kernel's banner names.
fn release(bytes: &[u8]) -> Option<String> {
    let mut rest = bytes;
    loop {
        let at = rest.windows(BANNER.len()).position(|window| window == BANNER)?;
        rest = &rest[at + BANNER.len()..];
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(0);
        let release = std::str::from_utf8(&rest[..end]).ok().filter(|release| is_label(release));
        if let Some(release) = release.filter(|release| release.starts_with(|letter: char| letter.is_ascii_digit())) {
            return Some(release.to_string());
        }
    }
}
