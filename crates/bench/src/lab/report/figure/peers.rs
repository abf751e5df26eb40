//! Systems the paper did not compare with, on the same links.

use super::{Figure, heading};
use crate::lab::report::html::Table;
use crate::lab::report::limit::Limit;
use crate::lab::report::measured::tone;
use crate::lab::report::measured::{Measured, Place, loss};
use crate::lab::report::plot::bars::{Bar, Bars, Group};
use crate::lab::report::plot::scale::Unit;
use crate::lab::report::text;

/// Systems that are drawn; the table has all.
const DRAWN: [&str; 9] =
    ["nfs", "runnel:learned", "squashfs", "erofs", "nydus", "casync", "sshfs", "httpdirfs", "rclone"];

/// Systems without which there is nothing to compare here.
const PEERS: [&str; 7] = ["squashfs", "erofs", "nydus", "casync", "sshfs", "httpdirfs", "rclone"];

/// The figure.
pub fn figure(measured: &Measured) -> Figure {
    let has_peers = |link: &&str| measured.systems("start", link).iter().any(|system| PEERS.contains(system));
    let links: Vec<&str> =
        measured.links("start").into_iter().filter(|link| loss(link) == 0.0).filter(has_peers).collect();
    let body: String = links.iter().map(|link| of_link(measured, link)).collect();
    let nearest = links.iter().filter_map(|link| {
        let ratio = |program: &str| {
            let ours = measured.value("start", link, "runnel:learned", program, "cold").filter(|ours| *ours > 0.0)?;
            let theirs = PEERS.iter().filter_map(|peer| measured.value("start", link, peer, program, "cold"));
            Some((program.to_string(), theirs.min_by(f64::total_cmp)? / ours))
        };
        let ratios: Vec<(String, f64)> = measured.programs("start").into_iter().filter_map(ratio).collect();
        let range = text::range(&ratios, text::ratio)?;
        Some(format!("The fastest of them against Runnel, learned, {}: {range} its time.", text::link_short(link)))
    });
    let ours = super::sentences(nearest);
    let floors: Vec<String> = links.iter().filter_map(|link| floors(measured, link)).collect();
    Figure {
        id: "peers",
        title: "Peers beyond the paper".into(),
        paper: "Not compared there.".into(),
        ours,
        limit: floors.join(" "),
        body,
        remarks: vec![
            "Bars are relative to Runnel, learned, = 1x; times are written beside them. Mounting is not \
             part of a start."
                .into(),
        ],
    }
}

fn floors(measured: &Measured, link: &str) -> Option<String> {
    let floor = |program: &str| Some((program.to_string(), Limit::of(measured, link, program)?.link()));
    let floors: Vec<(String, f64)> = measured.programs("start").into_iter().filter_map(floor).collect();
    text::range(&floors, text::seconds).map(|range| format!("{}: {range}.", text::link_short(link)))
}

fn of_link(measured: &Measured, link: &str) -> String {
    let programs = measured.programs("start");
    let systems = measured.systems("start", link);
    let head: Vec<&str> = ["System"].into_iter().chain(programs.iter().copied()).collect();
    let [mut cold, mut received, mut mount] = [(); 3].map(|()| Table::new(&head));
    for system in &systems {
        for (table, value, show) in [
            (&mut cold, "cold", text::seconds as fn(f64) -> String),
            (&mut received, "rx_bytes", text::bytes),
            (&mut mount, "mount", text::seconds),
        ] {
            let numbers: Vec<Option<f64>> =
                programs.iter().map(|program| measured.value("start", link, system, program, value)).collect();
            if numbers.iter().any(Option::is_some) {
                let cells = numbers.into_iter().map(|number| number.map_or("-".to_string(), show));
                table.row(std::iter::once(text::system(system)).chain(cells));
            }
        }
    }
    let limits: Vec<Option<f64>> =
        programs.iter().map(|program| Limit::of(measured, link, program).map(|limit| limit.link())).collect();
    if limits.iter().any(Option::is_some) {
        let cells = limits.into_iter().map(|limit| limit.map_or("-".to_string(), text::seconds));
        cold.row(std::iter::once("limit of the link".to_string()).chain(cells));
    }
    let groups: Vec<Group> = programs.iter().filter_map(|program| group(measured, link, program)).collect();
    let title = format!("Cold start relative to Runnel, learned, {}", text::link(link));
    let bars = Bars {
        title,
        axis: "execution time, Runnel learned = 1x".into(),
        unit: Unit::Ratio,
        groups,
        legend: Vec::new(),
    };
    let more = |name: &str, table: &Table| {
        if table.is_empty() {
            String::new()
        } else {
            format!("<details><summary>{name}</summary>{}</details>\n", table.html())
        }
    };
    [
        heading(&format!("Cold start, {}", text::link(link))),
        cold.html(),
        more("Bytes received during the start", &received),
        more("Time to mount", &mount),
        bars.html(),
    ]
    .concat()
}

fn group(measured: &Measured, link: &str, program: &str) -> Option<Group> {
    let ours = measured.value("start", link, "runnel:learned", program, "cold").filter(|ours| *ours > 0.0)?;
    let bar = |system: &str| {
        let all = measured.summary(&Place { experiment: "start", link, system, program }, "cold")?;
        let mut bar = Bar::new(text::system(system), tone(system), all.median / ours, text::seconds(all.median));
        bar.spread = Some((all.min / ours, all.max / ours));
        Some(bar)
    };
    Some(Group { label: program.to_string(), bars: DRAWN.into_iter().filter_map(bar).collect() })
}
