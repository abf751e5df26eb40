//! How fast this device decodes pushed pieces, for the server that chooses their codec.
//!
//! Pieces differ: one of zeros is decoded ten times as fast as one of code. The median of some
//! pieces is neither.

use std::time::Duration;

use wire::PieceForm;

/// Shorter pieces tell more of the clock than of the decoder.
const RAW_BYTES_MIN: usize = 32 << 10;

/// Pieces of which the median is taken, the last ones.
const PIECES: usize = 15;

/// Pieces before there is a median.
const PIECES_MIN: usize = 3;

/// A rate that changed by less than this part, in percent, is not told again.
const NEWS_PERCENT: u64 = 25;

/// Rates of decoding: what comes out, in KiB a second; 0 before it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DecodeRate {
    pub zstd: u32,
    pub lz4: u32,
    zstd_pieces: Pieces,
    lz4_pieces: Pieces,
}

/// The rates of the last pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pieces {
    rates: [u32; PIECES],
    count: usize,
}

impl Pieces {
    /// Adds a piece; the median, or 0 while there is none.
    fn add(&mut self, rate: u32) -> u32 {
        self.rates[self.count % PIECES] = rate;
        self.count += 1;
        let mut rates = self.rates;
        let some = &mut rates[..self.count.min(PIECES)];
        some.sort_unstable();
        if some.len() < PIECES_MIN { 0 } else { some[some.len() / 2] }
    }
}

impl DecodeRate {
    /// A piece was decoded in `time`.
    pub fn note(&mut self, form: PieceForm, raw_bytes: usize, time: Duration) {
        if raw_bytes < RAW_BYTES_MIN {
            return;
        }
        let found = raw_bytes as u128 * 1_000_000 / 1024 / time.as_micros().max(1);
        let found = u32::try_from(found).unwrap_or(u32::MAX);
        match form {
            PieceForm::Stored => {}
            PieceForm::Lz4 => self.lz4 = self.lz4_pieces.add(found),
            PieceForm::ZstdBegins | PieceForm::ZstdContinues => self.zstd = self.zstd_pieces.add(found),
        }
    }

    /// Whether a server that was told `told` should hear of it.
    pub fn is_news(&self, told: DecodeRate) -> bool {
        let grew = |now: u32, before: u32| u64::from(now) * 100 > u64::from(before) * (100 + NEWS_PERCENT);
        let changed = |now: u32, before: u32| now > 0 && (grew(now, before) || grew(before, now));
        changed(self.zstd, told.zstd) || changed(self.lz4, told.lz4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes whole pieces that were decoded in so many microseconds.
    fn note(rate: &mut DecodeRate, form: PieceForm, micros: &[u64]) {
        micros.iter().for_each(|micros| rate.note(form, 128 << 10, Duration::from_micros(*micros)));
    }

    #[test]
    fn short_and_stored_pieces_and_the_first_ones_tell_nothing() {
        let mut rate = DecodeRate::default();
        (0..9).for_each(|_| rate.note(PieceForm::Lz4, 4096, Duration::from_micros(1)));
        note(&mut rate, PieceForm::Stored, &[1; 9]);
        note(&mut rate, PieceForm::ZstdBegins, &[2000; 2]);
        assert_eq!((rate.zstd, rate.lz4), (0, 0));
        assert!(!rate.is_news(DecodeRate::default()));
    }

    #[test]
    fn regress_one_piece_of_zeros_does_not_make_the_decoder_fast() {
        let mut rate = DecodeRate::default();
        note(&mut rate, PieceForm::ZstdContinues, &[2000, 20, 2000, 9000, 2000]);
        assert_eq!((rate.zstd, rate.lz4), (64_000, 0));
        note(&mut rate, PieceForm::Lz4, &[0, 500, 500]);
        assert_eq!(rate.lz4, 256_000);
    }

    #[test]
    fn changes_are_told_in_both_directions_and_small_ones_are_not() {
        let mut rate = DecodeRate::default();
        note(&mut rate, PieceForm::ZstdBegins, &[2000; 3]);
        assert!(rate.is_news(DecodeRate::default()) && !rate.is_news(rate));
        let told = rate;
        note(&mut rate, PieceForm::ZstdContinues, &[1900; PIECES]);
        assert!(rate != told && !rate.is_news(told));
        note(&mut rate, PieceForm::ZstdContinues, &[1000; PIECES]);
        assert!(rate.is_news(told) && told.is_news(rate));
    }
}
