//! Pieces that say how they are encoded, of streams of
//! [`PushEncoding::Pieces`](crate::PushEncoding).

use bytes::Bytes;

/// How one piece is encoded. It stands in the first byte of the piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PieceForm {
    /// The pages' bytes as they are.
    Stored = 0,
    /// One LZ4 block, which needs no other piece.
    Lz4 = 1,
    /// A zstd stream begins here, flushed at the end of the piece. It needs no other piece.
    ZstdBegins = 2,
    /// The zstd stream goes on that the last piece of a zstd form left.
    ZstdContinues = 3,
}

impl PieceForm {
    /// The form with this number.
    pub fn from_u8(number: u8) -> Option<PieceForm> {
        [PieceForm::Stored, PieceForm::Lz4, PieceForm::ZstdBegins, PieceForm::ZstdContinues]
            .into_iter()
            .find(|form| *form as u8 == number)
    }

    /// The form of a piece, and what follows it; `None` if the piece has no known form.
    pub fn split(piece: &Bytes) -> Option<(PieceForm, &[u8])> {
        let (form, rest) = piece.split_first()?;
        Some((PieceForm::from_u8(*form)?, rest))
    }
}
