//! Errors of this crate: of one ELF file, and of the search for a closure.

use std::io;

/// What is wrong with the bytes of one ELF file.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// The file does not begin with the ELF magic, or has an unknown class, byte order or version.
    #[error("not an ELF file of a known class and byte order")]
    NotElf,
    /// The file ends before a part that its headers promise.
    #[error("{what} at offset {offset}: expected {expected} bytes, found {found}")]
    Truncated {
        /// The part of the file.
        what: &'static str,
        /// Offset in the file.
        offset: u64,
        /// Bytes that should be there.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// A count or length is over our limit.
    #[error("{what}: found {found}, at most {limit} accepted")]
    TooLarge {
        /// The counted thing.
        what: &'static str,
        /// What the file says.
        found: u64,
        /// What we accept.
        limit: u64,
    },
    /// A virtual address lies in no loaded segment of the file.
    #[error("{what}: address {address:#x} lies in no loaded segment")]
    Unmapped {
        /// What the address should lead to.
        what: &'static str,
        /// The address.
        address: u64,
    },
    /// A string has no end within its limit.
    #[error("{what} at offset {offset} has no end within {limit} bytes")]
    Unterminated {
        /// The string.
        what: &'static str,
        /// Offset in the file.
        offset: u64,
        /// Bytes searched.
        limit: u64,
    },
    /// Reading failed.
    #[error("cannot read {what}: {source}")]
    Read {
        /// The part being read.
        what: &'static str,
        /// The failure.
        source: io::Error,
    },
}

/// What keeps a closure from being found.
#[derive(Debug, thiserror::Error)]
pub enum ClosureError {
    /// The root directory could not be read.
    #[error("cannot read {}: {source}", shown(path))]
    Read {
        /// Path within the root directory.
        path: Vec<u8>,
        /// The failure.
        source: io::Error,
    },
    /// A program or path that was asked for does not exist.
    #[error("{}: no such file in the root directory", shown(path))]
    NotFound {
        /// As it was asked for.
        path: Vec<u8>,
    },
    /// A path leads through more symlinks than Linux would follow.
    #[error("{}: more than {limit} symlinks in the path", shown(path))]
    SymlinkLoop {
        /// As it was asked for.
        path: Vec<u8>,
        /// Symlinks followed.
        limit: usize,
    },
    /// A program is neither ELF nor a script.
    #[error("{}: neither an ELF file nor a script with an interpreter line", shown(path))]
    NotAProgram {
        /// Path within the root directory.
        path: Vec<u8>,
    },
    /// A file that must be loaded is damaged.
    #[error("{}: {source}", shown(path))]
    Elf {
        /// Path within the root directory.
        path: Vec<u8>,
        /// What is wrong.
        source: ElfError,
    },
    /// A limit was passed.
    #[error("{}: more than {limit} {what}", shown(path))]
    TooMany {
        /// The file or directory concerned.
        path: Vec<u8>,
        /// What there is too much of.
        what: &'static str,
        /// What we accept.
        limit: usize,
    },
}

fn shown(path: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(path)
}
