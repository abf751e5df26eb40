//! Making a bundle.

use codec::{Codec, StreamEncoder};
use store::{Store, Upload};
use units::{PAGE_BYTES, PageId};
use wire::{ErrorCode, PieceForm};
use zerocopy::IntoBytes;

use super::format::{self, Coded, Header, PAGES_MAX, PIECES_MAX, Piece};
use super::{Recipe, body_offset, header_hash, key, piece_hash};
use crate::error::Failure;
use crate::storage::has_room;

/// Bytes of pages between two restart points of the zstd stream. A push that begins between two of
/// them takes LZ4 up to the next one.
const RESTART_BYTES: usize = 1 << 20;

/// Base-2 logarithm of the zstd window: matches never reach beyond a restart point.
const WINDOW_LOG: u8 = RESTART_BYTES.ilog2() as u8;

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
    if !has_room(store, (recipe.pages.len() * PAGE_BYTES) as u64) {
        return Err(Failure::new(ErrorCode::NoSpace, "the disk of the store has too little room left for it"));
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
    let body_bytes = table.iter().map(|piece| u64::from(piece.zstd.bytes.get()) + u64::from(piece.lz4.bytes.get()));
    let mut header = Header {
        magic: format::MAGIC,
        version: format::VERSION.into(),
        window_log: WINDOW_LOG,
        level: recipe.grade.level(),
        piece_count: pieces.into(),
        piece_pages: recipe.piece_pages.into(),
        page_count: (recipe.pages.len() as u32).into(),
        restart_pieces: recipe.restart_pieces().into(),
        body_bytes: body_bytes.sum::<u64>().into(),
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

impl Recipe {
    fn piece_count(&self) -> u32 {
        (self.pages.len() as u32).div_ceil(self.piece_pages)
    }

    fn restart_pieces(&self) -> u32 {
        (RESTART_BYTES / PAGE_BYTES) as u32 / self.piece_pages
    }
}

/// Compresses every piece twice, and writes them behind the room for header, table and list.
/// `false` if it was stopped.
fn write_pieces(
    upload: &mut dyn Upload,
    recipe: &Recipe,
    read: PageReader<'_>,
    stop: &dyn Fn() -> bool,
    table: &mut Vec<Piece>,
) -> Result<bool, Failure> {
    let mut encoder = StreamEncoder::new(recipe.grade.level().into(), WINDOW_LOG.into()).map_err(failed)?;
    let mut offset = body_offset(recipe.piece_count(), recipe.pages.len() as u32);
    let (mut raw, mut stored) = (Vec::new(), Vec::new());
    let pieces: Vec<&[PageId]> = recipe.pages.chunks(recipe.piece_pages as usize).collect();
    for group in pieces.chunks(recipe.restart_pieces() as usize) {
        encoder.restart().map_err(failed)?;
        let (mut zstd, mut lz4) = (Group::default(), Group::default());
        for (index, pages) in group.iter().enumerate() {
            if stop() {
                return Ok(false);
            }
            raw.clear();
            for page in *pages {
                read(*page, &mut raw)?;
            }
            encoder.piece(&raw, &mut stored).map_err(failed)?;
            let form = if index == 0 { PieceForm::ZstdBegins } else { PieceForm::ZstdContinues };
            zstd.add(&with_form(form, &stored))?;
            lz4.add(&independent(&raw, recipe.grade.lz4_level())?)?;
        }
        for group in [&zstd, &lz4] {
            upload.write_at(offset, &group.bytes)?;
            offset += group.bytes.len() as u64;
        }
        table.extend(zstd.pieces.iter().zip(&lz4.pieces).map(|(zstd, lz4)| Piece { zstd: *zstd, lz4: *lz4 }));
    }
    Ok(true)
}

/// The pieces between two restart points in one codec.
#[derive(Default)]
struct Group {
    bytes: Vec<u8>,
    pieces: Vec<Coded>,
}

impl Group {
    fn add(&mut self, piece: &[u8]) -> Result<(), Failure> {
        self.bytes.extend_from_slice(piece);
        if piece.len() > wire::format::PUSH_BYTES_MAX {
            return Err(Failure::new(wire::ErrorCode::Internal, "a piece of a bundle is longer than a push frame"));
        }
        self.pieces.push(Coded { bytes: (piece.len() as u32).into(), hash: piece_hash(piece) });
        Ok(())
    }
}

/// A piece that needs no other, as a push frame carries it: LZ4 at this level if that makes it
/// shorter.
pub(crate) fn independent(raw: &[u8], level: i32) -> Result<Vec<u8>, Failure> {
    let mut stored = Vec::new();
    codec::encode(Codec::Lz4, level, raw, &mut stored).map_err(failed)?;
    let is_shorter = stored.len() < raw.len();
    Ok(if is_shorter { with_form(PieceForm::Lz4, &stored) } else { with_form(PieceForm::Stored, raw) })
}

fn with_form(form: PieceForm, stored: &[u8]) -> Vec<u8> {
    [&[form as u8], stored].concat()
}

fn failed(error: codec::CodecError) -> Failure {
    Failure::new(wire::ErrorCode::Internal, format!("a piece of a push cannot be compressed: {error}"))
}
