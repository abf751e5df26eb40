//! Figure 11: execution time when packets are lost.

use super::{Figure, PAPER_UNKNOWN, sentences};
use crate::lab::report::html::Table;
use crate::lab::report::limit::Limit;
use crate::lab::report::measured::tone;
use crate::lab::report::measured::{Measured, loss};
use crate::lab::report::plot::lines::{Axis, Curve, Lines, Style};
use crate::lab::report::plot::scale::Unit;
use crate::lab::report::text;

const BASE_LINK: &str = "wifi";

/// The figure.
pub fn figure(measured: &Measured) -> Figure {
    let links: Vec<&str> = measured
        .links("start")
        .into_iter()
        .filter(|link| *link == BASE_LINK || link.strip_prefix(BASE_LINK).is_some_and(|rest| rest.starts_with('+')))
        .collect();
    let is_lossy = links.iter().any(|link| loss(link) > 0.0);
    let programs = if is_lossy { measured.programs("start") } else { Vec::new() };
    let body: String = programs.iter().map(|program| of_program(measured, &links, program)).collect();
    let worst = links.iter().copied().filter(|link| loss(link) > 0.0).max_by(|a, b| loss(a).total_cmp(&loss(b)));
    let ours = worst.map(|link| {
        let slower = |system: &str| {
            let ratio = |program: &&str| {
                let clean = measured.value("start", BASE_LINK, system, program, "cold").filter(|cold| *cold > 0.0)?;
                Some((program.to_string(), measured.value("start", link, system, program, "cold")? / clean))
            };
            let ratios: Vec<(String, f64)> = programs.iter().filter_map(ratio).collect();
            let range = text::range(&ratios, text::ratio);
            range.map_or(String::new(), |range| format!("{}: {range} the time without loss.", text::system(system)))
        };
        let parts = sentences([slower("nfs"), slower("runnel:learned")]);
        parts.into_iter().map(|part| format!("At {} % loss, {part}", loss(link))).collect()
    });
    Figure {
        id: "figure-11",
        title: "Figure 11: execution time over packet loss, WiFi".into(),
        paper: format!("Loss from 0.001 to 5 %. {PAPER_UNKNOWN}"),
        ours: ours.unwrap_or_default(),
        limit: "Lost bytes are sent again: bytes needed / (rate x (1 - loss)) + one round trip; see the column.".into(),
        body,
        remarks: vec![
            "Loss holds for each direction. Which packets are lost is not repeatable: medians of several runs.".into(),
        ],
    }
}

fn of_program(measured: &Measured, links: &[&str], program: &str) -> String {
    // Systems that have a row on at least one link with loss: the others would only be a point at
    // zero.
    let mut systems: Vec<&str> = Vec::new();
    for link in links.iter().filter(|link| loss(link) > 0.0) {
        for system in measured.systems("start", link) {
            let is_network = system != "local" && !system.starts_with("sd:");
            let is_known = measured.value("start", link, system, program, "cold").is_some();
            if is_network && is_known && !systems.contains(&system) {
                systems.push(system);
            }
        }
    }
    if systems.is_empty() {
        return String::new();
    }
    let names: Vec<String> = systems.iter().map(|system| text::system(system)).collect();
    let head: Vec<&str> =
        ["Loss"].into_iter().chain(names.iter().map(String::as_str)).chain(["limit of the link"]).collect();
    let mut table = Table::new(&head);
    for link in links {
        let times = systems.iter().map(|system| measured.value("start", link, system, program, "cold"));
        let limit = Limit::of(measured, link, program).map(|limit| limit.link());
        let cells = times.chain([limit]).map(|time| time.map_or("-".to_string(), text::seconds));
        table.row(std::iter::once(format!("{} %", loss(link))).chain(cells));
    }
    let curve = |system: &&str| {
        let point = |link: &&str| Some((loss(link), measured.value("start", link, system, program, "cold")?));
        let points = links.iter().filter_map(point).collect();
        Curve { label: text::system(system), tone: tone(system), points }
    };
    let lines = Lines {
        title: format!("Execution time of {program} over packet loss, WiFi"),
        x: Axis::logarithmic("packets lost in each direction, logarithmic", Unit::Percent),
        y: Axis::linear("execution time", Unit::Seconds),
        style: Style::Dotted,
        curves: systems.iter().map(curve).collect(),
    };
    lines.html() + &table.html()
}
