//! Attributes of files and file systems in answers, and times as the kernel writes them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::INodeNo;
use crate::abi;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A FIFO.
    NamedPipe,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A directory.
    Directory,
    /// A regular file.
    RegularFile,
    /// A symbolic link.
    Symlink,
    /// A Unix domain socket.
    Socket,
}

impl FileType {
    /// The bits of `st_mode` that say it, the same on every architecture.
    pub(crate) fn mode(self) -> u32 {
        match self {
            FileType::NamedPipe => 0o010_000,
            FileType::CharDevice => 0o020_000,
            FileType::Directory => 0o040_000,
            FileType::BlockDevice => 0o060_000,
            FileType::RegularFile => 0o100_000,
            FileType::Symlink => 0o120_000,
            FileType::Socket => 0o140_000,
        }
    }

    /// `d_type` of a directory entry.
    pub(crate) fn entry(self) -> u32 {
        self.mode() >> 12
    }
}

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAttr {
    /// Its number.
    pub ino: INodeNo,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes that it takes.
    pub blocks: u64,
    /// When it was last read.
    pub atime: SystemTime,
    /// When its content last changed.
    pub mtime: SystemTime,
    /// When its attributes last changed.
    pub ctime: SystemTime,
    /// Its type.
    pub kind: FileType,
    /// Permissions, with the set-user-id, set-group-id and sticky bits.
    pub perm: u16,
    /// Names it has.
    pub nlink: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The device that it stands for, if it is one.
    pub rdev: u32,
    /// Bytes that programs should read and write at a time.
    pub blksize: u32,
}

impl FileAttr {
    pub(crate) fn wire(&self) -> abi::Attr {
        let [(atime, atime_nsec), (mtime, mtime_nsec), (ctime, ctime_nsec)] =
            [self.atime, self.mtime, self.ctime].map(seconds);
        abi::Attr {
            ino: self.ino.0,
            size: self.size,
            blocks: self.blocks,
            atime,
            mtime,
            ctime,
            atime_nsec,
            mtime_nsec,
            ctime_nsec,
            mode: self.kind.mode() | u32::from(self.perm & 0o7777),
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.blksize,
            flags: 0,
        }
    }
}

/// The answer of statfs(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// Blocks of `frsize` bytes.
    pub blocks: u64,
    /// Of them free.
    pub bfree: u64,
    /// Of them free for everybody.
    pub bavail: u64,
    /// Inodes.
    pub files: u64,
    /// Of them free.
    pub ffree: u64,
    /// Bytes that programs should read and write at a time.
    pub bsize: u32,
    /// Longest name of an entry, bytes.
    pub namelen: u32,
    /// Bytes of a block.
    pub frsize: u32,
}

/// A new time of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeOrNow {
    /// This one.
    SpecificTime(SystemTime),
    /// That of the clock.
    Now,
}

/// A time as seconds since 1970, in two's complement where they are negative, and nanoseconds to
/// add.
pub(crate) fn seconds(time: SystemTime) -> (u64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs(), after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            match before.subsec_nanos() {
                0 => (before.as_secs().wrapping_neg(), 0),
                nanoseconds => (before.as_secs().wrapping_neg().wrapping_sub(1), 1_000_000_000 - nanoseconds),
            }
        }
    }
}

/// The other way round. `None` for what is no time.
pub(crate) fn time(seconds: u64, nanoseconds: u32) -> Option<SystemTime> {
    let seconds = seconds.cast_signed();
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    base.filter(|_| nanoseconds < 1_000_000_000)?.checked_add(Duration::from_nanos(nanoseconds.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back() {
        for (second, nanosecond) in [(0, 0), (1, 1), (-1, 0), (-1, 999_999_999), (-62_000_000_000, 5), (1 << 40, 7)] {
            let second = i64::cast_unsigned(second);
            let made = time(second, nanosecond).expect("a time");
            assert_eq!(seconds(made), (second, nanosecond));
        }
        assert_eq!(time(0, 1_000_000_000), None);
        // No time can be so early that this panics.
        let _ = time(1 << 63, 0);
    }

    #[test]
    fn kinds_are_those_of_stat() {
        assert_eq!(FileType::Directory.mode(), 0o40000);
        assert_eq!(FileType::Directory.entry(), 4);
        assert_eq!(FileType::RegularFile.entry(), 8);
        assert_eq!(FileType::Symlink.entry(), 10);
    }
}
