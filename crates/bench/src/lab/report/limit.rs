//! How fast a cold start can be at all: the floor of the link and the floor of the CPU.
//!
//! *Transfer* is what the link needs for the pages that the start touches: `bytes / rate`. The
//! bytes are, in this order of preference, the measured value `bundle_bytes`; the bytes a learned
//! start received, scaled to the pages it needed (`rx_bytes * pages needed / pages received`, never
//! more than `rx_bytes`); `rx_bytes` as it is. They include packet headers and they are compressed
//! as we compress: a better compressor would lower this floor. *Round trips* is one: the first miss
//! asks, everything after it can be under way already. Connecting belongs to the mount. *Warm* is a
//! warm start from a local disk: what the program computes when every page is there.
//!
//! Three floors follow. `link`, transfer and round trip, is the definition the bar of 1.25x is
//! judged against; it ignores that programs compute, so a program whose warm time is longer than
//! its transfer cannot meet that bar at any speed of the network. `overlapped`, the larger of
//! transfer and warm and the round trip, is what no system can undercut, since transfer and
//! computation overlap at best. `summed`, all three, is what a system reaches that fetches
//! everything first.

use super::measured::Measured;
use crate::lab::link::Link;

/// Size of a page, bytes.
pub const PAGE_BYTES: f64 = 4096.0;

/// What a packet adds to its content on Ethernet: 14 bytes of Ethernet, 20 of IP, 32 of TCP with
/// its time stamp.
pub const HEADER_BYTES: f64 = 66.0;

/// Content of a full packet: an MTU of 1500 without the headers of IP and TCP.
pub const PACKET_CONTENT_BYTES: f64 = 1448.0;

/// The floors of one start over one link, seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Bytes that must come over the link.
    pub bytes: f64,
    /// Their time at the full rate.
    pub transfer: f64,
    /// One round trip of the empty link.
    pub round_trip: f64,
    /// Warm start from a local disk; absent if it was not measured.
    pub warm: Option<f64>,
}

impl Limit {
    /// The limit of a start of `program` over `link`; `None` if a learned start over it was not
    /// measured.
    pub fn of(measured: &Measured, link: &str, program: &str) -> Option<Limit> {
        // What a start needs does not depend on losses; what it receives does, since some comes
        // twice.
        let clean = link.split_once('+').map_or(link, |(clean, _)| clean);
        let over = |link: &str, value: &str| measured.value("start", link, "runnel:learned", program, value);
        let learned = |value: &str| over(clean, value).or_else(|| over(link, value));
        let received = learned("rx_bytes")?;
        let pages = learned("pages_demanded").zip(learned("pages_pushed")).map(|(demanded, pushed)| demanded + pushed);
        let needed = measured.pages_needed(program);
        let share = needed.zip(pages).filter(|(_, pages)| *pages > 0.0).map_or(1.0, |(needed, pages)| needed / pages);
        let bytes = learned("bundle_bytes").unwrap_or(received * share.min(1.0));
        let shape = Link::named(link).ok()?;
        let warm = measured.value("start", link, "local", program, "warm");
        let transfer = 8.0 * bytes / goodput_bits(&shape);
        Some(Limit { bytes, transfer, round_trip: shape.round_trip_seconds(), warm })
    }

    /// Transfer and round trip: the bar is judged against this.
    pub fn link(&self) -> f64 {
        self.transfer + self.round_trip
    }

    /// The larger of transfer and warm time, and the round trip.
    pub fn overlapped(&self) -> Option<f64> {
        self.warm.map(|warm| self.transfer.max(warm) + self.round_trip)
    }

    /// Transfer, warm time and round trip.
    pub fn summed(&self) -> Option<f64> {
        self.warm.map(|warm| self.transfer + warm + self.round_trip)
    }
}

/// The shortest time of one page on demand, uncompressed, over an empty link.
pub fn page_on_demand(link: &str) -> Option<f64> {
    Some(page_in_stream(link)? + Link::named(link).ok()?.round_trip_seconds())
}

/// The time of one page, uncompressed, in a stream that fills the link.
pub fn page_in_stream(link: &str) -> Option<f64> {
    let shape = Link::named(link).ok()?;
    let packets = (PAGE_BYTES / PACKET_CONTENT_BYTES).ceil();
    Some(8.0 * (PAGE_BYTES + packets * HEADER_BYTES) / goodput_bits(&shape))
}

/// Bits per second that arrive: of a link that loses packets, lost ones take their time too.
fn goodput_bits(link: &Link) -> f64 {
    link.rate_bits as f64 * (1.0 - link.loss_percent / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::plan::Row;
    use crate::lab::record::Record;
    use crate::lab::report::PageLists;

    fn record(system: &str, mode: &str, values: &[(&str, f64)]) -> Record {
        let [experiment, link, program] = ["start", "wifi", "perl"].map(str::to_string);
        let row = Row { experiment, link, system: system.into(), mode: mode.into(), program };
        let values = values.iter().map(|(name, value)| (name.to_string(), *value)).collect();
        Record { row, run: 1, values, ..Record::default() }
    }

    #[test]
    fn a_limit_counts_needed_bytes_and_one_round_trip() {
        let came = [("rx_bytes", 1_250_000.0), ("pages_demanded", 10.0), ("pages_pushed", 490.0)];
        let records = [record("runnel", "learned", &came), record("local", "", &[("warm", 0.3)])];
        let lists =
            |pages: u64| PageLists::from([("perl".to_string(), (0..pages).map(|i| ("/a".into(), i)).collect())]);
        let limit = |pages| Limit::of(&Measured::new(&records, &lists(pages)), "wifi", "perl").expect("measured");
        let half = limit(250);
        assert!((half.link() - 0.103).abs() < 1e-9, "625 kB at 50 Mbit/s and 3 ms: {half:?}");
        assert_eq!(half.overlapped().map(|time| (time * 1e6).round()), Some(303_000.0));
        assert_eq!(half.summed().map(|time| (time * 1e6).round()), Some(403_000.0));
        assert_eq!(limit(5000).bytes, 1_250_000.0, "never more than what came");
        let none = PageLists::new();
        assert_eq!(Limit::of(&Measured::new(&records[1..], &none), "wifi", "perl"), None);
    }
}
