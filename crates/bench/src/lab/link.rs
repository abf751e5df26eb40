//! The links of the lab: what `tc netem` is told in both directions.

use anyhow::{Context, ensure};

/// A link between the device and the server. Rate and loss hold for each direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Name in plans and reports.
    pub name: String,
    /// Bits per second.
    pub rate_bits: u64,
    /// Delay of one direction, microseconds.
    pub delay_micros: u64,
    /// Packets that wait at most in one direction.
    pub queue_packets: u32,
    /// Packets lost in one direction, percent.
    pub loss_percent: f64,
}

/// Name, bits per second, one-way delay in microseconds, queue in packets. `thin` is the modem of
/// the SIO paper.
const NAMED: [(&str, u64, u64, u32); 6] = [
    ("lan", 1_000_000_000, 100, 2000),
    ("wifi", 50_000_000, 1500, 200),
    ("wan", 25_000_000, 10_000, 200),
    ("7mbit", 7_000_000, 40_000, 200),
    ("300kbit", 300_000, 200_000, 50),
    ("thin", 128_000, 20_000, 50),
];

/// `netem` lets a buffer of several packets pass as one, at the end of its time on the wire: its
/// first packet is late by that time. It may be as long as a link carries in so many microseconds,
/// which is what network cards collect before they interrupt: ten packets at 1 Gbit/s.
const MERGED_MICROS: u64 = 131;

/// A full packet with its Ethernet header.
const PACKET_BYTES: u64 = 1514;

impl Link {
    /// `lan`, `wifi`, `wan` (20 ms round trip, 25 Mbit/s), `7mbit` (80 ms), `300kbit` (400 ms) or
    /// `thin`; with loss `wifi+1%`, `wifi+0.001%`.
    pub fn named(name: &str) -> anyhow::Result<Link> {
        let (base, loss) = name.split_once('+').unwrap_or((name, "0%"));
        let found = NAMED.iter().find(|known| known.0 == base);
        let known: Vec<&str> = NAMED.iter().map(|known| known.0).collect();
        let (_, rate_bits, delay_micros, queue_packets) = found
            .with_context(|| format!("no link '{base}'; there are {}, and with loss wifi+1%", known.join(", ")))?;
        let loss_percent: f64 = loss
            .strip_suffix('%')
            .and_then(|percent| percent.parse().ok())
            .with_context(|| format!("'{loss}' in '{name}' is no loss in percent"))?;
        ensure!((0.0..=50.0).contains(&loss_percent), "'{name}': loss from 0% to 50%");
        let (rate_bits, delay_micros, queue_packets) = (*rate_bits, *delay_micros, *queue_packets);
        Ok(Link { name: name.to_string(), rate_bits, delay_micros, queue_packets, loss_percent })
    }

    /// Packets that the ends of the link may hand over as one buffer, as network cards do that
    /// segment what is sent and merge what is received. One where the link is slow, since more
    /// would arrive too late, and where packets are lost, since all would be lost together.
    pub fn merged_packets(&self) -> u32 {
        if self.loss_percent > 0.0 {
            return 1;
        }
        let bytes = self.rate_bits / 8 * MERGED_MICROS / 1_000_000;
        u32::try_from(bytes / PACKET_BYTES).unwrap_or(u32::MAX).max(1)
    }

    /// Round trip of an empty link, seconds.
    pub fn round_trip_seconds(&self) -> f64 {
        2e-6 * self.delay_micros as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_names_and_may_lose() -> anyhow::Result<()> {
        let wifi = Link::named("wifi+0.001%")?;
        assert_eq!((wifi.rate_bits, wifi.loss_percent, wifi.name.as_str()), (50_000_000, 0.001, "wifi+0.001%"));
        assert_eq!(Link::named("wan")?.round_trip_seconds(), 0.02);
        assert_eq!((Link::named("7mbit")?.rate_bits, Link::named("300kbit")?.delay_micros), (7_000_000, 200_000));
        for bad in ["moon", "wifi+x", "wifi+1", "wifi+80%"] {
            assert!(Link::named(bad).is_err(), "{bad}");
        }
        Ok(())
    }

    #[test]
    fn packets_are_merged_where_a_card_would_merge_them_in_time() -> anyhow::Result<()> {
        let merged = |name| Link::named(name).map(|link| link.merged_packets());
        assert_eq!(merged("lan")?, 10);
        for one in ["lan+1%", "wifi", "wan", "7mbit", "300kbit", "thin"] {
            assert_eq!(merged(one)?, 1, "{one}");
        }
        Ok(())
    }
}
