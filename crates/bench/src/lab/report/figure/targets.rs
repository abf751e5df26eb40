//! The bars of the project: one table, and under it every case.

use super::Figure;
use crate::lab::report::html::{Cell, Table, verdict_words};
use crate::lab::report::measured::Measured;
use crate::lab::report::target::{self, Verdict};

/// The figure.
pub fn figure(measured: &Measured) -> Figure {
    let targets = target::all(measured);
    let mut table = Table::new(&["Bar", "Demanded", "Paper", "Worst case", "Best case", "Cases", "Verdict"]).words(4);
    let mut cases = Table::new(&["Bar", "Case", "Value", "Demanded", "Verdict"]).words(2);
    for target in targets.iter() {
        let (_, word) = verdict_words(target.verdict());
        let verdict = match target.verdict() {
            Verdict::NotMeasured => Cell::from(word),
            verdict => Cell::judged(word, verdict == Verdict::Met),
        };
        let worst = target.worst();
        let best = target.best().map(|case| target.show(case.value));
        let paper = if target.paper.is_empty() { "not there" } else { target.paper };
        let held = target.cases.iter().filter(|case| target.holds(case)).count();
        let count = format!("{held} of {}", target.cases.len());
        let worst = worst.map(|case| format!("{} ({})", target.show(case.value), case.label));
        table.row([
            Cell::from(target.name),
            target.demand().into(),
            paper.into(),
            worst.into(),
            best.into(),
            count.into(),
            verdict,
        ]);
        for case in &target.cases {
            let holds = target.holds(case);
            let verdict = Cell::judged(if holds { "met" } else { "missed" }, holds);
            let cells = [target.name, &case.label, &target.show(case.value), &target.demand()].map(Cell::from);
            cases.row(cells.into_iter().chain([verdict]));
        }
    }
    let count = |verdict| targets.iter().filter(|target| target.verdict() == verdict).count();
    let every = if cases.is_empty() {
        String::new()
    } else {
        format!("<details><summary>Every case</summary>{}</details>\n", cases.html())
    };
    let body = if cases.is_empty() { String::new() } else { table.html() + &every };
    Figure {
        id: "bars",
        title: "Bars".into(),
        paper: "See the column \u{201c}Paper\u{201d}.".into(),
        ours: vec![format!("{} met, {} missed.", count(Verdict::Met), count(Verdict::Missed))],
        limit: "See \u{201c}Physical limit of a start\u{201d}.".into(),
        body,
        remarks: vec![
            "A bar is met if every measured case of it holds: each program, each card, each system named. Runnel is \
             always \u{201c}learned from another device\u{201d}, started cold."
                .into(),
            "\u{201c}Limit of the link\u{201d} is judged against bytes needed / rate + one round trip, which leaves \
             no time to compute; \u{201c}limit of link and CPU\u{201d} lets the program's own warm time overlap \
             with the transfer."
                .into(),
        ],
    }
}
