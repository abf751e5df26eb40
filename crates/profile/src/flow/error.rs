//! Errors of flow graphs, their files and their texts.

use trace::varint::VarintError;

/// Errors of making a flow graph and of reading its file. Offsets are bytes from the start of the
/// file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// Too short for its header and hash, or other than the length its header states.
    #[error("flow graph file has {found} bytes, expected {expected}")]
    Length {
        /// Bytes there are.
        found: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// The first eight bytes are others.
    #[error("not a flow graph file: it starts with {found:02x?}, not with {expected:02x?}")]
    Magic {
        /// What the file starts with.
        found: [u8; 8],
        /// What a flow graph file starts with.
        expected: [u8; 8],
    },
    /// Written by another version of this software.
    #[error("flow graph file version {found} is unknown (this program reads version {expected})")]
    Version {
        /// The file's version.
        found: u16,
        /// The version read here.
        expected: u16,
    },
    /// The hash at the end is not that of the bytes before it.
    #[error("flow graph file corrupt: it ends with hash {expected}, its bytes have {found}")]
    Hash {
        /// The hash of the bytes, in hexadecimal.
        found: String,
        /// The hash at the end, in hexadecimal.
        expected: String,
    },
    /// A number could not be read.
    #[error("flow graph file corrupt at offset {offset}: {field}: {cause:?} number")]
    Number {
        /// Where it starts.
        offset: usize,
        /// What it stands for.
        field: &'static str,
        /// Why.
        cause: VarintError,
    },
    /// A value that breaks a rule of the format.
    #[error("flow graph file corrupt at offset {offset}: {field} is {found}: {rule}")]
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
    /// A block size that cannot be.
    #[error("a block of {found} bytes: it takes a power of two from 512 to 1048576")]
    BlockBytes {
        /// The size.
        found: u64,
    },
    /// A file of too many blocks.
    #[error("{found} blocks of {block_bytes} bytes, the limit is {limit}: take larger blocks")]
    Blocks {
        /// Blocks that the file would have.
        found: u64,
        /// Their size.
        block_bytes: u32,
        /// Blocks that it may have.
        limit: u32,
    },
    /// A block behind the end of the file.
    #[error("there is no block {block}: the file has {blocks}")]
    NoBlock {
        /// The block.
        block: u32,
        /// Blocks that the file has.
        blocks: u32,
    },
    /// Graphs that cannot be merged.
    #[error("blocks of {found} bytes do not fit into a graph of blocks of {expected}")]
    OtherBlocks {
        /// Block size of the one.
        found: u32,
        /// Block size of the other.
        expected: u32,
    },
    /// Stages that break a rule.
    #[error("stage {name:?}: {fault}")]
    Stage {
        /// Its name.
        name: String,
        /// What is wrong with it.
        fault: StageFault,
    },
}

/// What can be wrong with a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StageFault {
    /// An empty or long name, or one with letters that the text form cannot hold.
    #[error("a name has 1 to 64 bytes, without quotes and control characters")]
    Name,
    /// Two stages of one name.
    #[error("an earlier stage has that name")]
    NameTaken,
    /// No blocks.
    #[error("it has no blocks")]
    Empty,
    /// A range that ends before it begins, or behind the file.
    #[error("blocks {first}..{last}: a range goes up and ends within the file")]
    Range {
        /// First block.
        first: u32,
        /// Last block.
        last: u32,
    },
    /// A block in two stages.
    #[error("block {block} is in an earlier stage too")]
    Overlap {
        /// The block.
        block: u32,
    },
    /// A share that is none.
    #[error("a share is 1 to 100 percent, or a rate of 1 to 1000000000000 bytes per second")]
    Share,
    /// More than the whole link.
    #[error("with it the shares add up to {percent} percent, more than the link")]
    Shares {
        /// The sum.
        percent: u32,
    },
    /// Too many.
    #[error("more than 256 stages, or 65536 ranges in all of them")]
    Limit,
}

/// Why a text is no flow graph. Lines and columns count from 1, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}; {instead}")]
pub struct TextError {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
    /// What is wrong.
    pub problem: String,
    /// What to write instead.
    pub instead: String,
}
