//! The changes of a transaction.

use bytes::Bytes;

use super::{FileKind, Owner, Seen};

/// The change of a range of a file, as in fallocate(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Allocation {
    /// It reads as zeros from then on.
    pub zero: bool,
    /// Room for it is kept on the server's disk; else zeros give theirs back.
    pub reserve: bool,
    /// The file is at least as long as to its end.
    pub extend: bool,
}

impl Allocation {
    /// As flag bits.
    pub(super) fn to_bits(self) -> u8 {
        u8::from(self.zero) | u8::from(self.reserve) << 1 | u8::from(self.extend) << 2
    }

    /// Reads the bits of [`Allocation::to_bits`]; `None` for invalid ones.
    pub(super) fn from_bits(bits: u8) -> Option<Allocation> {
        let allocation = Allocation { zero: bits & 1 != 0, reserve: bits & 2 != 0, extend: bits & 4 != 0 };
        (bits & !7 == 0 && (allocation.zero || allocation.reserve)).then_some(allocation)
    }
}

/// Whether there must be an extended attribute of a name before it is set, or must not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u8)]
pub enum XattrHow {
    /// Set in any case.
    #[default]
    Any = 0,
    /// Only if there is none.
    Create = 1,
    /// Only if there is one.
    Replace = 2,
}

/// One change of a transaction. `base` is what the writer saw: if it is not there any more, the
/// whole transaction is refused as a conflict. Without one, whatever is there is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Change {
    /// Writes at an offset; a gap before it becomes a hole.
    Write {
        /// The file.
        path: Vec<u8>,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// Where, in bytes.
        offset: u64,
        /// What.
        bytes: Bytes,
    },
    /// Writes at the end, wherever that is.
    Append {
        /// The file.
        path: Vec<u8>,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// What.
        bytes: Bytes,
    },
    /// Cuts, or extends with a hole.
    Truncate {
        /// The file.
        path: Vec<u8>,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// New size in bytes.
        size: u64,
    },
    /// Makes zeros or room of a range; the file is not longer than before unless that is said.
    Allocate {
        /// The file.
        path: Vec<u8>,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// Where the range begins, in bytes.
        offset: u64,
        /// Bytes of it, at least 1.
        length: u64,
        /// The change.
        allocation: Allocation,
    },
    /// Copies a range of one file of the volume into another, or into the same one.
    Copy {
        /// The file that is written.
        path: Vec<u8>,
        /// The version of it that the writer saw.
        base: Option<Seen>,
        /// Where the bytes come, in bytes.
        offset: u64,
        /// The file that is read.
        from: Vec<u8>,
        /// The version of that file that the writer saw.
        from_base: Option<Seen>,
        /// Where the range begins there, in bytes.
        from_offset: u64,
        /// Bytes, 1 to [`COPY_BYTES_MAX`](crate::format::COPY_BYTES_MAX); what is behind the end of
        /// the file that is read is not copied.
        length: u32,
    },
    /// Makes an empty file.
    Create {
        /// The file.
        path: Vec<u8>,
        /// Permission bits.
        mode: u16,
        /// Fail if it exists; otherwise a file that exists stays as it is.
        exclusive: bool,
        /// The owner; `None`: the server's user. In a folder with the set-group-id bit the
        /// group is that of the folder. So for all that is made.
        owner: Option<Owner>,
    },
    /// Makes a folder.
    MakeFolder {
        /// The folder.
        path: Vec<u8>,
        /// Permission bits.
        mode: u16,
        /// The owner.
        owner: Option<Owner>,
    },
    /// Makes a FIFO, a socket or a device node.
    MakeNode {
        /// The special file.
        path: Vec<u8>,
        /// Which kind.
        kind: FileKind,
        /// Permission bits.
        mode: u16,
        /// The device that it stands for, if it is one.
        rdev: u32,
        /// The owner.
        owner: Option<Owner>,
    },
    /// Makes a symbolic link.
    MakeLink {
        /// The link.
        path: Vec<u8>,
        /// Where it points, at most [`LINK_BYTES_MAX`](crate::format::LINK_BYTES_MAX) bytes.
        target: Bytes,
        /// The owner.
        owner: Option<Owner>,
    },
    /// Gives a file one more name: a hard link.
    Link {
        /// One of its names.
        from: Vec<u8>,
        /// The version that the writer saw there.
        base: Option<Seen>,
        /// The name it gets, which is free.
        to: Vec<u8>,
    },
    /// Renames.
    Rename {
        /// From here.
        from: Vec<u8>,
        /// The version that the writer saw there.
        base: Option<Seen>,
        /// To here.
        to: Vec<u8>,
        /// Replace what is there; otherwise fail if there is something.
        replace: bool,
    },
    /// Removes a file or symbolic link.
    Unlink {
        /// The file.
        path: Vec<u8>,
        /// The version that the writer saw.
        base: Option<Seen>,
    },
    /// Refuses the transaction if what is there has other names, too; changes nothing.
    OnlyName {
        /// The file, or nothing.
        path: Vec<u8>,
    },
    /// Removes an empty folder.
    RemoveFolder {
        /// The folder.
        path: Vec<u8>,
    },
    /// Sets the time of the last change.
    SetTime {
        /// The file or folder.
        path: Vec<u8>,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// Nanoseconds since 1970.
        mtime_ns: i64,
    },
    /// Sets the time of the last access.
    SetAccessTime {
        /// The file or folder.
        path: Vec<u8>,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// Nanoseconds since 1970.
        atime_ns: i64,
    },
    /// Sets user or group, or both.
    SetOwner {
        /// The file or folder.
        path: Vec<u8>,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// The user, if it changes; never 2^32 - 1.
        uid: Option<u32>,
        /// The group, if it changes; never 2^32 - 1.
        gid: Option<u32>,
    },
    /// Sets the permission bits.
    SetMode {
        /// The file or folder.
        path: Vec<u8>,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// Permission bits.
        mode: u16,
    },
    /// Gives a file or folder an extended attribute.
    SetXattr {
        /// The file or folder.
        path: Vec<u8>,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// Its name, 1 to 255 bytes.
        name: Vec<u8>,
        /// Its value, at most
        /// [`XATTR_VALUE_BYTES_MAX`](crate::format::XATTR_VALUE_BYTES_MAX) bytes.
        value: Bytes,
        /// Whether it must be there before, or must not.
        how: XattrHow,
    },
    /// Removes an extended attribute, which must be there.
    RemoveXattr {
        /// The file or folder.
        path: Vec<u8>,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// Its name, 1 to 255 bytes.
        name: Vec<u8>,
    },
}

impl Change {
    /// Bytes of its paths and data.
    pub(super) fn data_bytes(&self) -> usize {
        match self {
            Change::Write { path, bytes, .. } | Change::Append { path, bytes, .. } => path.len() + bytes.len(),
            Change::MakeLink { path, target, .. } => path.len() + target.len(),
            Change::SetXattr { path, name, value, .. } => path.len() + name.len() + value.len(),
            Change::RemoveXattr { path, name, .. } => path.len() + name.len(),
            Change::Link { from, to, .. } | Change::Rename { from, to, .. } => from.len() + to.len(),
            Change::Copy { path, from, .. } => path.len() + from.len(),
            Change::Truncate { path, .. }
            | Change::Allocate { path, .. }
            | Change::Create { path, .. }
            | Change::MakeFolder { path, .. }
            | Change::MakeNode { path, .. }
            | Change::Unlink { path, .. }
            | Change::OnlyName { path }
            | Change::RemoveFolder { path }
            | Change::SetTime { path, .. }
            | Change::SetAccessTime { path, .. }
            | Change::SetOwner { path, .. }
            | Change::SetMode { path, .. } => path.len(),
        }
    }

    /// Bytes that it takes in a server's memory, roughly: what it copies goes through there.
    pub(super) fn memory_bytes(&self) -> usize {
        let copied = if let Change::Copy { length, .. } = self { *length as usize } else { 0 };
        self.data_bytes() + 64 + copied
    }

    /// Bytes of the change in its frame.
    pub fn encoded_bytes(&self) -> usize {
        let base = |base: &Option<Seen>| if base.is_some() { 17 } else { 1 };
        let owner = |owner: &Option<Owner>| if owner.is_some() { 9 } else { 1 };
        let rest = match self {
            Change::Write { base: seen, .. } => base(seen) + 2 + 8 + 4,
            Change::Append { base: seen, .. } => base(seen) + 2 + 4,
            Change::Truncate { base: seen, .. }
            | Change::SetTime { base: seen, .. }
            | Change::SetAccessTime { base: seen, .. } => base(seen) + 2 + 8,
            Change::Allocate { base: seen, .. } => base(seen) + 2 + 8 + 8 + 1,
            Change::Copy { base: seen, from_base, .. } => base(seen) + base(from_base) + 2 + 8 + 2 + 8 + 4,
            Change::Create { owner: whose, .. } => owner(whose) + 2 + 2 + 1,
            Change::MakeFolder { owner: whose, .. } | Change::MakeLink { owner: whose, .. } => owner(whose) + 2 + 2,
            Change::MakeNode { owner: whose, .. } => owner(whose) + 2 + 1 + 2 + 4,
            Change::SetOwner { base: seen, .. } => base(seen) + 2 + 4 + 4,
            Change::Link { base: seen, .. } => base(seen) + 2 + 2,
            Change::Rename { base: seen, .. } => base(seen) + 2 + 2 + 1,
            Change::Unlink { base: seen, .. } => base(seen) + 2,
            Change::OnlyName { .. } | Change::RemoveFolder { .. } => 2,
            Change::SetMode { base: seen, .. } => base(seen) + 2 + 2,
            Change::SetXattr { base: seen, .. } => base(seen) + 2 + 1 + 4 + 1,
            Change::RemoveXattr { base: seen, .. } => base(seen) + 2 + 1,
        };
        1 + rest + self.data_bytes()
    }
}
