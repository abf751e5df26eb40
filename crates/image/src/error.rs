//! Errors of images. Each names the position, the expected and the found value.

use units::{BlockId, ChunkId, PageId};

/// Why an image could not be read, verified or built. Offsets are bytes from the start of the file,
/// except in [`ImageError::Corrupt`], where they are bytes from the start of the decoded section.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The source could not be read.
    #[error("cannot read the {what} at offset {offset}: {source}")]
    Read {
        /// What was being read.
        what: &'static str,
        /// Where.
        offset: u64,
        /// The source's error.
        source: std::io::Error,
    },
    /// The file does not start like an image.
    #[error("not a Runnel image: expected magic {}, found {}", hex(expected), hex(found))]
    Magic {
        /// The magic of images.
        expected: [u8; 8],
        /// The first bytes of the file.
        found: [u8; 8],
    },
    /// A version, feature, codec or required section this code does not know.
    #[error("this image needs a newer runnel: {what} {found} is unknown to this version (known: {known})")]
    NeedsNewer {
        /// Kind of thing that is unknown.
        what: &'static str,
        /// Its number.
        found: u64,
        /// The largest (or, for bits, all) known.
        known: u64,
    },
    /// The file is shorter or longer than its superblock says, or too short to have one.
    #[error("the image has {found} bytes, expected {expected}: {}", truncated_or_longer(*found, *expected))]
    FileLength {
        /// Bytes the superblock announces (or the superblock itself takes).
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// The stored bytes of a section do not have the hash the superblock gives.
    #[error("section {section} at offset {offset} is damaged: expected BLAKE3 {}, found {}", hex(expected), hex(found))]
    SectionHash {
        /// Name of the section.
        section: &'static str,
        /// Where it starts in the file.
        offset: u64,
        /// Hash in the superblock.
        expected: [u8; 32],
        /// Hash of the bytes.
        found: [u8; 32],
    },
    /// The stored bytes of a section do not decode.
    #[error("section {section} at offset {offset} does not decode: {source}")]
    SectionCodec {
        /// Name of the section.
        section: &'static str,
        /// Where it starts in the file.
        offset: u64,
        /// The codec's error.
        source: codec::CodecError,
    },
    /// A field has a value it must not have.
    #[error("section {section}, byte {offset}: {what} is {found}, expected {expected}")]
    Corrupt {
        /// Name of the section, or "superblock".
        section: &'static str,
        /// Byte in the decoded section.
        offset: u64,
        /// The field and its rule.
        what: &'static str,
        /// The value (or bound) it should have.
        expected: u64,
        /// The value it has.
        found: u64,
    },
    /// The image is larger than the reader's limits, or a tree is larger than the writer's.
    #[error("{what} is {found}, more than the limit of {limit}")]
    Limit {
        /// What is too large.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// What there is.
        found: u64,
    },
    /// A dictionary cannot be used.
    #[error("dictionary {index} of the image cannot be used: {source}")]
    Dictionary {
        /// Its index.
        index: u32,
        /// The codec's error.
        source: codec::CodecError,
    },
    /// There is no such block.
    #[error("block {block} does not exist, the image has {count}")]
    NoBlock {
        /// The block asked for.
        block: BlockId,
        /// Blocks in the image.
        count: u32,
    },
    /// A block came with the wrong number of bytes.
    #[error("block {block} at offset {offset}: {found} bytes, expected {expected}")]
    BlockLength {
        /// The block.
        block: BlockId,
        /// Where it starts in the file.
        offset: u64,
        /// Stored bytes in the block table.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// The stored bytes of a block do not have the hash the block table gives.
    #[error("block {block} at offset {offset} is damaged: expected BLAKE3 {}, found {}", hex(expected), hex(found))]
    BlockHash {
        /// The block.
        block: BlockId,
        /// Where it starts in the file.
        offset: u64,
        /// Hash in the block table.
        expected: [u8; 32],
        /// Hash of the bytes.
        found: [u8; 32],
    },
    /// A block came before its hash: its server broke a rule.
    #[error("block {block} came before its hash, so that nothing tells whether it is the right one")]
    NoBlockHash {
        /// The block.
        block: BlockId,
    },
    /// A block has the right hash and still does not decode: it was written wrongly.
    #[error("block {block} at offset {offset} does not decode: {source}")]
    BlockCodec {
        /// The block.
        block: BlockId,
        /// Where it starts in the file.
        offset: u64,
        /// The codec's error.
        source: codec::CodecError,
    },
    /// A decoded chunk does not have the hash the chunk table gives: the image has two contents.
    #[error(
        "the image contradicts itself and must not be used: chunk {chunk} has BLAKE3 {} by the metadata, {} in block {block}",
        hex(expected),
        hex(found)
    )]
    ChunkHash {
        /// The chunk.
        chunk: ChunkId,
        /// The block it lies in.
        block: BlockId,
        /// First 16 bytes of the hash in the chunk table.
        expected: [u8; 16],
        /// First 16 bytes of the hash of the bytes.
        found: [u8; 16],
    },
    /// The chunk hashes that follow from the blocks are not those the image was made with: it has
    /// two contents.
    #[error(
        "the image contradicts itself and must not be used: its chunk hashes have BLAKE3 {} by the superblock, {} by its \
         blocks",
        hex(expected),
        hex(found)
    )]
    DerivedHashes {
        /// Hash in the superblock.
        expected: [u8; 32],
        /// Hash of the hashes of all chunks.
        found: [u8; 32],
    },
    /// There is no such page.
    #[error("page {page} does not exist")]
    NoPage {
        /// The page asked for, as inode:index.
        page: PageId,
    },
    /// A page is to be verified before the chunk hashes were loaded.
    #[error("page {page} cannot be verified: the chunk hashes are not loaded yet")]
    NoChunkHashes {
        /// The page, as inode:index.
        page: PageId,
    },
    /// A proof of chunk hashes does not prove them.
    #[error("a proof of chunk hashes is wrong: its {what}")]
    Proof {
        /// What is wrong about it.
        what: &'static str,
    },
    /// A page came with the wrong number of bytes.
    #[error("page {page}: {found} bytes, expected {expected}")]
    PageLength {
        /// The page, as inode:index.
        page: PageId,
        /// Bytes of it inside its file.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// The bytes of a page do not have the hash of its chunk.
    #[error("page {page}, chunk {chunk}: expected BLAKE3 {}, found {}", hex(expected), hex(found))]
    PageHash {
        /// The page, as inode:index.
        page: PageId,
        /// The chunk that differs.
        chunk: ChunkId,
        /// First 16 bytes of the hash in the chunk table.
        expected: [u8; 16],
        /// First 16 bytes of the hash of the bytes.
        found: [u8; 16],
    },
    /// A page that lies in a hole is not zero.
    #[error("page {page}: byte {offset} lies in a hole and is {found:#04x}, expected 0x00")]
    PageHole {
        /// The page, as inode:index.
        page: PageId,
        /// Offset in the page.
        offset: u64,
        /// The byte there.
        found: u8,
    },
    /// The builder was given something that no image can hold.
    #[error("cannot write this image: {what} ({detail})")]
    Unwritable {
        /// The rule that is broken.
        what: &'static str,
        /// The thing that breaks it.
        detail: String,
    },
}

fn truncated_or_longer(found: u64, expected: u64) -> &'static str {
    if found < expected { "it is truncated" } else { "something follows it" }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
