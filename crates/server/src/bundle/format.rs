//! A bundle on disk: structs and constants only. Documented in docs/formats/bundle.md, which stores
//! the hash of this file.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First eight bytes of a bundle.
pub const MAGIC: [u8; 8] = *b"RUNNELb1";

/// The one version that is read. Version 1 had no list of pages, version 2 was one zstd stream from
/// the first page to the last, version 3 had no uncompressed pieces; their files are made anew.
pub const VERSION: u16 = 4;

/// Most pieces written and accepted: an action has at most 65536 pages, and segments of two pages
/// are the shortest.
pub const PIECES_MAX: u32 = 32768;

/// Most pages of a bundle accepted: as many as are accepted of an action, four times what we write.
pub const PAGES_MAX: u32 = 4 * 65536;

/// Most pages of a piece, written and accepted: what one push frame carries.
pub const PIECE_PAGES_MAX: u32 = 32;

/// Most pieces between two restart points that are accepted: four times what we write if a piece
/// is a page.
pub const RESTART_PIECES_MAX: u32 = 1024;

/// Bytes of the hash of a piece: half a BLAKE3 hash, as for chunks.
pub const PIECE_HASH_BYTES: usize = 16;

/// The first 156 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: U16,
    /// Base-2 logarithm of the zstd window.
    pub window_log: u8,
    /// zstd level it was made with, which also tells how hard LZ4 tried.
    pub level: u8,
    /// Pieces.
    pub piece_count: U32,
    /// Pages of a full piece; the last may have fewer.
    pub piece_pages: U32,
    /// Pages in all.
    pub page_count: U32,
    /// Pieces between two places at which the zstd stream begins anew.
    pub restart_pieces: U32,
    /// Bytes of all pieces.
    pub body_bytes: U64,
    /// The action whose pages these were.
    pub action: U64,
    /// The image.
    pub image: [u8; 32],
    /// BLAKE3 of the page list: 8 bytes a page, little-endian, in order.
    pub pages_hash: [u8; 32],
    /// BLAKE3 of the table that follows.
    pub table_hash: [u8; 32],
    /// BLAKE3 of the header up to here, first half.
    pub header_hash: [u8; 16],
}

/// One entry of the table that follows the header: a piece in each codec, as a push frame carries
/// it. The list of pages follows the table, 8 bytes a page. The pieces follow the list without
/// gaps: for each restart point those of zstd up to the next one, then those of LZ4, then the
/// uncompressed ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Piece {
    /// As a part of a zstd stream.
    pub zstd: Coded,
    /// By itself.
    pub lz4: Coded,
    /// Uncompressed. Of no bytes in all pieces of a bundle that no device on a fast link asked for.
    pub stored: Coded,
}

/// One piece in one codec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Coded {
    /// Bytes, the one of the form included.
    pub bytes: U32,
    /// First half of the BLAKE3 hash of these bytes.
    pub hash: [u8; PIECE_HASH_BYTES],
}

const _: () = assert!(size_of::<Header>() == 156);
const _: () = assert!(size_of::<Piece>() == 60);
const _: () = assert!(PIECE_PAGES_MAX as usize == units::SEGMENT_PAGES_MAX);
