//! Making a bundle.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use codec::{Codec, StreamEncoder};
use store::{Listed, Store, Upload};
use units::{PAGE_BYTES, PageId};
use wire::{ErrorCode, PieceForm};
use zerocopy::IntoBytes;

use super::format::{self, Coded, Header, PAGES_MAX, PIECES_MAX, Piece};
use super::policy::{Forms, Grade};
use super::{FOLDER, Recipe, body_offset, header_hash, key, piece_hash};
use crate::builders::idle_priority;
use crate::error::Failure;
use crate::panics::caught_blocking;
use crate::storage::has_room;

/// Bytes of pages between two restart points of the zstd stream. A push that begins between two of
/// them takes LZ4 up to the next one.
const RESTART_BYTES: usize = 1 << 20;

/// Base-2 logarithm of the zstd window: matches never reach beyond a restart point.
const WINDOW_LOG: u8 = RESTART_BYTES.ilog2() as u8;

/// How often it is looked whether a bundle is still wanted while a group of its pieces is made.
const STOP_EVERY: Duration = Duration::from_millis(20);

/// What all bundles of a store take, in bytes.
pub(super) fn held_bytes(store: &dyn Store) -> Result<u64, Failure> {
    let mut bytes = 0;
    for entry in store.list(FOLDER)? {
        let Listed::Folder(image) = entry else { continue };
        for entry in store.list(&image)? {
            // One that was deleted meanwhile takes nothing.
            let Listed::Object(key) = entry else { continue };
            bytes += store.len(&key).unwrap_or(0);
        }
    }
    Ok(bytes)
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
    // Compressed twice, pages rarely take more than once.
    let copies = if recipe.forms.stored { 2 } else { 1 };
    if !has_room(store, held_bytes(store)?, (recipe.pages.len() * PAGE_BYTES * copies) as u64) {
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
    let body_bytes = table.iter().flat_map(|piece| [piece.zstd, piece.lz4, piece.stored]);
    let mut header = Header {
        magic: format::MAGIC,
        version: format::VERSION.into(),
        window_log: WINDOW_LOG,
        level: recipe.forms.grade.level(),
        piece_count: pieces.into(),
        piece_pages: recipe.piece_pages.into(),
        page_count: (recipe.pages.len() as u32).into(),
        restart_pieces: recipe.restart_pieces().into(),
        body_bytes: body_bytes.map(|coded| u64::from(coded.bytes.get())).sum::<u64>().into(),
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

/// Makes every piece in each codec, and writes them behind the room for header, table and list.
/// `false` if it was stopped.
fn write_pieces(
    upload: &mut dyn Upload,
    recipe: &Recipe,
    read: PageReader<'_>,
    stop: &dyn Fn() -> bool,
    table: &mut Vec<Piece>,
) -> Result<bool, Failure> {
    let mut press = Press::start(recipe.forms)?;
    let mut offset = body_offset(recipe.piece_count(), recipe.pages.len() as u32);
    let pieces: Vec<&[PageId]> = recipe.pages.chunks(recipe.piece_pages as usize).collect();
    for group in pieces.chunks(recipe.restart_pieces() as usize) {
        let mut raws = Vec::with_capacity(group.len());
        for pages in group {
            if stop() {
                return Ok(false);
            }
            let mut raw = Vec::with_capacity(pages.len() * PAGE_BYTES);
            for page in *pages {
                read(*page, &mut raw)?;
            }
            raws.push(raw);
        }
        let Some(pressed) = press.press(raws, stop)? else { return Ok(false) };
        table.extend(pressed.table);
        for group in [pressed.zstd, pressed.lz4, pressed.plain] {
            upload.write_at(offset, &group.bytes)?;
            offset += group.bytes.len() as u64;
        }
    }
    Ok(true)
}

/// Compresses the pieces between two restart points.
enum Press {
    Here(StreamEncoder, Forms),
    /// On a thread that gets what processor time nobody else wants. It holds no lock that others
    /// need, and is not waited for at the end.
    Aside {
        raws: SyncSender<Vec<Vec<u8>>>,
        pressed: Receiver<Result<Pressed, Failure>>,
    },
}

/// Pieces between two restart points in each codec, and where each one lies.
#[derive(Default)]
struct Pressed {
    table: Vec<Piece>,
    zstd: Group,
    lz4: Group,
    plain: Group,
}

impl Press {
    /// The best grade takes seconds.
    fn start(forms: Forms) -> Result<Press, Failure> {
        let mut encoder = StreamEncoder::new(forms.grade.level().into(), WINDOW_LOG.into()).map_err(failed)?;
        if forms.grade != Grade::Best {
            return Ok(Press::Here(encoder, forms));
        }
        let (raws, groups) = sync_channel::<Vec<Vec<u8>>>(1);
        let (sender, pressed) = sync_channel(1);
        std::thread::Builder::new()
            .name("best press".to_owned())
            .spawn(move || {
                idle_priority();
                while let Ok(raws) = groups.recv() {
                    let made = caught_blocking(|| press(&mut encoder, &raws, forms));
                    let failed = |text| Err(Failure::new(ErrorCode::Internal, text));
                    if sender.send(made.unwrap_or_else(failed)).is_err() {
                        return;
                    }
                }
            })
            .map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
        Ok(Press::Aside { raws, pressed })
    }

    /// `None` if it was stopped.
    fn press(&mut self, group: Vec<Vec<u8>>, stop: &dyn Fn() -> bool) -> Result<Option<Pressed>, Failure> {
        let (raws, pressed) = match self {
            Press::Here(encoder, forms) => return press(encoder, &group, *forms).map(Some),
            Press::Aside { raws, pressed } => (raws, pressed),
        };
        let gone = || Failure::new(ErrorCode::Internal, "the thread that compresses is gone");
        raws.send(group).map_err(|_| gone())?;
        loop {
            match pressed.recv_timeout(STOP_EVERY) {
                Ok(made) => return made.map(Some),
                Err(RecvTimeoutError::Timeout) if stop() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            }
        }
    }
}

/// Compresses pieces: one zstd stream, and each by itself.
fn press(encoder: &mut StreamEncoder, raws: &[Vec<u8>], forms: Forms) -> Result<Pressed, Failure> {
    encoder.restart().map_err(failed)?;
    let (mut pressed, mut compressed) = (Pressed::default(), Vec::new());
    for (index, raw) in raws.iter().enumerate() {
        encoder.piece(raw, &mut compressed).map_err(failed)?;
        let form = if index == 0 { PieceForm::ZstdBegins } else { PieceForm::ZstdContinues };
        let piece = Piece {
            zstd: pressed.zstd.add(&with_form(form, &compressed))?,
            lz4: pressed.lz4.add(&independent(raw, forms.grade.lz4_level())?)?,
            stored: if forms.stored { pressed.plain.add(&stored(raw))? } else { Coded::default() },
        };
        pressed.table.push(piece);
    }
    Ok(pressed)
}

/// The pieces between two restart points in one codec.
#[derive(Default)]
struct Group {
    bytes: Vec<u8>,
}

impl Group {
    fn add(&mut self, piece: &[u8]) -> Result<Coded, Failure> {
        self.bytes.extend_from_slice(piece);
        if piece.len() > wire::format::PUSH_BYTES_MAX {
            return Err(Failure::new(wire::ErrorCode::Internal, "a piece of a bundle is longer than a push frame"));
        }
        Ok(Coded { bytes: (piece.len() as u32).into(), hash: piece_hash(piece) })
    }
}

/// A piece that needs no other, as a push frame carries it: LZ4 at this level if that makes it
/// shorter.
pub(crate) fn independent(raw: &[u8], level: i32) -> Result<Vec<u8>, Failure> {
    let mut lz4 = Vec::new();
    codec::encode(Codec::Lz4, level, raw, &mut lz4).map_err(failed)?;
    Ok(if lz4.len() < raw.len() { with_form(PieceForm::Lz4, &lz4) } else { stored(raw) })
}

/// A piece that is not compressed, as a push frame carries it.
pub(crate) fn stored(raw: &[u8]) -> Vec<u8> {
    with_form(PieceForm::Stored, raw)
}

fn with_form(form: PieceForm, stored: &[u8]) -> Vec<u8> {
    [&[form as u8], stored].concat()
}

fn failed(error: codec::CodecError) -> Failure {
    Failure::new(wire::ErrorCode::Internal, format!("a piece of a push cannot be compressed: {error}"))
}
