//! Figures 9 and 10: how latencies of pages are distributed on WiFi, and how they add up.

use super::{Figure, sentences};
use crate::lab::report::html::Table;
use crate::lab::report::limit;
use crate::lab::report::measured::tone;
use crate::lab::report::measured::{Measured, PAPER_KINDS, Place, quantile};
use crate::lab::report::plot::lines::{Axis, Curve, Lines, Style, distribution};
use crate::lab::report::plot::scale::Unit;
use crate::lab::report::text;

const LINK: &str = "wifi";

/// What the paper shows in these two figures is not known to us beyond their kind.
const PAPER: &str = "CDFs on WiFi. The axes and the numbers of the paper's own figure are not known to us.";

/// Latency above which a page counts as waited for: well above a fault, well below a round trip of
/// WiFi.
const WAITED_SECONDS: f64 = 0.0005;

/// Figure 9.
pub fn latencies(measured: &Measured) -> Figure {
    let mut body = String::new();
    let mut waited: Vec<(String, f64)> = Vec::new();
    let mut table = Table::new(&["Program", "System", "p50", "p90", "p99", "longest", "waited for"]).words(2);
    for program in PAPER_KINDS {
        let mut curves = Vec::new();
        for system in measured.systems("touch", LINK) {
            let mut all = measured.series(&place(system, program), "latency").concat();
            all.sort_by(f64::total_cmp);
            let [Some(p50), Some(p90), Some(p99), Some(most)] =
                [0.5, 0.9, 0.99, 1.0].map(|share| quantile(&all, share))
            else {
                continue;
            };
            let late = all.iter().filter(|latency| **latency > WAITED_SECONDS).count() as f64 / all.len() as f64;
            if system == "runnel:learned" {
                waited.push((program.to_string(), late));
            }
            let times = [p50, p90, p99, most].map(text::seconds);
            let names = [program.to_string(), text::system(system)];
            table.row(names.into_iter().chain(times).chain([text::percent(late)]));
            curves.push(Curve { label: text::system(system), tone: tone(system), points: distribution(&all) });
        }
        let lines = Lines {
            title: format!("Latency of the pages of {program}, WiFi"),
            x: Axis::logarithmic("latency of a page, logarithmic", Unit::Seconds),
            y: Axis::linear("share of pages", Unit::Share),
            style: Style::Line,
            curves,
        };
        body.push_str(&lines.html());
    }
    let folded = match table.is_empty() {
        true => String::new(),
        false => format!("<details><summary>Percentiles of all programs</summary>{}</details>\n", table.html()),
    };
    let floor = limit::page_on_demand(LINK).map_or("-".into(), text::seconds);
    Figure {
        id: "figure-9",
        title: "Figure 9: distribution of the latency of a page, WiFi".into(),
        paper: PAPER.into(),
        ours: text::range(&waited, text::percent)
            .map(|range| format!("Learned, longer than 0.5 ms: {range} of pages."))
            .into_iter()
            .collect(),
        limit: format!("A page on demand takes at least {floor}; a page that is already there takes a fault."),
        body: body + &folded,
        remarks: vec!["Pages that arrived before they were touched are the left part of each curve.".into()],
    }
}

/// Figure 10.
pub fn cumulative(measured: &Measured) -> Figure {
    let mut body = String::new();
    let mut sums = Vec::new();
    for program in PAPER_KINDS {
        let mut curves = Vec::new();
        for system in measured.systems("touch", LINK) {
            let Some(series) = measured.typical_series(&place(system, program), "latency") else { continue };
            let mut sum = 0.0;
            let mut points = vec![(0.0, 0.0)];
            for (index, latency) in series.iter().enumerate() {
                sum += latency;
                points.push(((index + 1) as f64, sum));
            }
            if system == "runnel:learned" {
                sums.push((program.to_string(), sum));
            }
            curves.push(Curve { label: text::system(system), tone: tone(system), points });
        }
        let lines = Lines {
            title: format!("Time waited for the pages of {program}, WiFi"),
            x: Axis::linear("pages touched", Unit::Count),
            y: Axis::linear("time since the first touch", Unit::Seconds),
            style: Style::Line,
            curves,
        };
        body.push_str(&lines.html());
    }
    let stream = limit::page_in_stream(LINK).map_or("-".into(), text::seconds);
    Figure {
        id: "figure-10",
        title: "Figure 10: time over pages, WiFi".into(),
        paper: PAPER.into(),
        ours: sentences(text::range(&sums, text::seconds).map(|range| format!("Learned, all pages: {range}."))),
        limit: format!("Uncompressed pages in a full stream rise by {stream} a page; compressed ones by less."),
        body,
        remarks: vec!["Of several runs the one with the median sum is shown.".into()],
    }
}

fn place<'a>(system: &'a str, program: &'a str) -> Place<'a> {
    Place { experiment: "touch", link: LINK, system, program }
}
