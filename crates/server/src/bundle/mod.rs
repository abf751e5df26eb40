//! Bundles: a learned action as one immutable, ordered, compressed stream of its pages.
//!
//! Idea (beyond SYSFLOW): an action that was learned is pushed many times, always from its first page. So its pages are
//! compressed once, at the best level, with one zstd context over all of them, flushed after each segment. Pushing then
//! costs one sequential read of the file and no compression. The file names its page list by hash: when the action
//! changes, the name no longer fits and the bundle is made anew.
//!
//! A bundle is made in the background ([`workshop`]) and found again after a restart. Header and table are verified when
//! it is opened, each piece when it is read. Key: `bundles/<image>/<hash of pages and window>.bundle`.

mod format;
pub(crate) mod workshop;

use std::sync::Arc;

use bytes::Bytes;
use codec::StreamEncoder;
use store::{Object, Store, Upload};
use units::{ImageId, PageId};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::Failure;
use crate::published::Published;
use format::{Header, PIECE_HASH_BYTES, PIECE_PAGES_MAX, PIECES_MAX, Piece};

/// zstd level of bundles: they are made once and pushed often. Beyond 19 the encoder's memory grows tenfold.
const LEVEL: i32 = 19;

/// A bundle that is ready to be pushed.
pub(crate) struct Bundle {
    /// Where it lies in the store.
    pub key: String,
    pub window_log: u8,
    /// Pages of a full piece.
    pub piece_pages: u32,
    /// The pages, in order. Piece `k` holds pages `k * piece_pages ..`.
    pub pages: Arc<[PageId]>,
    object: Arc<dyn Object>,
    /// Offset, length and hash of each piece.
    pieces: Vec<(u64, u32, [u8; PIECE_HASH_BYTES])>,
}

/// What a bundle is made of.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub image: ImageId,
    pub pages: Arc<[PageId]>,
    pub piece_pages: u32,
    pub window_log: u8,
}

impl Recipe {
    /// A recipe for these pages; pieces hold at most 32 of them, as push frames do.
    pub fn new(image: ImageId, pages: Arc<[PageId]>, segment_pages: u32, window_log: u8) -> Recipe {
        Recipe { image, pages, piece_pages: segment_pages.clamp(1, PIECE_PAGES_MAX), window_log }
    }

    fn pages_hash(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for page in self.pages.iter() {
            hasher.update(&page.to_u64().to_le_bytes());
        }
        hasher.finalize()
    }

    /// The folder of an image's bundles.
    pub fn folder(image: ImageId) -> String {
        format!("bundles/{image}")
    }

    /// Where the bundle lies in the store. The name covers all that decides its bytes but the library's version.
    pub fn key(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.pages_hash().as_bytes());
        hasher.update(&self.piece_pages.to_le_bytes());
        hasher.update(&[self.window_log]);
        let hash = hasher.finalize().to_hex();
        format!("{}/{}.bundle", Recipe::folder(self.image), &hash[..32])
    }

    fn piece_count(&self) -> u32 {
        (self.pages.len() as u32).div_ceil(self.piece_pages)
    }
}

impl Bundle {
    /// Opens the bundle of a recipe; `None` if it has not been made, an error if it does not match its hashes.
    pub fn open(store: &dyn Store, recipe: &Recipe) -> Result<Option<Bundle>, Failure> {
        let key = recipe.key();
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
        let pieces = recipe.piece_count();
        let fits = header.image == recipe.image.0
            && header.pages_hash == *recipe.pages_hash().as_bytes()
            && header.window_log == recipe.window_log
            && header.piece_pages.get() == recipe.piece_pages
            && header.page_count.get() as usize == recipe.pages.len()
            && header.piece_count.get() == pieces
            && pieces <= PIECES_MAX;
        if !fits {
            return Err(wrong("it was made of something else than its name says"));
        }
        let mut table = vec![0; pieces as usize * size_of::<Piece>()];
        object.read_at(size_of::<Header>() as u64, &mut table)?;
        if *blake3::hash(&table).as_bytes() != header.table_hash {
            return Err(wrong("the table does not match its hash"));
        }
        let mut offset = body_offset(pieces);
        let mut found = Vec::with_capacity(pieces as usize);
        for bytes in table.chunks_exact(size_of::<Piece>()) {
            let piece = Piece::read_from_bytes(bytes).map_err(|_| wrong("the table has another size"))?;
            if piece.bytes.get() as usize > wire::format::PUSH_BYTES_MAX {
                return Err(wrong("a piece is longer than a push frame"));
            }
            found.push((offset, piece.bytes.get(), piece.hash));
            offset += u64::from(piece.bytes.get());
        }
        if object.len() != offset || header.body_bytes.get() != offset - body_offset(pieces) {
            return Err(wrong("it is cut short or followed by something else"));
        }
        Ok(Some(Bundle {
            key,
            window_log: header.window_log,
            piece_pages: recipe.piece_pages,
            pages: recipe.pages.clone(),
            object,
            pieces: found,
        }))
    }

    /// Reads and verifies piece `index`.
    pub fn piece(&self, index: u32) -> Result<Bytes, Failure> {
        let (offset, bytes, hash) = *self
            .pieces
            .get(index as usize)
            .ok_or_else(|| Failure::bad_request(format!("the bundle has no piece {index}")))?;
        let mut buf = vec![0; bytes as usize];
        self.object.read_at(offset, &mut buf)?;
        if piece_hash(&buf) != hash {
            return Err(Failure::corrupt(format!("piece {index} of a bundle does not match its hash")));
        }
        Ok(Bytes::from(buf))
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

/// Makes the bundle of a recipe and puts it into the store. Stops without a trace, with `Ok(false)`, once `stop` says so.
pub(crate) fn build(
    store: &dyn Store,
    image: &Published,
    recipe: &Recipe,
    stop: &dyn Fn() -> bool,
) -> Result<bool, Failure> {
    let pieces = recipe.piece_count();
    if pieces == 0 || pieces > PIECES_MAX {
        return Err(Failure::bad_request(format!("an action of {} pages cannot be a bundle", recipe.pages.len())));
    }
    let mut upload = store.create()?;
    let mut table = Vec::with_capacity(pieces as usize);
    match write_pieces(&mut *upload, image, recipe, stop, &mut table) {
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
    let mut header = Header {
        magic: format::MAGIC,
        version: format::VERSION.into(),
        window_log: recipe.window_log,
        reserved: 0,
        piece_count: pieces.into(),
        piece_pages: recipe.piece_pages.into(),
        page_count: (recipe.pages.len() as u32).into(),
        body_bytes: table.iter().map(|piece| u64::from(piece.bytes.get())).sum::<u64>().into(),
        image: recipe.image.0,
        pages_hash: *recipe.pages_hash().as_bytes(),
        table_hash: *blake3::hash(table_bytes).as_bytes(),
        header_hash: [0; 16],
    };
    header.header_hash = header_hash(&header);
    let written =
        upload.write_at(size_of::<Header>() as u64, table_bytes).and_then(|()| upload.write_at(0, header.as_bytes()));
    match written {
        Ok(()) => upload.commit(&recipe.key())?,
        Err(error) => {
            upload.abort();
            return Err(error.into());
        }
    }
    Ok(true)
}

/// Compresses every segment behind the room for header and table. `false` if it was stopped.
fn write_pieces(
    upload: &mut dyn Upload,
    image: &Published,
    recipe: &Recipe,
    stop: &dyn Fn() -> bool,
    table: &mut Vec<Piece>,
) -> Result<bool, Failure> {
    let encoding = |error| Failure::new(wire::ErrorCode::Internal, format!("a bundle cannot be compressed: {error}"));
    let mut encoder = StreamEncoder::new(LEVEL, recipe.window_log.into()).map_err(encoding)?;
    let mut offset = body_offset(recipe.piece_count());
    let (mut raw, mut stored) = (Vec::new(), Vec::new());
    for pages in recipe.pages.chunks(recipe.piece_pages as usize) {
        if stop() {
            return Ok(false);
        }
        raw.clear();
        for page in pages {
            image.page(*page, &mut raw)?;
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

fn body_offset(pieces: u32) -> u64 {
    (size_of::<Header>() + pieces as usize * size_of::<Piece>()) as u64
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
