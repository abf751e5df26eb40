//! Requests of the kernel, as types.

mod parse;
mod ranges;

use std::ffi::OsStr;
use std::time::SystemTime;

use zerocopy::FromBytes;

use crate::abi::{self, InHeader, opcode};
use crate::attributes::TimeOrNow;
use crate::{Errno, FileHandle, INodeNo};

pub(crate) use parse::parse;
pub use ranges::{CopyFileRange, Fallocate};

/// Flags of open answers.
pub mod open_flag {
    /// Reads and writes go past the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// The pages that are in the page cache stay.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// The entries of a directory may be kept.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// Closing sends no FLUSH.
    pub const NOFLUSH: u32 = 1 << 5;
}

/// Flags of SETXATTR: those of setxattr(2), and one more.
pub mod xattr_flag {
    /// There must be no attribute of the name yet.
    pub const CREATE: i32 = 1;
    /// There must be one.
    pub const REPLACE: i32 = 2;
    /// The caller is not in the group of the file, which loses its
    /// set-group-id bit.
    pub const KILL_SET_GROUP_ID: i32 = 1 << 16;
}

/// Flags of RENAME2, those of renameat2(2).
pub mod rename_flag {
    /// The new name must be free.
    pub const NOREPLACE: u32 = 1;
}

/// `O_APPEND` of open(2), the same on all architectures that Linux speaks FUSE on, except MIPS,
/// PA-RISC and Alpha.
const O_APPEND: u32 = 0o2000;

/// The header of a request: its caller and its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    header: InHeader,
}

impl Request {
    /// Number of the request.
    pub fn unique(&self) -> u64 {
        self.header.unique
    }

    /// User of the caller.
    pub fn uid(&self) -> u32 {
        self.header.uid
    }

    /// Group of the caller.
    pub fn gid(&self) -> u32 {
        self.header.gid
    }

    /// Thread of the caller; 0 if this process cannot see it.
    pub fn pid(&self) -> u32 {
        self.header.pid
    }

    pub(crate) fn node(&self) -> INodeNo {
        INodeNo(self.header.node)
    }
}

/// The changes of a SETATTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permissions.
    pub mode: Option<u32>,
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// When it was last read.
    pub atime: Option<TimeOrNow>,
    /// When its content last changed.
    pub mtime: Option<TimeOrNow>,
    /// When its attributes last changed.
    pub ctime: Option<SystemTime>,
    /// The open file through which it is changed.
    pub handle: Option<FileHandle>,
}

/// The arguments of MKNOD and MKDIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Make {
    /// Permissions, already without those of the umask; of MKNOD also what kind of file it is.
    pub mode: u32,
    /// The umask of the caller.
    pub umask: u32,
    /// The device, if it is to be one.
    pub rdev: u32,
}

/// The arguments of CREATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create {
    /// Permissions, already without those of the umask.
    pub mode: u32,
    /// The umask of the caller.
    pub umask: u32,
    /// Those of open(2).
    pub flags: i32,
}

/// The arguments of RENAME.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rename<'a> {
    /// Directory of the old name.
    pub parent: INodeNo,
    /// The old name.
    pub name: &'a OsStr,
    /// Directory of the new name.
    pub new_parent: INodeNo,
    /// The new name.
    pub new_name: &'a OsStr,
    /// See [`rename_flag`].
    pub flags: u32,
}

/// The arguments of READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Of the open file.
    pub handle: FileHandle,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u32,
    /// Those of open(2).
    pub flags: i32,
}

/// The arguments of WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// Of the open file.
    pub handle: FileHandle,
    /// First byte.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// Those of open(2).
    pub flags: i32,
    /// The data are pages that programs changed in a mapping, through any descriptor.
    pub is_writeback: bool,
}

/// The type of a lock, as in fcntl(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockType {
    /// Locks for writing.
    Read,
    /// All others.
    Write,
    /// Nothing: it is unlocked.
    Unlock,
}

impl LockType {
    fn from_u32(number: u32) -> Option<LockType> {
        [LockType::Read, LockType::Write, LockType::Unlock].into_iter().find(|kind| *kind as u32 == number)
    }
}

/// The arguments of GETLK, SETLK and SETLKW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Of the open file.
    pub handle: FileHandle,
    /// Its owner, by the kernel's number: a process and those that share its descriptors, or an
    /// open file.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte; `i64::MAX` for all that the file may ever have.
    pub end: u64,
    /// Its type.
    pub kind: LockType,
    /// The process; 0 for one that this process cannot see.
    pub pid: u32,
    /// It is of flock(2), which has nothing to do with those of fcntl(2).
    pub is_flock: bool,
}

/// An operation with its arguments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operation<'a> {
    Init(abi::InitIn),
    Destroy,
    /// Of the request with that number.
    Interrupt(u64),
    Forget(u64),
    BatchForget(Forgets<'a>),
    Lookup(&'a OsStr),
    GetAttr(Option<FileHandle>),
    SetAttr(SetAttr),
    Readlink,
    Symlink {
        name: &'a OsStr,
        target: &'a OsStr,
    },
    Mknod(&'a OsStr, Make),
    Mkdir(&'a OsStr, Make),
    Unlink(&'a OsStr),
    Rmdir(&'a OsStr),
    Rename(Rename<'a>),
    /// Of the inode with that number, under a name in the directory.
    Link(INodeNo, &'a OsStr),
    Open(i32),
    Create(&'a OsStr, Create),
    /// `direct` if it goes past the page cache.
    Read {
        read: Read,
        direct: bool,
    },
    Write(Write<'a>),
    /// With the owner of its locks.
    Flush(FileHandle, u64),
    /// With the owner of its locks of flock(2), if there may be some.
    Release(FileHandle, Option<u64>),
    GetLk(Lock),
    /// `true` if it is waited for.
    SetLk(Lock, bool),
    Fsync(FileHandle, bool),
    Opendir(i32),
    Readdir(Read),
    ReaddirPlus(Read),
    Releasedir(FileHandle),
    Fsyncdir(FileHandle, bool),
    Statfs,
    SetXattr {
        name: &'a OsStr,
        value: &'a [u8],
        flags: i32,
    },
    GetXattr(&'a OsStr, u32),
    ListXattr(u32),
    RemoveXattr(&'a OsStr),
    Access(u32),
    Fallocate(Fallocate),
    Lseek(FileHandle, i64, i32),
    CopyFileRange(CopyFileRange),
}

impl Operation<'_> {
    /// Whether the kernel waits for an answer at all.
    pub fn is_answered(&self) -> bool {
        !matches!(self, Operation::Forget(_) | Operation::BatchForget(_) | Operation::Interrupt(_))
    }

    /// Whether POSIX lets the call that made this request fail with EINTR because of a signal that
    /// its program catches.
    ///
    /// Not a READ through the page cache: it may come from a page fault, which would become SIGBUS.
    /// Not a WRITE at the end of a file: its bytes stay accepted, and a program that writes them
    /// again would have them twice.
    pub fn ends_by_signal(&self) -> bool {
        match self {
            Operation::Open(_) | Operation::Create(..) | Operation::Fsync(..) | Operation::Flush(..) => true,
            Operation::Read { direct, .. } => *direct,
            Operation::Write(write) => write.flags.cast_unsigned() & O_APPEND == 0,
            _ => false,
        }
    }
}

/// The entries of a BATCH_FORGET.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Forgets<'a>(&'a [u8]);

impl Iterator for Forgets<'_> {
    /// Inode, and how many look-ups of it are forgotten.
    type Item = (INodeNo, u64);

    fn next(&mut self) -> Option<(INodeNo, u64)> {
        let (one, rest) = abi::ForgetOne::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some((INodeNo(one.node), one.lookups))
    }
}

/// A parsed request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Parsed<'a> {
    pub request: Request,
    /// An error is the answer.
    pub operation: Result<Operation<'a>, Errno>,
}

impl Parsed<'_> {
    /// Whether the kernel waits for an answer.
    pub fn is_answered(&self) -> bool {
        match &self.operation {
            Ok(operation) => operation.is_answered(),
            Err(_) => !matches!(
                self.request.header.opcode,
                opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT | opcode::NOTIFY_REPLY
            ),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
