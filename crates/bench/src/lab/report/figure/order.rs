//! Figure 1: the order in which a program touches its pages against their order in its files.

use std::collections::BTreeMap;

use super::{Figure, PAPER_UNKNOWN};
use crate::lab::report::html::Table;
use crate::lab::report::measured::{Measured, PAPER_KINDS, Place};
use crate::lab::report::plot::lines::{Axis, Curve, Lines, Style};
use crate::lab::report::plot::neutral_tone;
use crate::lab::report::plot::scale::Unit;
use crate::lab::report::text;

/// Programs that get a plot; all get a row in the table.
const PLOTS_MAX: usize = 4;

/// The figure.
pub fn figure(measured: &Measured) -> Figure {
    let orders: Vec<(&str, Vec<f64>)> =
        PAPER_KINDS.iter().filter_map(|program| Some((*program, order(measured, program)?))).collect();
    let mut table = Table::new(&["Program", "Pages", "Next page follows", "Pages in a row, mean", "Steps backwards"]);
    let mut sequential = Vec::new();
    for (program, positions) in &orders {
        let steps = (positions.len() - 1).max(1) as f64;
        let following = positions.windows(2).filter(|pair| pair[1] == pair[0] + 1.0).count() as f64;
        let backwards = positions.windows(2).filter(|pair| pair[1] < pair[0]).count() as f64;
        let in_a_row = positions.len() as f64 / (positions.len() as f64 - following);
        sequential.push((program.to_string(), following / steps));
        table.row([
            program.to_string(),
            text::count(positions.len() as f64),
            text::percent(following / steps),
            text::significant(in_a_row),
            text::percent(backwards / steps),
        ]);
    }
    // The largest first: they show most.
    let mut drawn: Vec<&(&str, Vec<f64>)> = orders.iter().collect();
    drawn.sort_by_key(|(_, positions)| std::cmp::Reverse(positions.len()));
    let plots: String =
        drawn.into_iter().take(PLOTS_MAX).map(|(program, positions)| plot(program, positions)).collect();
    Figure {
        id: "figure-1",
        title: "Figure 1: sequential order against execution order".into(),
        paper: PAPER_UNKNOWN.into(),
        ours: text::range(&sequential, text::percent)
            .map(|range| format!("The next page touched is the next page of the file in {range} of steps."))
            .into_iter()
            .collect(),
        limit: String::new(),
        body: if orders.is_empty() { String::new() } else { table.html() + &plots },
        remarks: vec![
            "Files are laid one after the other in the order of their paths; only the part of a file up to its last \
             touched page counts. A program read in sequence would be a straight line."
                .into(),
        ],
    }
}

/// Position of each touched page, in order of first touch: as the guest sent it, else from the page
/// list.
fn order(measured: &Measured, program: &str) -> Option<Vec<f64>> {
    for link in measured.links("touch") {
        for system in measured.systems("touch", link) {
            let place = Place { experiment: "touch", link, system, program };
            if let Some(order) = measured.series(&place, "order").into_iter().next().filter(|order| order.len() > 1) {
                return Some(order);
            }
        }
    }
    let pages = measured.pages.get(program).filter(|pages| pages.len() > 1)?;
    let mut lengths: BTreeMap<&str, u64> = BTreeMap::new();
    for (path, page) in pages {
        let length = lengths.entry(path).or_default();
        *length = (*length).max(page.saturating_add(1));
    }
    let mut start = 0u64;
    let mut starts: BTreeMap<&str, u64> = BTreeMap::new();
    for (path, length) in lengths {
        starts.insert(path, start);
        start = start.saturating_add(length);
    }
    Some(pages.iter().map(|(path, page)| starts[path.as_str()].saturating_add(*page) as f64).collect())
}

fn plot(program: &str, positions: &[f64]) -> String {
    let points: Vec<(f64, f64)> = positions.iter().enumerate().map(|(index, page)| (index as f64, *page)).collect();
    let lines = Lines {
        title: format!("Pages of {program} in the order of their first touch"),
        x: Axis::linear("order of execution", Unit::Count),
        y: Axis::linear("position in the files, pages", Unit::Count),
        style: Style::Points,
        curves: vec![Curve { label: program.to_string(), tone: neutral_tone(0), points }],
    };
    lines.html()
}
