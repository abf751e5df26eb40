//! The calls on a volume, and their results.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use units::{LockKind, Token};
use wire::volume::{
    Allocation, Change, FileInfo, FolderEntry, HeldLock, LeaseKind, Owner, Seen, Share, Space, Xattr, XattrHow,
};

use crate::StreamError;

/// Called exactly once with the outcome, under no lock, from any thread: that of the call itself,
/// of the connection, or of the volume.
pub type Done<T> = Box<dyn FnOnce(Result<T, StreamError>) + Send>;

/// The completion of a call, to be run under no lock.
pub(crate) type Finish = Box<dyn FnOnce() + Send>;

/// An open file of one volume. Means nothing on another one, and is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Handle(pub u64);

/// The mode in which a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenHow {
    /// It will be read.
    pub read: bool,
    /// It will be written.
    pub write: bool,
    /// Every write goes to the end, wherever that is then: others may append too.
    pub append: bool,
    /// Make it with these permission bits if it is not there.
    pub create: Option<u16>,
    /// The owner that it gets if it is made; `None`: the server's user.
    pub owner: Option<Owner>,
    /// With `create`: fail if it is there.
    pub exclusive: bool,
    /// Cut it to nothing.
    pub truncate: bool,
}

impl OpenHow {
    /// Whether opening it so, or what is done with the handle, can change something: a close brings
    /// it to the server.
    pub const fn changes(&self) -> bool {
        self.write || self.append || self.truncate || self.create.is_some()
    }

    /// For reading only.
    pub const READ: OpenHow = OpenHow {
        read: true,
        write: false,
        append: false,
        create: None,
        owner: None,
        exclusive: false,
        truncate: false,
    };
}

/// Attributes that a file gets, together; the others stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits (07777).
    pub mode: Option<u16>,
    /// Number of the user.
    pub uid: Option<u32>,
    /// Number of the group.
    pub gid: Option<u32>,
    /// Time of the last access, nanoseconds since 1970.
    pub atime_ns: Option<i64>,
    /// Time of the last change of the content, nanoseconds since 1970.
    pub mtime_ns: Option<i64>,
}

impl SetAttributes {
    /// As changes of the file at a path: bits after the owner, since a change of that may take
    /// some.
    pub(crate) fn changes(&self, path: &[u8], base: Option<Seen>) -> Vec<Change> {
        let SetAttributes { mode, uid, gid, atime_ns, mtime_ns } = *self;
        let path = || path.to_vec();
        let owner = (uid.is_some() || gid.is_some()).then(|| Change::SetOwner { path: path(), base, uid, gid });
        let mode = mode.map(|mode| Change::SetMode { path: path(), base, mode: mode & 0o7777 });
        let atime = atime_ns.map(|atime_ns| Change::SetAccessTime { path: path(), base, atime_ns });
        let mtime = mtime_ns.map(|mtime_ns| Change::SetTime { path: path(), base, mtime_ns });
        owner.into_iter().chain(mode).chain(atime).chain(mtime).collect()
    }
}

/// The extended attributes of a file, in no order.
pub type Xattrs = Arc<Vec<Xattr>>;

/// Name of the extended attribute that is the access control list of a file: the server changes the
/// permission bits with it, and it with them.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";

/// Name of the one that says what files get which are made in a folder. Who makes one gives it
/// that.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

/// A change of an extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XattrChange {
    /// It gets a value of 64 KiB at most.
    Set(Bytes, XattrHow),
    /// It is removed.
    Remove,
}

/// An open file, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// To be closed with [`crate::RemoteVolume::close`].
    pub handle: Handle,
    /// Its attributes. A file that was not sent to the server yet has `seen.file` 0.
    pub info: FileInfo,
    /// All that was read of the file since it was first opened here, and was written here since, is
    /// still true: a kernel may keep its pages.
    pub unchanged: bool,
}

/// A file by its handle or its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileRef {
    /// An open file.
    Handle(Handle),
    /// Whatever is at this path.
    Path(Vec<u8>),
    /// What is at this path, if it is the file with this id; else a change of it is
    /// [`crate::ErrorKind::Stale`].
    File {
        /// Its path.
        path: Vec<u8>,
        /// Its id ([`Seen::file`]), not 0.
        id: u64,
    },
}

impl FileRef {
    /// The file that a change of it is meant for.
    pub(crate) fn base(&self) -> Option<Seen> {
        match self {
            FileRef::File { id, .. } => Some(Seen::of_file(*id)),
            _ => None,
        }
    }
}

impl From<Handle> for FileRef {
    fn from(handle: Handle) -> FileRef {
        FileRef::Handle(handle)
    }
}

impl From<&[u8]> for FileRef {
    fn from(path: &[u8]) -> FileRef {
        FileRef::Path(path.to_vec())
    }
}

/// An owner of locks on this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockOwner {
    /// They are locks of flock(2), which have nothing to do with those of fcntl(2).
    pub is_flock: bool,
    /// A number that no other owner on this device has.
    pub number: u64,
}

/// A lock, unlock or test of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWish {
    /// For whom.
    pub owner: LockOwner,
    /// First byte.
    pub start: u64,
    /// Last byte, at least `start`; `u64::MAX` for all that the file may ever have.
    pub end: u64,
    /// The kind of lock; `None` unlocks.
    pub kind: Option<LockKind>,
    /// Nothing is locked: it is only told what is in the way.
    pub test: bool,
    /// The process, for those who are kept waiting.
    pub pid: u32,
}

/// A call; its callback is called when it is done.
pub(crate) enum Call {
    Stat {
        of: FileRef,
        done: Done<FileInfo>,
    },
    List {
        path: Vec<u8>,
        done: Done<Vec<FolderEntry>>,
    },
    ReadLink {
        path: Vec<u8>,
        done: Done<Bytes>,
    },
    Lock {
        handle: Handle,
        wish: LockWish,
        done: Done<Option<HeldLock>>,
    },
    /// Asks the server for the present version of an open file.
    Look {
        handle: Handle,
        done: Done<Opened>,
    },
    Space {
        done: Done<Space>,
    },
    Open {
        path: Vec<u8>,
        how: OpenHow,
        token: Token,
        done: Done<Opened>,
    },
    Read {
        handle: Handle,
        token: Token,
        offset: u64,
        bytes: u32,
        done: Done<Bytes>,
    },
    Write {
        handle: Handle,
        offset: u64,
        bytes: Bytes,
        done: Done<()>,
    },
    /// Part of a mapping, which nothing appends.
    WritePage {
        handle: Handle,
        offset: u64,
        bytes: Bytes,
        done: Done<()>,
    },
    /// Zeros or room of a range, made on the server.
    Allocate {
        handle: Handle,
        range: (u64, u64),
        allocation: Allocation,
        done: Done<()>,
    },
    /// Copies on the server; how many bytes it copied.
    Copy {
        from: (Handle, u64),
        to: (Handle, u64),
        length: u64,
        done: Done<u64>,
    },
    /// Where the next data, or the next hole, is.
    Seek {
        handle: Handle,
        offset: u64,
        hole: bool,
        done: Done<Option<u64>>,
    },
    SetSize {
        of: FileRef,
        size: u64,
        done: Done<()>,
    },
    SetAttributes {
        of: FileRef,
        wanted: SetAttributes,
        done: Done<()>,
    },
    Xattrs {
        of: FileRef,
        done: Done<Xattrs>,
    },
    ChangeXattr {
        of: FileRef,
        name: Vec<u8>,
        change: XattrChange,
        done: Done<()>,
    },
    Sync {
        handle: Handle,
        done: Done<()>,
    },
    Close {
        handle: Handle,
        done: Done<()>,
    },
    /// Those of a folder, for who is about to make something in it.
    FolderXattrs {
        path: Vec<u8>,
        done: Done<Xattrs>,
    },
    /// As `Make`, with what the new thing gets at the same time.
    MakeWith {
        path: Vec<u8>,
        changes: Vec<Change>,
        done: Done<()>,
    },
    /// A change that makes something, and its path.
    Make {
        path: Vec<u8>,
        change: Change,
        done: Done<()>,
    },
    Remove {
        path: Vec<u8>,
        done: Done<()>,
    },
    RemoveFolder {
        path: Vec<u8>,
        done: Done<()>,
    },
    Link {
        from: Vec<u8>,
        to: Vec<u8>,
        done: Done<()>,
    },
    Rename {
        from: Vec<u8>,
        to: Vec<u8>,
        replace: bool,
        done: Done<()>,
    },
    Lease {
        of: FileRef,
        kind: Option<LeaseKind>,
        duration: Duration,
        done: Done<Duration>,
    },
    SyncAll {
        done: Done<()>,
    },
    Hint {
        handle: Handle,
        ranges: Vec<(u64, u64)>,
    },
    Share {
        handle: Handle,
        share: Share,
    },
    RateLimit {
        bytes_per_second: u64,
    },
}

impl Call {
    /// Ends it with an error; `None` if nobody waits for it.
    pub fn fail(self, error: StreamError) -> Option<Finish> {
        fn fail<T: 'static>(done: Done<T>, error: StreamError) -> Option<Finish> {
            Some(Box::new(move || done(Err(error))))
        }
        match self {
            Call::Stat { done, .. } => fail(done, error),
            Call::List { done, .. } => fail(done, error),
            Call::ReadLink { done, .. } | Call::Read { done, .. } => fail(done, error),
            Call::Space { done } => fail(done, error),
            Call::Xattrs { done, .. } | Call::FolderXattrs { done, .. } => fail(done, error),
            Call::Lock { done, .. } => fail(done, error),
            Call::Open { done, .. } | Call::Look { done, .. } => fail(done, error),
            Call::Lease { done, .. } => fail(done, error),
            Call::Copy { done, .. } => fail(done, error),
            Call::Seek { done, .. } => fail(done, error),
            Call::Write { done, .. }
            | Call::WritePage { done, .. }
            | Call::Allocate { done, .. }
            | Call::SetSize { done, .. }
            | Call::SetAttributes { done, .. }
            | Call::ChangeXattr { done, .. }
            | Call::Sync { done, .. }
            | Call::Close { done, .. }
            | Call::Make { done, .. }
            | Call::MakeWith { done, .. }
            | Call::Remove { done, .. }
            | Call::RemoveFolder { done, .. }
            | Call::Link { done, .. }
            | Call::Rename { done, .. }
            | Call::SyncAll { done } => fail(done, error),
            Call::Hint { .. } | Call::Share { .. } | Call::RateLimit { .. } => None,
        }
    }
}
