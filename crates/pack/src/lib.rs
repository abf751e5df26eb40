//! Packs a tree of files into an image, and extracts it again.
//!
//! [`pack`] lists a [`Source`] (directory, tar, container image, closure of a program) into a tree
//! and packs it after RubikFS (Huang et al., FAST '26), a stage to a module:
//!
//! ```text
//! tree -> survey (read, hash, deduplicate; group: what kind of data; hot: what traces show)
//!      -> base (which blocks of an older image stay as they are)
//!      -> arrange (sort: which chunks share a block) -> dictionary
//!      -> emit (gather, filter, compress) -> image
//! ```
//!
//! The survey keeps no data, so each file is read twice; a hash shows if it changed in between. The
//! image is written beside its final name until it is complete. All stages run on all threads; the
//! result depends on the tree, the options and the base alone. [`extract`], [`cat`] and [`list`]
//! read an image.
//!
//! Memory of [`pack`]: about 200 bytes and the name for each file, 150 bytes and 4 bytes a shingle
//! for each distinct chunk while they are sorted, and eight blocks a thread. Of [`extract`]: the
//! image's metadata and 32 MiB of decoded blocks.
//!
//! This crate opens files and knows no network; the format itself is the crate `image`.

mod arrange;
mod base;
mod bootable;
mod chunks;
pub mod compare;
mod content;
mod dictionary;
mod emit;
mod error;
mod explain;
mod extract;
mod file_image;
mod gather;
mod group;
mod hot;
mod inodes;
mod list;
mod memory;
mod notes;
mod options;
mod output;
mod packer;
mod progress;
mod read_batch;
mod reader;
mod recompress;
mod report;
mod sort;
mod source;
mod spool;
mod survey;
mod time;
mod tree;
mod xattrs;

#[cfg(test)]
mod tests;

pub use error::PackError;
pub use extract::{ExtractOptions, ExtractReport, extract};
pub use file_image::FileImage;
pub use list::{Listing, cat, list, write_listing};
pub use notes::Notes;
pub use options::{
    BLOCK_BYTES_DEFAULT, BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, HOT_BLOCK_BYTES_SMALL, LEVEL_DEFAULT, LOCALITY_DEFAULT,
    LOCALITY_MAX, Options, Stages,
};
pub use output::{FileOutput, Output};
pub use packer::{pack, pack_to};
pub use progress::{Phase, Progress, Silent};
pub use reader::{BlockReader, Part};
pub use report::{
    BaseReport, ChunkReport, DeflateReport, HotReport, Report, SourceReport, SpreadReport, StageReport, Times,
};
pub use sort::{Method, Sortable, Sorter};
pub use source::closure::LocalRoot;
pub use source::{Layout, Source, TarInput};
pub use spool::default_directory as spool_directory;
pub use spool::default_directory;
