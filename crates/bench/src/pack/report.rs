//! The page of a run: bars for sizes, where hot chunks lie, what each stage gains, and every table.
//! One file, readable on a phone, light and dark.

use std::fmt::Write;

use report::html::{Cell, Table, escape, head};
use report::plot::bars::{Bar as Drawn, Bars, Group};
use report::plot::scale::Unit;
use report::plot::strips::Strips;
use report::plot::{Key, neutral_tone};

use super::bar::{self, Bar, Verdict};
use super::result::{Results, Spread};
use super::row::{Row, size};
use super::text_report::{origin, read_cells, sorted};
use crate::lab::report::About;

/// Systems in the order of their colours.
const SYSTEMS: [&str; 5] = ["runnel", "squashfs", "erofs", "dwarfs", "tar"];

fn tone(system: &str) -> usize {
    neutral_tone(SYSTEMS.iter().position(|name| *name == system).unwrap_or(SYSTEMS.len()))
}

/// The whole page.
pub fn page(results: &Results, about: &About) -> String {
    let bars = bar::all(results);
    let mut html = head(&format!("Runnel pack, {} at {}", about.date, about.commit));
    html.push_str(&header(results, about));
    html.push_str(&summary(&bars));
    html.push_str("<main>\n");
    for tree in &results.trees {
        let title = format!("{}: {}", tree.name, tree.title);
        section(&mut html, &format!("tree-{}", tree.name), &title, &sizes(results, &tree.name, tree.tar_bytes));
    }
    section(&mut html, "gains", "Gains at the same decoded block size", &gains(results));
    section(&mut html, "stages", "What each stage gains", &stages(results));
    section(&mut html, "reads", "What a start reads", &reads(results));
    section(&mut html, "heat", "Where hot chunks lie", &heat(results));
    section(&mut html, "cold", "Cold start on a device of 75 µs a page (model)", &cold(results));
    section(&mut html, "bars", "Bars", &bar_table(&bars));
    html.push_str("</main></body></html>\n");
    html
}

fn header(results: &Results, about: &About) -> String {
    let mut html = String::from("<header><h1>Runnel pack report</h1>\n<dl class=\"about\">");
    let facts =
        [("Date", &about.date), ("Commit", &about.commit), ("Host", &about.machine()), ("Kernel", &about.kernel)];
    for (name, value) in facts {
        let _ = write!(html, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(value));
    }
    html.push_str(
        "</dl>\n<p>Sizes are whole images with all metadata; ratios refer to the tar archive. Every image of ours was \
         extracted and compared with its tree, attributes included; images of other tools are trusted. Wall times \
         depend on what else the machine does: compare CPU seconds. Rows marked \u{201c}reference\u{201d} are fixed figures of an \
         earlier study for tools that are not installed here, and no bar counts them.</p>\n",
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

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Met => "good",
        Verdict::Missed => "bad",
        Verdict::Partly | Verdict::NotMeasured => "none",
    }
}

pub(crate) fn summary(bars: &[Bar]) -> String {
    let count = |verdict| bars.iter().filter(|bar| bar.verdict() == verdict).count();
    let mut html = format!(
        "<section id=\"summary\"><h2>Summary</h2><p class=\"score\"><b class=\"good\">{} met</b> <b class=\"bad\">{} \
         missed</b> <b class=\"none\">{} partly measured</b> <b class=\"none\">{} not measured</b></p>\n<ul class=\"cards\">",
        count(Verdict::Met),
        count(Verdict::Missed),
        count(Verdict::Partly),
        count(Verdict::NotMeasured)
    );
    for bar in bars {
        let verdict = bar.verdict();
        let deciding = bar
            .deciding()
            .map_or("no case in this run".to_string(), |(case, value)| format!("{} ({case})", bar.form.show(value)));
        let _ = writeln!(
            html,
            "<li class=\"{}\"><b>{}</b><span class=\"verdict\">{}</span><span>{}</span><span>{}</span></li>",
            class(verdict),
            escape(&bar.name),
            verdict.word(),
            escape(&bar.demanded()),
            escape(&deciding)
        );
    }
    html.push_str("</ul></section>\n");
    html
}

pub(crate) fn section(html: &mut String, id: &str, title: &str, body: &str) {
    let body = if body.is_empty() { "<p class=\"absent\">Not measured in this run.</p>\n" } else { body };
    let _ = writeln!(
        html,
        "<section id=\"{}\"><h2>{}</h2>\n{body}<p class=\"top\"><a href=\"#summary\">Back to the summary</a></p></section>",
        escape(id),
        escape(title)
    );
}

/// Rows that stand for themselves: not steps of the ablation or images grouped for a read set.
fn is_main(row: &Row) -> bool {
    !["stages: ", "traced ", "1 threads", "2 threads"].iter().any(|start| row.variant.starts_with(start))
}

fn sizes(results: &Results, tree: &str, tar_bytes: u64) -> String {
    let rows: Vec<&Row> = sorted(results, tree).into_iter().filter(|row| is_main(row)).collect();
    let codecs = [("zstd-19", "zstd, level 19"), ("xz", "LZMA"), ("lz4hc", "LZ4, high compression")];
    let label = |row: &Row| {
        let block = row.block.map_or("whole".to_string(), size);
        let variant = if row.variant.is_empty() { String::new() } else { format!(", {}", row.variant) };
        let star = if row.is_measured() { "" } else { " *" };
        format!("{} {block}{variant}{star}", row.system)
    };
    let group = |(codec, title): (&str, &str)| Group {
        label: title.to_string(),
        bars: rows
            .iter()
            .filter(|row| row.has_bytes() && row.codec == codec)
            .map(|row| Drawn::new(label(row), tone(&row.system), row.bytes as f64, mega(row.bytes)))
            .collect(),
    };
    let groups: Vec<Group> = codecs.into_iter().map(group).collect();
    let bars = Bars {
        title: format!("Images of {tree}"),
        axis: "bytes; * reference, not run here".to_string(),
        unit: Unit::Bytes,
        groups,
        legend: SYSTEMS.iter().map(|system| Key::area(*system, tone(system))).collect(),
    };
    let mut table =
        Table::new(&["image", "note", "size", "ratio to tar", "CPU s", "wall s", "peak memory", "blocks a file"])
            .words(2);
    for row in sorted(results, tree) {
        let cost = |show: &dyn Fn(super::measure::Cost) -> String| row.cost.map_or("-".to_string(), show);
        let bytes = row.has_bytes().then_some(row.bytes);
        let failed = origin(row).starts_with("FAILED");
        let note = if failed { Cell::judged(origin(row), false) } else { Cell::from(origin(row)) };
        table.row([
            Cell::from(row.name()),
            note,
            bytes.map(mega).into(),
            bytes.map(|bytes| format!("{:.3}", tar_bytes as f64 / bytes as f64)).into(),
            cost(&|cost| format!("{:.1}", cost.cpu)).into(),
            cost(&|cost| format!("{:.1}", cost.wall)).into(),
            cost(&|cost| mega(cost.peak)).into(),
            row.report.get("blocks_per_file").map(|blocks| format!("{blocks:.2}")).into(),
        ]);
    }
    format!("<p>tar: {}</p>\n{}{}", mega(tar_bytes), bars.html(), table.html())
}

fn mega(bytes: u64) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}

fn gains(results: &Results) -> String {
    let mut table = Table::new(&["tree", "codec", "block", "smaller peer", "higher ratio"]).words(4);
    for gain in bar::gains(results) {
        let shown = format!("{:.1} %", gain.gain * 100.0);
        table.row([gain.tree, gain.codec, size(gain.block), gain.peer, shown]);
    }
    table.html()
}

fn stages(results: &Results) -> String {
    let mut groups: Vec<Group> = Vec::new();
    let mut table = Table::new(&["block", "stages", "size", "less than before", "CPU s"]).words(2);
    let mut before: Option<(u64, u64)> = None;
    for row in results.rows.iter().filter(|row| row.has_bytes()) {
        let (Some(name), Some(block)) = (row.variant.strip_prefix("stages: "), row.block) else { continue };
        let label = format!("{} {}", row.tree, size(block));
        if groups.last().is_none_or(|group| group.label != label) {
            groups.push(Group { label, bars: Vec::new() });
            before = None;
        }
        let last = groups.len() - 1;
        groups[last].bars.push(Drawn::new(name, tone("runnel"), row.bytes as f64, mega(row.bytes)));
        let less = before.filter(|(other, _)| *other == block).map(|(_, bytes)| 1.0 - row.bytes as f64 / bytes as f64);
        let cpu = row.cost.map(|cost| format!("{:.1}", cost.cpu));
        let cells = [Some(size(block)), Some(name.to_string()), Some(mega(row.bytes))];
        table.row(cells.into_iter().chain([less.map(|less| format!("{:.2} %", less * 100.0)), cpu]));
        before = Some((block, row.bytes));
    }
    if groups.is_empty() {
        return String::new();
    }
    let bars = Bars {
        title: "Image after each stage, zstd level 19".into(),
        axis: "bytes".into(),
        unit: Unit::Bytes,
        groups,
        legend: Vec::new(),
    };
    bars.html() + &table.html()
}

fn reads(results: &Results) -> String {
    if results.reads.is_empty() {
        return String::new();
    }
    let mut sets: Vec<&str> = Vec::new();
    for reads in &results.reads {
        if !sets.contains(&reads.set.as_str()) {
            sets.push(&reads.set);
        }
    }
    let bar = |reads: &super::result::ReadRow| {
        let stored = if reads.reads.stored > 0 { reads.reads.stored } else { reads.counted?.bytes };
        let system = reads.image.split(' ').next().unwrap_or_default();
        let label = reads.image.replacen("runnel ", "", 1);
        Some(Drawn::new(label, tone(system), stored as f64, mega(stored)))
    };
    let group = |set: &str| Group {
        label: format!("set {set}"),
        bars: results.reads.iter().filter(|reads| reads.set == set).filter_map(bar).collect(),
    };
    let bars = Bars {
        title: "Stored bytes that must be read".into(),
        axis: "bytes, without read-ahead".into(),
        unit: Unit::Bytes,
        groups: sets.into_iter().map(group).collect(),
        legend: SYSTEMS[..3].iter().map(|system| Key::area(*system, tone(system))).collect(),
    };
    let head =
        ["image", "set", "wanted MB", "stored MB", "decoded MB", "runs", "device MB", "with read-ahead MB", "cold s"];
    let mut table = Table::new(&head).words(2);
    results.reads.iter().for_each(|reads| table.row(read_cells(reads)));
    let mut cold = Table::new(&["image", "blocks per cold file"]);
    for Spread { tree, image, blocks } in &results.spread {
        cold.row([format!("{tree} {image}"), format!("{blocks:.2}")]);
    }
    let seed = super::read_set::SEED;
    format!(
        "<p>Ours from the metadata of the image, EROFS from its extents as dump.erofs prints them, decoded bytes of SquashFS \
         by a model of its layout (blocks per file, small files packed in fragments by path). \u{201c}device\u{201d} is what a loop \
         device gave without read-ahead, mounting included, \u{201c}with read-ahead\u{201d} the same with that of the device. The sets \
         hot-12 and hot-40 are chosen, not recorded: files in a random order (seed {seed}), of each a run of pages of a \
         quarter of its length or more, until they hold that many percent of the tree.</p>\n{}{}{}",
        bars.html(),
        table.html(),
        cold.html()
    )
}

fn heat(results: &Results) -> String {
    if results.heat.is_empty() {
        return String::new();
    }
    let rows = results.heat.iter().map(|heat| (heat.image.clone(), heat.cells.clone())).collect();
    Strips { title: "Share of hot bytes, from the start of the image to its end".into(), rows }.html()
}

fn cold(results: &Results) -> String {
    let mut groups: Vec<Group> = Vec::new();
    for reads in &results.reads {
        let Some(seconds) = bar::cold_start(reads) else { continue };
        if groups.iter().all(|group| group.label != reads.set) {
            groups.push(Group { label: reads.set.clone(), bars: Vec::new() });
        }
        let decode = reads.decode.unwrap_or(0.0);
        let system = reads.image.split(' ').next().unwrap_or_default();
        let mut bar = Drawn::new(
            reads.image.replacen("runnel ", "", 1),
            tone(system),
            seconds,
            format!("{:.0} ms", seconds * 1e3),
        );
        bar.parts = vec![(seconds - decode, tone(system)), (decode, neutral_tone(SYSTEMS.len()))];
        if let Some(group) = groups.iter_mut().find(|group| group.label == reads.set) {
            group.bars.push(bar);
        }
    }
    if groups.is_empty() {
        return String::new();
    }
    let bars = Bars {
        title: "Time to read and decode what a start needs".into(),
        axis: "time".into(),
        unit: Unit::Seconds,
        groups,
        legend: vec![Key::area("decoding", neutral_tone(SYSTEMS.len()))],
    };
    format!(
        "<p>A model, not a measurement: each page of the device that is read takes 75 µs, then blocks are decoded by one CPU. \
         Ours: the stored pages of its blocks and all metadata; decoding measured block by block. Others: what a loop device \
         counted without read-ahead, mounting included; decoding at the rate of the same codec on our image.</p>\n{}",
        bars.html()
    )
}

fn bar_table(bars: &[Bar]) -> String {
    let mut table = Table::new(&["bar", "demanded", "case", "measured", "verdict"]).words(5);
    for bar in bars {
        for (index, (case, value)) in bar.cases.iter().enumerate() {
            let first = |text: String| if index == 0 { text } else { String::new() };
            let verdict = match bar.verdict() {
                verdict @ (Verdict::Met | Verdict::Missed) => {
                    Cell::judged(first(verdict.word().into()), verdict == Verdict::Met)
                }
                verdict => Cell::from(first(verdict.word().into())),
            };
            let shown = value.map_or("not measured".to_string(), |value| bar.form.show(value));
            let cells = [first(bar.name.clone()), first(bar.demanded()), case.clone(), shown];
            table.row(cells.into_iter().map(Cell::from).chain([verdict]));
        }
    }
    table.html()
}

#[cfg(test)]
mod tests {
    use super::super::result::{Heat, ReadRow, TreeFacts};
    use super::super::row::Origin;
    use super::super::row::tests::row;
    use super::*;

    #[test]
    fn a_page_shows_what_there_is_and_says_what_is_missing() {
        let empty = page(&Results::default(), &About::default());
        assert!(empty.contains("Not measured in this run") && empty.ends_with("</body></html>\n"));
        let tree = super::super::tree::FIRST;
        let facts =
            TreeFacts { name: tree.into(), title: "<tree>".into(), tar_bytes: 167_000_000, data_bytes: 1, files: 1 };
        let reference = Row { origin: Origin::Reference, ..row("dwarfs", "zstd-19", 65536, "", 59_000_000) };
        let missing = Row { origin: Origin::NotRun("install <it>".into()), ..row("erofs", "xz", 65536, "", 0) };
        let mut reads = ReadRow { set: "start".into(), image: "runnel zstd-19 128K".into(), ..ReadRow::default() };
        (reads.how, reads.decode, reads.reads.stored) = ("metadata".into(), Some(0.1), 5_000_000);
        let results = Results {
            trees: vec![facts],
            rows: vec![
                row("runnel", "zstd-19", 65536, "", 47_000_000),
                row("runnel", "zstd-19", 65536, "stages: none", 58_000_000),
                row("runnel", "zstd-19", 65536, "stages: + group", 55_000_000),
                reference,
                missing,
            ],
            reads: vec![reads],
            heat: vec![Heat { image: "runnel zstd-19 128K".into(), cells: vec![0.0, 0.5, 1.0] }],
            ..Results::default()
        };
        let html = page(&results, &About::default());
        for part in ["&lt;tree&gt;", "reference, not run here", "install &lt;it&gt;", "5.17 %", "47.00 MB", "<svg"] {
            assert!(html.contains(part), "no {part}");
        }
        assert!(!html.contains("<tree>") && !html.contains("NaN") && !html.contains("src="));
    }
}
