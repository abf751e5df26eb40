//! Tables and figures of the report, a file for each kind. Those of the SYSFLOW paper keep its
//! numbers.
//!
//! A figure says what the paper reports as far as it is known to us, what was measured here, and
//! what is physically possible. Only the paper's numbers in these texts are known; its drawings and
//! axes are not.

pub mod breakdown;
pub mod caching;
pub mod distribution;
pub mod energy;
pub mod execution;
pub mod first;
pub mod latency;
pub mod limits;
pub mod loss;
pub mod order;
pub mod peers;
pub mod readahead;
pub mod siblings;
pub mod targets;

use super::measured::Measured;
use super::text;

/// What is said where the paper's numbers are not known.
pub const PAPER_UNKNOWN: &str = "The numbers of the paper's own figure are not known to us.";

/// A part of the report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// Anchor.
    pub id: &'static str,
    /// Heading.
    pub title: String,
    /// What the SYSFLOW paper reports.
    pub paper: String,
    /// What came out here, in short sentences.
    pub ours: Vec<String>,
    /// What is physically possible.
    pub limit: String,
    /// Tables and plots as HTML; empty if nothing was measured.
    pub body: String,
    /// What a reader must know to judge it.
    pub remarks: Vec<String>,
}

impl Figure {
    /// Whether there is anything to show.
    pub fn is_measured(&self) -> bool {
        !self.body.is_empty()
    }
}

/// Every figure, in the order of the report.
pub fn all(measured: &Measured) -> Vec<Figure> {
    vec![
        targets::figure(measured),
        breakdown::figure(measured),
        readahead::figure(measured),
        order::figure(measured),
        caching::io_path(measured),
        latency::figure(measured),
        caching::providers(measured),
        execution::figure(measured),
        first::figure(measured),
        siblings::figure(measured),
        distribution::latencies(measured),
        distribution::cumulative(measured),
        loss::figure(measured),
        energy::figure(measured),
        peers::figure(measured),
        limits::figure(measured),
    ]
}

/// Links of an experiment that are links; without any, `-` if its rows have none.
fn network_links<'a>(measured: &'a Measured, experiment: &str) -> Vec<&'a str> {
    let links = measured.links(experiment);
    let networks: Vec<&str> = links.iter().copied().filter(|link| *link != "-").collect();
    if networks.is_empty() { links } else { networks }
}

/// A heading inside a figure.
fn heading(text: &str) -> String {
    format!("<h3>{}</h3>\n", super::html::escape(text))
}

/// `Runnel, learned against NFS 4.2, WiFi: 20 % (gcc) to 60 % (perl) lower.`; empty without values.
fn lower_sentence(system: &str, base: &str, link: &str, shares: &[(String, f64)]) -> String {
    let all_lower = shares.iter().all(|(_, share)| *share >= 0.0);
    let show = |share: f64| match (all_lower, share < 0.0) {
        (true, _) => text::percent(share),
        (false, true) => format!("{} higher", text::percent(-share)),
        (false, false) => format!("{} lower", text::percent(share)),
    };
    let range = text::range(shares, show);
    let lower = if all_lower { " lower" } else { "" };
    range.map_or(String::new(), |range| {
        format!("{} against {}, {}: {range}{lower}.", text::system(system), text::system(base), text::link_short(link))
    })
}

/// Those that say something.
fn sentences(parts: impl IntoIterator<Item = String>) -> Vec<String> {
    parts.into_iter().filter(|part| !part.is_empty()).collect()
}
