//! Errors of plan files, of traces that a plan is to be made from, and of sets of runs.

use trace::varint::VarintError;
use units::{ImageId, InodeId};

/// Errors of reading a plan file. Offsets are bytes from the start of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Too short for its header and hash, or other than the length its header states.
    #[error("plan file has {found} bytes, expected {expected}")]
    Length {
        /// Bytes there are.
        found: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// The first eight bytes are others.
    #[error("not a plan file: it starts with {found:02x?}, not with {expected:02x?}")]
    Magic {
        /// What the file starts with.
        found: [u8; 8],
        /// What a plan file starts with.
        expected: [u8; 8],
    },
    /// Written by another version of this software.
    #[error("plan file version {found} is unknown (this program reads versions up to {expected})")]
    Version {
        /// The file's version.
        found: u16,
        /// The newest version read here.
        expected: u16,
    },
    /// The hash at the end is not that of the bytes before it.
    #[error("plan file corrupt: it ends with hash {expected}, its bytes have {found}")]
    Hash {
        /// The hash of the bytes, in hexadecimal.
        found: String,
        /// The hash at the end, in hexadecimal.
        expected: String,
    },
    /// A number could not be read.
    #[error("plan file corrupt at offset {offset}: {field}: {cause:?} number")]
    Number {
        /// Where it starts.
        offset: usize,
        /// What it stands for.
        field: &'static str,
        /// Why.
        cause: VarintError,
    },
    /// A value that breaks a rule of the format.
    #[error("plan file corrupt at offset {offset}: {field} is {found}: {rule}")]
    Value {
        /// Where it starts.
        offset: usize,
        /// What it stands for.
        field: &'static str,
        /// The value.
        found: u64,
        /// The rule.
        rule: &'static str,
    },
    /// A path that breaks a rule.
    #[error("plan file corrupt at offset {offset}: {fault}")]
    Path {
        /// Where its record starts.
        offset: usize,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// Two extents share a page.
    #[error("plan file corrupt: page {page} of file {file} is in two extents")]
    Overlap {
        /// Position of the file.
        file: u32,
        /// The page.
        page: u32,
    },
    /// More of something than accepted.
    #[error("plan file has {found} {what}, the limit is {limit}")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How many there are.
        found: u64,
        /// How many are accepted.
        limit: u64,
    },
}

/// Why a trace is no learning run, or runs make no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// It was recorded in an image.
    #[error(
        "it was recorded in image {image}, not among the files of this machine: such a trace is for `pack --trace`"
    )]
    Image {
        /// The image.
        image: ImageId,
    },
    /// Nothing starts in it, or what starts has no name.
    #[error("it does not say which program was started")]
    NoProgram,
    /// A path of a program that is no path.
    #[error("the program {name} has no usable path: {fault}")]
    Program {
        /// The path.
        name: String,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// A page or code of a file that the trace does not name.
    #[error("it speaks of file {inode} without naming it")]
    Unnamed {
        /// The number that the recorder gave to the file.
        inode: InodeId,
    },
    /// No run was given.
    #[error("a plan needs at least one learning run")]
    NoRuns,
    /// Runs of different programs.
    #[error("the runs are of different programs: {found} and {expected}")]
    OtherProgram {
        /// The program of a later run.
        found: String,
        /// The program of the first one.
        expected: String,
    },
}
