//! A file as the staged records will leave it.

use std::sync::Arc;

use crate::disk::{FileStat, Kind};
use crate::inode::Inode;
use crate::record::EntryName;
use crate::xattrs::Xattrs;

/// A file that was looked at.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// What it is, whose, and its permission bits.
    pub inode: Inode,
    /// The name by which it was found last.
    pub at: EntryName,
    /// Where it lies before the records are applied; `None` if they make it.
    pub disk: Option<Vec<u8>>,
    /// It is not removed.
    pub alive: bool,
    /// Bytes of its content.
    pub size: u64,
    /// What it took on the disk before.
    pub stored_bytes: u64,
    /// How many names it has.
    pub links: u32,
    /// Its version.
    pub version: u64,
    /// Where a symbolic link points that the records make.
    pub target: Vec<u8>,
    /// Time of the last change of its content.
    pub mtime_ns: i64,
    /// Time of the last access, unless the records make it and nobody set it.
    pub atime_ns: Option<i64>,
    /// Its names, as far as they are known.
    pub names: Vec<EntryName>,
    /// What the system was asked.
    pub rights: Rights,
    /// Its extended attributes.
    pub xattrs: NodeXattrs,
}

/// What the system was asked about a file, and allowed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rights {
    /// It may be written; names in a folder may be made and removed.
    pub writable: bool,
    /// Its attributes may be set.
    pub owned: bool,
}

/// The extended attributes of a file.
#[derive(Clone, Debug)]
pub(super) enum NodeXattrs {
    /// It has none.
    None,
    /// Those on the disk.
    OnDisk,
    /// These, which the records set.
    Set(Arc<Xattrs>),
}

impl Node {
    /// One that is on the disk.
    pub fn found(stat: &FileStat, at: EntryName, disk: Vec<u8>, version: u64) -> Node {
        Node {
            inode: Inode::of(stat),
            at,
            disk: Some(disk),
            alive: true,
            size: stat.stamp.size,
            stored_bytes: stat.stored_bytes,
            // Folders have a link for each folder in them.
            links: if stat.kind == Kind::Folder { 1 } else { stat.links },
            version,
            target: Vec::new(),
            mtime_ns: stat.stamp.mtime_ns,
            atime_ns: Some(stat.atime_ns),
            names: Vec::new(),
            rights: Rights::default(),
            xattrs: if stat.has_xattrs { NodeXattrs::OnDisk } else { NodeXattrs::None },
        }
    }

    /// One that a record makes.
    pub fn made(inode: Inode, at: EntryName) -> Node {
        Node {
            inode,
            at: at.clone(),
            disk: None,
            alive: true,
            size: 0,
            stored_bytes: 0,
            links: 1,
            version: 1,
            target: Vec::new(),
            mtime_ns: 0,
            atime_ns: None,
            names: vec![at],
            rights: Rights { writable: true, owned: true },
            xattrs: NodeXattrs::None,
        }
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.inode.kind
    }

    /// Whether it may have extended attributes.
    pub fn may_have_xattrs(&self) -> bool {
        !matches!(self.xattrs, NodeXattrs::None)
    }
}
