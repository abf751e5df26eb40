//! Reading extended attributes of files on disk.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use crate::tree::Xattrs;

/// Tries at reading a list or value whose size was just asked; another process may keep changing
/// it.
const TRIES_MAX: usize = 8;

/// The extended attributes of `path`, which is not followed if it is a symlink. Sorted by name. A
/// file system that has none gives an empty list.
pub(crate) fn read(path: &Path) -> io::Result<Xattrs> {
    let list = match sized(
        || rustix::fs::llistxattr_query(path),
        |buffer| rustix::fs::llistxattr(path, spare_capacity(buffer)),
    ) {
        Err(Errno::OPNOTSUPP) => return Ok(Xattrs::new()),
        list => list?,
    };
    let mut found = Xattrs::new();
    for name in list.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let key = OsStr::from_bytes(name);
        let value = sized(
            || rustix::fs::lgetxattr_query(path, key),
            |buffer| rustix::fs::lgetxattr(path, key, spare_capacity(buffer)),
        );
        match value {
            Ok(value) => found.push((name.to_vec(), value)),
            // Removed since it was listed, or listed by a file system that has no value for it.
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    found.sort();
    Ok(found)
}

/// Asks for a size, then for that many bytes, again if more came meanwhile.
fn sized(
    query: impl Fn() -> rustix::io::Result<usize>,
    read: impl Fn(&mut Vec<u8>) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    for _ in 0..TRIES_MAX {
        let size = query()?;
        let mut buffer = Vec::with_capacity(size);
        if size == 0 {
            return Ok(buffer);
        }
        match read(&mut buffer) {
            Err(Errno::RANGE) => {}
            result => return result.map(|_| buffer),
        }
    }
    Err(Errno::RANGE)
}
