//! The results as tables for the terminal.

use report::table::aligned;

use super::bar;
use super::result::{Results, Spread};
use super::row::{Origin, Row};

/// All tables.
pub fn tables(results: &Results) -> String {
    let mut text = String::new();
    for tree in &results.trees {
        let heading = format!("{} ({:.1} MB tar)", tree.name, tree.tar_bytes as f64 / 1e6);
        let mut lines =
            vec![[heading.as_str(), "MB", "ratio", "CPU s", "wall s", "peak MB", ""].map(str::to_string).to_vec()];
        lines.extend(sorted(results, &tree.name).into_iter().map(|row| line(row, tree.tar_bytes)));
        text.push_str(&aligned(&lines));
        text.push('\n');
    }
    if !results.reads.is_empty() {
        text.push_str(&aligned(&read_lines(results)));
        text.push('\n');
    }
    for Spread { tree, image, blocks } in &results.spread {
        text.push_str(&format!("  {tree} {image}: {blocks:.2} blocks per cold file\n"));
    }
    text.push('\n');
    text.push_str(&aligned(&bar_lines(results)));
    for note in &results.notes {
        text.push_str(&format!("\n  note: {note}"));
    }
    text.push('\n');
    text
}

/// The rows of a tree, the smallest first, then those without figures.
pub fn sorted<'a>(results: &'a Results, tree: &'a str) -> Vec<&'a Row> {
    let mut rows: Vec<&Row> = results.of_tree(tree).collect();
    rows.sort_by_key(|row| (!row.has_bytes(), row.bytes));
    rows
}

/// What is said about where a row comes from.
pub fn origin(row: &Row) -> String {
    match &row.origin {
        Origin::Measured if row.verified => "decoded and compared".to_string(),
        Origin::Measured => String::new(),
        Origin::Reference => "reference, not run here".to_string(),
        Origin::NotRun(reason) => format!("not run: {reason}"),
        Origin::Failed(reason) => format!("FAILED: {reason}"),
    }
}

fn line(row: &Row, tar_bytes: u64) -> Vec<String> {
    let dash = || "-".to_string();
    let bytes = row.has_bytes().then_some(row.bytes as f64);
    let cost = |show: &dyn Fn(super::measure::Cost) -> String| row.cost.map_or_else(dash, show);
    vec![
        row.name(),
        bytes.map_or_else(dash, |bytes| format!("{:.2}", bytes / 1e6)),
        bytes.map_or_else(dash, |bytes| format!("{:.3}", tar_bytes as f64 / bytes)),
        cost(&|cost| format!("{:.1}", cost.cpu)),
        cost(&|cost| format!("{:.1}", cost.wall)),
        cost(&|cost| format!("{:.0}", cost.peak as f64 / 1e6)),
        origin(row),
    ]
}

fn read_lines(results: &Results) -> Vec<Vec<String>> {
    let head = ["start-up reads, MB", "set", "wanted", "stored", "decoded", "runs", "device", "read-ahead", "cold s"];
    let mut lines = vec![head.map(str::to_string).to_vec()];
    for reads in &results.reads {
        lines.push(read_cells(reads));
    }
    lines
}

/// The cells of a line about reads: image, set, and the figures; what is not known is a dash.
pub fn read_cells(reads: &super::result::ReadRow) -> Vec<String> {
    let megabytes = |bytes: u64| format!("{:.2}", bytes as f64 / 1e6);
    let known = |bytes: u64| if bytes == 0 { "-".to_string() } else { megabytes(bytes) };
    let counted = |counted: Option<super::device::Counted>| {
        counted.map_or("-".to_string(), |counted| megabytes(counted.bytes + counted.mount_bytes))
    };
    let runs = if reads.reads.runs == 0 { "-".to_string() } else { reads.reads.runs.to_string() };
    vec![
        reads.image.clone(),
        reads.set.clone(),
        megabytes(reads.reads.wanted),
        known(reads.reads.stored),
        known(reads.reads.decoded),
        runs,
        counted(reads.counted),
        counted(reads.ahead),
        bar::cold_start(reads).map_or("-".to_string(), |seconds| format!("{seconds:.3}")),
    ]
}

fn bar_lines(results: &Results) -> Vec<Vec<String>> {
    let mut lines = vec![["bar", "demanded", "measured", "cases", "verdict"].map(str::to_string).to_vec()];
    for bar in bar::all(results) {
        let deciding = bar.deciding().map_or("-".into(), |(case, value)| format!("{} ({case})", bar.form.show(value)));
        let (measured, all) = bar.coverage();
        let verdict = bar.verdict().word().to_string();
        lines.push(vec![bar.name.clone(), bar.demanded(), deciding, format!("{measured} of {all}"), verdict]);
    }
    lines
}
