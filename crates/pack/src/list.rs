//! Lists and reads files of an image: `ls` and `cat`.

use std::io::{self, Write};
use std::path::Path;

use image::{Inode, Kind, Metadata, ReadAt, device_parts};
use units::InodeId;

use crate::PackError;
use crate::error::printable;
use crate::reader::{BlockReader, Part};

/// Zeros written at a time for a hole.
const ZEROS_BYTES: usize = 64 << 10;

/// One line of a listing.
#[derive(Clone, Debug)]
pub struct Listing {
    /// Path from the root of the image, absolute, any bytes.
    pub path: Vec<u8>,
    /// Attributes.
    pub inode: Inode,
    /// Target of a symlink.
    pub target: Option<Vec<u8>>,
}

/// Calls `visit` with what lies at `path` (not followed if it is a symlink), or if that is a
/// directory with all it holds, in byte order; with `recursive`, with all that lies below.
///
/// # Errors
/// There is no such path, or the error of `visit`.
pub fn list(
    metadata: &Metadata,
    path: &[u8],
    recursive: bool,
    mut visit: impl FnMut(&Listing) -> Result<(), PackError>,
) -> Result<(), PackError> {
    let start = metadata.resolve(path).or_else(|| metadata.resolve_following(path)).ok_or_else(|| missing(path))?;
    let at = |id: InodeId, path: Vec<u8>| -> Option<Listing> {
        Some(Listing { path, inode: metadata.inode(id)?, target: metadata.symlink(id).map(<[u8]>::to_vec) })
    };
    let base = metadata.path(start).unwrap_or_else(|| b"/".to_vec());
    let Some(first) = at(start, base) else { return Err(missing(path)) };
    if first.inode.kind() != Kind::Dir {
        return visit(&first);
    }
    // Entries still to be visited, the next one last.
    let mut pending: Vec<(InodeId, Vec<u8>)> = children(metadata, start, &first.path);
    while let Some((id, path)) = pending.pop() {
        let Some(listing) = at(id, path) else { continue };
        visit(&listing)?;
        if recursive && listing.inode.kind() == Kind::Dir {
            pending.extend(children(metadata, id, &listing.path));
        }
    }
    Ok(())
}

fn children(metadata: &Metadata, directory: InodeId, path: &[u8]) -> Vec<(InodeId, Vec<u8>)> {
    let base = if path == b"/" { &b""[..] } else { path };
    metadata.entries(directory).rev().map(|entry| (entry.inode, [base, b"/", entry.name].concat())).collect()
}

/// Writes one line: with `long` like `ls -l`, with numeric owners and the time in UTC; else the
/// path alone. Bytes that a terminal should not see, and those that are not UTF-8, are written as
/// `\xNN`.
///
/// # Errors
/// `out` fails.
pub fn write_listing(listing: &Listing, long: bool, out: &mut dyn Write) -> io::Result<()> {
    let inode = &listing.inode;
    if !long {
        return writeln!(out, "{}", printable(&listing.path));
    }
    let size = match inode.kind() {
        Kind::Char | Kind::Block => {
            let (major, minor) = device_parts(inode.rdev());
            format!("{major}, {minor}")
        }
        _ => inode.size().to_string(),
    };
    write!(
        out,
        "{}{} {:>3} {:>5} {:>5} {:>10} {} {}",
        inode.kind().letter(),
        permissions(inode.permissions()),
        inode.nlink(),
        inode.uid(),
        inode.gid(),
        size,
        units::date(inode.mtime_sec()),
        printable(&listing.path),
    )?;
    match &listing.target {
        Some(target) => writeln!(out, " -> {}", printable(target)),
        None => writeln!(out),
    }
}

/// Writes the contents of the file at `path` to `out`, symlinks followed within the image.
///
/// # Errors
/// There is no such file, a block is damaged, or `out` fails.
pub fn cat(metadata: &Metadata, source: &dyn ReadAt, path: &[u8], out: &mut dyn Write) -> Result<(), PackError> {
    let id = metadata.resolve_following(path).ok_or_else(|| missing(path))?;
    if metadata.inode(id).is_none_or(|inode| inode.kind() != Kind::File) {
        return Err(PackError::ImagePath { path: printable(path), problem: "not a regular file" });
    }
    let failed = |source| PackError::write(Path::new("the output"), source);
    BlockReader::new(metadata, source).read(id, |part| match part {
        Part::Data(bytes) => out.write_all(bytes).map_err(failed),
        Part::Hole(mut bytes) => {
            let zeros = [0u8; ZEROS_BYTES];
            while bytes > 0 {
                let count = bytes.min(ZEROS_BYTES as u64);
                out.write_all(&zeros[..count as usize]).map_err(failed)?;
                bytes -= count;
            }
            Ok(())
        }
    })
}

fn missing(path: &[u8]) -> PackError {
    PackError::ImagePath { path: printable(path), problem: "no such file or directory" }
}

/// The nine letters of `ls -l`.
fn permissions(bits: u16) -> String {
    let mut text = String::with_capacity(9);
    for (shift, special, set, unset) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')] {
        let triple = bits >> shift;
        text.push(if triple & 4 != 0 { 'r' } else { '-' });
        text.push(if triple & 2 != 0 { 'w' } else { '-' });
        text.push(match (triple & 1 != 0, bits & special != 0) {
            (true, true) => set,
            (false, true) => unset,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_so_that_a_terminal_survives_them() {
        assert_eq!(printable("gr\u{fc}n\u{1b}[1m".as_bytes()), "gr\u{fc}n\\u001b[1m");
        assert_eq!(printable(b"a\xff\nb"), "a\\xff\\nb");
        let error = crate::PackError::write("to/a\nhint: b", std::io::Error::other("odd"));
        assert_eq!(error.to_string(), r"cannot write to/a\nhint: b: odd");
        assert_eq!(permissions(0o4755), "rwsr-xr-x");
        assert_eq!(permissions(0o1666), "rw-rw-rwT");
    }
}
