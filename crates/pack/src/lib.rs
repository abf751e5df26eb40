//! From a tree of files to an image, and back.
//!
//! [`pack`] lists a [`Source`] (directory, tar, container image, closure of a program) into a tree, reads its files in
//! order, splits them into chunks of 4 KiB, keeps each distinct chunk once, fills blocks and compresses them, and
//! writes the image beside its final name until it is complete. Reading, hashing and compressing run in parallel; the
//! result depends on the tree and the options alone. [`extract`], [`cat`] and [`list`] are the way back.
//!
//! Memory of [`pack`]: about 200 bytes and the name for each file, 100 bytes for each distinct chunk (25 MB for 1 GB),
//! five batches of at most 64 MiB (8 MiB on few cores), and at the end some tens of MB to compress the metadata;
//! 160 MB in all for 700 MB of libraries. Of [`extract`]: the image's metadata and 32 MiB of decoded blocks.
//!
//! This crate opens files and knows no network; the format itself is the crate `image`. Called by `cli`, `bench`, and by
//! the tests of `mount`, which compare a mounted tree with its source by [`compare`](mod@compare).

mod blocks;
mod chunks;
pub mod compare;
mod content;
mod error;
mod extract;
mod file_image;
mod inodes;
mod list;
mod notes;
mod options;
mod output;
mod packer;
mod progress;
mod read_batch;
mod reader;
mod source;
mod spool;
mod tree;
mod xattrs;

#[cfg(test)]
mod tests;

pub use error::PackError;
pub use extract::{ExtractOptions, ExtractReport, extract};
pub use file_image::FileImage;
pub use list::{Listing, cat, list, write_listing};
pub use notes::Notes;
pub use options::{BLOCK_BYTES_DEFAULT, BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, LEVEL_DEFAULT, Options};
pub use output::{FileOutput, Output};
pub use packer::{Report, pack, pack_to};
pub use progress::{Phase, Progress, Silent};
pub use reader::BlockReader;
pub use source::{Layout, Source, TarInput};
pub use spool::default_directory;
