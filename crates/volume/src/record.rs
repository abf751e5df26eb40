//! Records: the changes of a transaction in absolute terms. Each says what is so afterwards, with
//! file ids and offsets, never "append" or "if". `apply` applies them in order. `recover` turns
//! them into a final state.

mod decode;
mod encode;

use crate::disk::{Identity, Kind, Owner};
use crate::{FileId, Peer, Seen, Writer};

pub(crate) use decode::decode;
pub(crate) use encode::encode;

/// A name in a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EntryName {
    pub folder: FileId,
    pub name: Vec<u8>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// `file` is not made by this journal and lies here; comes before whatever else names it.
    Known {
        file: FileId,
        at: EntryName,
        identity: Identity,
        kind: Kind,
        /// It has other names, too.
        several: bool,
    },
    New {
        file: FileId,
        at: EntryName,
        kind: Kind,
        mode: u16,
    },
    /// A symbolic link is made.
    Link {
        file: FileId,
        at: EntryName,
        target: Vec<u8>,
    },
    /// A symbolic link of that owner is made, in the place of one with that id if there is one.
    LinkOwned {
        file: FileId,
        at: EntryName,
        owner: Owner,
        target: Vec<u8>,
    },
    /// A special file is made.
    Node {
        file: FileId,
        at: EntryName,
        kind: Kind,
        mode: u16,
        rdev: u32,
    },
    /// A file gets one more name.
    HardLink {
        file: FileId,
        at: EntryName,
    },
    /// A name is removed, and the file has others, which need not be in the journal. Its version
    /// stays this one.
    Unlink {
        file: FileId,
        at: EntryName,
        version: u64,
    },
    Move {
        file: FileId,
        from: EntryName,
        to: EntryName,
        replaced: Option<FileId>,
    },
    Gone {
        file: FileId,
        at: EntryName,
    },
    Write {
        file: FileId,
        offset: u64,
        bytes: Vec<u8>,
    },
    Size {
        file: FileId,
        size: u64,
    },
    /// A range reads as zeros, and has room of its own afterwards or none; the size stays.
    Zero {
        file: FileId,
        offset: u64,
        length: u64,
        reserved: bool,
    },
    /// Room is kept for a range, also behind the end; content and size stay. As long as the disk
    /// has it: others beside the server may have taken what there was.
    Reserve {
        file: FileId,
        offset: u64,
        length: u64,
    },
    Time {
        file: FileId,
        mtime_ns: i64,
    },
    AccessTime {
        file: FileId,
        atime_ns: i64,
    },
    Mode {
        file: FileId,
        mode: u16,
    },
    /// With the permission bits, below which the server's own ones may have to change.
    Owner {
        file: FileId,
        owner: Owner,
        mode: u16,
    },
    SetXattr {
        file: FileId,
        name: Vec<u8>,
        value: Vec<u8>,
    },
    RemoveXattr {
        file: FileId,
        name: Vec<u8>,
    },
    Version {
        file: FileId,
        version: u64,
    },
    /// The records before, back to the last of these, are a transaction of this device, and this
    /// was the answer.
    Answer {
        writer: Writer,
        peer: Peer,
        versions: Vec<Seen>,
    },
    /// What the number `from` was answered, `device` was answered, if it was answered nothing yet.
    Inherit {
        device: u128,
        peer: Peer,
        from: u128,
    },
}

impl Record {
    /// Bytes in a journal, at most: what the fixed fields take, and names and contents.
    pub fn bytes_max(&self) -> u64 {
        let names = match self {
            Record::Known { at, .. }
            | Record::New { at, .. }
            | Record::Node { at, .. }
            | Record::HardLink { at, .. }
            | Record::Unlink { at, .. }
            | Record::Gone { at, .. } => at.name.len(),
            Record::Link { at, target, .. } | Record::LinkOwned { at, target, .. } => at.name.len() + target.len(),
            Record::Move { from, to, .. } => from.name.len() + to.name.len(),
            Record::Write { bytes, .. } => bytes.len(),
            Record::SetXattr { name, value, .. } => name.len() + value.len(),
            Record::RemoveXattr { name, .. } => name.len(),
            Record::Answer { versions, .. } => size_of_val(&versions[..]),
            _ => 0,
        };
        64 + names as u64
    }
}
