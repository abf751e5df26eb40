//! What a pushed byte costs a device, on its link and on its processor.
//!
//! The link carries later pages while the processor decodes those that came, checks them, stores
//! them and runs the program that reads them. So pages take the longer of the two times, and pieces
//! are pushed in the codec for which that is least. On a processor of 10^9 instructions a second
//! zstd wins over links of up to 90 Mbit/s, where the link is all that counts; not compressed at
//! all from 370 Mbit/s on, where only the processor does; LZ4 between them.
//!
//! The rate of the link is measured by pushes. Before the first one, a device whose round trip is
//! less than [`NEAR`], as it says, is taken to be on a LAN, and others to have a usual link.

use std::time::Duration;

use units::PAGE_BYTES;

/// Rate of a link that nobody measured, in bytes a second: 25 Mbit/s.
pub(crate) const LINK_RATE: u64 = 3_125_000;

/// The same for a device that is near: half of what a LAN carries.
pub(crate) const NEAR_RATE: u64 = 62_500_000;

/// Round trips of devices that are near.
pub(crate) const NEAR: Duration = Duration::from_millis(2);

/// Slowest link that counts, in bytes a second. A rate this low is a link that stood still.
const LINK_RATE_MIN: u64 = 1_000;

/// What a device decodes that did not say it, in KiB a second: 17.3 instructions a byte of zstd and
/// 4.5 of LZ4, measured on pages of libjvm, on a processor that does 10^9 a second.
const ZSTD_RATE: u32 = 56_448;
const LZ4_RATE: u32 = 217_014;

/// What a page comes to in LZ4 on average, in bytes.
const LZ4_PAGE_BYTES: u64 = 1_950;

/// What a device does with a page beside decoding it, in percent of the time in which it decodes it
/// from LZ4: 18 instructions a byte to check and store it and to run the program (Java; Python
/// takes twice as many).
const USE_PERCENT: u64 = 400;

/// The codecs of pieces that were made before they were needed. The number is their place in a
/// bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushCodec {
    Zstd = 0,
    Lz4 = 1,
    Stored = 2,
}

impl PushCodec {
    pub const ALL: [PushCodec; 3] = [PushCodec::Zstd, PushCodec::Lz4, PushCodec::Stored];
}

/// What is known of the link to a device, and of its processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Bytes a second that the link carried at the last push.
    link: Option<u64>,
    /// The round trip that it told last.
    round_trip: Option<Duration>,
    /// What it decodes, in KiB a second; 0 if it did not say.
    zstd: u32,
    lz4: u32,
}

impl Known {
    /// The device said what its round trip is, in microseconds, and what it decodes, in KiB a
    /// second; 0 for what it did not measure.
    pub fn told(&mut self, round_trip: u32, zstd: u32, lz4: u32) {
        let measured = |new: u32, old: &mut u32| *old = if new > 0 { new } else { *old };
        measured(zstd, &mut self.zstd);
        measured(lz4, &mut self.lz4);
        if round_trip > 0 {
            self.round_trip = Some(Duration::from_micros(round_trip.into()));
        }
    }

    /// A push measured the link, in bytes a second.
    pub fn carried(&mut self, rate: u64) {
        self.link = Some(rate);
    }

    /// What a byte costs; `rate` is that of the link, if it was measured on this connection.
    pub fn speed(&self, rate: Option<u64>) -> Speed {
        let near = self.round_trip.is_some_and(|round_trip| round_trip < NEAR);
        let guess = if near { NEAR_RATE } else { LINK_RATE };
        // One tells of the other: both grow with the processor.
        let scaled = |rate: u32, from: u32, to: u32| u64::from(rate) * u64::from(to) / u64::from(from);
        let (zstd, lz4) = match (self.zstd, self.lz4) {
            (0, 0) => (ZSTD_RATE.into(), LZ4_RATE.into()),
            (0, lz4) => (scaled(lz4, LZ4_RATE, ZSTD_RATE), lz4.into()),
            (zstd, 0) => (zstd.into(), scaled(zstd, ZSTD_RATE, LZ4_RATE)),
            (zstd, lz4) => (zstd.into(), lz4.into()),
        };
        Speed::new(rate.or(self.link).unwrap_or(guess), zstd, lz4)
    }
}

/// What a byte costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Speed {
    /// Bytes a second.
    link: u64,
    /// KiB a second.
    zstd: u64,
    lz4: u64,
}

impl Speed {
    fn new(link: u64, zstd: u64, lz4: u64) -> Speed {
        Speed { link: link.max(LINK_RATE_MIN), zstd: zstd.max(1), lz4: lz4.max(1) }
    }

    /// A link of `rate` bytes a second, and a usual device.
    pub fn of_link(rate: Option<u64>) -> Speed {
        Speed::new(rate.unwrap_or(LINK_RATE), ZSTD_RATE.into(), LZ4_RATE.into())
    }

    /// Time that `bytes` take which hold `raw_bytes`: of the link, or of the device's processor if
    /// that is longer. In nanoseconds.
    pub fn nanos(&self, codec: PushCodec, bytes: u64, raw_bytes: u64) -> u64 {
        let on_link = u128::from(bytes) * 1_000_000_000 / u128::from(self.link);
        let at = |rate: u64| u128::from(raw_bytes) * 1_000_000_000 / 1024 / u128::from(rate);
        let decoding = match codec {
            PushCodec::Zstd => at(self.zstd),
            PushCodec::Lz4 => at(self.lz4),
            PushCodec::Stored => 0,
        };
        let using = at(self.lz4) * u128::from(USE_PERCENT) / 100;
        u64::try_from(on_link.max(decoding + using)).unwrap_or(u64::MAX)
    }

    /// Whether the link is so fast that pages come sooner if nobody compresses them.
    pub fn prefers_stored(&self) -> bool {
        let raw_bytes = PAGE_BYTES as u64;
        let lz4 = self.nanos(PushCodec::Lz4, LZ4_PAGE_BYTES, raw_bytes);
        self.nanos(PushCodec::Stored, raw_bytes, raw_bytes) < lz4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codec of a MiB of code, with the ratios of the measurement.
    fn codec(speed: Speed) -> PushCodec {
        let raw = 1 << 20;
        let bytes = [raw * 10 / 41, raw * 10 / 27, raw];
        let all = PushCodec::ALL.into_iter().zip(bytes);
        all.min_by_key(|(codec, bytes)| speed.nanos(*codec, *bytes, raw)).unwrap().0
    }

    #[test]
    fn the_faster_the_link_and_the_slower_the_processor_the_less_is_compressed() {
        let megabits = |rate: u64| Known::default().speed(Some(rate * 125_000));
        assert_eq!(codec(megabits(25)), PushCodec::Zstd);
        assert_eq!(codec(megabits(80)), PushCodec::Zstd);
        assert_eq!(codec(megabits(100)), PushCodec::Lz4);
        assert_eq!(codec(megabits(300)), PushCodec::Lz4);
        assert_eq!(codec(megabits(400)), PushCodec::Stored);
        assert!(megabits(400).prefers_stored() && !megabits(300).prefers_stored());
        let processor = |percent: u64, rate: u64| {
            let mut known = Known::default();
            known.told(0, (u64::from(ZSTD_RATE) * percent / 100) as u32, 0);
            known.speed(Some(rate * 125_000))
        };
        assert_eq!(codec(processor(300, 200)), PushCodec::Zstd);
        assert_eq!(codec(processor(300, 1000)), PushCodec::Lz4);
        assert_eq!(codec(processor(300, 2000)), PushCodec::Stored);
        assert_eq!(codec(processor(25, 25)), PushCodec::Lz4);
        assert_eq!(codec(processor(25, 100)), PushCodec::Stored);
    }

    #[test]
    fn what_was_measured_counts_before_what_is_guessed() {
        let mut known = Known::default();
        assert_eq!(codec(known.speed(None)), PushCodec::Zstd, "nothing is known");
        known.told(30_000, 0, 0);
        assert_eq!(codec(known.speed(None)), PushCodec::Zstd, "far away");
        known.told(1_000, 0, 0);
        assert_eq!(codec(known.speed(None)), PushCodec::Stored, "a near device");
        assert_eq!(codec(known.speed(Some(1_000_000))), PushCodec::Zstd);
        known.carried(1_000_000);
        assert_eq!(codec(known.speed(None)), PushCodec::Zstd, "as at its last push");
    }

    #[test]
    fn whatever_a_device_says_nothing_overflows() {
        for (zstd, lz4) in [(0, u32::MAX), (u32::MAX, 0), (1, 1), (u32::MAX, u32::MAX)] {
            let mut known = Known::default();
            known.told(0, zstd, lz4);
            for rate in [0, 1, u64::MAX] {
                let speed = known.speed(Some(rate));
                PushCodec::ALL.iter().for_each(|codec| assert!(speed.nanos(*codec, u64::MAX, u64::MAX) > 0));
            }
        }
    }
}
