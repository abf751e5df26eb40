//! Numbers of the ELF specification as plain integers, as the writer puts them down.

/// Contents.
pub const SHT_PROGBITS: u32 = 1;
/// The symbol table.
pub const SHT_SYMTAB: u32 = 2;
/// Strings of names.
pub const SHT_STRTAB: u32 = 3;
/// Relocations with addends.
pub const SHT_RELA: u32 = 4;
/// Nothing in the file.
pub const SHT_NOBITS: u32 = 8;

/// Kinds of sections that programs have in memory: contents, notes, nothing in the file, arrays of
/// functions, unwinding.
pub const LOADED_KINDS: [u32; 7] = [1, 7, SHT_NOBITS, 14, 15, 16, 0x7000_0001];

/// May be written.
pub const SHF_WRITE: u64 = 1;
/// In memory at run time.
pub const SHF_ALLOC: u64 = 2;
/// Code.
pub const SHF_EXECINSTR: u64 = 4;
/// Equal entries may be merged.
pub const SHF_MERGE: u64 = 0x10;
/// Strings that end with zero.
pub const SHF_STRINGS: u64 = 0x20;
/// `sh_info` holds a section.
pub const SHF_INFO_LINK: u64 = 0x40;

/// Elsewhere.
pub const SHN_UNDEF: u16 = 0;
/// A number.
pub const SHN_ABS: u16 = 0xfff1;
/// Memory that the linker makes.
pub const SHN_COMMON: u16 = 0xfff2;
/// First index with a meaning of its own: a section of that index needs the extended numbering.
pub const SHN_LORESERVE: usize = 0xff00;

/// Seen in this object only.
pub const STB_LOCAL: u8 = 0;

/// Seen by all objects.
pub const STB_GLOBAL: u8 = 1;

/// No kind, as labels of assembler have.
pub const STT_NOTYPE: u8 = 0;
/// Data.
pub const STT_OBJECT: u8 = 1;
/// A function.
pub const STT_FUNC: u8 = 2;
/// A section.
pub const STT_SECTION: u8 = 3;
/// The name of a source file.
pub const STT_FILE: u8 = 4;
/// The source asks to keep the section (`__attribute__((retain))`).
pub const SHF_GNU_RETAIN: u64 = 0x20_0000;
