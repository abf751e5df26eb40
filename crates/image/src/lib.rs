//! The image: one file that holds a whole file tree, in the form in which it is stored, sent and
//! mounted.
//!
//! A superblock of one page holds the hash of every metadata section; the sections hold the hash of
//! every block and every chunk. So the hash of the superblock ([`units::ImageId`]) stands for every
//! byte of the file, and each part can be verified by itself when it arrives. Metadata stays in the
//! encoding of the image: [`Metadata::open`] checks all of it once, and the accessors index into
//! the decoded sections without building a struct per inode.
//!
//! Data goes through two indirections. An extent of a file names chunks (the unit of deduplication,
//! at most a page). A chunk names a position in the concatenation of all decoded blocks (the unit
//! of compression and of a pull). A chunk may lie anywhere, so a packer may sort chunks without
//! touching inodes or extents.
//!
//! Pure: bytes come through [`ReadAt`], nothing here opens files or knows that blocks travel.
//! Units: bytes, unless a name says pages or chunks. The bytes are explained in
//! docs/formats/image.md.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod block;
mod block_hashes;
#[cfg(feature = "build")]
mod builder;
mod check;
mod chunk;
mod chunk_hashes;
mod data;
mod dictionary;
mod differences;
mod directory;
mod dump;
mod error;
mod extent;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
pub mod format;
mod hash_many;
mod inode;
pub mod limits;
mod metadata;
mod page;
mod path;
mod proof;
mod read_at;
mod section;
mod superblock;
mod table;
mod tree;
mod xattr;

#[cfg(test)]
mod tests;

pub use block::BlockEntry;
#[cfg(feature = "build")]
pub use builder::{BlockRecord, Builder, BuilderParams, Built, ChunkRecord, Content, InodeRecord};
pub use check::{Report, check};
pub use chunk::ChunkPlace;
pub use codec::Codec;
pub use codec::filter::Filter;
pub use directory::Entry;
pub use dump::dump;
pub use error::ImageError;
pub use extent::ExtentRun;
pub use hash_many::hash_many;
pub use inode::{Inode, Kind, device_number, device_parts};
pub use limits::Limits;
pub use metadata::Metadata;
pub use page::{PageChunks, PagePiece};
pub use proof::{HashTree, PROOF_LEAVES_MAX};
pub use read_at::ReadAt;
pub use section::{SectionReport, section_name};
pub use superblock::{BlockPlace, Superblock};
