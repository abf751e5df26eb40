//! Bytes from the device into operations.
//!
//! Pure: no descriptor, no time. The kernel is trusted, but a request that is too short, has a name
//! without an end or states impossible sizes is an error and never a panic. It is answered with the
//! error number.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use zerocopy::{FromBytes, Immutable};

use super::{
    CopyFileRange, Create, Fallocate, Forgets, Lock, LockType, Make, Operation, Parsed, Read, Rename, Request, SetAttr,
    Write, xattr_flag,
};
use crate::abi::{self, InHeader, fattr, opcode};
use crate::attributes::{TimeOrNow, time};
use crate::{Errno, FileHandle, INodeNo};

/// Parses a request. `None` if even its number is missing, so that it cannot be answered.
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

/// The bytes behind the header, read from the front.
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

pub(super) fn set_attr(given: &abi::SetAttrIn) -> Result<SetAttr, Errno> {
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

/// An offset in a file, which is never negative.
fn offset(given: u64) -> Result<u64, Errno> {
    if i64::try_from(given).is_ok() { Ok(given) } else { Err(Errno::INVAL) }
}
