//! Bytes from the device into operations.
//!
//! Pure: no descriptor, no time. The kernel is trusted to be a kernel, but a request that is too
//! short, holds a name without its end or says sizes that are not there is an error and never a
//! panic: the answer is then the error number.

mod ranges;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::SystemTime;

use zerocopy::{FromBytes, Immutable};

use crate::abi::{self, InHeader, fattr, opcode};
use crate::attributes::{TimeOrNow, time};
use crate::{Errno, FileHandle, INodeNo};

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
    /// Who sets this access control list is not in the group of the file, which loses its
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

/// Who asks, and about what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    header: InHeader,
}

impl Request {
    /// Number of the request.
    pub fn unique(&self) -> u64 {
        self.header.unique
    }

    /// User of who asks.
    pub fn uid(&self) -> u32 {
        self.header.uid
    }

    /// Group of who asks.
    pub fn gid(&self) -> u32 {
        self.header.gid
    }

    /// Thread that asks; 0 for one that this process cannot see.
    pub fn pid(&self) -> u32 {
        self.header.pid
    }

    pub(crate) fn node(&self) -> INodeNo {
        INodeNo(self.header.node)
    }
}

/// What a SETATTR changes.
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

/// What a MKNOD or MKDIR makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Make {
    /// Permissions, already without those of the umask; of MKNOD also what kind of file it is.
    pub mode: u32,
    /// The umask of who asks.
    pub umask: u32,
    /// The device, if it is to be one.
    pub rdev: u32,
}

/// What a CREATE makes and opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create {
    /// Permissions, already without those of the umask.
    pub mode: u32,
    /// The umask of who asks.
    pub umask: u32,
    /// Those of open(2).
    pub flags: i32,
}

/// What a RENAME moves where.
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

/// What a READ wants.
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

/// What a WRITE brings.
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
    /// They are pages that programs changed in a mapping, by whatever descriptor.
    pub is_writeback: bool,
}

/// What a lock excludes, as fcntl(2) calls it.
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

/// What a GETLK, SETLK or SETLKW is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Of the open file.
    pub handle: FileHandle,
    /// Whose it is, by the kernel's number: a process and those that share its descriptors, or an
    /// open file.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte; `i64::MAX` for all that the file may ever have.
    pub end: u64,
    /// What it excludes.
    pub kind: LockType,
    /// The process; 0 for one that this process cannot see.
    pub pid: u32,
    /// It is of flock(2), which has nothing to do with those of fcntl(2).
    pub is_flock: bool,
}

/// A request that asks for one of our operations.
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

/// What a request was understood as.
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

/// Understands a request. `None` if it has not even a number that could be answered.
pub(crate) fn parse(bytes: &[u8]) -> Option<Parsed<'_>> {
    let (header, rest) = InHeader::read_from_prefix(bytes).ok()?;
    let mut arguments = Arguments(rest);
    let operation = if header.len as usize == bytes.len() {
        // Extensions lie behind the arguments. None is asked for.
        let extension = usize::from(header.extension_words) * 8;
        rest.len().checked_sub(extension).ok_or(Errno::IO).and_then(|length| {
            arguments.0 = &rest[..length];
            operation(&header, &mut arguments)
        })
    } else {
        Err(Errno::IO)
    };
    Some(Parsed { request: Request { header }, operation })
}

/// What follows the header, and is taken from the front.
struct Arguments<'a>(&'a [u8]);

impl<'a> Arguments<'a> {
    fn take<T: FromBytes + Immutable>(&mut self) -> Result<T, Errno> {
        let (taken, rest) = T::read_from_prefix(self.0).map_err(|_| Errno::IO)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Bytes up to a zero byte, which goes too.
    fn text(&mut self) -> Result<&'a OsStr, Errno> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Errno::IO)?;
        let (text, rest) = (&self.0[..end], &self.0[end + 1..]);
        self.0 = rest;
        Ok(OsStr::from_bytes(text))
    }

    /// The name of an entry: never empty, never a path.
    fn name(&mut self) -> Result<&'a OsStr, Errno> {
        let name = self.text()?;
        let wrong = name.is_empty() || name.as_bytes().contains(&b'/');
        if wrong { Err(Errno::IO) } else { Ok(name) }
    }

    fn bytes(&mut self, count: u32) -> Result<&'a [u8], Errno> {
        let (bytes, rest) = self.0.split_at_checked(count as usize).ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(bytes)
    }
}

fn operation<'a>(header: &InHeader, arguments: &mut Arguments<'a>) -> Result<Operation<'a>, Errno> {
    Ok(match header.opcode {
        opcode::LOOKUP => Operation::Lookup(arguments.name()?),
        opcode::FORGET => Operation::Forget(arguments.take::<abi::ForgetIn>()?.lookups),
        opcode::BATCH_FORGET => {
            let count = arguments.take::<abi::BatchForgetIn>()?.count;
            let bytes = count.checked_mul(size_of::<abi::ForgetOne>() as u32).ok_or(Errno::IO)?;
            Operation::BatchForget(Forgets(arguments.bytes(bytes)?))
        }
        opcode::INTERRUPT => Operation::Interrupt(arguments.take::<abi::InterruptIn>()?.unique),
        opcode::INIT => Operation::Init(init(arguments)?),
        opcode::DESTROY => Operation::Destroy,
        opcode::GETATTR => {
            let given: abi::GetAttrIn = arguments.take()?;
            Operation::GetAttr((given.flags & abi::GETATTR_HANDLE != 0).then_some(FileHandle(given.handle)))
        }
        opcode::SETATTR => Operation::SetAttr(set_attr(&arguments.take()?)?),
        opcode::STATFS => Operation::Statfs,
        opcode::ACCESS => Operation::Access(arguments.take::<abi::AccessIn>()?.mask),
        opcode::READLINK
        | opcode::SYMLINK
        | opcode::MKNOD
        | opcode::MKDIR
        | opcode::UNLINK
        | opcode::RMDIR
        | opcode::RENAME
        | opcode::RENAME2
        | opcode::LINK => names(header, arguments)?,
        opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => xattrs(header, arguments)?,
        _ => files(header, arguments)?,
    })
}

/// INIT, of which kernels before 5.17 send the first four words only.
fn init(arguments: &mut Arguments<'_>) -> Result<abi::InitIn, Errno> {
    if arguments.0.len() >= size_of::<abi::InitIn>() {
        return arguments.take();
    }
    let [major, minor, max_readahead, flags] = arguments.take::<[u32; 4]>()?;
    Ok(abi::InitIn { major, minor, max_readahead, flags, flags2: 0, unused: [0; 11] })
}

fn set_attr(given: &abi::SetAttrIn) -> Result<SetAttr, Errno> {
    let has = |bit: u32| given.valid & bit != 0;
    let chosen = |bit: u32, now: u32, seconds: u64, nanoseconds: u32| -> Result<Option<TimeOrNow>, Errno> {
        match (has(bit), has(now)) {
            (_, true) => Ok(Some(TimeOrNow::Now)),
            (true, false) => {
                time(seconds, nanoseconds).map(|time| Some(TimeOrNow::SpecificTime(time))).ok_or(Errno::INVAL)
            }
            (false, false) => Ok(None),
        }
    };
    let ctime = match has(fattr::CTIME) {
        true => Some(time(given.ctime, given.ctime_nsec).ok_or(Errno::INVAL)?),
        false => None,
    };
    Ok(SetAttr {
        mode: has(fattr::MODE).then_some(given.mode),
        uid: has(fattr::UID).then_some(given.uid),
        gid: has(fattr::GID).then_some(given.gid),
        size: has(fattr::SIZE).then_some(given.size),
        atime: chosen(fattr::ATIME, fattr::ATIME_NOW, given.atime, given.atime_nsec)?,
        mtime: chosen(fattr::MTIME, fattr::MTIME_NOW, given.mtime, given.mtime_nsec)?,
        ctime,
        handle: has(fattr::HANDLE).then_some(FileHandle(given.handle)),
    })
}

fn names<'a>(header: &InHeader, arguments: &mut Arguments<'a>) -> Result<Operation<'a>, Errno> {
    let parent = INodeNo(header.node);
    Ok(match header.opcode {
        opcode::READLINK => Operation::Readlink,
        opcode::SYMLINK => Operation::Symlink { name: arguments.name()?, target: arguments.text()? },
        opcode::MKNOD => {
            let abi::MknodIn { mode, rdev, umask, .. } = arguments.take()?;
            Operation::Mknod(arguments.name()?, Make { mode, umask, rdev })
        }
        opcode::MKDIR => {
            let abi::MkdirIn { mode, umask } = arguments.take()?;
            Operation::Mkdir(arguments.name()?, Make { mode, umask, rdev: 0 })
        }
        opcode::UNLINK => Operation::Unlink(arguments.name()?),
        opcode::RMDIR => Operation::Rmdir(arguments.name()?),
        opcode::LINK => {
            let old = arguments.take::<abi::LinkIn>()?.old_node;
            Operation::Link(INodeNo(old), arguments.name()?)
        }
        _ => {
            let (new_parent, flags) = if header.opcode == opcode::RENAME2 {
                let given: abi::Rename2In = arguments.take()?;
                (given.new_parent, given.flags)
            } else {
                (arguments.take::<abi::RenameIn>()?.new_parent, 0)
            };
            let (name, new_name) = (arguments.name()?, arguments.name()?);
            Operation::Rename(Rename { parent, name, new_parent: INodeNo(new_parent), new_name, flags })
        }
    })
}

fn xattrs<'a>(header: &InHeader, arguments: &mut Arguments<'a>) -> Result<Operation<'a>, Errno> {
    Ok(match header.opcode {
        opcode::SETXATTR => {
            let given: abi::SetXattrIn = arguments.take()?;
            let mut flags = given.flags.cast_signed();
            // A name has a prefix. So these are the flags of the longer form, 0 or 1 and zeros.
            if matches!(arguments.0, [_, 0, ..]) {
                let more: abi::SetXattrMore = arguments.take()?;
                if more.flags & abi::SETXATTR_ACL_KILL_SGID != 0 {
                    flags |= xattr_flag::KILL_SET_GROUP_ID;
                }
            }
            let name = arguments.text()?;
            Operation::SetXattr { name, value: arguments.bytes(given.size)?, flags }
        }
        opcode::GETXATTR => {
            let size = arguments.take::<abi::GetXattrIn>()?.size;
            Operation::GetXattr(arguments.text()?, size)
        }
        opcode::LISTXATTR => Operation::ListXattr(arguments.take::<abi::GetXattrIn>()?.size),
        _ => Operation::RemoveXattr(arguments.text()?),
    })
}

fn files<'a>(header: &InHeader, arguments: &mut Arguments<'a>) -> Result<Operation<'a>, Errno> {
    Ok(match header.opcode {
        opcode::OPEN => Operation::Open(arguments.take::<abi::OpenIn>()?.flags.cast_signed()),
        opcode::OPENDIR => Operation::Opendir(arguments.take::<abi::OpenIn>()?.flags.cast_signed()),
        opcode::CREATE => {
            let abi::CreateIn { flags, mode, umask, .. } = arguments.take()?;
            Operation::Create(arguments.name()?, Create { mode, umask, flags: flags.cast_signed() })
        }
        opcode::READ => {
            let given: abi::ReadIn = arguments.take()?;
            let direct = given.read_flags & abi::READ_LOCK_OWNER != 0;
            Operation::Read { read: Read { offset: offset(given.offset)?, ..read(&given) }, direct }
        }
        // The offset is what the file system gave out, any number.
        opcode::READDIR => Operation::Readdir(read(&arguments.take()?)),
        opcode::READDIRPLUS => Operation::ReaddirPlus(read(&arguments.take()?)),
        opcode::WRITE => {
            let given: abi::WriteIn = arguments.take()?;
            let (handle, offset) = (FileHandle(given.handle), offset(given.offset)?);
            let data = arguments.bytes(given.size)?;
            let is_writeback = given.write_flags & abi::WRITE_CACHE != 0;
            Operation::Write(Write { handle, offset, data, flags: given.flags.cast_signed(), is_writeback })
        }
        opcode::FLUSH => {
            let given: abi::FlushIn = arguments.take()?;
            Operation::Flush(FileHandle(given.handle), given.lock_owner)
        }
        opcode::RELEASE => {
            let given: abi::ReleaseIn = arguments.take()?;
            let unlocks = given.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0;
            Operation::Release(FileHandle(given.handle), unlocks.then_some(given.lock_owner))
        }
        opcode::GETLK => Operation::GetLk(lock(&arguments.take()?)?),
        opcode::SETLK | opcode::SETLKW => Operation::SetLk(lock(&arguments.take()?)?, header.opcode == opcode::SETLKW),
        opcode::RELEASEDIR => Operation::Releasedir(FileHandle(arguments.take::<abi::ReleaseIn>()?.handle)),
        opcode::FSYNC | opcode::FSYNCDIR => {
            let given: abi::FsyncIn = arguments.take()?;
            let (handle, data_only) = (FileHandle(given.handle), given.flags & abi::FSYNC_DATA != 0);
            match header.opcode {
                opcode::FSYNC => Operation::Fsync(handle, data_only),
                _ => Operation::Fsyncdir(handle, data_only),
            }
        }
        opcode::FALLOCATE => {
            let given: abi::FallocateIn = arguments.take()?;
            Operation::Fallocate(Fallocate {
                handle: FileHandle(given.handle),
                offset: offset(given.offset)?,
                length: offset(given.length)?,
                mode: given.mode.cast_signed(),
            })
        }
        opcode::LSEEK => {
            let given: abi::LseekIn = arguments.take()?;
            Operation::Lseek(FileHandle(given.handle), given.offset.cast_signed(), given.whence.cast_signed())
        }
        opcode::COPY_FILE_RANGE => {
            let given: abi::CopyFileRangeIn = arguments.take()?;
            Operation::CopyFileRange(CopyFileRange {
                handle: FileHandle(given.handle),
                offset: offset(given.offset)?,
                to_handle: FileHandle(given.to_handle),
                to_inode: INodeNo(given.to_node),
                to_offset: offset(given.to_offset)?,
                length: given.length,
            })
        }
        // Also what a newer kernel may ask for: it does without.
        _ => return Err(Errno::NOSYS),
    })
}

fn read(given: &abi::ReadIn) -> Read {
    Read { handle: FileHandle(given.handle), offset: given.offset, size: given.size, flags: given.flags.cast_signed() }
}

fn lock(given: &abi::LkIn) -> Result<Lock, Errno> {
    let abi::FileLock { start, end, kind, pid } = given.lock;
    let kind = LockType::from_u32(kind).filter(|_| start <= end).ok_or(Errno::INVAL)?;
    let (handle, is_flock) = (FileHandle(given.handle), given.flags & abi::LK_FLOCK != 0);
    Ok(Lock { handle, owner: given.owner, start: offset(start)?, end: offset(end)?, kind, pid, is_flock })
}

/// A place in a file, which is never negative.
fn offset(given: u64) -> Result<u64, Errno> {
    if i64::try_from(given).is_ok() { Ok(given) } else { Err(Errno::INVAL) }
}

#[cfg(test)]
pub(crate) mod tests;
