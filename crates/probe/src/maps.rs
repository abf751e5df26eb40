//! The executable file mappings of a process, from /proc/PID/maps.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;

use crate::file_id::FileId;

/// An executable, private mapping of a file. (A breakpoint in a shared one would be written to the
/// file.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// First address.
    pub(crate) start: u64,
    /// Address behind the last.
    pub(crate) end: u64,
    /// Offset of the first byte in the file.
    pub(crate) offset: u64,
    /// The file as the kernel names it here. On file systems with subvolumes or layers, stat may
    /// name it otherwise.
    pub(crate) file: FileId,
    /// Path in the name space of the process; ends in ` (deleted)` if there is none any more.
    pub(crate) path: PathBuf,
}

impl Mapping {
    /// The address of the byte at a file offset, if it is in this mapping.
    pub(crate) fn address_of(&self, offset: u64) -> Option<u64> {
        let distance = offset.checked_sub(self.offset)?;
        (distance < self.end - self.start).then(|| self.start + distance)
    }

    /// A path to the file that our process can open.
    pub(crate) fn path_from_outside(&self, pid: Pid) -> PathBuf {
        from_outside(pid, &self.path)
    }
}

/// Where we find what is at an absolute path for a process, which may have another root or name
/// space.
pub(crate) fn from_outside(pid: Pid, path: &Path) -> PathBuf {
    Path::new(&format!("/proc/{pid}/root")).join(path.strip_prefix("/").unwrap_or(path))
}

/// Reads the mappings of a process, in the order of addresses.
pub(crate) fn read(pid: Pid) -> io::Result<Vec<Mapping>> {
    Ok(fs::read(format!("/proc/{pid}/maps"))?.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// One line: `start-end perms offset major:minor inode path`. None for what is no executable,
/// private file mapping.
fn parse(line: &[u8]) -> Option<Mapping> {
    // Most lines end here, at `x` in `r-xp`: addresses may have 8 to 16 digits.
    let space = line.iter().position(|byte| *byte == b' ')?;
    if line.get(space + 3..space + 5)? != b"xp" {
        return None;
    }
    let mut fields = line.splitn(6, |byte| *byte == b' ').map(|field| str::from_utf8(field).ok());
    let (start, end) = fields.next()??.split_once('-')?;
    let (_permissions, offset) = (fields.next()?, fields.next()??);
    let (major, minor) = fields.next()??.split_once(':')?;
    let inode = fields.next()??.parse().ok().filter(|inode| *inode != 0)?;
    let path = line.get(line.iter().position(|byte| *byte == b'/')?..)?;
    let (major, minor) = (u64::from_str_radix(major, 16).ok()?, u64::from_str_radix(minor, 16).ok()?);
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    Some(Mapping {
        start,
        end: end.max(start),
        offset: u64::from_str_radix(offset, 16).ok()?,
        file: FileId { device: libc::makedev(major as u32, minor as u32), inode },
        path: PathBuf::from(OsStr::from_bytes(path)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_private_file_mappings_are_found() {
        let line = b"7f0b1c026000-7f0b1c17b000 r-xp 00026000 fe:01 1234                       /usr/lib/a b.so";
        let mapping = parse(line).expect("parsed");
        assert_eq!((mapping.start, mapping.end, mapping.offset), (0x7f0b1c026000, 0x7f0b1c17b000, 0x26000));
        assert_eq!(mapping.file, FileId { device: libc::makedev(0xfe, 1), inode: 1234 });
        assert_eq!(mapping.path, Path::new("/usr/lib/a b.so"));
        assert_eq!(mapping.address_of(0x26010), Some(0x7f0b1c026010));
        assert_eq!(mapping.address_of(0x25fff), None);
        assert_eq!(mapping.address_of(0x26000 + (0x7f0b1c17b000 - 0x7f0b1c026000)), None);
    }

    #[test]
    fn all_other_lines_are_passed_over() {
        for line in [
            "7f0b1c026000-7f0b1c17b000 r--p 00026000 fe:01 1234 /usr/lib/a.so",
            "7f0b1c026000-7f0b1c17b000 r-xs 00026000 fe:01 1234 /usr/lib/a.so",
            "7ffd0-7ffd1 r-xp 00000000 00:00 0                          [vdso]",
            "7ffd0-7ffd1 r-xp 00000000 00:00 0",
            "7ffd0 r-xp",
            "7ffd0-zz r-xp 0 1:1 1 /a",
            " xp",
            "",
        ] {
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn our_own_program_is_among_our_mappings() {
        let own = read(Pid::this()).expect("readable");
        let exe = std::env::current_exe().expect("known");
        assert!(own.iter().any(|mapping| mapping.path == exe && mapping.path_from_outside(Pid::this()).exists()));
    }
}
