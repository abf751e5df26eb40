//! How fast a case can be at all: `bytes needed / bandwidth`, and a round trip.
//!
//! *Payload* counts the bytes that the work needs and nothing else, which is the definition of the
//! bars. *Wire* adds what TCP/IP over Ethernet adds to full packets: what a system that does not
//! compress cannot undercut. Bytes are those of the files as they lie there: compressible ones can
//! arrive sooner. Computing overlaps with the transfer at best, so the larger of both counts. Files
//! that are written one after another need a round trip each, since each is acknowledged before the
//! next is begun. The scenes of a game are shown when all of their bytes and those of the scenes
//! before have arrived, and the scene before was played.

use crate::lab::data::case::{Case, Work};
use crate::lab::data::game::{PLAY_SECONDS, SCENES, scene_bytes};
use crate::lab::data::pattern::FILES;
use crate::lab::link::Link;
use crate::lab::report::limit::{HEADER_BYTES, PACKET_CONTENT_BYTES};

/// The two limits of one value, seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Of the needed bytes alone.
    pub payload: f64,
    /// With headers of packets.
    pub wire: f64,
}

/// What the limits of a case follow from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Needed {
    /// Bytes; for the game they are known.
    pub bytes: f64,
    /// Processor time, seconds.
    pub compute: f64,
}

impl Limit {
    /// Of the time of a case: of its work, for the game until the first scene is shown.
    pub fn of(case: &Case, link: &Link, needed: Needed) -> Limit {
        let round_trip = link.round_trip_seconds();
        Limit::both(|factor| {
            let transfer = |bytes: f64| factor * bytes * 8.0 / link.rate_bits as f64;
            match case.work {
                Work::Game => shown(&transfer)[0] + round_trip,
                Work::Write(_) => transfer(needed.bytes) + FILES as f64 * round_trip,
                _ => (transfer(needed.bytes) + round_trip).max(needed.compute),
            }
        })
    }

    /// Of the whole game.
    pub fn of_whole_game(link: &Link) -> Limit {
        Limit::both(|factor| {
            let last = shown(&|bytes| factor * bytes * 8.0 / link.rate_bits as f64)[SCENES - 1];
            last + link.round_trip_seconds() + PLAY_SECONDS as f64
        })
    }

    fn both(of: impl Fn(f64) -> f64) -> Limit {
        Limit { payload: of(1.0), wire: of((PACKET_CONTENT_BYTES + HEADER_BYTES) / PACKET_CONTENT_BYTES) }
    }
}

/// When each scene can be shown, without the round trip.
fn shown(transfer: &dyn Fn(f64) -> f64) -> [f64; SCENES] {
    let (mut arrived, mut free) = (0.0, 0.0);
    std::array::from_fn(|scene| {
        arrived += transfer(scene_bytes(scene) as f64);
        let shown = f64::max(arrived, free);
        free = shown + PLAY_SECONDS as f64;
        shown
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(case: &str, link: &str, bytes: f64, compute: f64) -> anyhow::Result<Limit> {
        Ok(Limit::of(Case::named(case)?, &Link::named(link)?, Needed { bytes, compute }))
    }

    #[test]
    fn limits_are_those_of_the_link() -> anyhow::Result<()> {
        let seq = limit("seq", "thin", 1_048_576.0, 0.0)?;
        assert!((seq.payload - 65.576).abs() < 1e-9, "{seq:?}");
        assert!((seq.wire - (65.536 * 1514.0 / 1448.0 + 0.04)).abs() < 1e-9, "{seq:?}");
        let computed = limit("stat-2", "thin", 1_048_576.0, 131.0)?;
        assert_eq!(computed, Limit { payload: 131.0, wire: 131.0 });
        let written = limit("files1000", "wan", 25e6, 0.0)?;
        assert!((written.payload - 28.0).abs() < 1e-9, "8 s and a thousand round trips: {written:?}");
        Ok(())
    }

    #[test]
    fn a_game_starts_after_its_first_scene_and_ends_after_the_last() -> anyhow::Result<()> {
        let start = limit("game", "thin", 0.0, 0.0)?;
        assert!((start.payload - (92.0 * 4096.0 * 8.0 / 128_000.0 + 0.04)).abs() < 1e-9, "{start:?}");
        let whole = Limit::of_whole_game(&Link::named("thin")?);
        assert!(whole.payload >= start.payload + 4.0 * PLAY_SECONDS as f64 && whole.wire > whole.payload);
        Ok(())
    }
}
