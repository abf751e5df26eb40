//! What a volume tells of its files.

use crate::Seen;
use crate::disk::{Kind, Owner};

/// The attributes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Id and version.
    pub seen: Seen,
    /// Its kind; never [`Kind::Special`].
    pub kind: Kind,
    /// Bytes.
    pub size: u64,
    /// Bytes of a data block; the last block of a file may be shorter.
    pub block_bytes: u32,
    /// Time of the last change of the content, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Time of the last change of content or attributes, nanoseconds since 1970.
    pub ctime_ns: i64,
    /// When it was last read, as far as the server's file system keeps that or somebody set it,
    /// nanoseconds since 1970.
    pub atime_ns: i64,
    /// Permission bits (07777).
    pub mode: u16,
    /// Its owner.
    pub owner: Owner,
    /// The device that it stands for, if it is one: as `st_rdev`.
    pub rdev: u32,
    /// Number of names; of a folder, what the server's file system says: most say 2 and one for
    /// each folder in it.
    pub links: u32,
    /// Bytes that it takes on the disk: holes take none.
    pub stored_bytes: u64,
    /// It may have extended attributes; otherwise it has none.
    pub has_xattrs: bool,
}

/// Whole blocks of one version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Id and version that all of the bytes belong to.
    pub seen: Seen,
    /// Size of the file in this version, bytes.
    pub size: u64,
    /// Index of the first block.
    pub first: u64,
    /// The blocks; shorter than asked for only at the end of the file.
    pub bytes: Vec<u8>,
}

/// Which blocks of a file hold data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTable {
    /// Id and version.
    pub seen: Seen,
    /// Size of the file, bytes.
    pub size: u64,
    /// Index of the first block told of.
    pub first: u64,
    /// For each block whether it may hold anything but zeros; ends with the file.
    pub present: Vec<bool>,
}

/// One entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// Its kind.
    pub kind: Kind,
}

/// One page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Id and version of the folder; if it differs from page to page, the folder changed meanwhile.
    pub seen: Seen,
    /// In order of names.
    pub entries: Vec<Entry>,
    /// There are more after the last one.
    pub more: bool,
}

/// One page of a listing with what [`Volume::stat`] tells of each entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfoListing {
    /// Id and version of the folder, as in [`Listing`].
    pub seen: Seen,
    /// Names and what they stand for, in order of names.
    pub entries: Vec<(Vec<u8>, Info)>,
    /// There are more after the last one.
    pub more: bool,
}
