//! What medians of cold starts leave out: the first start after the server came up, the slowest
//! run, the mount, and what the server takes of the processor that both share.

use super::{Figure, heading, sentences};
use crate::lab::plan::{FIRST, MOUNT, START};
use crate::lab::report::html::Table;
use crate::lab::report::measured::{Measured, Place, is_free_of_links};
use crate::lab::report::text;

/// Runnel after it has learned.
const LEARNED: &str = "runnel:learned";

/// Where a number comes from.
#[derive(Clone, Copy)]
enum Source {
    /// Median of a value of an experiment.
    Median(&'static str, &'static str),
    /// The slowest cold start.
    Slowest,
    /// The first cold start over the median of the later ones.
    FirstToLater,
}

/// Heading, what stands below it, and how it is written.
type Column = (&'static str, Source, fn(f64) -> String);

const COLUMNS: [Column; 9] = [
    ("first start", Source::Median(FIRST, "cold"), text::seconds),
    ("later: median", Source::Median(START, "cold"), text::seconds),
    ("slowest", Source::Slowest, text::seconds),
    ("first / later", Source::FirstToLater, text::ratio),
    ("server apart", Source::Median(START, "cold_apart"), text::seconds),
    ("mount", Source::Median(START, "mount"), text::seconds),
    ("until the first read", Source::Median(MOUNT, "first_read"), text::seconds),
    ("bytes for it", Source::Median(MOUNT, "first_read_rx_bytes"), text::bytes),
    ("mount and start", Source::Median(MOUNT, "together"), text::seconds),
];

impl Source {
    fn value(self, measured: &Measured, link: &str, system: &str, program: &str) -> Option<f64> {
        match self {
            Source::Median(experiment, name) => measured.value(experiment, link, system, program, name),
            Source::Slowest => {
                let place = Place { experiment: START, link, system, program };
                measured.summary(&place, "cold").map(|all| all.max)
            }
            Source::FirstToLater => {
                let cold = |experiment| measured.value(experiment, link, system, program, "cold");
                let later = cold(START).filter(|later| *later > 0.0)?;
                Some(cold(FIRST)? / later)
            }
        }
    }
}

/// The figure.
pub fn figure(measured: &Measured) -> Figure {
    let links = each_once([START, FIRST, MOUNT].map(|experiment| measured.links(experiment)).concat());
    let links: Vec<&str> = links.into_iter().filter(|link| *link != "-").collect();
    let ours = links.iter().filter_map(|link| {
        let ratio = |program: &str| {
            let ratio = Source::FirstToLater.value(measured, link, LEARNED, program)?;
            Some((program.to_string(), ratio))
        };
        let ratios: Vec<(String, f64)> = measured.programs(FIRST).into_iter().filter_map(ratio).collect();
        let range = text::range(&ratios, text::ratio)?;
        Some(format!("The first start of Runnel, learned, over later ones, {}: {range}.", text::link_short(link)))
    });
    Figure {
        id: "first-starts",
        title: "First starts, slowest runs, mounts, and a server of its own".into(),
        paper: "Not told there.".into(),
        ours: sentences(ours),
        limit: String::new(),
        body: links.iter().map(|link| of_link(measured, link)).collect(),
        remarks: vec![
            "The first start is the first one after the server came up, with its files in memory; it is in no \
             median. A row of one run is that first start itself. Until the first read: from the beginning of the \
             mount until the first byte of the program's file is there. Mount and start: from the beginning of the \
             mount until the program has ended, without a pause between."
                .into(),
            "Server apart: the cold start without the processor time of the server. A server on a machine of its \
             own leaves no less than that, and more where both wait for the link."
                .into(),
        ],
    }
}

fn of_link(measured: &Measured, link: &str) -> String {
    let head: Vec<&str> = ["Program", "System"].into_iter().chain(COLUMNS.map(|column| column.0)).collect();
    let mut table = Table::new(&head).words(2);
    let all = [START, FIRST, MOUNT];
    let systems = each_once(all.map(|experiment| measured.systems(experiment, link)).concat());
    for program in each_once(all.map(|experiment| measured.programs(experiment)).concat()) {
        for system in systems.iter().filter(|system| !is_free_of_links(system)) {
            let values = COLUMNS.map(|(_, source, show)| source.value(measured, link, system, program).map(show));
            if values.iter().any(Option::is_some) {
                let names = [program.to_string(), text::system(system)];
                table.row(names.into_iter().chain(values.map(|value| value.unwrap_or("-".to_string()))));
            }
        }
    }
    if table.is_empty() { String::new() } else { heading(&text::link(link)) + &table.html() }
}

/// The names without repetitions, in their order.
fn each_once(names: Vec<&str>) -> Vec<&str> {
    let mut once: Vec<&str> = Vec::new();
    for name in names {
        if !once.contains(&name) {
            once.push(name);
        }
    }
    once
}
