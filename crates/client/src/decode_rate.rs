//! How fast this device decodes pushed pieces, for the server that chooses their codec.

use std::time::Duration;

use wire::PieceForm;

/// Shorter pieces tell more of the clock than of the decoder.
const RAW_BYTES_MIN: usize = 32 << 10;

/// A rate that grew by less than this part, in percent, is not told again.
const NEWS_PERCENT: u64 = 25;

/// Rates of decoding: what comes out, in KiB a second; 0 before it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DecodeRate {
    pub zstd: u32,
    pub lz4: u32,
}

impl DecodeRate {
    /// A piece was decoded in `time`. The best of all counts: whatever else runs makes it longer,
    /// and nothing makes it shorter.
    pub fn note(&mut self, form: PieceForm, raw_bytes: usize, time: Duration) {
        if raw_bytes < RAW_BYTES_MIN {
            return;
        }
        let found = raw_bytes as u128 * 1_000_000 / 1024 / time.as_micros().max(1);
        let rate = match form {
            PieceForm::Stored => return,
            PieceForm::Lz4 => &mut self.lz4,
            PieceForm::ZstdBegins | PieceForm::ZstdContinues => &mut self.zstd,
        };
        *rate = (*rate).max(u32::try_from(found).unwrap_or(u32::MAX));
    }

    /// Whether a server that was told `told` should hear of it.
    pub fn is_news(&self, told: DecodeRate) -> bool {
        let grew = |now: u32, before: u32| u64::from(now) * 100 > u64::from(before) * (100 + NEWS_PERCENT);
        grew(self.zstd, told.zstd) || grew(self.lz4, told.lz4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_piece_counts_and_small_changes_are_not_told() {
        let mut rate = DecodeRate::default();
        rate.note(PieceForm::Lz4, 4096, Duration::from_micros(1));
        rate.note(PieceForm::Stored, 128 << 10, Duration::from_micros(1));
        assert_eq!(rate, DecodeRate::default());
        rate.note(PieceForm::ZstdBegins, 128 << 10, Duration::from_millis(2));
        rate.note(PieceForm::ZstdContinues, 128 << 10, Duration::from_millis(4));
        assert_eq!(rate, DecodeRate { zstd: 64_000, lz4: 0 });
        assert!(rate.is_news(DecodeRate::default()) && !rate.is_news(rate));
        let told = rate;
        rate.note(PieceForm::ZstdContinues, 128 << 10, Duration::from_micros(1900));
        assert!(!rate.is_news(told));
        rate.note(PieceForm::Lz4, 128 << 10, Duration::ZERO);
        assert!(rate.is_news(told));
    }
}
