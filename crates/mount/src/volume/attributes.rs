//! Attributes of a file of a volume, in the kernel's form.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuse::{FileAttr, FileType, INodeNo};
use stream::{FileInfo, FileKind, Owner};
use units::PAGE_BYTES;

/// Bytes that programs are told to read and write at a time, at most: what the kernel sends in one
/// request.
const TRANSFER_BYTES_MAX: u32 = 128 << 10;

/// The attributes of a file for the kernel. `owner`: the owner of all files, if not those that the
/// server tells.
pub(super) fn attributes(number: INodeNo, info: &FileInfo, owner: Option<Owner>, block_bytes: u32) -> FileAttr {
    let Owner { uid, gid } = owner.unwrap_or(info.owner);
    FileAttr {
        ino: number,
        size: info.size,
        blocks: info.stored_bytes.div_ceil(512),
        atime: time(info.atime_ns),
        mtime: time(info.mtime_ns),
        ctime: time(info.ctime_ns),
        kind: file_type(info.kind),
        perm: if info.kind == FileKind::Symlink { 0o777 } else { info.mode & 0o7777 },
        nlink: info.links,
        uid,
        gid,
        rdev: info.rdev,
        blksize: block_bytes.clamp(PAGE_BYTES as u32, TRANSFER_BYTES_MAX),
    }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Folder => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// Nanoseconds since 1970 as a time. All of them are representable.
fn time(nanoseconds: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanoseconds.unsigned_abs());
    let time = if nanoseconds < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
    time.unwrap_or(UNIX_EPOCH)
}

/// A time as nanoseconds since 1970; what a volume cannot hold becomes the nearest that it can.
pub(super) fn nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanoseconds| -nanoseconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back() {
        for nanoseconds_in in [0, 1, -1, 1_700_000_000_123_456_789, -62_000_000_000_000_000] {
            assert_eq!(nanoseconds(time(nanoseconds_in)), nanoseconds_in);
        }
        let far = UNIX_EPOCH + Duration::from_secs(1 << 40);
        assert_eq!(nanoseconds(far), i64::MAX);
    }

    #[test]
    fn attributes_are_those_of_the_file() {
        let info = FileInfo { size: 1025, stored_bytes: 1025, mode: 0o644, ..FileInfo::default() };
        let user = Some(Owner { uid: 3, gid: 4 });
        let shown = attributes(INodeNo(7), &info, user, 512);
        assert_eq!((shown.size, shown.blocks, shown.perm, shown.blksize), (1025, 3, 0o644, 4096));
        assert_eq!((shown.uid, shown.gid, shown.ino), (3, 4, INodeNo(7)));
        let owner = Owner { uid: 5, gid: 6 };
        let device = FileInfo { kind: FileKind::CharDevice, rdev: 0x103, owner, ..info };
        let shown = attributes(INodeNo(7), &device, None, 512);
        assert_eq!((shown.uid, shown.gid, shown.rdev, shown.kind), (5, 6, 0x103, FileType::CharDevice));
        let info = FileInfo { kind: FileKind::Symlink, ..info };
        assert_eq!(attributes(INodeNo(7), &info, user, 1 << 20).perm, 0o777);
        assert_eq!(attributes(INodeNo(7), &info, user, 1 << 20).blksize, 128 << 10);
    }
}
