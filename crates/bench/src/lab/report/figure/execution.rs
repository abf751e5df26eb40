//! Figure 8: execution times of the programs.

use super::{Figure, heading, lower_sentence, sentences};
use crate::lab::report::html::Table;
use crate::lab::report::limit::Limit;
use crate::lab::report::measured::tone;
use crate::lab::report::measured::{Measured, PAPER_KINDS, Place};
use crate::lab::report::plot::bars::{Bar, Bars, Group};
use crate::lab::report::plot::scale::Unit;
use crate::lab::report::text;

const LINKS: [&str; 2] = ["lan", "wifi"];

/// Systems that are drawn; the table has all.
const DRAWN: [&str; 5] = ["local", "sd:a", "nfs", "runnel:paper", "runnel:learned"];

/// The figure.
pub fn figure(measured: &Measured) -> Figure {
    let links = measured.links("start");
    let body: String = LINKS.iter().filter(|link| links.contains(link)).map(|link| of_link(measured, link)).collect();
    let compared = |link: &'static str, system: &'static str, base: &'static str| {
        let share = |program: &&str| {
            Some((program.to_string(), measured.lower("start", link, [system, base], program, "cold")?))
        };
        let shares: Vec<(String, f64)> = PAPER_KINDS.iter().filter_map(share).collect();
        lower_sentence(system, base, link, &shares)
    };
    let ours = LINKS.iter().flat_map(|link| {
        ["runnel:paper", "runnel:learned"]
            .iter()
            .flat_map(|system| ["nfs", "sd:a"].map(|base| compared(link, system, base)))
    });
    let floors: Vec<(String, f64)> = PAPER_KINDS
        .iter()
        .filter_map(|program| Some((program.to_string(), Limit::of(measured, "wifi", program)?.link())))
        .collect();
    Figure {
        id: "figure-8",
        title: "Figure 8: execution times, cold".into(),
        paper: "20 to 60.7 % below NFS on WiFi; 14 to 36 % below an SD card; at best 22.9 % above a local disk.".into(),
        ours: sentences(ours),
        limit: text::range(&floors, text::seconds)
            .map_or(String::new(), |range| format!("Bytes needed / rate + one round trip on WiFi: {range}.")),
        body,
        remarks: vec![
            "Bars are relative to NFS, times are written beside them; whiskers are the fastest and the slowest run. \
             The tick at \u{201c}Runnel, learned\u{201d} is the limit of the link."
                .into(),
        ],
    }
}

fn of_link(measured: &Measured, link: &str) -> String {
    let programs = measured.programs("start");
    let systems = measured.systems("start", link);
    let systems: Vec<&str> = systems.into_iter().filter(|system| is_of_figure(system)).collect();
    let columns: Vec<String> = systems.iter().map(|system| text::system(system)).collect();
    let head: Vec<&str> =
        ["Program"].into_iter().chain(columns.iter().map(String::as_str)).chain(["limit", "learned / local"]).collect();
    let mut table = Table::new(&head);
    let mut groups = Vec::new();
    for program in programs {
        let cold = |system: &str| measured.value("start", link, system, program, "cold");
        let limit = Limit::of(measured, link, program).map(|limit| limit.link());
        let times: Vec<Option<f64>> = systems.iter().map(|system| cold(system)).collect();
        if times.iter().all(Option::is_none) {
            continue;
        }
        let ratio = cold("runnel:learned").zip(cold("local")).filter(|(_, local)| *local > 0.0);
        let cells = times.into_iter().chain([limit]).map(|time| time.map_or("-".to_string(), text::seconds));
        let last = ratio.map_or("-".to_string(), |(ours, local)| text::ratio(ours / local));
        table.row(std::iter::once(program.to_string()).chain(cells).chain([last]));
        groups.extend(group(measured, link, program, limit));
    }
    if table.is_empty() {
        return String::new();
    }
    let title = format!("Execution time relative to NFS, {}", text::link(link));
    let bars =
        Bars { title, axis: "execution time, NFS = 100 %".into(), unit: Unit::Share, groups, legend: Vec::new() };
    heading(&text::link(link)) + &table.html() + &bars.html()
}

/// The paper's systems and our own stages of learning; others have a section of their own.
fn is_of_figure(system: &str) -> bool {
    DRAWN.contains(&system) || ["sd:b", "runnel:none", "runnel:once"].contains(&system)
}

fn group(measured: &Measured, link: &str, program: &str, limit: Option<f64>) -> Option<Group> {
    let nfs = measured.value("start", link, "nfs", program, "cold").filter(|nfs| *nfs > 0.0)?;
    let bar = |system: &str| {
        let all = measured.summary(&Place { experiment: "start", link, system, program }, "cold")?;
        let mut bar = Bar::new(text::system(system), tone(system), all.median / nfs, text::seconds(all.median));
        bar.spread = Some((all.min / nfs, all.max / nfs));
        bar.mark = limit.filter(|_| system == "runnel:learned").map(|limit| limit / nfs);
        Some(bar)
    };
    Some(Group { label: program.to_string(), bars: DRAWN.into_iter().filter_map(bar).collect() })
}
