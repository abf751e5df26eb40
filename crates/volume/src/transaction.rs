//! Transactions: lists of operations that take effect together or not at all.

use units::Moment;

use crate::disk::{Kind, Owner};
use crate::{Seen, VolumePath, XattrHow};

/// Operations of one transaction; a longer list is two transactions.
pub const OPERATIONS_MAX: usize = 4096;

/// Bytes that one operation copies, and that all of a transaction copy together: they go through
/// the journal.
pub const COPY_BYTES_MAX: u32 = 1 << 20;

/// Bytes of what a symbolic link points to: Linux takes no more.
pub const LINK_BYTES_MAX: usize = 4095;

/// Whether a symbolic link can point there.
pub(crate) fn is_link_target(target: &[u8]) -> bool {
    (1..=LINK_BYTES_MAX).contains(&target.len()) && !target.contains(&0)
}

/// The device that writes or leases, by its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(pub u128);

/// The peer of some devices, as far as the caller can tell: they share limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(pub u64);

impl Peer {
    /// Of records from before peers were told apart.
    pub const UNKNOWN: Peer = Peer(0);
}

/// How a range of a file is allocated, as in fallocate(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// It reads as zeros from then on.
    pub zero: bool,
    /// Room for it is kept on the disk; else zeros give theirs back.
    pub reserve: bool,
    /// The file is at least as long as to its end.
    pub extend: bool,
}

/// One change. `base` is what the writer saw of the file before the transaction: if that is not
/// there any more, the whole transaction is a [`crate::VolumeError::Conflict`]. Without a base the
/// writer accepts whatever is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Writes at an offset; a gap before it becomes a hole.
    Write {
        /// The file.
        path: VolumePath,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// Where, in bytes.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// Writes at the end.
    Append {
        /// The file.
        path: VolumePath,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// What.
        bytes: Vec<u8>,
    },
    /// Cuts or extends with a hole.
    Truncate {
        /// The file.
        path: VolumePath,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// New size in bytes.
        size: u64,
    },
    /// Makes zeros or room of a range; the file is not longer than before unless that is said.
    Allocate {
        /// The file.
        path: VolumePath,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// Where the range begins, in bytes.
        offset: u64,
        /// Bytes of it.
        length: u64,
        /// What becomes of it.
        allocation: Allocation,
    },
    /// Copies a range of one file into another, or into the same one. What is behind the end of the
    /// file that is read is not copied. The transaction must not write that file before.
    Copy {
        /// The file that is written.
        path: VolumePath,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// The offset to which they are written.
        offset: u64,
        /// The file that is read.
        from: VolumePath,
        /// The version of it that the writer saw.
        from_base: Option<Seen>,
        /// Where the range begins there.
        from_offset: u64,
        /// Bytes, at most [`COPY_BYTES_MAX`].
        length: u32,
    },
    /// Makes an empty file.
    Create {
        /// The file.
        path: VolumePath,
        /// Permission bits (07777).
        mode: u16,
        /// Fail if it exists; otherwise a file that exists stays as it is.
        exclusive: bool,
        /// Whose it is; `None`: the server's user's. Ignored where files cannot have owners. What
        /// is made in a folder with the set-group-id bit gets the group of the folder instead. So
        /// for all that is made.
        owner: Option<Owner>,
    },
    /// Makes a folder.
    MakeFolder {
        /// The folder.
        path: VolumePath,
        /// Permission bits (07777).
        mode: u16,
        /// Its owner.
        owner: Option<Owner>,
    },
    /// Makes a FIFO, a socket, or a device node. Nothing opens them here.
    MakeNode {
        /// The special file.
        path: VolumePath,
        /// Which kind.
        kind: Kind,
        /// Permission bits (07777).
        mode: u16,
        /// The device that it stands for, if it is one: as `st_rdev`.
        rdev: u32,
        /// Its owner.
        owner: Option<Owner>,
    },
    /// Makes a symbolic link.
    MakeLink {
        /// The link.
        path: VolumePath,
        /// Where it points: 1 to [`LINK_BYTES_MAX`] bytes, none of them zero. Nothing follows it
        /// here.
        target: Vec<u8>,
        /// Its owner.
        owner: Option<Owner>,
    },
    /// Gives a file, special file or symbolic link one more name: a hard link. All names are the
    /// same file.
    Link {
        /// One of its names.
        from: VolumePath,
        /// The version that the writer saw there.
        base: Option<Seen>,
        /// The name it gets, which is free.
        to: VolumePath,
    },
    /// Renames a file, folder or symbolic link.
    Rename {
        /// From here.
        from: VolumePath,
        /// The version that the writer saw there.
        base: Option<Seen>,
        /// To here.
        to: VolumePath,
        /// Replace a file, or an empty folder by a folder; otherwise fail if there is something. If
        /// both are names of one file, nothing happens, as POSIX has it.
        replace: bool,
    },
    /// Removes a name of a file or symbolic link, and with the last one the file.
    Unlink {
        /// The file.
        path: VolumePath,
        /// The version that the writer saw.
        base: Option<Seen>,
    },
    /// Refuses the transaction if what is there has other names, too; changes nothing. Answered
    /// with what is there, or the top folder if nothing is.
    OnlyName {
        /// The file, or nothing.
        path: VolumePath,
    },
    /// Removes an empty folder.
    RemoveFolder {
        /// The folder.
        path: VolumePath,
    },
    /// Sets the time of the last change.
    SetTime {
        /// The file or folder.
        path: VolumePath,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// Nanoseconds since 1970.
        mtime_ns: i64,
    },
    /// Sets the time of the last access.
    SetAccessTime {
        /// The file or folder.
        path: VolumePath,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// Nanoseconds since 1970.
        atime_ns: i64,
    },
    /// Sets user or group, or both. Set-id bits stay: whether they go is for the caller to say.
    SetOwner {
        /// The file or folder.
        path: VolumePath,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// The user, if it changes.
        uid: Option<u32>,
        /// The group, if it changes.
        gid: Option<u32>,
    },
    /// Sets the permission bits; not of symbolic links.
    SetMode {
        /// The file or folder.
        path: VolumePath,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// Permission bits (07777).
        mode: u16,
    },
    /// Gives a file or folder an extended attribute of users.
    SetXattr {
        /// The file or folder.
        path: VolumePath,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// Its name, with `user.` before it.
        name: Vec<u8>,
        /// Its value, at most [`crate::XATTR_VALUE_BYTES_MAX`] bytes.
        value: Vec<u8>,
        /// Whether it must be there before, or must not.
        how: XattrHow,
    },
    /// Removes an extended attribute, which must be there.
    RemoveXattr {
        /// The file or folder.
        path: VolumePath,
        /// The version that the writer saw.
        base: Option<Seen>,
        /// Its name.
        name: Vec<u8>,
    },
}

/// Which transaction of which device: what makes a repeated one known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Writer {
    /// The number of the device. The caller has made sure that it is: see [`crate::Volume::enrol`].
    pub device: u128,
    /// Grows with each transaction of the device; gaps are fine. One that was refused does not use
    /// its number up, as long as no later one was committed.
    pub number: u64,
}

/// Operations of one writer that happen as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// By what the transaction is known when it is repeated; without it, each is a new one.
    pub writer: Option<Writer>,
    /// The peer of the writer.
    pub peer: Peer,
    /// The device goes on with the transactions of a number that is older than
    /// [`crate::Volume::enrol`]: device, number.
    pub inherits: Option<(u128, u128)>,
    /// The writer, for leases.
    pub holder: Holder,
    /// When, for leases.
    pub now: Moment,
    /// Time of the last change that written files get, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// In this order.
    pub operations: Vec<Operation>,
}

/// A transaction on stable storage, and in the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// For each operation the file it was about, with its version after the transaction: the next
    /// base.
    pub versions: Vec<Seen>,
}
