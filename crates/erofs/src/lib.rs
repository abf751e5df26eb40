//! The metadata of an EROFS file system, derived from that of an image, so that the kernel itself
//! can serve the image.
//!
//! Idea: EROFS can keep the data of its files on a second device, uncompressed, with an 8-byte
//! index for each 4 KiB of a file that says where on that device they lie. Such a device does not
//! exist here. It is a *virtual blob*: each distinct page of the image has a slot of 4 KiB on it,
//! and whoever serves the blob decodes the block that a slot lies in when the slot is read. The
//! kernel then does the rest: names, attributes, links, permissions, page cache.
//!
//! Nothing is written down. A [`Volume`] knows where each inode and directory block would lie and
//! renders the bytes of any range when asked ([`Volume::read`]), so a sparse file of a terabyte,
//! whose index would take two gigabytes, costs nothing until it is read.
//!
//! Layout of the metadata, in blocks of 4 KiB: superblock and device table | inodes, each with its
//! attributes, its short directory or link, or its page index behind it | extended attributes, each
//! distinct one once | directories and links that are too long to stand behind their inodes. Slots
//! of the blob are in the order in which files first refer to pages, so that the pages of a file
//! lie side by side and one request fetches a run of them.
//!
//! Memory ([`Volume::memory_bytes`]): 4 bytes an inode, 12 a directory, 4 a directory block, 8 for
//! each inode with extended attributes and these once; for images with chunks smaller than a page
//! also 4 bytes a page of each file and 8 a distinct page. Units: bytes, unless a name says blocks,
//! slots or pages. Pure.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod attributes;
mod directory;
mod error;
mod format;
mod layout;
mod render;
mod slots;

#[cfg(test)]
mod tests;

pub use error::ErofsError;
pub use layout::Volume;
pub use slots::RUN_SLOTS_MAX;
