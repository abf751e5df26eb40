//! The physical limit of a start, and how far from it a learned start is.

use super::{Figure, heading, sentences};
use crate::lab::report::html::{Cell, Table};
use crate::lab::report::limit::Limit;
use crate::lab::report::measured::tone;
use crate::lab::report::measured::{Measured, loss};
use crate::lab::report::plot::bars::{Bar, Bars, Group};
use crate::lab::report::plot::scale::Unit;
use crate::lab::report::plot::{Key, neutral_tone};
use crate::lab::report::text;

/// The link that has a bar.
const JUDGED_LINK: &str = "wifi";

/// The bar, for the colour of a cell.
const RATIO_MAX: f64 = 1.25;

/// The figure.
pub fn figure(measured: &Measured) -> Figure {
    let links: Vec<&str> =
        measured.links("start").into_iter().filter(|link| *link != "-" && loss(link) == 0.0).collect();
    let body: String = links.iter().map(|link| of_link(measured, link)).collect();
    let ours = links.iter().map(|link| {
        let ratios = |floor: fn(&Limit) -> Option<f64>| {
            let ratio = |program: &str| Some((program.to_string(), distance(measured, link, program, floor)?));
            let ratios: Vec<(String, f64)> = measured.programs("start").into_iter().filter_map(ratio).collect();
            text::range(&ratios, text::ratio)
        };
        let of_link = ratios(|limit| Some(limit.link())).map(|range| format!("{range} the limit of the link"));
        let of_both = ratios(Limit::overlapped).map(|range| format!("{range} that of link and CPU"));
        let both: Vec<String> = of_link.into_iter().chain(of_both).collect();
        if both.is_empty() { String::new() } else { format!("{}: {}.", text::link_short(link), both.join("; ")) }
    });
    Figure {
        id: "limit",
        title: "Physical limit of a start".into(),
        paper: "Not given there.".into(),
        ours: sentences(ours),
        limit: "Link: bytes needed / rate + one round trip. Link and CPU: the larger of transfer and warm time, and \
                one round trip. Sum: transfer, warm time and one round trip."
            .into(),
        body,
        remarks: vec![
            "Bytes needed are what a learned start received, scaled to the pages that it touches; they count packet \
             headers and are compressed as Runnel compresses. One round trip: the first miss asks, the rest can \
             be under way by then; connecting is part of mounting."
                .into(),
            "Warm is a start from the page cache of a local disk. No system can undercut link and CPU, since a \
             program's computing and the transfer overlap at best; the sum is what fetching everything first \
             takes. A start below the limit of the link had pages from the mount already: compare the bytes \
             received before the start."
                .into(),
        ],
    }
}

/// Time of a learned start over its floor.
fn distance(measured: &Measured, link: &str, program: &str, floor: impl Fn(&Limit) -> Option<f64>) -> Option<f64> {
    let cold = measured.value("start", link, "runnel:learned", program, "cold")?;
    let floor = floor(&Limit::of(measured, link, program)?)?;
    (floor > 0.0).then(|| cold / floor)
}

fn of_link(measured: &Measured, link: &str) -> String {
    let mut table = Table::new(&[
        "Program",
        "Needed",
        "Transfer",
        "Round trip",
        "Warm",
        "Link",
        "Link and CPU",
        "Sum",
        "Learned",
        "/ link",
        "/ link and CPU",
        "/ sum",
        "Before the start",
    ]);
    let mut groups = Vec::new();
    for program in measured.programs("start") {
        let Some(limit) = Limit::of(measured, link, program) else { continue };
        let learned = |value: &str| measured.value("start", link, "runnel:learned", program, value);
        let Some(cold) = learned("cold") else { continue };
        let seconds = |time: Option<f64>| Cell::from(time.map(text::seconds));
        let over = |floor: Option<f64>| match floor.filter(|floor| *floor > 0.0) {
            Some(floor) if link == JUDGED_LINK => Cell::judged(text::ratio(cold / floor), cold / floor <= RATIO_MAX),
            Some(floor) => Cell::from(text::ratio(cold / floor)),
            None => Cell::from("-"),
        };
        table.row([
            Cell::from(program),
            text::bytes(limit.bytes).into(),
            seconds(Some(limit.transfer)),
            seconds(Some(limit.round_trip)),
            seconds(limit.warm),
            seconds(Some(limit.link())),
            seconds(limit.overlapped()),
            seconds(limit.summed()),
            seconds(Some(cold)),
            over(Some(limit.link())),
            over(limit.overlapped()),
            limit.summed().filter(|sum| *sum > 0.0).map(|sum| text::ratio(cold / sum)).into(),
            learned("mount_rx_bytes").map(text::bytes).into(),
        ]);
        let parts = [(limit.round_trip, 4), (limit.transfer, 1)].into_iter().chain(limit.warm.map(|warm| (warm, 2)));
        let floor = Bar {
            label: "limit".into(),
            parts: parts.map(|(time, index)| (time, neutral_tone(index))).collect(),
            spread: None,
            mark: limit.overlapped(),
            text: limit.overlapped().map_or(String::new(), text::seconds),
        };
        let bars = vec![Bar::new("learned", tone("runnel:learned"), cold, text::seconds(cold)), floor];
        groups.push(Group { label: program.to_string(), bars });
    }
    if table.is_empty() {
        return String::new();
    }
    let key = |name: &str, index: usize| Key::area(name, neutral_tone(index));
    let legend = vec![
        Key::area("learned start", tone("runnel:learned")),
        key("round trip", 4),
        key("transfer", 1),
        key("warm start on a local disk", 2),
    ];
    let title = format!("Learned start and its limit, {}; the tick is the limit of link and CPU", text::link(link));
    let bars = Bars { title, axis: "time".into(), unit: Unit::Seconds, groups, legend };
    heading(&text::link(link)) + &table.html() + &bars.html()
}
