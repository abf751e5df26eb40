//! Figures 7a and 7c: what connections and page pool gain on the device, and what caching gains at
//! the server.

use super::{Figure, heading};
use crate::lab::report::html::Table;
use crate::lab::report::limit;
use crate::lab::report::measured::{Measured, Place};
use crate::lab::report::plot::bars::{Bar, Bars, Group};
use crate::lab::report::plot::neutral_tone;
use crate::lab::report::plot::scale::Unit;
use crate::lab::report::target::{CACHE_BASES, IO_BASES, lower_by, places};
use crate::lab::report::text;

/// A mode, what it is called, its colour.
type Mode = (&'static str, &'static str, usize);

const IO_MODES: [Mode; 4] = [
    ("runnel:io-alloc-short", "allocation, short", 4),
    ("runnel:io-pool-short", "pool, short", 1),
    ("runnel:io-alloc-long", "allocation, long", 2),
    ("runnel:io-pool-long", "pool, long", 0),
];

const CACHE_MODES: [Mode; 5] = [
    ("runnel:cache-none", "none", 4),
    ("runnel:cache-madvise", "madvise", 1),
    ("runnel:cache-nv", "variance", 2),
    ("runnel:cache-nv-async", "variance, async", 3),
    ("runnel:cache-bundle", "bundles", 0),
];

/// The same with the store on a hard disk.
const DISK_MODES: [Mode; 3] = [
    ("runnel:disk-none", "none", 4),
    ("runnel:disk-nv-async", "variance, async", 3),
    ("runnel:disk-bundle", "bundles", 0),
];

/// An experiment and the value of its records that is compared.
type Basis = (&'static str, &'static str);

/// Figure 7a.
pub fn io_path(measured: &Measured) -> Figure {
    let (body, shares) = compared(measured, &IO_BASES, &IO_MODES, "runnel:io-pool-long");
    let floors = ["lan", "wifi"].map(|link| {
        let page = limit::page_on_demand(link).map_or("-".into(), text::seconds);
        format!("{} {page}", text::link_short(link))
    });
    Figure {
        id: "figure-7a",
        title: "Figure 7a: long connections and page pool".into(),
        paper: "The optimised I/O path takes 9 to 25 % less than short connections and synchronous allocation.".into(),
        ours: text::range(&shares, text::percent)
            .map(|range| format!("Pool and long connections: {range} lower."))
            .into_iter()
            .collect(),
        limit: format!("An uncompressed page on demand: {}.", floors.join("; ")),
        body,
        remarks: vec![
            "Only pages on demand: no push, no read-ahead, a page per request. Short opens a connection for each \
             request; allocation asks the kernel for each page's buffer."
                .into(),
        ],
    }
}

/// Figure 7c.
pub fn providers(measured: &Measured) -> Figure {
    let (mut body, shares) = compared(measured, &CACHE_BASES, &CACHE_MODES, "runnel:cache-nv-async");
    let (on_disk, _) = compared(measured, &CACHE_BASES, &DISK_MODES, "runnel:disk-nv-async");
    if !on_disk.is_empty() {
        body.push_str(&heading("With the store on a hard disk (8 ms for each request)"));
        body.push_str(&on_disk);
    }
    let (_, bundles) = compared(measured, &CACHE_BASES, &CACHE_MODES, "runnel:cache-bundle");
    let sentence = |name: &str, shares: &[(String, f64)]| {
        text::range(shares, text::percent).map_or(String::new(), |range| format!("{name}: {range} lower than none."))
    };
    let ours = [sentence("Asynchronous variance", &shares), sentence("Bundles", &bundles)];
    Figure {
        id: "figure-7c",
        title: "Figure 7c: caching at the server".into(),
        paper: "Normalised variance with asynchronous reads (NV Async): 63.5 to 88.9 % lower latency than none.".into(),
        ours: super::sentences(ours),
        limit: "A server that has every page in memory takes what \u{201c}Physical limit of a start\u{201d} says."
            .into(),
        body,
        remarks: vec![
            "Variance is the normalised variance of the paper. The server has its images on a slow card and starts \
             with an empty page cache. Compared is the mean latency of a page if it was measured, else the time \
             reads of the program waited, else its execution time; the table says which."
                .into(),
        ],
    }
}

/// Tables and bars by link, and the reductions of `best` against the first mode.
fn compared(measured: &Measured, bases: &[Basis], modes: &[Mode], best: &str) -> (String, Vec<(String, f64)>) {
    let mut body = String::new();
    let mut shares = Vec::new();
    let mut links: Vec<&str> = Vec::new();
    let places = places(measured, bases);
    for (link, program) in &places {
        if let Some((share, _)) = lower_by(measured, bases, link, [best, modes[0].0], program) {
            shares.push((format!("{program}, {link}"), share));
        }
        if !links.contains(link) {
            links.push(link);
        }
    }
    for link in links {
        let programs: Vec<&str> = places.iter().filter(|place| place.0 == link).map(|place| place.1).collect();
        body.push_str(&of_link(measured, bases, modes, link, &programs));
    }
    (body, shares)
}

fn of_link(measured: &Measured, bases: &[Basis], modes: &[Mode], link: &str, programs: &[&str]) -> String {
    let mut table =
        Table::new(&["Program", "Mode", "Compared", "Time", "Lower than the first", "Execution", "Waited"]).words(3);
    let mut groups = Vec::new();
    for program in programs {
        let Some((basis, name)) = basis(measured, bases, modes, link, program) else { continue };
        let mut group = Group { label: format!("{program}, {name}"), bars: Vec::new() };
        for (system, label, tone) in modes {
            let Some(all) = measured.summary(&Place { experiment: basis.0, link, system, program }, basis.1) else {
                continue;
            };
            let share = measured.lower(basis.0, link, [system, modes[0].0], program, basis.1);
            let other = |value: &str| {
                let found =
                    ["cache", "start"].iter().find_map(|other| measured.value(other, link, system, program, value));
                found.map_or("-".to_string(), text::seconds)
            };
            let time = text::seconds(all.median);
            let lower = share.map_or("-".to_string(), text::percent);
            let cells = [program, *label, name].map(str::to_string);
            table.row(cells.into_iter().chain([time.clone(), lower, other("cold"), other("stall")]));
            let mut bar = Bar::new(*label, neutral_tone(*tone), all.median, time);
            bar.spread = Some((all.min, all.max));
            group.bars.push(bar);
        }
        groups.push(group);
    }
    if table.is_empty() {
        return String::new();
    }
    // Times of programs differ by orders of magnitude, so each has a drawing of its own.
    let drawing = |group: Group| {
        let title = format!("{}, {}", group.label, text::link(link));
        let groups = vec![Group { label: String::new(), ..group }];
        Bars { title, axis: String::new(), unit: Unit::Seconds, groups, legend: Vec::new() }.html()
    };
    heading(&text::link(link)) + &table.html() + &groups.into_iter().map(drawing).collect::<String>()
}

/// The first basis that was measured for the mode all others are compared with, and its name.
fn basis(
    measured: &Measured,
    bases: &[Basis],
    modes: &[Mode],
    link: &str,
    program: &str,
) -> Option<(Basis, &'static str)> {
    let known = |(experiment, value): &&Basis| {
        let count =
            modes.iter().filter(|mode| measured.value(experiment, link, mode.0, program, value).is_some()).count();
        count >= 2 || count == 1 && bases.len() == 1
    };
    let basis = bases.iter().find(known)?;
    let name = match basis.1 {
        "mean" => "mean latency of a page",
        "stall" => "time that reads waited",
        _ => "execution time",
    };
    Some((*basis, name))
}
