//! What a read set costs on images of other systems.
//!
//! EROFS: its extents as `dump.erofs` prints them, exact. SquashFS: a model of its layout, decoded
//! bytes only: files are cut into blocks of their own, files smaller than a block are packed
//! together in fragment blocks in the order of their paths. What really is read from either is
//! measured on a loop device by [`super::device`].

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::layout::{Opened, Pieces, Reads};
use super::measure;
use super::read_set::Page;
use crate::process::find_program;
use units::PAGE_BYTES;

/// Extents of a file: logical start and end, physical start and end.
type Extents = Vec<[u64; 4]>;

/// The extents of the files of an EROFS image that were asked for. The tool is started once a file.
#[derive(Debug, Default)]
pub struct Erofs(BTreeMap<Vec<u8>, Extents>);

impl Erofs {
    fn of(&mut self, image: &Path, path: &[u8]) -> anyhow::Result<&Extents> {
        if !self.0.contains_key(path) {
            let program = std::env::var_os("EROFS_DUMP").map(Into::into).or_else(|| find_program("dump.erofs"));
            let program: PathBuf = program.context("dump.erofs is missing; apt-get install erofs-utils")?;
            let mut argument = std::ffi::OsString::from("--path=");
            argument.push(std::ffi::OsStr::from_bytes(path));
            let done = measure::run(Command::new(&program).arg(argument).arg("-e").arg(image))?;
            self.0.insert(path.to_vec(), parse(&String::from_utf8_lossy(&done.output)));
        }
        let extents = self.0.get(path).filter(|extents| !extents.is_empty());
        extents.with_context(|| format!("dump.erofs shows no extents of {}", String::from_utf8_lossy(path)))
    }
}

/// What must be read for `pages` from the EROFS image at `image`, of which `known` keeps the
/// extents; decode time is not known here.
///
/// # Errors
/// `dump.erofs` is missing or prints something else than expected.
pub fn erofs(image: &Path, known: &mut Erofs, pages: &[Page]) -> anyhow::Result<Reads> {
    let mut by_file: BTreeMap<&[u8], BTreeSet<u32>> = BTreeMap::new();
    for page in pages {
        by_file.entry(&page.path).or_default().insert(page.index);
    }
    let (mut touched, mut reads) = (BTreeSet::new(), Reads::default());
    for (path, indexes) in by_file {
        let extents = known.of(image, path)?;
        let size = extents.last().map_or(0, |extent| extent[1]);
        for index in indexes {
            let start = u64::from(index) * PAGE_BYTES as u64;
            let end = (start + PAGE_BYTES as u64).min(size);
            reads.wanted += end.saturating_sub(start);
            touched.extend(extents.iter().filter(|extent| extent[0] < end && extent[1] > start).copied());
        }
    }
    reads.decoded = touched.iter().map(|extent| extent[1] - extent[0]).sum();
    let pieces = Pieces::of(touched.iter().map(|extent| (extent[2], extent[3])).collect());
    (reads.stored, reads.runs, reads.device_pages) = (pieces.bytes, pieces.runs, pieces.device_pages);
    Ok(reads)
}

/// Lines such as `0:        0..  145962 |  145962 :     573440..    638976 |   65536`.
fn parse(text: &str) -> Extents {
    let line = |line: &str| {
        let (number, rest) = line.trim_start().split_once(':')?;
        number.parse::<u64>().ok()?;
        let numbers: Vec<u64> =
            rest.split(|character: char| !character.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [from, to, _, at, end, _] if from < to && at <= end => Some([from, to, at, end]),
            _ => None,
        }
    };
    text.lines().filter_map(line).collect()
}

/// Decoded bytes that SquashFS with blocks of `block` bytes must produce for `pages`, by the model.
pub fn squashfs_decoded(tree: &Opened, pages: &[Page], block: u64) -> u64 {
    let mut small: Vec<(Vec<u8>, u64)> = Vec::new();
    for inode in tree.files() {
        let size = tree.metadata().inode(inode).map_or(0, |inode| inode.size());
        if let Some(path) = tree.metadata().path(inode).filter(|_| size > 0 && size < block) {
            small.push((path, size));
        }
    }
    small.sort();
    let (mut fragment, mut filled, mut fragments) = (0u64, 0u64, vec![0u64]);
    let mut place = BTreeMap::new();
    for (path, size) in small {
        if filled + size > block {
            (fragment, filled) = (fragment + 1, 0);
            fragments.push(0);
        }
        filled += size;
        fragments[fragment as usize] = filled;
        place.insert(path, fragment);
    }
    let (mut hot_fragments, mut hot_blocks, mut decoded) = (BTreeSet::new(), BTreeSet::new(), 0);
    for page in pages {
        let Some(found) = tree.page(page) else { continue };
        let size = tree.metadata().inode(found.inode).map_or(0, |inode| inode.size());
        if let Some(fragment) = place.get(&page.path) {
            hot_fragments.insert(*fragment);
            continue;
        }
        let index = u64::from(page.index) * PAGE_BYTES as u64 / block;
        if hot_blocks.insert((found.inode, index)) {
            decoded += block.min(size - index * block);
        }
    }
    decoded + hot_fragments.iter().map(|fragment| fragments[*fragment as usize]).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_read_from_what_the_tool_prints() {
        let text = "File : /usr/bin/bash\nSize: 1265648  On-disk size: 716800  regular file\nNID: 13724   Links: 1\n\
                    \n Ext:   logical offset   |  length :     physical offset    |  length\n   \
                    0:        0..  145962 |  145962 :     573440..    638976 |   65536\n  \
                    10:  1101405.. 1265648 |  164243 :    1228800..   1290240 |   61440\n/usr/bin/bash: 2 extents found\n";
        assert_eq!(parse(text), [[0, 145_962, 573_440, 638_976], [1_101_405, 1_265_648, 1_228_800, 1_290_240]]);
        assert!(parse("nothing\n 1: 2..1 | 1 : 5..6 | 1\n").is_empty());
    }
}
