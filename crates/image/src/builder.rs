//! Builds the superblock and the metadata region of an image.
//!
//! The builder knows nothing of files on disk and holds no data. `pack` walks a tree, splits and
//! deduplicates files into chunks, compresses blocks and streams them out after 4096 zero bytes.
//! The builder turns its records into the metadata region that follows the last block, and into the
//! superblock that is written over the zeros last of all.
//!
//! Two things are done here so that no packer can get them wrong: directory entries are sorted, and
//! chunks are renumbered by first reference (a packer may number them in any order it likes). The
//! result is opened again before it is returned, so every rule of the reader is a rule of the
//! writer. Same calls, same bytes.

mod layout;
mod section;

use crate::limits::NAME_BYTES_MAX;
use crate::{Codec, Filter, ImageError, Kind, Limits, format, limits};
use layout::Layout;
use units::{BlockId, ChunkId, ImageId, InodeId};

/// How to write metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuilderParams {
    /// Base-2 logarithm of the chunk size, 8 to 12.
    pub chunk_shift: u8,
    /// Codec of the sections; a section that does not shrink is stored.
    pub metadata_codec: Codec,
    /// Level of that codec.
    pub metadata_level: i32,
    /// Leave the chunk hashes out of the file; who needs them derives them from the blocks.
    pub derive_hashes: bool,
    /// What the image must stay within.
    pub limits: Limits,
}

impl Default for BuilderParams {
    fn default() -> BuilderParams {
        BuilderParams {
            chunk_shift: limits::CHUNK_SHIFT_WRITTEN,
            metadata_codec: Codec::Zstd,
            // Metadata is about a hundredth of an image, and every device reads all of it: worth
            // some time.
            metadata_level: 15,
            derive_hashes: false,
            limits: Limits::WRITTEN,
        }
    }
}

/// Attributes of an inode to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeRecord {
    /// The lower twelve bits of the mode; the type follows from `content`.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time: seconds since 1970.
    pub mtime_sec: i64,
    /// Nanoseconds to add, below 10^9.
    pub mtime_ns: u32,
    /// Type and what only that type has.
    pub content: Content,
    /// Extended attributes: names with their namespace, and values; in any order, names distinct.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The type of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Regular file; its extents are added by [`Builder::add_extent`].
    File {
        /// Its size.
        bytes: u64,
    },
    /// Directory.
    Dir,
    /// Symbolic link.
    Symlink(Vec<u8>),
    /// Character device, number as by [`crate::device_number`].
    Char(u32),
    /// Block device, number as by [`crate::device_number`].
    Block(u32),
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

impl Content {
    /// The kind of inode.
    pub fn kind(&self) -> Kind {
        match self {
            Content::File { .. } => Kind::File,
            Content::Dir => Kind::Dir,
            Content::Symlink(_) => Kind::Symlink,
            Content::Char(_) => Kind::Char,
            Content::Block(_) => Kind::Block,
            Content::Fifo => Kind::Fifo,
            Content::Socket => Kind::Socket,
        }
    }
}

/// A block that was written. Blocks lie back to back from byte 4096 of the file, in the order of
/// their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRecord {
    /// How it is compressed; anything but [`Codec::Stored`] must have made it smaller.
    pub codec: Codec,
    /// The filter that each of its chunks went through, with the place of its first use in a file
    /// as position.
    pub filter: Filter,
    /// Index of the dictionary it was compressed with.
    pub dictionary: Option<u8>,
    /// Bytes in the file.
    pub stored_bytes: u32,
    /// Bytes before compression.
    pub raw_bytes: u32,
    /// With [`Filter::Deflate`]: bytes that the codec decodes to; else 0.
    pub expansion_bytes: u32,
    /// BLAKE3 of the stored bytes.
    pub hash: [u8; 32],
}

/// A chunk that lies in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRecord {
    /// The block.
    pub block: BlockId,
    /// Offset in the raw block.
    pub offset: u32,
    /// Bytes.
    pub bytes: u32,
    /// BLAKE3 of the bytes.
    pub hash: [u8; 32],
}

/// The parts of an image that are not blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// Goes to byte 0 of the file, last of all: until then the file is no image.
    pub superblock: Vec<u8>,
    /// Goes behind the last block and ends the file.
    pub metadata: Vec<u8>,
    /// Where that is.
    pub metadata_offset: u64,
    /// Bytes of the whole file.
    pub file_bytes: u64,
    /// Identity of the image.
    pub id: ImageId,
}

/// Collects the records of an image. Inodes get the numbers 1, 2, 3 ... in the order they are
/// added: the root first, a directory before the directories in it.
pub struct Builder {
    params: BuilderParams,
    inodes: Vec<InodeRecord>,
    entries: Vec<NewEntry>,
    extents: Vec<NewExtent>,
    optional: Vec<(u32, Vec<u8>)>,
    dictionaries: Vec<Vec<u8>>,
    hot_blocks: u32,
}

struct NewEntry {
    dir: InodeId,
    name: Box<[u8]>,
    inode: InodeId,
}

struct NewExtent {
    file: InodeId,
    /// As the packer numbers chunks.
    chunk: Option<ChunkId>,
    chunks: u32,
}

fn unwritable(what: &'static str, detail: impl ToString) -> ImageError {
    ImageError::Unwritable { what, detail: detail.to_string() }
}

fn printable(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

impl Builder {
    /// An empty image.
    pub fn new(params: BuilderParams) -> Builder {
        Builder {
            params,
            inodes: Vec::new(),
            entries: Vec::new(),
            extents: Vec::new(),
            optional: Vec::new(),
            dictionaries: Vec::new(),
            hot_blocks: 0,
        }
    }

    /// Adds an inode. The first is the root directory.
    ///
    /// # Errors
    /// The first inode is no directory, there are too many, or a field is out of range.
    pub fn add_inode(&mut self, mut record: InodeRecord) -> Result<InodeId, ImageError> {
        let (limit, found) = (self.params.limits.inodes_max.into(), self.inodes.len() as u64 + 1);
        if found > limit {
            return Err(ImageError::Limit { what: "the number of inodes", limit, found });
        }
        if self.inodes.is_empty() && record.content != Content::Dir {
            return Err(unwritable("the root must be a directory", record.content.kind().letter()));
        }
        if record.permissions > 0o7777 {
            return Err(unwritable("permissions have twelve bits", format_args!("{:o}", record.permissions)));
        }
        if record.mtime_ns >= 1_000_000_000 {
            return Err(unwritable("nanoseconds are below 10^9", record.mtime_ns));
        }
        if let Content::Symlink(target) = &record.content
            && (target.is_empty() || target.len() > limits::TARGET_BYTES_MAX || target.contains(&0))
        {
            return Err(unwritable("a link target has 1 to 4095 bytes without NUL", printable(target)));
        }
        if let Content::File { bytes } = record.content
            && bytes.div_ceil(1 << self.params.chunk_shift) > u32::MAX.into()
        {
            return Err(unwritable("a file has at most 2^32 - 1 chunks", bytes));
        }
        record.xattrs.sort();
        if let Some(two) = record.xattrs.windows(2).find(|two| two[0].0 == two[1].0) {
            return Err(unwritable("the attributes of an inode have distinct names", printable(&two[0].0)));
        }
        self.inodes.push(record);
        Ok(InodeId(self.inodes.len() as u32))
    }

    /// Names `inode` in the directory `dir`. Several entries for one inode are hard links.
    ///
    /// # Errors
    /// No such inode or directory, a name no directory can hold, or a subdirectory added before its
    /// parent. Names that stand twice in a directory are found by [`Builder::finish`].
    pub fn add_entry(&mut self, dir: InodeId, name: &[u8], inode: InodeId) -> Result<(), ImageError> {
        if self.kind(dir) != Some(Kind::Dir) {
            return Err(unwritable("entries are added to directories", format_args!("inode {dir}")));
        }
        let Some(kind) = self.kind(inode) else {
            return Err(unwritable("entries name inodes added before", format_args!("inode {inode}")));
        };
        if kind == Kind::Dir && inode <= dir {
            return Err(unwritable("a directory is added before those in it", format_args!("inode {inode} in {dir}")));
        }
        let is_bad = name.is_empty() || name == b"." || name == b".." || name.contains(&0) || name.contains(&b'/');
        if is_bad || name.len() > NAME_BYTES_MAX {
            return Err(unwritable("a name has 1 to 255 bytes without NUL and '/'", printable(name)));
        }
        self.entries.push(NewEntry { dir, name: name.into(), inode });
        Ok(())
    }

    /// Appends a run of `chunks` chunks to a file: `chunk` and those with the numbers after it, or
    /// a hole. Runs of one file come in file order; files may come in any order. Runs that continue
    /// the one before are merged.
    ///
    /// # Errors
    /// `file` is no file.
    pub fn add_extent(&mut self, file: InodeId, chunk: Option<ChunkId>, chunks: u32) -> Result<(), ImageError> {
        if self.kind(file) != Some(Kind::File) {
            return Err(unwritable("extents are added to files", format_args!("inode {file}")));
        }
        if chunks > 0 {
            self.extents.push(NewExtent { file, chunk, chunks });
        }
        Ok(())
    }

    /// Adds a section that readers may skip, such as a profile.
    ///
    /// # Errors
    /// The kind is one of a required section, or was added before.
    pub fn add_optional_section(&mut self, kind: u32, bytes: Vec<u8>) -> Result<(), ImageError> {
        if kind == 0 || is_reserved(kind) || self.optional.iter().any(|s| s.0 == kind) {
            return Err(unwritable("an optional section has a kind of its own", kind));
        }
        self.optional.push((kind, bytes));
        Ok(())
    }

    /// The zstd dictionaries that blocks were compressed with.
    ///
    /// # Errors
    /// There are too many.
    pub fn set_dictionaries(&mut self, dictionaries: Vec<Vec<u8>>) -> Result<(), ImageError> {
        if dictionaries.len() > format::DICTIONARIES_MAX {
            return Err(unwritable("an image has at most 255 dictionaries", dictionaries.len()));
        }
        self.dictionaries = dictionaries;
        Ok(())
    }

    /// The first `count` blocks hold what programs read when they start.
    pub fn set_hot_blocks(&mut self, count: u32) {
        self.hot_blocks = count;
    }

    /// Lays everything out. `blocks` lie in the file already; `chunks` is indexed by the numbers
    /// used in [`Builder::add_extent`], every one of them used by some file.
    ///
    /// # Errors
    /// The records contradict each other, or the image is over the limits.
    pub fn finish(mut self, blocks: &[BlockRecord], chunks: &[ChunkRecord]) -> Result<Built, ImageError> {
        self.optional.sort();
        let layout = Layout::new(&mut self, blocks, chunks)?;
        section::assemble(&self, &layout)
    }

    fn kind(&self, id: InodeId) -> Option<Kind> {
        let index = id.0.checked_sub(1)?;
        Some(self.inodes.get(index as usize)?.content.kind())
    }
}

/// Whether sections of this kind are the builder's own.
fn is_reserved(kind: u32) -> bool {
    format::SECTIONS_REQUIRED.contains(&kind)
        || matches!(kind, format::SECTION_DICTIONARIES | format::SECTION_BLOCK_HASHES)
}
