//! Starts of programs of which something else was learned: a shorter, a longer or another run of
//! the same program, or the image's version before.

use super::{Figure, heading, network_links, sentences};
use crate::lab::plan::{FIRST, START};
use crate::lab::program::LEARNED_FROM;
use crate::lab::report::html::Table;
use crate::lab::report::measured::Measured;
use crate::lab::report::text;

/// Runnel after it has learned.
const LEARNED: &str = "runnel:learned";

/// Runnel after the image was replaced.
const UPDATED: &str = "runnel:updated";

/// The figure.
pub fn figure(measured: &Measured) -> Figure {
    let links = network_links(measured, START);
    let ours = links.iter().filter_map(|link| {
        let all = measured.systems(START, link).into_iter().filter(|system| is_shown(system));
        let waste = |system: &str, program: &str| {
            Some((format!("{program} {}", text::system(system)), wasted(measured, link, system, program)?))
        };
        let programs = measured.programs(START);
        let shares: Vec<(String, f64)> =
            all.flat_map(|system| programs.iter().filter_map(move |program| waste(system, program))).collect();
        let range = text::range(&shares, text::percent)?;
        Some(format!("Pushed pages that were not used, {}: {range}.", text::link_short(link)))
    });
    Figure {
        id: "siblings",
        title: "Siblings of what was learned, and updates".into(),
        paper: "Not told there.".into(),
        ours: sentences(ours),
        limit: String::new(),
        body: links.iter().map(|link| of_link(measured, link)).collect(),
        remarks: vec![
            "\u{201c}Learned X\u{201d}: the server has learned from starts of X only. \u{201c}Image updated\u{201d}: it \
             has learned from an image that was then replaced by one with a changed file. Compared is with a server \
             that has learned this program alone; after an update, with the server before it."
                .into(),
        ],
    }
}

/// Whether something else was learned than what is started, or may have been.
fn is_shown(system: &str) -> bool {
    system == UPDATED || taught(system).is_some()
}

/// The program that a system has learned, if it is only one.
fn taught(system: &str) -> Option<&str> {
    system.strip_prefix("runnel:")?.strip_prefix(LEARNED_FROM)
}

/// The share of the pushed pages that was not used.
fn wasted(measured: &Measured, link: &str, system: &str, program: &str) -> Option<f64> {
    let value = |name| measured.value(START, link, system, program, name);
    let pushed = value("pages_pushed").filter(|pushed| *pushed > 0.0)?;
    Some(value("pages_wasted")? / pushed)
}

fn of_link(measured: &Measured, link: &str) -> String {
    let mut table =
        Table::new(&["Program", "System", "first start", "later", "of learned", "pages pushed", "not used"]).words(2);
    for program in measured.programs(START) {
        let alone = format!("runnel:{LEARNED_FROM}{program}");
        for system in measured.systems(START, link).into_iter().filter(|system| is_shown(system)) {
            let value = |experiment, name| measured.value(experiment, link, system, program, name);
            let cold = value(START, "cold");
            let first = value(FIRST, "cold");
            let base = if system == UPDATED { LEARNED } else { &alone };
            let base = measured.value(START, link, base, program, "cold").filter(|base| *base > 0.0);
            // After an update it is the first start that counts.
            let judged = if system == UPDATED { first.or(cold) } else { cold };
            if cold.is_none() {
                continue;
            }
            table.row([
                program.to_string(),
                text::system(system),
                first.map_or("-".into(), text::seconds),
                cold.map_or("-".into(), text::seconds),
                judged.zip(base).map_or("-".into(), |(time, base)| text::ratio(time / base)),
                value(START, "pages_pushed").map_or("-".into(), text::plain),
                wasted(measured, link, system, program).map_or("-".into(), text::percent),
            ]);
        }
    }
    if table.is_empty() { String::new() } else { heading(&text::link(link)) + &table.html() }
}
