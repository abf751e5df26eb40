//! Figure 7b: latency of a page on each system.

use super::{Figure, heading, lower_sentence, network_links, sentences};
use crate::lab::report::html::Table;
use crate::lab::report::limit;
use crate::lab::report::measured::tone;
use crate::lab::report::measured::{Measured, Place};
use crate::lab::report::plot::lines::percentiles;
use crate::lab::report::plot::ranges::{Range, Ranges};
use crate::lab::report::plot::scale::Unit;
use crate::lab::report::text;

/// Systems of the figure.
pub const SYSTEMS: [&str; 5] = ["sd:a", "sd:b", "nfs", "runnel:paper", "runnel:learned"];

/// Reductions shown: system and what it is compared with.
const PAIRS: [[&str; 2]; 4] =
    [["runnel:paper", "sd:a"], ["runnel:learned", "sd:a"], ["runnel:paper", "nfs"], ["runnel:learned", "nfs"]];

/// The figure.
pub fn figure(measured: &Measured) -> Figure {
    let links = network_links(measured, "touch");
    let body: String = links.iter().map(|link| of_link(measured, link)).collect();
    let ours = links
        .iter()
        .filter(|link| ["lan", "wifi"].contains(*link))
        .flat_map(|link| PAIRS.map(|pair| lower_sentence(pair[0], pair[1], link, &reductions(measured, link, pair))));
    let floor = |link: &str| {
        let page = limit::page_in_stream(link).map_or("-".into(), text::seconds);
        format!("{} {page}", text::link_short(link))
    };
    Figure {
        id: "figure-7b",
        title: "Figure 7b: latency of a page".into(),
        paper: "45.1 to 75.8 % below ext4 on an SD card; up to 67.7 % below NFS on a wired network, 50 % on WiFi."
            .into(),
        ours: sentences(ours),
        limit: format!(
            "An uncompressed page in a full stream: {}; {}. Compressed pages take less.",
            floor("lan"),
            floor("wifi")
        ),
        body,
        remarks: vec![
            "A reader touches every page a start needs, in the order of execution, through memory maps, one after \
             the other and without computing between them: pushed pages have less time to arrive than in a real \
             start."
                .into(),
            "Lines in the plot are the percentiles 5 to 95, boxes 25 to 75, ticks medians, dots means; over all \
             programs that every shown system has."
                .into(),
        ],
    }
}

/// By how much the mean latency of a page is lower, by program.
fn reductions(measured: &Measured, link: &str, [system, base]: [&str; 2]) -> Vec<(String, f64)> {
    let share = |program: &str| {
        let ours = measured.page_latency(link, system, program)?;
        let base = measured.page_latency(link, base, program).filter(|base| *base > 0.0)?;
        Some((program.to_string(), 1.0 - ours / base))
    };
    measured.programs("touch").into_iter().filter_map(share).collect()
}

fn of_link(measured: &Measured, link: &str) -> String {
    let mut table = Table::new(&[
        "Program",
        "SD A",
        "SD B",
        "NFS",
        "paper mode",
        "learned",
        "paper mode, SD A",
        "learned, SD A",
        "paper mode, NFS",
        "learned, NFS",
    ]);
    for program in measured.programs("touch") {
        let means = SYSTEMS.map(|system| measured.page_latency(link, system, program));
        if means.iter().all(Option::is_none) {
            continue;
        }
        let lower = |pair: [&str; 2]| {
            let all = reductions(measured, link, pair);
            all.into_iter().find(|(name, _)| name == program).map_or("-".to_string(), |(_, share)| text::percent(share))
        };
        let means = means.map(|mean| mean.map_or("-".to_string(), text::seconds));
        table.row(std::iter::once(program.to_string()).chain(means).chain(PAIRS.map(lower)));
    }
    if table.is_empty() {
        return String::new();
    }
    let ranges = Ranges {
        title: format!("Latency of a page, {}", text::link(link)),
        axis: "latency of a page, logarithmic".into(),
        unit: Unit::Seconds,
        ranges: ranges(measured, link),
    };
    heading(&text::link(link))
        + "<p>Mean latency of a page, and how much lower it is than that of the system named last:</p>"
        + &table.html()
        + &ranges.html()
}

fn ranges(measured: &Measured, link: &str) -> Vec<Range> {
    let latencies = |system: &str, program: &str| {
        measured.series(&Place { experiment: "touch", link, system, program }, "latency").concat()
    };
    let programs = measured.programs("touch");
    let shown: Vec<&str> = SYSTEMS
        .into_iter()
        .filter(|system| programs.iter().any(|program| !latencies(system, program).is_empty()))
        .collect();
    let common: Vec<&str> = programs
        .iter()
        .copied()
        .filter(|program| shown.iter().all(|system| !latencies(system, program).is_empty()))
        .collect();
    let programs = if common.is_empty() { programs } else { common };
    let range = |system: &str| {
        let all: Vec<f64> = programs.iter().flat_map(|program| latencies(system, program)).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        Some(Range { label: text::system(system), tone: tone(system), percentiles: percentiles(&all)?, mean })
    };
    shown.into_iter().filter_map(range).collect()
}
