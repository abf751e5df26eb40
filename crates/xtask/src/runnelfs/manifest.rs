//! What a tree holds, as a program sees it: one entry for each path, with a hash for each page.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{SeekFrom, lgetxattr, llistxattr, seek};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Bytes that are read, and hashed, at a time.
const PAGE_BYTES: usize = 4096;

/// Room for the names of extended attributes of a file, and for a value: the kernel's limits.
const XATTR_ROOM: usize = 65536;

/// Larger files, which only a mutant has, are not read.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// In which order the pages of a file are read.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// As most programs do, which makes the kernel read ahead.
    Forward,
    /// Which it does not expect.
    Backward,
}

/// One path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Below the root of the tree.
    pub path: Vec<u8>,
    /// The first path of the same inode: the same one, unless it is a hard link.
    first: usize,
    /// Type and permissions, owner, group, links, size, device. Of folders, which each file system
    /// counts in its own way, no links and no size.
    numbers: [u64; 6],
    /// Time of modification.
    time: (i64, i64),
    /// Target of a symbolic link.
    target: Vec<u8>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Start of the hash of each page; `None` if it could not be read.
    pages: Vec<Option<u64>>,
}

/// Reads a tree. A page that gives EIO is one without a hash; any other error ends it.
pub fn read(root: &Path, order: Order) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    read_below(root, Path::new(""), order, &mut entries, &mut HashMap::new())?;
    Ok(entries)
}

fn read_below(
    root: &Path,
    path: &Path,
    order: Order,
    entries: &mut Vec<Entry>,
    seen: &mut HashMap<u64, usize>,
) -> io::Result<()> {
    let full = root.join(path);
    let metadata = fs::symlink_metadata(&full)?;
    let first = *seen.entry(metadata.ino()).or_insert(entries.len());
    entries.push(entry(&full, path, first, &metadata, order)?);
    if !metadata.is_dir() {
        return Ok(());
    }
    let mut names = Vec::new();
    for child in fs::read_dir(&full)? {
        let child = child?;
        // The type in the folder itself, against that of the inode.
        if child.file_type()? != fs::symlink_metadata(child.path())?.file_type() {
            return Err(io::Error::other(format!("{}: another type in its folder", child.path().display())));
        }
        names.push(child.file_name());
    }
    names.sort();
    names.into_iter().try_for_each(|name| read_below(root, &path.join(name), order, entries, seen))
}

fn entry(full: &Path, path: &Path, first: usize, metadata: &Metadata, order: Order) -> io::Result<Entry> {
    let kind = metadata.file_type();
    let (links, size) = if kind.is_dir() { (0, 0) } else { (metadata.nlink(), metadata.size()) };
    let rdev = if kind.is_char_device() || kind.is_block_device() { metadata.rdev() } else { 0 };
    let (uid, gid) = (metadata.uid().into(), metadata.gid().into());
    let pages = if kind.is_file() { read_pages(full, size, order)? } else { Vec::new() };
    Ok(Entry {
        path: path.as_os_str().as_bytes().to_vec(),
        first,
        numbers: [metadata.mode().into(), uid, gid, links, size, rdev],
        time: (metadata.mtime(), metadata.mtime_nsec()),
        target: if kind.is_symlink() { fs::read_link(full)?.as_os_str().as_bytes().to_vec() } else { Vec::new() },
        xattrs: xattrs(full)?,
        pages,
    })
}

fn xattrs(path: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let (mut names, mut value) = (vec![0; XATTR_ROOM], vec![0; XATTR_ROOM]);
    let used = match llistxattr(path, names.as_mut_slice()) {
        Err(Errno::NOTSUP) => 0,
        used => used?,
    };
    let mut found = Vec::new();
    for name in names[..used].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let used = lgetxattr(path, name, value.as_mut_slice())?;
        found.push((name.to_vec(), value[..used].to_vec()));
    }
    found.sort();
    Ok(found)
}

fn read_pages(path: &Path, size: u64, order: Order) -> io::Result<Vec<Option<u64>>> {
    if size > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("{}: {size} bytes", path.display())));
    }
    let file = File::open(path)?;
    let count = size.div_ceil(PAGE_BYTES as u64) as usize;
    let mut pages = vec![None; count];
    let mut numbers: Vec<usize> = (0..count).collect();
    if let Order::Backward = order {
        numbers.reverse();
    }
    for page in numbers {
        let at = (page * PAGE_BYTES) as u64;
        let mut bytes = vec![0; (size - at).min(PAGE_BYTES as u64) as usize];
        match file.read_exact_at(&mut bytes, at) {
            Ok(()) => pages[page] = Some(hash(&bytes)),
            Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
    }
    check_holes(&file, size, &pages)?;
    Ok(pages)
}

/// What the file system calls a hole must be zeros.
fn check_holes(file: &File, size: u64, pages: &[Option<u64>]) -> io::Result<()> {
    let zeros = hash(&[0; PAGE_BYTES]);
    let mut at = 0;
    while at < size {
        let hole = seek(file, SeekFrom::Hole(at))?;
        at = match seek(file, SeekFrom::Data(hole)) {
            Err(Errno::NXIO) => size,
            data => data?,
        };
        let mut whole = hole.div_ceil(PAGE_BYTES as u64)..at / PAGE_BYTES as u64;
        if whole.any(|page| pages[page as usize].is_some_and(|found| found != zeros)) {
            return Err(io::Error::other("a hole is not zeros"));
        }
    }
    Ok(())
}

fn hash(bytes: &[u8]) -> u64 {
    let hash = blake3::hash(bytes);
    u64::from_le_bytes(hash.as_bytes()[..8].try_into().unwrap_or_default())
}

/// The first difference of what was found to the source; with `damaged` pages may be missing.
pub fn difference(source: &[Entry], found: &[Entry], damaged: bool) -> Option<String> {
    if source.len() != found.len() {
        return Some(format!("{} paths instead of {}", found.len(), source.len()));
    }
    source.iter().zip(found).find_map(|(source, found)| {
        let path = String::from_utf8_lossy(&source.path);
        for (page, (expected, hash)) in source.pages.iter().zip(&found.pages).enumerate() {
            if expected != hash && !(damaged && hash.is_none()) {
                let how = if hash.is_none() { "cannot be read" } else { "has other bytes" };
                return Some(format!("/{path}: page {page} {how}"));
            }
        }
        let pages = source.pages.clone();
        let found = Entry { pages, ..found.clone() };
        (*source != found).then(|| format!("/{path}: {source:?} became {found:?}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_page_is_found_and_a_missing_one_only_allowed_if_damaged() {
        let page = |hash| Entry {
            path: b"file".to_vec(),
            first: 0,
            numbers: [0; 6],
            time: (0, 0),
            target: Vec::new(),
            xattrs: Vec::new(),
            pages: vec![hash],
        };
        let (source, other, missing) = ([page(Some(1))], [page(Some(2))], [page(None)]);
        assert_eq!(difference(&source, &source, false), None);
        assert!(difference(&source, &other, true).is_some());
        assert!(difference(&source, &missing, false).is_some());
        assert_eq!(difference(&source, &missing, true), None);
    }
}
