//! The coverage file: its first line, its words, and its limits. docs/formats/coverage.md describes
//! it.

/// What the file begins with.
pub const MAGIC: [u8; 8] = *b"runnel c";

/// The first line, without its number of the version.
pub const FIRST_LINE: &str = "runnel coverage ";

/// The version that is written, and the only one that is read.
pub const VERSION: &str = "1";

/// Bytes of a file that is read: a kernel with all its drivers has some 200,000 functions, a line
/// of 300 bytes each.
pub const FILE_BYTES_MAX: usize = 128 << 20;

/// Bytes of a name of a function, as in the kernel's own table of names.
pub const NAME_BYTES_MAX: usize = 512;

/// Bytes of a release, or of a scenario's name.
pub const LABEL_BYTES_MAX: usize = 256;

/// Functions of a file.
pub const FUNCTIONS_MAX: usize = 1 << 20;

/// Blocks of all functions of a file.
pub const BLOCKS_MAX: usize = 1 << 23;

/// Scenarios of a file.
pub const SCENARIOS_MAX: usize = 1 << 12;

/// Bytes of one function: far more than any, and offsets fit in 32 bits.
pub const FUNCTION_BYTES_MAX: u64 = 1 << 24;
