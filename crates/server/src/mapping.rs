//! From the pages of one image to those of another: the next version of the same tree, or another
//! tree with some of the same files.
//!
//! A page is looked for in the file of the same path. If the page at the same index has another
//! content there, the same content may be at another index of the file, and the pages around it are
//! then moved as far. A file that is there no more may have a new number in its name, as libraries
//! and folders of interpreters do, or its contents are somewhere else.
//!
//! Images without stored chunk hashes are compared by path, index and length alone.

use std::collections::HashMap;

use image::{Kind, Metadata};
use profile::Placed;
use units::{ChunkId, InodeId, PageId};

/// Entries of a folder that are looked at for a name that differs in its numbers.
const ENTRIES_MAX: u32 = 4096;

/// Entries of all folders that are looked at so: some 50 ms. A stranger may have uploaded the
/// image.
const ENTRIES_ALL_MAX: u32 = 1 << 20;

/// A look at a folder counts as so many entries at least, which bounds what is remembered of them.
const ENTRIES_LEAST: u32 = 64;

/// Chunks of an image, and pages of all its files, whose contents are noted: 20 MB of memory each,
/// for a moment. Files may share chunks, so that their pages are many more than those.
const CONTENTS_MAX: u32 = 1 << 19;

type Hash = [u8; 16];

/// Finds pages of `from` in `to`.
pub(crate) struct Mapping<'a> {
    from: &'a Metadata,
    to: &'a Metadata,
    files: HashMap<InodeId, Option<File>>,
    names: Renumbered,
    /// Pages of `to` by the hash of their first chunk; made when it is needed.
    contents: Option<HashMap<Hash, PageId>>,
    /// Pages whose contents may still be noted, of all files.
    pages_left: u32,
}

/// Names that differ in their numbers.
struct Renumbered {
    found: HashMap<(InodeId, Vec<u8>), Option<InodeId>>,
    /// Entries that may still be looked at.
    entries_left: u32,
}

/// A file that is in both.
struct File {
    inode: InodeId,
    /// How far the page found last had moved.
    moved: i64,
    /// Its pages by the hash of their first chunk; made when it is needed.
    contents: Option<HashMap<Hash, u32>>,
}

impl<'a> Mapping<'a> {
    pub fn new(from: &'a Metadata, to: &'a Metadata) -> Mapping<'a> {
        let names = Renumbered { found: HashMap::new(), entries_left: ENTRIES_ALL_MAX };
        Mapping { from, to, files: HashMap::new(), names, contents: None, pages_left: CONTENTS_MAX }
    }

    /// Where `page` of the one image is in the other.
    pub fn place(&mut self, page: PageId) -> Option<Placed> {
        let (from, to) = (self.from, self.to);
        let file = self.files.entry(page.inode).or_insert_with(|| {
            let inode = self.names.counterpart(to, &from.path(page.inode)?)?;
            Some(File { inode, moved: 0, contents: None })
        });
        match file {
            Some(file) => file.place(from, to, page, &mut self.pages_left),
            None => {
                let contents = self.contents.get_or_insert_with(|| contents(to));
                let found = *contents.get(&first_hash(from, page)?)?;
                is_same(from, page, to, found).then_some(Placed { page: found, same: true })
            }
        }
    }
}

impl File {
    /// `pages_left`: how many pages may still be noted by their contents.
    fn place(&mut self, from: &Metadata, to: &Metadata, page: PageId, pages_left: &mut u32) -> Option<Placed> {
        let here = PageId::new(self.inode, page.index);
        if is_same(from, page, to, here) {
            self.moved = 0;
            return Some(Placed { page: here, same: true });
        }
        if let Some(hash) = first_hash(from, page) {
            let contents = self.contents.get_or_insert_with(|| file_contents(to, self.inode, pages_left));
            let found = contents.get(&hash).map(|index| PageId::new(self.inode, *index));
            if let Some(found) = found.filter(|found| is_same(from, page, to, *found)) {
                self.moved = i64::from(found.index) - i64::from(page.index);
                return Some(Placed { page: found, same: true });
            }
        }
        let index = u32::try_from(i64::from(page.index) + self.moved).ok()?;
        let page = PageId::new(self.inode, index);
        to.page_bytes(page).is_some().then_some(Placed { page, same: false })
    }
}

/// Whether two pages are known to have the same content.
fn is_same(from: &Metadata, page: PageId, to: &Metadata, other: PageId) -> bool {
    let (Some(one), Some(two)) = (from.page_chunks(page), to.page_chunks(other)) else { return false };
    if !from.has_chunk_hashes() || !to.has_chunk_hashes() {
        let size = |image: &Metadata, page: PageId| image.inode(page.inode).map(|inode| inode.size());
        return page.index == other.index && size(from, page) == size(to, other);
    }
    let hashes = |image: &Metadata, chunks: &image::PageChunks| -> Vec<Option<Hash>> {
        chunks.pieces().map(|piece| piece.chunk.and_then(|chunk| image.chunk_hash(chunk))).collect()
    };
    one.bytes() == two.bytes() && hashes(from, &one) == hashes(to, &two)
}

fn first_hash(image: &Metadata, page: PageId) -> Option<Hash> {
    image.chunk_hash(image.page_chunks(page)?.chunks().next()?)
}

/// The first pages of a file by their contents, at most `pages_left`.
fn file_contents(image: &Metadata, inode: InodeId, pages_left: &mut u32) -> HashMap<Hash, u32> {
    let pages = 0..image.page_count(inode).min(*pages_left);
    *pages_left -= pages.end;
    let hash = |index: u32| Some((first_hash(image, PageId::new(inode, index))?, index));
    pages.rev().filter_map(hash).collect()
}

fn contents(image: &Metadata) -> HashMap<Hash, PageId> {
    let chunks = (0..image.chunk_count().min(CONTENTS_MAX)).map(ChunkId);
    chunks.filter_map(|chunk| Some((image.chunk_hash(chunk)?, image.chunk_owner(chunk)?))).collect()
}

impl Renumbered {
    /// The file at `path`, or at the one path that differs in numbers only.
    fn counterpart(&mut self, image: &Metadata, path: &[u8]) -> Option<InodeId> {
        let mut at = InodeId::ROOT;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            at = image.lookup(at, name).or_else(|| self.look(image, at, name))?;
        }
        image.inode(at).filter(|inode| inode.kind() == Kind::File).map(|inode| inode.id())
    }

    fn look(&mut self, image: &Metadata, folder: InodeId, name: &[u8]) -> Option<InodeId> {
        let wanted = without_numbers(name);
        let entries = image.entry_count(folder);
        if wanted.len() == name.len() || entries > ENTRIES_MAX {
            return None;
        }
        if let Some(found) = self.found.get(&(folder, wanted.clone())) {
            return *found;
        }
        self.entries_left = self.entries_left.checked_sub(entries.max(ENTRIES_LEAST))?;
        let mut fits = image.entries(folder).filter(|entry| without_numbers(entry.name) == wanted);
        let only = fits.next().filter(|_| fits.next().is_none()).map(|entry| entry.inode);
        self.found.insert((folder, wanted), only);
        only
    }
}

fn without_numbers(name: &[u8]) -> Vec<u8> {
    name.iter().copied().filter(|byte| !byte.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use image::Limits;
    use image::fixture::{Fixture, Node};

    use super::*;

    fn packed(nodes: &[Node]) -> Metadata {
        Metadata::open(&Fixture::default().pack(nodes).unwrap().as_slice(), &Limits::default()).unwrap()
    }

    fn file(path: &str, pages: std::ops::Range<u8>) -> Node {
        let bytes: Vec<u8> = pages.flat_map(|page| [page; 4096]).collect();
        Node::file(path.as_bytes(), &bytes)
    }

    #[test]
    fn contents_are_noted_of_so_many_pages_in_all() {
        let from = packed(&[file("a", 1..5), file("b", 1..5)]);
        let to = packed(&[file("a", 0..5), file("b", 0..5)]);
        let mut mapping = Mapping::new(&from, &to);
        mapping.pages_left = 7;
        let mut placed = |path: &[u8], index| {
            let page = PageId::new(from.resolve(path).unwrap(), index);
            mapping.place(page).map(|placed| (placed.page.index, placed.same))
        };
        assert_eq!(placed(b"a", 0), Some((1, true)), "it moved");
        assert_eq!(placed(b"b", 0), Some((1, true)), "two pages are noted");
        assert_eq!(placed(b"b", 2), Some((3, false)), "others are taken to have moved as far");
        assert_eq!(mapping.pages_left, 0);
    }

    #[test]
    fn names_are_looked_for_a_bounded_number_of_times() {
        let from = packed(&[Node::dir(b"v1"), file("v1/lib.so.1", 1..2), file("v1/other.so", 2..3)]);
        let to = packed(&[Node::dir(b"v2"), file("v2/lib.so.2", 3..4), file("v2/other.so", 4..5)]);
        let place = |looks: u32| {
            let mut mapping = Mapping::new(&from, &to);
            mapping.names.entries_left = looks * ENTRIES_LEAST;
            let page = |path: &[u8]| PageId::new(from.resolve(path).unwrap(), 0);
            [page(b"v1/other.so"), page(b"v1/lib.so.1")].map(|page| mapping.place(page).is_some())
        };
        assert_eq!(place(0), [false, false]);
        assert_eq!(place(1), [true, false], "the folder is remembered");
        assert_eq!(place(2), [true, true]);
    }
}
