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
const NAMED: [(&str, u64, u64, u32); 4] = [
    ("lan", 1_000_000_000, 100, 2000),
    ("wifi", 50_000_000, 1500, 200),
    ("wan", 25_000_000, 10_000, 200),
    ("thin", 128_000, 20_000, 50),
];

impl Link {
    /// `lan`, `wifi`, `wan` (20 ms round trip, 25 Mbit/s) or `thin`; with loss `wifi+1%`,
    /// `wifi+0.001%`.
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
        for bad in ["moon", "wifi+x", "wifi+1", "wifi+80%"] {
            assert!(Link::named(bad).is_err(), "{bad}");
        }
        Ok(())
    }
}
