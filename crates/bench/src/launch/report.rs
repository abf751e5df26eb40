//! The page of a run: bars, the models, times of every program and mode on each disk. One file,
//! readable on a phone, light and dark.

use std::fmt::Write;

use disk::Model;
use report::html::{Table, escape, head};
use report::plot::bars::{Bar as Drawn, Bars, Group};
use report::plot::neutral_tone;
use report::plot::scale::Unit;
use report::table::aligned;
use report::text::{bytes, count, percent, seconds};

use super::bar;
use super::place::Run;
use super::product;
use super::program::Program;
use super::results::Results;
use super::run::Mode;
use crate::lab::report::About;
use crate::pack::report::{section, summary};

/// What each mode does, for the reader.
const MODES: [(Mode, &str); 10] = [
    (Mode::Cold, "Nothing cached, nothing prefetched; the kernel reads ahead 128 KiB, its default."),
    (Mode::Warm, "Everything cached: what a start takes without a disk."),
    (
        Mode::Gate,
        "Exact knowledge. Folders are listed and files opened in the order of inodes by four threads; only then the \
         program starts, while its touched pages are asked for in the order of the disk. Time runs from the first open.",
    ),
    (Mode::Overlap, "The same, but the program starts at once, beside the opens."),
    (
        Mode::Windows,
        "Exact knowledge. Touched pages in windows of 32 MiB in the order of first touches, each in the order of the \
         disk; the program starts at once. Not on rotating disks.",
    ),
    (Mode::ReadAhead, "Cold, and the kernel reads ahead 512 KiB."),
    (
        Mode::Files,
        "Every file that the program touches is read whole, in the order of first touches, beside the program: what \
         vmtouch does.",
    ),
    (
        Mode::Preload,
        "All parts of files that its processes map are read, in the order of the disk, beside the program: what preload \
         knows.",
    ),
    (
        Mode::Runnel,
        "By `runnel launch`, after two recorded runs; its binary is in memory, its libraries are on the disk.",
    ),
    (Mode::RunnelWarm, "By `runnel launch` with everything cached: what it costs when there is nothing to gain."),
];

/// Modes of the figures.
const DRAWN: [Mode; 6] = [Mode::Cold, Mode::Runnel, Mode::ReadAhead, Mode::Files, Mode::Preload, Mode::Warm];

/// The whole page.
pub fn page(results: &Results, about: &About) -> String {
    let mut html = head(&format!("Runnel launch, {} at {}", about.date, about.commit));
    html.push_str(&header(results, about));
    html.push_str(&summary(&bar::all(results)));
    html.push_str("<main>\n");
    for model in disk::MODELS.iter().filter(|model| results.disks().contains(&model.name)) {
        let body =
            format!("<p>{}</p>\n{}{}", escape(model.title), figure(results, model), times(results, model).html());
        section(&mut html, &format!("disk-{}", model.name), &format!("Starts from {}", model.name), &body);
    }
    section(&mut html, "bounds", "What a perfect prefetch saves", &bounds(results).html());
    section(&mut html, "bytes", "Bytes from the disk", &reads(results).html());
    section(&mut html, "programs", "Programs", &programs(results).html());
    section(&mut html, "launcher", "What the launcher told", &launcher(results).html());
    section(&mut html, "modes", "Modes", &modes().html());
    html.push_str("</main></body></html>\n");
    html
}

fn header(results: &Results, about: &About) -> String {
    let mut html = String::from("<header><h1>Runnel launch report</h1>\n<dl class=\"about\">");
    let facts =
        [("Date", &about.date), ("Commit", &about.commit), ("Host", &about.machine()), ("Kernel", &about.kernel)];
    for (name, value) in facts {
        let _ = write!(html, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(value));
    }
    html.push_str(
        "</dl>\n<p>Disks are models, not hardware: a file in memory behind FUSE and a loop device with direct I/O, each \
         read answered when the model says. Cold means that the disk\u{2019}s file system was mounted anew; that it was \
         cold is checked by what the disk had to give. The home folder is in memory and holds what an earlier start left \
         there. Times are medians; for programs with later loading phases they \
         are the sum of these phases. \u{201c}Saved\u{201d} refers to the cold start; \u{201c}perfect\u{201d} is the \
         fastest of the perfect variants, which know exactly what is touched and use ordinary system calls.</p>\n",
    );
    if !results.notes.is_empty() {
        html.push_str("<ul class=\"notes\">");
        results.notes.iter().for_each(|note| {
            let _ = write!(html, "<li>{}</li>", escape(note));
        });
        html.push_str("</ul>\n");
    }
    html.push_str("</header>\n");
    html
}

/// Cold, ours and the others for each program.
fn figure(results: &Results, model: &Model) -> String {
    let bar = |program: &Program, mode: Mode, label: &str, tone: usize| {
        let case = results.case(program.name, model.name, mode)?;
        let found = case.summary(Run::measured)?;
        let saved = results.saved(program.name, model.name, mode).filter(|_| mode != Mode::Cold);
        let text = match saved {
            Some(saved) => format!("{} \u{2212}{:.0} %", seconds(found.median), saved * 100.0),
            None => seconds(found.median),
        };
        let drawn = Drawn::new(label, tone, found.median, text.replace("\u{2212}-", "+"));
        Some(Drawn { spread: Some((found.min, found.max)), ..drawn })
    };
    let group = |program: &&Program| {
        let mut bars: Vec<Drawn> = Vec::new();
        for (index, mode) in DRAWN.into_iter().enumerate() {
            bars.extend(bar(program, mode, mode.name(), neutral_tone(index)));
            if let Some(perfect) = results.perfect(program.name, model.name).filter(|_| mode == Mode::Runnel) {
                bars.extend(bar(program, perfect.mode, "perfect", neutral_tone(DRAWN.len())));
            }
        }
        // Where ours was not measured, the bound still stands beside cold.
        if !bars.iter().any(|bar| bar.label == "perfect")
            && let Some(perfect) = results.perfect(program.name, model.name)
        {
            let perfect = bar(program, perfect.mode, "perfect", neutral_tone(DRAWN.len()));
            perfect.into_iter().for_each(|bar| bars.insert(1.min(bars.len()), bar));
        }
        Group { label: program.title.to_string(), bars }
    };
    let bars = Bars {
        title: format!("Time until done, {}", model.name),
        axis: "seconds".into(),
        unit: Unit::Seconds,
        groups: results.programs().iter().map(group).collect(),
        legend: Vec::new(),
    };
    bars.html()
}

fn times(results: &Results, model: &Model) -> Table {
    let mut table =
        Table::new(&["program", "mode", "median", "min", "max", "saved", "of perfect", "CPU", "runs"]).words(2);
    for (program, mode) in results.programs().into_iter().flat_map(|program| Mode::ALL.map(|mode| (program, mode))) {
        let Some(case) = results.case(program.name, model.name, mode) else { continue };
        let Some(found) = case.summary(Run::measured) else { continue };
        let saved = results.saved(program.name, model.name, mode).map(percent);
        let share = results.share_of_perfect(program.name, model.name, mode).map(percent);
        let cells = [
            Some(program.name.to_string()),
            Some(mode.name().to_string()),
            Some(seconds(found.median)),
            Some(seconds(found.min)),
            Some(seconds(found.max)),
            saved.filter(|_| mode != Mode::Cold),
            share.filter(|_| mode != Mode::Cold),
            case.summary(|run| run.cpu).map(|cpu| seconds(cpu.median)),
            Some(count(found.count as f64)),
        ];
        table.row(cells);
    }
    table
}

fn bounds(results: &Results) -> Table {
    let disks = results.disks();
    let mut table = Table::new(&[&["program"], disks.as_slice()].concat());
    for program in results.programs() {
        let cell = |disk: &&str| {
            let perfect = results.perfect(program.name, disk)?;
            Some(format!("{} ({})", percent(results.bound(program.name, disk)?), perfect.mode.name()))
        };
        table.row(std::iter::once(Some(program.name.to_string())).chain(disks.iter().map(cell)));
    }
    table
}

fn reads(results: &Results) -> Table {
    let mut table =
        Table::new(&["program", "disk", "mode", "read", "beyond touched", "requests", "seeks", "answers late by"])
            .words(3);
    for case in results.cases.iter().filter(|case| !case.runs.is_empty()) {
        let median = |value: fn(&Run) -> u64| case.summary(|run| value(run) as f64).map(|found| found.median);
        table.row([
            Some(case.program.name.to_string()),
            Some(case.disk.to_string()),
            Some(case.mode.name().to_string()),
            median(|run| run.disk.bytes).map(bytes),
            results.overfetch(case).filter(|share| *share > -0.99).map(percent),
            median(|run| run.disk.requests).map(count),
            median(|run| run.disk.seeks).map(count),
            case.summary(|run| run.late).map(|late| seconds(late.median)),
        ]);
    }
    table
}

fn programs(results: &Results) -> Table {
    let mut table = Table::new(&["program", "what it is", "touched", "files", "with metadata"]).words(2);
    for program in results.programs() {
        let facts = results.facts.iter().find(|facts| facts.program == program.learned_as());
        table.row([
            Some(program.name.to_string()),
            Some(program.title.to_string()),
            facts.map(|facts| bytes(facts.touched as f64)),
            facts.map(|facts| count(facts.files as f64)),
            facts.map(|facts| bytes(facts.disk as f64)),
        ]);
    }
    table
}

fn launcher(results: &Results) -> Table {
    let mut table = Table::new(&["program", "disk", "mode", "first run"]).words(4);
    for case in results.cases.iter().filter(|case| case.mode.is_ours()) {
        let Some(told) = case.runs.first().and_then(|run| product::told(&run.said)) else { continue };
        table.row([
            case.program.name.to_string(),
            case.disk.to_string(),
            case.mode.name().to_string(),
            told.to_string(),
        ]);
    }
    table
}

fn modes() -> Table {
    let mut table = Table::new(&["mode", "what it does"]).words(2);
    MODES.iter().for_each(|(mode, text)| table.row([mode.name(), text]));
    table
}

/// The same for a terminal.
pub fn text(results: &Results) -> String {
    let mut lines = vec![vec!["bar".to_string(), "demand".into(), "measured".into(), "verdict".into()]];
    for bar in bar::all(results) {
        let deciding = bar.deciding().map_or("-".into(), |(case, value)| format!("{} ({case})", bar.form.show(value)));
        lines.push(vec![bar.name.clone(), bar.demanded(), deciding, bar.verdict().word().into()]);
    }
    let mut text = aligned(&lines);
    let mut lines = vec![["start", "median s", "min-max", "saved", "of perfect", "MB"].map(str::to_string).to_vec()];
    for case in results.cases.iter().filter(|case| !case.runs.is_empty()) {
        let Some(found) = case.summary(Run::measured) else { continue };
        let (program, disk) = (case.program.name, case.disk);
        let shown = |share: Option<f64>| share.map_or("-".to_string(), percent);
        lines.push(vec![
            format!("{program} {disk} {}", case.mode.name()),
            format!("{:.3}", found.median),
            format!("{:.3}-{:.3}", found.min, found.max),
            shown(results.saved(program, disk, case.mode)),
            shown(results.share_of_perfect(program, disk, case.mode)),
            case.summary(|run| run.disk.bytes as f64).map_or("-".into(), |read| format!("{:.1}", read.median / 1e6)),
        ]);
    }
    text.push('\n');
    text.push_str(&aligned(&lines));
    text
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::canned;
    use super::*;

    #[test]
    fn the_page_shows_models_bars_and_times() {
        let mut results = canned();
        results.notes.push("a <note>".into());
        let html = page(&results, &About::default());
        for part in
            ["7200 turns", "a &lt;note&gt;", "perfect-gate", "60.0 %", "83.3 %", "MISSED", "later loading phases"]
        {
            assert!(html.contains(part), "{part}");
        }
        assert!(!html.contains("http://") || html.contains("xmlns"), "nothing from outside");
        let text = text(&results);
        assert!(text.contains("python hdd runnel") && text.contains("50.0 %"), "{text}");
    }
}
