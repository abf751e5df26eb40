//! Table II: what the kernel reads ahead against what a start needs.

use super::{Figure, heading};
use crate::lab::report::html::Table;
use crate::lab::report::limit::PAGE_BYTES;
use crate::lab::report::measured::Measured;
use crate::lab::report::plot::bars::{Bar, Bars, Group};
use crate::lab::report::plot::neutral_tone;
use crate::lab::report::plot::scale::Unit;
use crate::lab::report::text;

/// The figure.
pub fn figure(measured: &Measured) -> Figure {
    let programs = measured.programs("set");
    let mut systems: Vec<(&str, &str)> = Vec::new();
    for link in measured.links("set") {
        for system in measured.systems("set", link) {
            if systems.iter().all(|(known, _)| *known != system) {
                systems.push((system, link));
            }
        }
    }
    let body: String = systems.iter().map(|(system, link)| of_system(measured, system, link, &programs)).collect();
    let shares: Vec<(String, f64)> = systems
        .iter()
        .flat_map(|(system, link)| programs.iter().map(move |program| (*system, *link, *program)))
        .filter_map(|(system, link, program)| {
            let [_, needed, read, _, _] = values(measured, system, link, program);
            let read = read.filter(|read| *read > 0.0)?;
            Some((format!("{program}, {}", text::system(system)), needed? / read))
        })
        .collect();
    let needed = |program: &&str| Some((program.to_string(), measured.pages_needed(program)? * PAGE_BYTES));
    let needed: Vec<(String, f64)> = programs.iter().filter_map(needed).collect();
    Figure {
        id: "table-2",
        title: "Table II: pages needed, and pages Linux reads ahead".into(),
        paper: super::PAPER_UNKNOWN.into(),
        ours: text::range(&shares, text::percent)
            .map(|range| format!("Of what Linux reads, a start needs {range}."))
            .into_iter()
            .collect(),
        limit: text::range(&needed, text::bytes)
            .map_or(String::new(), |range| format!("A start needs at least, uncompressed: {range}.")),
        body,
        remarks: vec![
            "T: pages of all files that the program opens. N: pages it touches. P: pages Linux reads for it. I/O: \
             requests to the disk. B/IO: bytes per request."
                .into(),
        ],
    }
}

/// T, N, P, requests, bytes per request.
fn values(measured: &Measured, system: &str, link: &str, program: &str) -> [Option<f64>; 5] {
    ["pages_total", "pages_needed", "pages_read", "requests", "bytes_per_request"]
        .map(|name| measured.value("set", link, system, program, name))
}

fn of_system(measured: &Measured, system: &str, link: &str, programs: &[&str]) -> String {
    let mut table = Table::new(&["Program", "T", "N", "P", "N/T", "N/P", "P/T", "I/O", "B/IO"]);
    let mut groups = Vec::new();
    for program in programs {
        let [total, needed, read, requests, size] = values(measured, system, link, program);
        if [total, needed, read].iter().all(Option::is_none) {
            continue;
        }
        let count = |value: Option<f64>| value.map_or("-".to_string(), text::count);
        let share = |part: Option<f64>, whole: Option<f64>| match part.zip(whole) {
            Some((part, whole)) if whole > 0.0 => text::percent(part / whole),
            _ => "-".to_string(),
        };
        let shares = [share(needed, total), share(needed, read), share(read, total)];
        let sizes = [count(requests), size.map_or("-".to_string(), text::bytes)];
        let counts = [total, needed, read].map(count);
        table.row(std::iter::once(program.to_string()).chain(counts).chain(shares).chain(sizes));
        let bar = |(name, value, index): (&str, Option<f64>, usize)| {
            value.map(|pages| Bar::new(name, neutral_tone(index), pages, text::bytes(pages * PAGE_BYTES)))
        };
        let bars = [("T: in opened files", total, 4), ("P: read by Linux", read, 1), ("N: needed", needed, 0)];
        groups.push(Group { label: program.to_string(), bars: bars.into_iter().filter_map(bar).collect() });
    }
    if table.is_empty() {
        return String::new();
    }
    let title = format!("Pages of a start from {}", text::system(system));
    let bars = Bars { title, axis: "pages".into(), unit: Unit::Count, groups, legend: Vec::new() };
    heading(&text::system(system)) + &table.html() + &bars.html()
}
