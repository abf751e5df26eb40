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

/// Chunks of an image, or pages of a file, whose contents are noted: 20 MB of memory, for a moment.
const CONTENTS_MAX: u32 = 1 << 19;

type Hash = [u8; 16];

/// Finds pages of `from` in `to`.
pub(crate) struct Mapping<'a> {
    from: &'a Metadata,
    to: &'a Metadata,
    files: HashMap<InodeId, Option<File>>,
    /// Pages of `to` by the hash of their first chunk; made when it is needed.
    contents: Option<HashMap<Hash, PageId>>,
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
        Mapping { from, to, files: HashMap::new(), contents: None }
    }

    /// Where `page` of the one image is in the other.
    pub fn place(&mut self, page: PageId) -> Option<Placed> {
        let (from, to) = (self.from, self.to);
        let file = self.files.entry(page.inode).or_insert_with(|| {
            let inode = counterpart(to, &from.path(page.inode)?)?;
            Some(File { inode, moved: 0, contents: None })
        });
        match file {
            Some(file) => file.place(from, to, page),
            None => {
                let contents = self.contents.get_or_insert_with(|| contents(to));
                let found = *contents.get(&first_hash(from, page)?)?;
                is_same(from, page, to, found).then_some(Placed { page: found, same: true })
            }
        }
    }
}

impl File {
    fn place(&mut self, from: &Metadata, to: &Metadata, page: PageId) -> Option<Placed> {
        let here = PageId::new(self.inode, page.index);
        if is_same(from, page, to, here) {
            self.moved = 0;
            return Some(Placed { page: here, same: true });
        }
        if let Some(hash) = first_hash(from, page) {
            let contents = self.contents.get_or_insert_with(|| file_contents(to, self.inode));
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

fn file_contents(image: &Metadata, inode: InodeId) -> HashMap<Hash, u32> {
    let pages = 0..image.page_count(inode).min(CONTENTS_MAX);
    let hash = |index: u32| Some((first_hash(image, PageId::new(inode, index))?, index));
    pages.rev().filter_map(hash).collect()
}

fn contents(image: &Metadata) -> HashMap<Hash, PageId> {
    let chunks = (0..image.chunk_count().min(CONTENTS_MAX)).map(ChunkId);
    chunks.filter_map(|chunk| Some((image.chunk_hash(chunk)?, image.chunk_owner(chunk)?))).collect()
}

/// The file at `path`, or at the one path that differs in numbers only.
fn counterpart(image: &Metadata, path: &[u8]) -> Option<InodeId> {
    let mut at = InodeId::ROOT;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        at = image.lookup(at, name).or_else(|| renumbered(image, at, name))?;
    }
    image.inode(at).filter(|inode| inode.kind() == Kind::File).map(|inode| inode.id())
}

fn renumbered(image: &Metadata, folder: InodeId, name: &[u8]) -> Option<InodeId> {
    let without_numbers =
        |name: &[u8]| -> Vec<u8> { name.iter().copied().filter(|byte| !byte.is_ascii_digit()).collect() };
    let wanted = without_numbers(name);
    if wanted.len() == name.len() || image.entry_count(folder) > ENTRIES_MAX {
        return None;
    }
    let mut found = image.entries(folder).filter(|entry| without_numbers(entry.name) == wanted);
    let only = found.next()?;
    found.next().is_none().then_some(only.inode)
}
