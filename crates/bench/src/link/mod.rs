//! A shaped link: a proxy between a client and a server that behaves like a network with a
//! round-trip time, a rate and a loss probability, inside this process and without root.
//!
//! [`shape`] is the pure model: when does a chunk that enters the link now come out? [`proxy`]
//! moves the bytes and obeys it. What the model is and what it leaves out:
//!
//! - Half the round-trip time is spent each way. Each way is one serial line of the stated rate,
//!   shared by all connections of the link in the order in which their chunks arrive. The queue
//!   before the line is bounded ([`Link::queue_bytes`]); when it is full the proxy stops reading
//!   and the sender's TCP sees back-pressure.
//! - A new connection may send its first byte one round trip after it was opened (the TCP
//!   handshake).
//! - The proxy sits above TCP, so a lost segment cannot be dropped. It is modelled as what TCP
//!   makes of it at best (fast retransmit): the segment takes the line twice, and everything behind
//!   it on the *same connection* waits one more round trip. Retransmission timeouts and the slower
//!   sending after a loss are not modelled.
//! - TCP slow start is not modelled either: a burst travels at the full rate from the first byte.
//!   That favours every system that sends bursts, ours and the peers alike.
//!
//! Times are [`Duration`]s since the start of the proxy, sizes are bytes, rates are bits per
//! second.

mod proxy;
mod shape;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

pub use proxy::{ShapedLink, Traffic, Upstream};
pub use shape::{Flow, Lane};

/// Payload bytes of one TCP segment on an Ethernet path: the unit in which losses strike.
pub const SEGMENT_BYTES: u64 = 1448;

/// Largest chunk the proxy moves at once: small against any window, large enough for a gigabit
/// link.
const CHUNK_BYTES_MAX: u64 = 16 * 1024;

/// Round-trip times above this are refused: the proxy would hold more than it is meant to.
const RTT_MAX: Duration = Duration::from_secs(10);

/// Rates outside these bounds are refused: below, nothing ends; above, the proxy itself is the
/// limit.
const RATE_MIN: u64 = 1_000;
const RATE_MAX: u64 = 100_000_000_000;

/// What a link is: round-trip time, rate each way, loss probability of a segment.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    name: String,
    /// Time from sending a byte to the earliest answer.
    pub rtt: Duration,
    /// Rate of each direction, bits per second.
    pub rate: u64,
    /// Probability that a segment of [`SEGMENT_BYTES`] is lost, 0 to 0.5.
    pub loss: f64,
}

impl Link {
    /// Links with a name, and what they stand for.
    pub const NAMED: [(&'static str, &'static str); 4] =
        [("lan", "0.2ms-1gbit"), ("20ms-25mbit", "20ms-25mbit"), ("wifi", "3ms-50mbit"), ("thin", "40ms-128kbit")];

    /// The name in tables and rows: as the user wrote it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that fill the link for one round trip.
    pub fn product_bytes(&self) -> u64 {
        (self.rate as u128 * self.rtt.as_nanos() / 8 / 1_000_000_000) as u64
    }

    /// Longest queue before the line: one bandwidth-delay product, as routers have it, plus 100 ms
    /// at the rate of the link (at least 16 KiB, at most 64 KiB) so that neither very short nor
    /// very slow links starve or drown.
    pub fn queue_bytes(&self) -> u64 {
        self.product_bytes() + (self.rate / 80).clamp(16 * 1024, 64 * 1024)
    }

    /// Bytes moved at once: about one millisecond of the rate, so that no burst is longer than
    /// that.
    pub fn chunk_bytes(&self) -> u64 {
        (self.rate / 8 / 1000).clamp(SEGMENT_BYTES, CHUNK_BYTES_MAX)
    }

    /// Time that `bytes` occupy the line.
    pub fn line_time(&self, bytes: u64) -> Duration {
        let nanos = bytes as u128 * 8 * 1_000_000_000 / self.rate as u128;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for Link {
    type Err = anyhow::Error;

    /// Reads a name of [`Link::NAMED`] or `RTT-RATE[-LOSS]`, for example `20ms-25mbit` or
    /// `3ms-50mbit-1%`.
    fn from_str(text: &str) -> anyhow::Result<Link> {
        let meaning = Link::NAMED.iter().find(|(name, _)| *name == text).map_or(text, |(_, meaning)| meaning);
        let parts: Vec<&str> = meaning.split('-').collect();
        let (rtt, rate, loss) = match parts[..] {
            [rtt, rate] => (rtt, rate, "0"),
            [rtt, rate, loss] => (rtt, rate, loss),
            _ => bail!("link '{text}': expected lan, wifi, thin or RTT-RATE[-LOSS] such as 20ms-25mbit-0.1%"),
        };
        let link = Link {
            name: text.to_string(),
            rtt: parse_time(rtt).with_context(|| format!("link '{text}': round-trip time '{rtt}'"))?,
            rate: parse_rate(rate).with_context(|| format!("link '{text}': rate '{rate}'"))?,
            loss: parse_loss(loss).with_context(|| format!("link '{text}': loss '{loss}'"))?,
        };
        Ok(link)
    }
}

fn split_unit(text: &str) -> anyhow::Result<(f64, &str)> {
    let end = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
    let number: f64 = text[..end].parse().context("expected a number and a unit")?;
    Ok((number, &text[end..]))
}

fn parse_time(text: &str) -> anyhow::Result<Duration> {
    let (number, unit) = split_unit(text)?;
    let seconds = match unit {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" => number,
        _ => bail!("unknown unit '{unit}': use us, ms or s"),
    };
    ensure!(seconds <= RTT_MAX.as_secs_f64(), "at most {RTT_MAX:?}");
    Ok(Duration::from_secs_f64(seconds))
}

fn parse_rate(text: &str) -> anyhow::Result<u64> {
    let (number, unit) = split_unit(text)?;
    let factor = match unit {
        "kbit" => 1e3,
        "mbit" => 1e6,
        "gbit" => 1e9,
        _ => bail!("unknown unit '{unit}': use kbit, mbit or gbit (per second)"),
    };
    let rate = number * factor;
    ensure!(rate >= RATE_MIN as f64 && rate <= RATE_MAX as f64, "from 1kbit to 100gbit");
    Ok(rate as u64)
}

fn parse_loss(text: &str) -> anyhow::Result<f64> {
    let (number, unit) = split_unit(text)?;
    let loss = match unit {
        "%" => number / 100.0,
        "" => number,
        _ => bail!("unknown unit '{unit}': use a percentage such as 0.1% or a fraction"),
    };
    ensure!(loss <= 0.5, "at most 50%");
    Ok(loss)
}

#[cfg(test)]
mod tests;
