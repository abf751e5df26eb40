//! Table I: where the time of one cold page goes.

use super::{Figure, PAPER_UNKNOWN, heading, network_links};
use crate::lab::report::html::Table;
use crate::lab::report::limit;
use crate::lab::report::measured::{Measured, Place};
use crate::lab::report::plot::bars::{Bar, Bars, Group};
use crate::lab::report::plot::scale::Unit;
use crate::lab::report::plot::{Key, neutral_tone};
use crate::lab::report::text;

/// Parts of a page's time as values of a record, as words, and their colours.
const PARTS: [(&str, &str, usize); 3] = [("map", "mapping", 0), ("middle", "middle", 1), ("io", "I/O", 2)];

/// The figure.
pub fn figure(measured: &Measured) -> Figure {
    let links = network_links(measured, "page");
    let body: String = links.iter().map(|link| of_link(measured, link)).collect();
    let floor = |link: &&str| {
        let page = limit::page_on_demand(link)?;
        Some(format!("{} {}", text::link_short(link), text::seconds(page)))
    };
    let floors: Vec<String> = ["lan", "wifi"].iter().filter_map(floor).collect();
    let middle = links
        .iter()
        .filter_map(|link| Some((link.to_string(), middle_of_learned(measured, link)?)))
        .collect::<Vec<_>>();
    let ours = middle.iter().map(|(link, time)| {
        format!("Layers of Runnel between mapping and I/O, {}: {}.", text::link_short(link), text::seconds(*time))
    });
    Figure {
        id: "table-1",
        title: "Table I: breakdown of one cold page".into(),
        paper: PAPER_UNKNOWN.into(),
        ours: ours.collect(),
        limit: format!("An uncompressed page on demand over an empty link: {}.", floors.join("; ")),
        body,
        remarks: vec![
            "Mapping is the same fault when the page is in the page cache but not mapped. I/O is what the medium \
             alone takes: over a network a bare TCP echo of a request and 4 KiB, on a card a direct read of 4 \
             KiB. Middle is the rest: file system, client, server."
                .into(),
        ],
    }
}

/// What Runnel's own layers take of a page on demand.
fn middle_of_learned(measured: &Measured, link: &str) -> Option<f64> {
    let programs = measured.programs("page");
    let systems = measured.systems("page", link);
    let ours = systems.into_iter().filter(|system| system.starts_with("runnel:"));
    let values = ours.flat_map(|system| {
        programs.iter().filter_map(move |program| measured.value("page", link, system, program, "middle"))
    });
    values.min_by(f64::total_cmp)
}

fn of_link(measured: &Measured, link: &str) -> String {
    let programs = measured.programs("page");
    let mut table = Table::new(&["System", "mapping", "middle", "I/O", "total", "middle of total", "range of runs"]);
    let mut group = Group::default();
    for system in measured.systems("page", link) {
        for program in &programs {
            let place = Place { experiment: "page", link, system, program };
            let value = |name: &str| measured.summary(&place, name).map(|summary| summary.median);
            let Some(total) = value("total") else { continue };
            let name = match programs.len() {
                1 => text::system(system),
                _ => format!("{}, {program}", text::system(system)),
            };
            let seconds = |name: &str| value(name).map_or("-".to_string(), text::seconds);
            let share =
                value("middle").filter(|_| total > 0.0).map_or("-".into(), |middle| text::percent(middle / total));
            let spread = measured.summary(&place, "total");
            let spread =
                spread.map_or("-".into(), |all| format!("{} to {}", text::seconds(all.min), text::seconds(all.max)));
            table.row([
                name.clone(),
                seconds("map"),
                seconds("middle"),
                seconds("io"),
                seconds("total"),
                share,
                spread,
            ]);
            let part =
                |(value_name, _, tone): &(&str, &str, usize)| Some((value(value_name)?.max(0.0), neutral_tone(*tone)));
            let parts: Vec<(f64, usize)> = PARTS.iter().filter_map(part).collect();
            let parts = if parts.is_empty() { vec![(total, neutral_tone(0))] } else { parts };
            group.bars.push(Bar { label: name, parts, spread: None, mark: None, text: text::seconds(total) });
        }
    }
    if table.is_empty() {
        return String::new();
    }
    let title = format!("One cold page, {}", text::link(link));
    let legend = PARTS.iter().map(|(_, name, tone)| Key::area(*name, neutral_tone(*tone))).collect();
    let bars = Bars { title, axis: "time of a page".into(), unit: Unit::Seconds, groups: vec![group], legend };
    heading(&text::link(link)) + &table.html() + &bars.html()
}
