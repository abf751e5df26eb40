//! Bundles: a learned action as one immutable, ordered, compressed stream of its pages.
//!
//! Idea (beyond SYSFLOW): a learned action is pushed many times, always from its first page. So its
//! pages are compressed once, with one zstd context over all of them, flushed after each segment.
//! To push them then takes one sequential read of the file and no compression.
//!
//! An action changes a little with nearly every run. A bundle lists its own pages, so it stays
//! correct when its action changes: pages that it lacks are compressed live beside it
//! ([`Bundle::fit`]), and a new bundle is made when that pays ([`policy`]).
//!
//! A bundle is made in the background ([`crate::bundler`]) and found again after a restart. Header,
//! table and list are verified when it is opened, each piece when it is read. Pieces that were
//! pushed lately stay in memory. Key: `bundles/<image>/<action>.bundle`.

mod format;
pub(crate) mod kept;
pub(crate) mod policy;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use codec::StreamEncoder;
use store::{Object, Store, Upload};
use units::{ActionId, ImageId, PageId};
use zerocopy::{FromBytes, IntoBytes};

use crate::blocks::BlockCache;
use crate::error::Failure;
pub(crate) use format::PIECE_PAGES_MAX;
use format::{Header, PAGES_MAX, PIECE_HASH_BYTES, PIECES_MAX, Piece};
use policy::Grade;

/// Bytes of a page in the list.
const PAGE_NUMBER_BYTES: usize = 8;

static SERIAL: AtomicU64 = AtomicU64::new(0);

/// A bundle that is ready to be pushed.
pub(crate) struct Bundle {
    /// Where it lies in the store.
    pub key: String,
    /// Tells bundles apart in memory; the same bundle opened anew gets another number.
    serial: u64,
    pub window_log: u8,
    pub grade: Grade,
    /// Pages of a full piece.
    pub piece_pages: u32,
    /// The pages, in order. Piece `k` holds pages `k * piece_pages ..`.
    pub pages: Arc<[PageId]>,
    /// The same pages by number.
    sorted: Vec<PageId>,
    object: Arc<dyn Object>,
    /// Offset, length and hash of each piece.
    pieces: Vec<(u64, u32, [u8; PIECE_HASH_BYTES])>,
}

/// What a bundle is made of.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub image: ImageId,
    pub action: ActionId,
    pub pages: Arc<[PageId]>,
    pub piece_pages: u32,
    pub window_log: u8,
    pub grade: Grade,
}

/// How a bundle and an action's pages of today go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    /// Pages of the action that the bundle does not have.
    pub lacking: usize,
    /// Pages of the bundle that the action does not have.
    pub surplus: usize,
}

/// The folder of an image's bundles.
pub(crate) fn folder(image: ImageId) -> String {
    format!("bundles/{image}")
}

/// Where the bundle of an action lies in the store.
pub(crate) fn key(image: ImageId, action: ActionId) -> String {
    format!("{}/{}.bundle", folder(image), action.0)
}

impl Recipe {
    fn piece_count(&self) -> u32 {
        (self.pages.len() as u32).div_ceil(self.piece_pages)
    }
}

impl Bundle {
    /// Opens the bundle of an action; `None` if it has not been made, an error if it does not match
    /// its hashes.
    pub fn open(store: &dyn Store, image: ImageId, action: ActionId) -> Result<Option<Bundle>, Failure> {
        let key = key(image, action);
        let object = match store.open(&key) {
            Ok(object) => object,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let wrong = |what: &str| Failure::corrupt(format!("{key}: {what}"));
        let mut bytes = [0; size_of::<Header>()];
        object.read_at(0, &mut bytes)?;
        let header = Header::read_from_bytes(&bytes).map_err(|_| wrong("the header has another size"))?;
        if header.magic != format::MAGIC || header.version.get() != format::VERSION {
            return Err(wrong("it is no bundle of this version"));
        }
        if header.header_hash != header_hash(&header) {
            return Err(wrong("the header does not match its hash"));
        }
        if header.image != image.0 || header.action.get() != action.0 {
            return Err(wrong("it was made of something else than its name says"));
        }
        let (count, piece_pages) = (header.page_count.get(), header.piece_pages.get());
        let pieces = header.piece_count.get();
        let bounded = (1..=PAGES_MAX).contains(&count) && (1..=PIECE_PAGES_MAX).contains(&piece_pages);
        if !bounded || pieces > PIECES_MAX || pieces != count.div_ceil(piece_pages) {
            return Err(wrong("it has more pages or pieces than a bundle may have"));
        }
        let mut table = vec![0; pieces as usize * size_of::<Piece>()];
        let mut list = vec![0; count as usize * PAGE_NUMBER_BYTES];
        object.read_at(size_of::<Header>() as u64, &mut table)?;
        object.read_at((size_of::<Header>() + table.len()) as u64, &mut list)?;
        if *blake3::hash(&table).as_bytes() != header.table_hash {
            return Err(wrong("the table does not match its hash"));
        }
        if *blake3::hash(&list).as_bytes() != header.pages_hash {
            return Err(wrong("the list of pages does not match its hash"));
        }
        let mut offset = body_offset(pieces, count);
        let mut found = Vec::with_capacity(pieces as usize);
        for bytes in table.chunks_exact(size_of::<Piece>()) {
            let piece = Piece::read_from_bytes(bytes).map_err(|_| wrong("the table has another size"))?;
            if piece.bytes.get() as usize > wire::format::PUSH_BYTES_MAX {
                return Err(wrong("a piece is longer than a push frame"));
            }
            found.push((offset, piece.bytes.get(), piece.hash));
            offset += u64::from(piece.bytes.get());
        }
        if object.len() != offset || header.body_bytes.get() != offset - body_offset(pieces, count) {
            return Err(wrong("it is cut short or followed by something else"));
        }
        let pages: Arc<[PageId]> =
            list.as_chunks().0.iter().map(|bytes| PageId::from_u64(u64::from_le_bytes(*bytes))).collect();
        let mut sorted = pages.to_vec();
        sorted.sort_unstable();
        Ok(Some(Bundle {
            key,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            window_log: header.window_log,
            grade: Grade::of(header.level),
            piece_pages,
            pages,
            sorted,
            object,
            pieces: found,
        }))
    }

    /// Those of `pages` that the bundle does not have.
    pub fn lacking<'a>(&'a self, pages: &'a [PageId]) -> impl Iterator<Item = PageId> + 'a {
        // Pages mostly follow each other in a file: the next one is then behind the last one.
        let mut next = 0;
        pages.iter().copied().filter(move |page| {
            let found = if self.sorted.get(next) == Some(page) { Ok(next) } else { self.sorted.binary_search(page) };
            next = found.map_or(next, |at| at + 1);
            found.is_err()
        })
    }

    /// Compares the bundle with the pages of its action, which are free of duplicates.
    pub fn fit(&self, pages: &[PageId]) -> Fit {
        if *self.pages == *pages {
            return Fit { lacking: 0, surplus: 0 };
        }
        let both = pages.len() - self.lacking(pages).count();
        Fit { lacking: pages.len() - both, surplus: self.pages.len().saturating_sub(both) }
    }

    /// Reads and verifies piece `index`.
    pub fn piece(&self, index: u32) -> Result<Bytes, Failure> {
        let (offset, bytes, _) = self.entry(index)?;
        let mut buf = vec![0; bytes as usize];
        self.object.read_at(offset, &mut buf)?;
        self.verified(index, buf)
    }

    /// The same, and `cache` keeps the piece for the next start.
    pub fn load_piece(&self, index: u32, cache: &BlockCache) -> Result<Bytes, Failure> {
        let piece = self.piece(index)?;
        cache.put_piece((self.serial, index), piece.clone());
        Ok(piece)
    }

    /// A piece that is in memory, else `None`. Takes 20 microseconds if it is not in `cache` yet,
    /// and does not block.
    pub fn cached_piece(&self, index: u32, cache: &BlockCache) -> Option<Result<Bytes, Failure>> {
        let key = (self.serial, index);
        if let Some(piece) = cache.piece(key) {
            return Some(Ok(piece));
        }
        let (offset, bytes, _) = self.entry(index).ok()?;
        let mut buf = vec![0; bytes as usize];
        // Whatever is wrong is told by the read that may wait.
        let read = matches!(self.object.read_cached_at(offset, &mut buf), Ok(true));
        let piece = read.then(|| self.verified(index, buf))?;
        piece.iter().for_each(|piece| cache.put_piece(key, piece.clone()));
        Some(piece)
    }

    fn entry(&self, index: u32) -> Result<(u64, u32, [u8; PIECE_HASH_BYTES]), Failure> {
        let entry = self.pieces.get(index as usize).copied();
        entry.ok_or_else(|| Failure::bad_request(format!("the bundle has no piece {index}")))
    }

    fn verified(&self, index: u32, bytes: Vec<u8>) -> Result<Bytes, Failure> {
        if piece_hash(&bytes) != self.entry(index)?.2 {
            return Err(Failure::corrupt(format!("piece {index} of a bundle does not match its hash")));
        }
        Ok(Bytes::from(bytes))
    }

    /// Bytes of a range of pieces, as far as they exist.
    pub fn bytes_of(&self, pieces: std::ops::RangeInclusive<u32>) -> usize {
        let count = (pieces.end() + 1).saturating_sub(*pieces.start()) as usize;
        self.pieces.iter().skip(*pieces.start() as usize).take(count).map(|(_, bytes, _)| *bytes as usize).sum()
    }

    /// Bytes of the pieces.
    pub fn body_bytes(&self) -> u64 {
        self.pieces.iter().map(|(_, bytes, _)| u64::from(*bytes)).sum()
    }
}

/// Appends the bytes of a page of the image.
pub(crate) type PageReader<'a> = &'a dyn Fn(PageId, &mut Vec<u8>) -> Result<usize, Failure>;

/// Makes the bundle of a recipe and puts it into the store. Stops without a trace, with
/// `Ok(false)`, once `stop` says so.
pub(crate) fn build(
    store: &dyn Store,
    recipe: &Recipe,
    pages: PageReader<'_>,
    stop: &dyn Fn() -> bool,
) -> Result<bool, Failure> {
    let pieces = recipe.piece_count();
    if pieces == 0 || pieces > PIECES_MAX || recipe.pages.len() > PAGES_MAX as usize {
        return Err(Failure::bad_request(format!("an action of {} pages cannot be a bundle", recipe.pages.len())));
    }
    let mut upload = store.create()?;
    let mut table = Vec::with_capacity(pieces as usize);
    match write_pieces(&mut *upload, recipe, pages, stop, &mut table) {
        Ok(true) => {}
        Ok(false) => {
            upload.abort();
            return Ok(false);
        }
        Err(failure) => {
            upload.abort();
            return Err(failure);
        }
    }
    let table_bytes = table.as_bytes();
    let list: Vec<u8> = recipe.pages.iter().flat_map(|page| page.to_u64().to_le_bytes()).collect();
    let list_offset = (size_of::<Header>() + table_bytes.len()) as u64;
    let mut header = Header {
        magic: format::MAGIC,
        version: format::VERSION.into(),
        window_log: recipe.window_log,
        level: recipe.grade.level(),
        piece_count: pieces.into(),
        piece_pages: recipe.piece_pages.into(),
        page_count: (recipe.pages.len() as u32).into(),
        body_bytes: table.iter().map(|piece| u64::from(piece.bytes.get())).sum::<u64>().into(),
        action: recipe.action.0.into(),
        image: recipe.image.0,
        pages_hash: *blake3::hash(&list).as_bytes(),
        table_hash: *blake3::hash(table_bytes).as_bytes(),
        header_hash: [0; 16],
    };
    header.header_hash = header_hash(&header);
    let written = upload
        .write_at(size_of::<Header>() as u64, table_bytes)
        .and_then(|()| upload.write_at(list_offset, &list))
        .and_then(|()| upload.write_at(0, header.as_bytes()));
    match written {
        Ok(()) => upload.commit(&key(recipe.image, recipe.action))?,
        Err(error) => {
            upload.abort();
            return Err(error.into());
        }
    }
    Ok(true)
}

/// Compresses every segment behind the room for header, table and list. `false` if it was stopped.
fn write_pieces(
    upload: &mut dyn Upload,
    recipe: &Recipe,
    read: PageReader<'_>,
    stop: &dyn Fn() -> bool,
    table: &mut Vec<Piece>,
) -> Result<bool, Failure> {
    let encoding = |error| Failure::new(wire::ErrorCode::Internal, format!("a bundle cannot be compressed: {error}"));
    let mut encoder = StreamEncoder::new(recipe.grade.level().into(), recipe.window_log.into()).map_err(encoding)?;
    let mut offset = body_offset(recipe.piece_count(), recipe.pages.len() as u32);
    let (mut raw, mut stored) = (Vec::new(), Vec::new());
    for pages in recipe.pages.chunks(recipe.piece_pages as usize) {
        if stop() {
            return Ok(false);
        }
        raw.clear();
        for page in pages {
            read(*page, &mut raw)?;
        }
        encoder.piece(&raw, &mut stored).map_err(encoding)?;
        if stored.len() > wire::format::PUSH_BYTES_MAX {
            return Err(Failure::new(wire::ErrorCode::Internal, "a piece of a bundle is longer than a push frame"));
        }
        upload.write_at(offset, &stored)?;
        offset += stored.len() as u64;
        table.push(Piece { bytes: (stored.len() as u32).into(), hash: piece_hash(&stored) });
    }
    Ok(true)
}

fn body_offset(pieces: u32, pages: u32) -> u64 {
    (size_of::<Header>() + pieces as usize * size_of::<Piece>() + pages as usize * PAGE_NUMBER_BYTES) as u64
}

fn header_hash(header: &Header) -> [u8; 16] {
    let bytes = header.as_bytes();
    half(blake3::hash(&bytes[..bytes.len() - 16]))
}

fn piece_hash(bytes: &[u8]) -> [u8; PIECE_HASH_BYTES] {
    half(blake3::hash(bytes))
}

fn half(hash: blake3::Hash) -> [u8; 16] {
    let mut first = [0; 16];
    first.copy_from_slice(&hash.as_bytes()[..16]);
    first
}

#[cfg(test)]
mod tests;
