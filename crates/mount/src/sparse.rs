//! Holes of a file as lseek(2) and stat(2) see them, from the extents of the image.

use image::{ExtentRun, Inode, Metadata};

/// The target of `lseek`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seek {
    /// The first byte that is not in a hole.
    Data,
    /// The first byte of a hole; the end of the file counts as one.
    Hole,
}

/// The first place at or behind `offset` that is what is sought; `None` if `offset` is behind the
/// end or, for data, nothing but a hole follows.
pub(crate) fn seek(metadata: &Metadata, inode: &Inode, offset: u64, sought: Seek) -> Option<u64> {
    find(metadata.extents(inode.id()), metadata.chunk_bytes() as u64, inode.size(), offset, sought)
}

fn find(runs: impl Iterator<Item = ExtentRun>, chunk_bytes: u64, size: u64, offset: u64, sought: Seek) -> Option<u64> {
    if offset >= size {
        return None;
    }
    for run in runs {
        let start = u64::from(run.file_chunk) * chunk_bytes;
        let end = (start + u64::from(run.chunks) * chunk_bytes).min(size);
        let fits = match sought {
            Seek::Data => run.chunk.is_some(),
            Seek::Hole => run.chunk.is_none(),
        };
        if fits && end > offset {
            return Some(start.max(offset));
        }
    }
    (sought == Seek::Hole).then_some(size)
}

/// Units of 512 bytes that hold data: `st_blocks`. Tools take a file with fewer than its size needs
/// for a sparse one.
pub(crate) fn blocks(metadata: &Metadata, inode: &Inode) -> u64 {
    let chunk_bytes = metadata.chunk_bytes() as u64;
    let holes: u64 =
        metadata.extents(inode.id()).filter(|run| run.chunk.is_none()).map(|run| u64::from(run.chunks)).sum();
    inode.size().saturating_sub(holes * chunk_bytes).div_ceil(512)
}

#[cfg(test)]
mod tests {
    use units::ChunkId;

    use super::*;

    /// Two chunks of data, three of hole, one and a bit of data.
    fn runs() -> impl Iterator<Item = ExtentRun> {
        [(0, Some(0), 2), (2, None, 3), (5, Some(2), 1), (6, Some(9), 1)]
            .into_iter()
            .map(|(file_chunk, chunk, chunks)| ExtentRun { file_chunk, chunk: chunk.map(ChunkId), chunks })
    }

    const SIZE: u64 = 6 * 4096 + 10;

    fn seek_in(offset: u64, sought: Seek) -> Option<u64> {
        find(runs(), 4096, SIZE, offset, sought)
    }

    #[test]
    fn data_and_holes_are_found_from_anywhere() {
        assert_eq!(seek_in(0, Seek::Data), Some(0));
        assert_eq!(seek_in(5000, Seek::Data), Some(5000));
        assert_eq!(seek_in(2 * 4096, Seek::Data), Some(5 * 4096));
        assert_eq!(seek_in(SIZE - 1, Seek::Data), Some(SIZE - 1));
        assert_eq!(seek_in(SIZE, Seek::Data), None);
        assert_eq!(seek_in(0, Seek::Hole), Some(2 * 4096));
        assert_eq!(seek_in(3 * 4096 + 1, Seek::Hole), Some(3 * 4096 + 1));
        assert_eq!(seek_in(5 * 4096, Seek::Hole), Some(SIZE));
        assert_eq!(seek_in(SIZE, Seek::Hole), None);
    }

    #[test]
    fn a_hole_at_the_end_has_no_data_behind_it() {
        let only_hole = || [ExtentRun { file_chunk: 0, chunk: None, chunks: 2 }].into_iter();
        assert_eq!(find(only_hole(), 4096, 5000, 100, Seek::Data), None);
        assert_eq!(find(only_hole(), 4096, 5000, 100, Seek::Hole), Some(100));
        assert_eq!(find(only_hole(), 4096, 0, 0, Seek::Hole), None);
    }
}
