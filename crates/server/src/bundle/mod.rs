//! Bundles: the pages of a learned action, compressed once, as pieces in their order.
//!
//! Idea (beyond SYSFLOW): a learned action is pushed many times. So its pages are compressed once.
//! To push them then takes one sequential read of the file and no compression.
//!
//! A bundle has every piece in several codecs. One zstd context over many pieces takes the fewest
//! bytes; it begins anew at restart points ([`RESTART_BYTES`]). LZ4 decodes at a quarter of the
//! instructions, and its pieces need no others. Pieces that are not compressed are for fast links
//! ([`speed`](crate::speed)), and made if there are such ([`policy`]). So a push can begin at any
//! piece, leave out pieces, and change the codec ([`choose`](crate::push)).
//!
//! An action changes a little with nearly every run. A bundle lists its own pages, so it stays
//! correct when its action changes: pages that it lacks are compressed live beside it
//! ([`Bundle::fit`]), and a new bundle is made when that pays ([`policy`]).
//!
//! A bundle is made in the background ([`crate::bundler`]) and found again after a restart. Header,
//! table and list are verified when it is opened, each piece when it is read for the first time:
//! objects of a store do not change, and the device checks every page all the same. Pieces that
//! were pushed lately stay in memory. Key: `bundles/<image>/<action>.bundle`.

mod build;
mod format;
pub(crate) mod kept;
pub(crate) mod policy;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use store::{Object, Store};
use units::{ActionId, ImageId, PageId};
use zerocopy::{FromBytes, IntoBytes};

use crate::blocks::BlockCache;
use crate::error::Failure;
use crate::speed::PushCodec;
pub(crate) use build::{build, independent, stored};
pub(crate) use format::PIECE_PAGES_MAX;
use format::{Coded, Header, PAGES_MAX, PIECE_HASH_BYTES, PIECES_MAX, Piece, RESTART_PIECES_MAX};
use policy::{Forms, Grade, LIVE_PAGE_BYTES};

/// Bytes of a page in the list.
const PAGE_NUMBER_BYTES: usize = 8;

/// Codecs of a piece.
const CODECS: usize = PushCodec::ALL.len();

static SERIAL: AtomicU64 = AtomicU64::new(0);

/// A bundle that is ready to be pushed.
pub(crate) struct Bundle {
    /// Where it lies in the store.
    pub key: String,
    /// Tells bundles apart in memory; the same bundle opened anew gets another number.
    pub serial: u64,
    /// Base-2 logarithm of the zstd window.
    pub window_log: u8,
    pub forms: Forms,
    /// Pages of a full piece.
    pub piece_pages: u32,
    /// Pieces between two restart points.
    pub restart_pieces: u32,
    /// The pages, in order. Piece `k` holds pages `k * piece_pages ..`.
    pub pages: Arc<[PageId]>,
    /// The same pages by number, each with its position.
    sorted: Vec<(PageId, u32)>,
    object: Arc<dyn Object>,
    pieces: Vec<[Place; CODECS]>,
    /// Whether each piece was verified since the bundle was opened.
    verified: Vec<[AtomicBool; CODECS]>,
}

/// Where a piece lies in one codec.
#[derive(Clone, Copy)]
struct Place {
    offset: u64,
    bytes: u32,
    hash: [u8; PIECE_HASH_BYTES],
}

/// What a bundle is made of.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub image: ImageId,
    pub action: ActionId,
    pub pages: Arc<[PageId]>,
    pub piece_pages: u32,
    pub forms: Forms,
}

/// How a bundle and an action's pages of today go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    /// Pages of the action that the bundle does not have.
    pub lacking: usize,
    /// Pages of the bundle that the action does not have.
    pub surplus: usize,
}

/// Where the bundles of all images lie in the store.
pub(crate) const FOLDER: &str = "bundles";

/// The folder of an image's bundles.
pub(crate) fn folder(image: ImageId) -> String {
    format!("{FOLDER}/{image}")
}

/// Where the bundle of an action lies in the store.
pub(crate) fn key(image: ImageId, action: ActionId) -> String {
    format!("{}/{}.bundle", folder(image), action.0)
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
        let header = read_header(&*object, image, action, &wrong)?;
        let (count, pieces) = (header.page_count.get(), header.piece_count.get());
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
        let start = body_offset(pieces, count);
        let (found, end) = places(&table, header.restart_pieces.get(), start).map_err(wrong)?;
        if object.len() != end || header.body_bytes.get() != end - start {
            return Err(wrong("it is cut short or followed by something else"));
        }
        let is_stored = found.iter().all(|places| places[PushCodec::Stored as usize].bytes > 0);
        let pages: Arc<[PageId]> =
            list.as_chunks().0.iter().map(|bytes| PageId::from_u64(u64::from_le_bytes(*bytes))).collect();
        let mut sorted: Vec<(PageId, u32)> = pages.iter().copied().zip(0..).collect();
        sorted.sort_unstable();
        Ok(Some(Bundle {
            key,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            window_log: header.window_log,
            forms: Forms { grade: Grade::of(header.level), stored: is_stored },
            piece_pages: header.piece_pages.get(),
            restart_pieces: header.restart_pieces.get(),
            pages,
            sorted,
            object,
            verified: found.iter().map(|_| Default::default()).collect(),
            pieces: found,
        }))
    }

    /// Those of `pages` that the bundle does not have.
    pub fn lacking<'a>(&'a self, pages: &'a [PageId]) -> impl Iterator<Item = PageId> + 'a {
        // Pages mostly follow each other in a file: the next one is then behind the last one.
        let mut next = 0;
        pages.iter().copied().filter(move |page| {
            let is_next = self.sorted.get(next).is_some_and(|(known, _)| known == page);
            let found = if is_next { Ok(next) } else { self.sorted.binary_search_by_key(page, |(known, _)| *known) };
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

    /// Position of a page.
    pub fn position(&self, page: PageId) -> Option<u32> {
        let found = self.sorted.binary_search_by_key(&page, |(known, _)| *known).ok()?;
        self.sorted.get(found).map(|(_, position)| *position)
    }

    /// Pieces.
    pub fn piece_count(&self) -> u32 {
        self.pieces.len() as u32
    }

    /// The positions of the pages of piece `index`.
    pub fn positions(&self, index: u32) -> Range<u32> {
        let count = self.pages.len() as u32;
        let start = index.saturating_mul(self.piece_pages).min(count);
        start..start.saturating_add(self.piece_pages).min(count)
    }

    /// The pages of piece `index`.
    pub fn piece_pages(&self, index: u32) -> &[PageId] {
        let Range { start, end } = self.positions(index);
        self.pages.get(start as usize..end as usize).unwrap_or_default()
    }

    /// Reads piece `index`, the bytes of a push frame. It is verified if it is read for the first
    /// time.
    pub fn piece(&self, index: u32, codec: PushCodec) -> Result<Bytes, Failure> {
        let place = self.place(index, codec)?;
        let mut buf = vec![0; place.bytes as usize];
        self.object.read_at(place.offset, &mut buf)?;
        self.verified(index, codec, buf)
    }

    /// The same, and `cache` keeps the piece for the next start.
    pub fn load_piece(&self, index: u32, codec: PushCodec, cache: &BlockCache) -> Result<Bytes, Failure> {
        let piece = self.piece(index, codec)?;
        cache.put_piece(self.cache_key(index, codec), piece.clone());
        Ok(piece)
    }

    /// A piece that is in memory, else `None`. Takes 20 microseconds if it is not in `cache` yet,
    /// and does not block.
    pub fn cached_piece(&self, index: u32, codec: PushCodec, cache: &BlockCache) -> Option<Result<Bytes, Failure>> {
        let key = self.cache_key(index, codec);
        if let Some(piece) = cache.piece(key) {
            return Some(Ok(piece));
        }
        let place = self.place(index, codec).ok()?;
        let mut buf = vec![0; place.bytes as usize];
        // Whatever is wrong is told by the read that may wait.
        let read = matches!(self.object.read_cached_at(place.offset, &mut buf), Ok(true));
        let piece = read.then(|| self.verified(index, codec, buf))?;
        piece.iter().for_each(|piece| cache.put_piece(key, piece.clone()));
        Some(piece)
    }

    fn verified(&self, index: u32, codec: PushCodec, bytes: Vec<u8>) -> Result<Bytes, Failure> {
        let was_verified = self.verified.get(index as usize).map(|codecs| &codecs[codec as usize]);
        if !was_verified.is_some_and(|known| known.load(Ordering::Relaxed)) {
            if piece_hash(&bytes) != self.place(index, codec)?.hash {
                return Err(Failure::corrupt(format!("piece {index} of a bundle does not match its hash")));
            }
            was_verified.iter().for_each(|known| known.store(true, Ordering::Relaxed));
        }
        Ok(Bytes::from(bytes))
    }

    fn cache_key(&self, index: u32, codec: PushCodec) -> (u64, u32) {
        (self.serial, index * CODECS as u32 + codec as u32)
    }

    fn place(&self, index: u32, codec: PushCodec) -> Result<Place, Failure> {
        let place = self.pieces.get(index as usize).map(|places| places[codec as usize]);
        let place = place.filter(|place| place.bytes > 0);
        place.ok_or_else(|| Failure::bad_request(format!("the bundle has no piece {index} in {codec:?}")))
    }

    /// Whether it has pieces in this codec.
    pub fn has(&self, codec: PushCodec) -> bool {
        codec != PushCodec::Stored || self.forms.stored
    }

    /// Bytes of a piece; 0 if there is none.
    pub fn piece_bytes(&self, index: u32, codec: PushCodec) -> u64 {
        self.place(index, codec).map_or(0, |place| place.bytes.into())
    }

    /// Bytes of a range of pieces in the codec that takes fewest, as far as they exist.
    pub fn bytes_of(&self, pieces: std::ops::RangeInclusive<u32>) -> usize {
        let count = (pieces.end() + 1).saturating_sub(*pieces.start()) as usize;
        let some = self.pieces.iter().skip(*pieces.start() as usize).take(count);
        some.map(|places| places.iter().map(|place| place.bytes as usize).filter(|bytes| *bytes > 0).min().unwrap_or(0))
            .sum()
    }

    /// What the pages of a piece come to in a live stream, in bytes.
    pub fn live_bytes(&self, index: u32) -> u64 {
        let zstd = self.piece_bytes(index, PushCodec::Zstd);
        zstd * LIVE_PAGE_BYTES / self.forms.grade.page_bytes(PushCodec::Zstd)
    }

    /// Bytes of the pieces in all codecs.
    pub fn body_bytes(&self) -> u64 {
        self.pieces.iter().flatten().map(|place| u64::from(place.bytes)).sum()
    }
}

/// Reads the header and checks it against its hash and its name, and its counts against each other.
fn read_header(
    object: &dyn Object,
    image: ImageId,
    action: ActionId,
    wrong: &dyn Fn(&str) -> Failure,
) -> Result<Header, Failure> {
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
    if !(1..=RESTART_PIECES_MAX).contains(&header.restart_pieces.get()) {
        return Err(wrong("its restart points are too far from each other"));
    }
    Ok(header)
}

/// Where the pieces of a table lie, of which the first is at `start`, and where they end.
fn places(table: &[u8], restart_pieces: u32, start: u64) -> Result<(Vec<[Place; CODECS]>, u64), &'static str> {
    let (mut offset, mut found) = (start, Vec::with_capacity(table.len() / size_of::<Piece>()));
    for group in table.chunks(restart_pieces.max(1) as usize * size_of::<Piece>()) {
        let pieces: Result<Vec<Piece>, _> =
            group.chunks_exact(size_of::<Piece>()).map(Piece::read_from_bytes).collect();
        let pieces = pieces.map_err(|_| "the table has another size")?;
        let mut place = |coded: &Coded| {
            let bytes = coded.bytes.get();
            if bytes as usize > wire::format::PUSH_BYTES_MAX {
                return Err("a piece is longer than a push frame");
            }
            offset += u64::from(bytes);
            Ok(Place { offset: offset - u64::from(bytes), bytes, hash: coded.hash })
        };
        let mut all =
            |coded: fn(&Piece) -> &Coded| pieces.iter().map(coded).map(&mut place).collect::<Result<Vec<_>, _>>();
        let (zstd, lz4) = (all(|piece| &piece.zstd)?, all(|piece| &piece.lz4)?);
        let stored = all(|piece| &piece.stored)?;
        found.extend(zstd.into_iter().zip(lz4).zip(stored).map(|((zstd, lz4), stored)| [zstd, lz4, stored]));
    }
    Ok((found, offset))
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
