//! Validation of the tree: inodes, directories, names, link targets and extended attributes.
//!
//! One pass over the inodes checks each by itself and that the runs of entries and extents are in
//! order. One pass over the entries, directory by directory, then proves the shape: names of a
//! directory ascend; a subdirectory has a higher number than its parent and is named once, so
//! directories form a tree below the root; every other inode is named as often as its link count
//! says, and at least once. Temporary memory: 6 bytes an inode.

use crate::limits::{NAME_BYTES_MAX, TARGET_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use crate::metadata::Tables;
use crate::{ImageError, Kind, Limits, format, section_name};
use std::ops::Range;

/// Builds the error for record `index` of a section, field `field` bytes into it.
fn corrupt<T>(kind: u32, index: u32, field: usize, what: &'static str, expected: u64, found: u64) -> ImageError {
    let offset = u64::from(index) * size_of::<T>() as u64 + field as u64;
    ImageError::Corrupt { section: section_name(kind), offset, what, expected, found }
}

fn inode_error(
    index: u32,
    field: usize,
    what: &'static str,
    expected: impl Into<u64>,
    found: impl Into<u64>,
) -> ImageError {
    corrupt::<format::Inode>(format::SECTION_INODES, index, field, what, expected.into(), found.into())
}

fn entry_error(
    index: u32,
    field: usize,
    what: &'static str,
    expected: impl Into<u64>,
    found: impl Into<u64>,
) -> ImageError {
    corrupt::<format::Entry>(format::SECTION_ENTRIES, index, field, what, expected.into(), found.into())
}

/// Checks everything about the tree.
pub(crate) fn validate(tables: &Tables, limits: &Limits) -> Result<(), ImageError> {
    validate_xattrs(tables)?;
    validate_inodes(tables)?;
    validate_entry_names(tables)?;
    validate_shape(tables, limits)
}

fn validate_inodes(tables: &Tables) -> Result<(), ImageError> {
    let count = tables.inodes.len();
    if count == 0 {
        return Err(inode_error(0, 0, "the number of inodes, at least the root,", 1u32, 0u32));
    }
    let (mut entry_end, mut extent_end) = (0, 0);
    for (index, inode) in (0..).zip(tables.inodes.iter()) {
        let kind = validate_inode(tables, index, inode)?;
        if index == 0 && kind != Kind::Dir {
            return Err(inode_error(0, 0, "the root's type", format::MODE_DIR, inode.mode.get() & format::MODE_TYPE));
        }
        let next = tables.inodes.get(index + 1);
        let entries = inode.entry_first.get()..next.map_or(tables.entries.len(), |next| next.entry_first.get());
        let extents = inode.extent_first.get()..next.map_or(tables.extents.len(), |next| next.extent_first.get());
        if entries.start != entry_end {
            return Err(inode_error(index, 44, "the first entry", entry_end, entries.start));
        }
        if entries.end < entries.start || entries.end > tables.entries.len() {
            return Err(inode_error(index + 1, 44, "the first entry, which must ascend,", entries.start, entries.end));
        }
        if kind != Kind::Dir && !entries.is_empty() {
            return Err(inode_error(index, 44, "the number of entries of no directory", 0u32, entries.len() as u64));
        }
        if extents.start != extent_end {
            return Err(inode_error(index, 40, "the first extent", extent_end, extents.start));
        }
        if extents.end < extents.start || extents.end > tables.extents.len() {
            return Err(inode_error(index + 1, 40, "the first extent, which must ascend,", extents.start, extents.end));
        }
        if kind != Kind::File && !extents.is_empty() {
            return Err(inode_error(index, 40, "the number of extents of no file", 0u32, extents.len() as u64));
        }
        (entry_end, extent_end) = (entries.end, extents.end);
    }
    Ok(())
}

/// Checks the fields of one inode that do not depend on its neighbours.
fn validate_inode(tables: &Tables, index: u32, inode: &format::Inode) -> Result<Kind, ImageError> {
    let mode = inode.mode.get();
    let kind = Kind::from_mode(mode)
        .ok_or_else(|| inode_error(index, 0, "the file type", format::MODE_FILE, mode & format::MODE_TYPE))?;
    if inode.reserved.get() != 0 {
        return Err(inode_error(index, 2, "a reserved field", 0u32, inode.reserved.get()));
    }
    if inode.mtime_ns.get() >= 1_000_000_000 {
        return Err(inode_error(index, 32, "the nanoseconds, at most", 999_999_999u32, inode.mtime_ns.get()));
    }
    if inode.xattr_set.get() > tables.xattr_sets.len() {
        return Err(inode_error(index, 36, "the xattr set, at most", tables.xattr_sets.len(), inode.xattr_set.get()));
    }
    let (size, payload) = (inode.size.get(), inode.payload.get());
    if kind == Kind::Symlink {
        validate_target(tables, index, size, payload)?;
    } else {
        if kind != Kind::File && size != 0 {
            return Err(inode_error(index, 16, "the size of no file and no link", 0u32, size));
        }
        if !matches!(kind, Kind::Char | Kind::Block) && payload != 0 {
            return Err(inode_error(index, 52, "the payload of no link and no device", 0u32, payload));
        }
    }
    Ok(kind)
}

fn validate_target(tables: &Tables, index: u32, size: u64, payload: u32) -> Result<(), ImageError> {
    if size == 0 || size > TARGET_BYTES_MAX as u64 {
        return Err(inode_error(index, 16, "the length of a link target, 1 to", TARGET_BYTES_MAX as u64, size));
    }
    let start = payload as usize;
    let Some(target) = tables.targets.get(start..start + size as usize) else {
        let room = tables.targets.len() as u64;
        return Err(inode_error(index, 52, "the end of a link target", room, payload as u64 + size));
    };
    if target.contains(&0) {
        return Err(inode_error(index, 52, "the number of NUL bytes in a link target", 0u32, 1u32));
    }
    Ok(())
}

/// Checks that a run of offsets ascends within `pool`, so that each item is the part up to the next
/// offset.
fn validate_entry_names(tables: &Tables) -> Result<(), ImageError> {
    let pool = tables.names.len();
    let mut start = 0usize;
    for (index, entry) in (0..).zip(tables.entries.iter()) {
        if entry.name.get() as usize != start {
            return Err(entry_error(index, 0, "the offset of a name", start as u64, entry.name.get()));
        }
        let end = tables.entries.get(index + 1).map_or(pool, |next| next.name.get() as usize);
        let name = tables.names.get(start..end).unwrap_or(b"");
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let found = end.saturating_sub(start) as u64;
            return Err(entry_error(index, 0, "the length of a name, 1 to", NAME_BYTES_MAX as u64, found));
        }
        if let Some(bad) = name.iter().find(|&&byte| byte == 0 || byte == b'/') {
            return Err(entry_error(index, 0, "a byte of a name, none of NUL and '/',", b'_', *bad));
        }
        if name == b"." || name == b".." {
            return Err(entry_error(index, 0, "the number of names \".\" and \"..\"", 0u32, 1u32));
        }
        start = end;
    }
    if start != pool {
        return Err(entry_error(tables.entries.len(), 0, "the end of the names", pool as u64, start as u64));
    }
    Ok(())
}

/// What the walk over the entries has seen of each inode.
struct Seen {
    /// For a directory 2 + subdirectories; for all else the number of entries.
    links: Vec<u32>,
    /// For a directory its depth, 0 until named.
    depth: Vec<u16>,
}

fn validate_shape(tables: &Tables, limits: &Limits) -> Result<(), ImageError> {
    let count = tables.inodes.len();
    let mut seen = Seen { links: vec![0; count as usize], depth: vec![0; count as usize] };
    for (index, inode) in (0..count).zip(tables.inodes.iter()) {
        if inode.mode.get() & format::MODE_TYPE != format::MODE_DIR {
            continue;
        }
        seen.links[index as usize] += 2;
        let end = tables.inodes.get(index + 1).map_or(tables.entries.len(), |next| next.entry_first.get());
        validate_directory(tables, limits, index, inode.entry_first.get()..end, &mut seen)?;
    }
    for (index, inode) in (0..count).zip(tables.inodes.iter()) {
        let (links, depth) = (seen.links[index as usize], seen.depth[index as usize]);
        let is_dir = inode.mode.get() & format::MODE_TYPE == format::MODE_DIR;
        if index == 0 {
            if inode.entry.get() != format::NO_ENTRY {
                return Err(inode_error(0, 48, "the entry of the root", format::NO_ENTRY, inode.entry.get()));
            }
        } else if links == 0 || (is_dir && depth == 0) {
            return Err(inode_error(index, 48, "the number of entries that name the inode, at least", 1u32, 0u32));
        }
        if inode.nlink.get() != links {
            return Err(inode_error(index, 12, "the link count", links, inode.nlink.get()));
        }
    }
    Ok(())
}

fn validate_directory(
    tables: &Tables,
    limits: &Limits,
    dir: u32,
    range: Range<u32>,
    seen: &mut Seen,
) -> Result<(), ImageError> {
    let mut name_before: &[u8] = b"";
    for index in range {
        let Some(entry) = tables.entries.get(index) else { break };
        let end = tables.entries.get(index + 1).map_or(tables.names.len(), |next| next.name.get() as usize);
        let name = tables.names.get(entry.name.get() as usize..end).unwrap_or(b"");
        if name <= name_before {
            return Err(entry_error(index, 0, "the order of this name to the one before (1 is after)", 1u32, 0u32));
        }
        name_before = name;
        let child = entry.inode.get().wrapping_sub(1);
        let Some(inode) = tables.inodes.get(child) else {
            return Err(entry_error(index, 4, "the inode, at most", tables.inodes.len(), entry.inode.get()));
        };
        let is_dir = inode.mode.get() & format::MODE_TYPE == format::MODE_DIR;
        let first = if is_dir { seen.depth[child as usize] == 0 } else { seen.links[child as usize] == 0 };
        if is_dir && child <= dir {
            return Err(entry_error(index, 4, "the number of a subdirectory, at least", dir + 2, child + 1));
        }
        if is_dir && !first {
            return Err(entry_error(index, 4, "the number of names of a directory", 1u32, 2u32));
        }
        if first && inode.entry.get() != index {
            return Err(inode_error(child, 48, "the first entry that names the inode", index, inode.entry.get()));
        }
        if is_dir {
            let depth = u32::from(seen.depth[dir as usize]) + 1;
            if depth > limits.depth_max.min(u16::MAX.into()) {
                let (limit, found) = (limits.depth_max.into(), depth.into());
                return Err(ImageError::Limit { what: "the depth of the tree", limit, found });
            }
            seen.depth[child as usize] = depth as u16;
            seen.links[dir as usize] += 1;
        } else {
            seen.links[child as usize] += 1;
        }
    }
    Ok(())
}

fn xattr_error(index: u32, field: usize, what: &'static str, expected: u64, found: u64) -> ImageError {
    corrupt::<format::Xattr>(format::SECTION_XATTRS, index, field, what, expected, found)
}

fn validate_xattrs(tables: &Tables) -> Result<(), ImageError> {
    for (kind, bytes, record) in [
        (format::SECTION_XATTR_SETS, tables.xattr_sets.byte_len(), 4),
        (format::SECTION_XATTRS, tables.xattrs.byte_len(), size_of::<format::Xattr>()),
    ] {
        if bytes % record != 0 {
            let (section, offset) = (section_name(kind), (bytes - bytes % record) as u64);
            let what = "the bytes after the last record";
            return Err(ImageError::Corrupt { section, offset, what, expected: 0, found: (bytes % record) as u64 });
        }
    }
    let mut start = 0usize;
    for (index, xattr) in (0..).zip(tables.xattrs.iter()) {
        let (name, value) = (xattr.name.get() as usize, xattr.value.get() as usize);
        let end = tables.xattrs.get(index + 1).map_or(tables.xattr_bytes.len(), |next| next.name.get() as usize);
        if name != start {
            return Err(xattr_error(index, 0, "the offset of a name", start as u64, name as u64));
        }
        let (name, value) = match (tables.xattr_bytes.get(name..value), tables.xattr_bytes.get(value..end)) {
            (Some(name), Some(value)) => (name, value),
            _ => return Err(xattr_error(index, 4, "the offset of a value, at most", end as u64, value as u64)),
        };
        if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX || name.contains(&0) {
            let (most, found) = (XATTR_NAME_BYTES_MAX as u64, name.len() as u64);
            return Err(xattr_error(index, 0, "the length of a name without NUL, 1 to", most, found));
        }
        if value.len() > XATTR_VALUE_BYTES_MAX {
            let (most, found) = (XATTR_VALUE_BYTES_MAX as u64, value.len() as u64);
            return Err(xattr_error(index, 4, "the length of a value, at most", most, found));
        }
        start = end;
    }
    if start != tables.xattr_bytes.len() {
        let (expected, found) = (tables.xattr_bytes.len() as u64, start as u64);
        return Err(xattr_error(tables.xattrs.len(), 0, "the end of the last value", expected, found));
    }
    validate_xattr_sets(tables)
}

fn validate_xattr_sets(tables: &Tables) -> Result<(), ImageError> {
    let set_error = |index: u32, what, expected: u32, found: u32| {
        corrupt::<u32>(format::SECTION_XATTR_SETS, index, 0, what, expected.into(), found.into())
    };
    let mut start = 0;
    for (index, set) in (0..).zip(tables.xattr_sets.iter()) {
        if set.get() != start {
            return Err(set_error(index, "the first attribute of a set", start, set.get()));
        }
        let end = tables.xattr_sets.get(index + 1).map_or(tables.xattrs.len(), |next| next.get());
        if end <= start || end > tables.xattrs.len() {
            return Err(set_error(index + 1, "the end of a set, above", start, end));
        }
        let name = |i: u32| {
            let raw = tables.xattrs.get(i)?;
            tables.xattr_bytes.get(raw.name.get() as usize..raw.value.get() as usize)
        };
        if let Some(i) = (start + 1..end).find(|&i| name(i) <= name(i - 1)) {
            return Err(xattr_error(i, 0, "the order of this name to the one before (1 is after)", 1, 0));
        }
        start = end;
    }
    if start != tables.xattrs.len() {
        return Err(set_error(tables.xattr_sets.len(), "the end of the last set", tables.xattrs.len(), start));
    }
    Ok(())
}
