//! `runnel-bench update`: what a device fetches that has one version of a tree and wants the next.
//!
//! Beside each other stand our image packed afresh, our image packed with the old one as its base,
//! and casync with its defaults. A device fetches what it lacks by hash: of an image the blocks and
//! the sections of metadata, of casync the chunks and the index. desync is not in Debian.

mod cost;
mod tree;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde::Serialize;

use self::cost::Parts;
use crate::options::{beside, binary, revision};
use crate::pack::measure;
use crate::process::find_program;
use crate::stage::{Stages, remove};
use crate::stream::say;
use crate::{history, interrupt};

/// An update with a base fetches at most so much of what casync fetches.
const UPDATE_MAX: f64 = 0.5;
/// An image with a base is at most so many times as large as one packed afresh.
const SIZE_MAX: f64 = 1.03;

/// Bytes from one version of a tree to the next, beside casync
///
/// The trees are a minimal Debian before and after its security updates, and one with 15 bytes
/// inserted into one of a hundred files; made once and kept in the cache folder, which needs root.
#[derive(Clone, Debug, clap::Parser)]
pub struct Options {
    /// Instead of these, the old version of a tree of your own
    #[arg(long, value_name = "DIR", requires = "new")]
    pub old: Option<PathBuf>,
    /// And its new version
    #[arg(long, value_name = "DIR", requires = "old")]
    pub new: Option<PathBuf>,
    /// Options of `runnel pack` for all images, beside --base
    #[arg(long, value_name = "OPTIONS", default_value = "--small --level 19", allow_hyphen_values = true)]
    pub pack: String,
    /// Cache folder (default: runnel/pack in the user's caches, as for `pack`)
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// One JSON line per row
    #[arg(long)]
    pub json: bool,
    /// Measure this runnel instead of the one beside this program
    #[arg(long = "binary", value_name = "FILE", default_value_os_t = beside(), hide_default_value = true)]
    pub runnel: PathBuf,
    /// Add the rows to this file
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
}

/// Two versions of a tree.
#[derive(Debug)]
struct Case {
    name: String,
    old: PathBuf,
    new: PathBuf,
}

/// What one system needs for one case.
#[derive(Clone, Debug, Serialize)]
struct Row {
    bench: &'static str,
    case: String,
    system: &'static str,
    /// Bytes of the old version as it is stored.
    old_bytes: u64,
    /// Bytes of the new version as it is stored.
    new_bytes: u64,
    /// Bytes that a device with the old version fetches.
    update_bytes: u64,
    /// Those of them that are no file's data.
    update_metadata_bytes: u64,
    commit: String,
}

/// Runs the bench; a table or rows go to `out`, and the bars to the progress lines.
///
/// # Errors
/// A tree cannot be made or packed, or a bar is missed; the table is written before the last.
pub fn run(options: &Options, out: &mut dyn Write) -> anyhow::Result<()> {
    interrupt::listen()?;
    let runnel = binary(&options.runnel)?;
    let work = crate::pack::options::Options { work: options.work.clone(), ..Default::default() }.cache()?;
    let cases = match (&options.old, &options.new) {
        (Some(old), Some(new)) => vec![Case { name: "given".into(), old: old.clone(), new: new.clone() }],
        _ => tree::cases(&work, &Stages::titled("update", work.join("stamps"))?)?,
    };
    let mut rows = Vec::new();
    let mut missed = Vec::new();
    for case in &cases {
        let found = measured(case, &runnel, &options.pack, &work.join("update"))?;
        missed.extend(bars(&found).into_iter().filter(|bar| !bar.is_met).map(|bar| bar.text));
        rows.extend(found);
    }
    let lines = rows.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    if let Some(history) = &options.history {
        history::append_history(history, &lines)?;
    }
    let text = if options.json { lines.join("\n") + "\n" } else { table(&rows) };
    write!(out, "{text}").context("standard output")?;
    ensure!(missed.is_empty(), "{} bar(s) missed: {}", missed.len(), missed.join("; "));
    Ok(())
}

/// The rows of a case. `folder` holds images and stores meanwhile.
fn measured(case: &Case, runnel: &Path, pack: &str, folder: &Path) -> anyhow::Result<Vec<Row>> {
    remove(folder)?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let image = |name: &str, tree: &Path, base: Option<&Path>| -> anyhow::Result<PathBuf> {
        let image = folder.join(name);
        let mut command = Command::new(runnel);
        command.arg("pack").arg(tree).arg("-o").arg(&image).args(pack.split_whitespace());
        if let Some(base) = base {
            command.arg("--base").arg(base);
        }
        measure::run(&mut command)?;
        Ok(image)
    };
    say(&format!("update: {}: runnel {pack} ...", case.name));
    let old = image("old.rnl", &case.old, None)?;
    let afresh = Parts::of_image(&image("afresh.rnl", &case.new, None)?)?;
    let based = Parts::of_image(&image("based.rnl", &case.new, Some(&old))?)?;
    let old = Parts::of_image(&old)?;
    let commit = revision();
    let row = |system, old: &Parts, new: &Parts| Row {
        bench: "update",
        case: case.name.clone(),
        system,
        old_bytes: old.bytes(),
        new_bytes: new.bytes(),
        update_bytes: new.lacking(old).bytes(),
        update_metadata_bytes: new.lacking(old).metadata_bytes(),
        commit: commit.clone(),
    };
    let mut rows = vec![row(AFRESH, &old, &afresh), row(BASED, &old, &based)];
    match find_program("casync") {
        None => say("update: casync not run: it is missing; apt-get install casync"),
        Some(program) => {
            say(&format!("update: {}: casync ...", case.name));
            let old = Parts::of_casync(&program, &case.old, &folder.join("old"))?;
            let new = Parts::of_casync(&program, &case.new, &folder.join("new"))?;
            rows.push(row(CASYNC, &old, &new));
        }
    }
    remove(folder)?;
    Ok(rows)
}

const AFRESH: &str = "runnel";
const BASED: &str = "runnel --base";
const CASYNC: &str = "casync";

/// A claim, and whether it holds.
struct Bar {
    text: String,
    is_met: bool,
}

/// What must hold for the rows of one case.
fn bars(rows: &[Row]) -> Vec<Bar> {
    let find = |system: &str| rows.iter().find(|row| row.system == system);
    let (afresh, based, casync) = (find(AFRESH), find(BASED), find(CASYNC));
    let bar = |what: &str, found: u64, of: u64, most: f64, case: &str| {
        let ratio = found as f64 / of.max(1) as f64;
        Bar { text: format!("{case}: {what} {ratio:.3} x, at most {most}"), is_met: ratio <= most }
    };
    let update = based.zip(casync).map(|(based, casync)| {
        bar("update of casync's", based.update_bytes, casync.update_bytes, UPDATE_MAX, &based.case)
    });
    let size = based.zip(afresh).map(|(based, afresh)| {
        bar("image of one packed afresh", based.new_bytes, afresh.new_bytes, SIZE_MAX, &based.case)
    });
    update.into_iter().chain(size).collect()
}

fn table(rows: &[Row]) -> String {
    let title = ["case, system", "old, MB", "new, MB", "update, MB", "of it metadata", "of new"];
    let mut lines = vec![title.map(str::to_string).to_vec()];
    let megabytes = |bytes: u64| format!("{:.2}", bytes as f64 / 1e6);
    lines.extend(rows.iter().map(|row| {
        vec![
            format!("{}, {}", row.case, row.system),
            megabytes(row.old_bytes),
            megabytes(row.new_bytes),
            megabytes(row.update_bytes),
            megabytes(row.update_metadata_bytes),
            format!("{:.1} %", 100.0 * row.update_bytes as f64 / row.new_bytes.max(1) as f64),
        ]
    }));
    let mut text = report::table::aligned(&lines);
    for case in rows.chunk_by(|a, b| a.case == b.case) {
        for Bar { text: bar, is_met } in bars(case) {
            text.push_str(&format!("  {} {bar}\n", if is_met { "met:   " } else { "MISSED:" }));
        }
    }
    text.push_str("  not run: desync, which Debian does not have\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_compare_the_rows_of_a_case_and_lack_what_was_not_run() {
        let row = |system, new_bytes, update_bytes| Row {
            bench: "update",
            case: "security".into(),
            system,
            old_bytes: 1000,
            new_bytes,
            update_bytes,
            update_metadata_bytes: 1,
            commit: "abc".into(),
        };
        let mut rows = vec![row(AFRESH, 1000, 900), row(BASED, 1030, 101), row(CASYNC, 2000, 200)];
        let met = |rows: &[Row]| bars(rows).iter().map(|bar| bar.is_met).collect::<Vec<_>>();
        assert_eq!(met(&rows), [false, true]);
        rows[1] = row(BASED, 1031, 100);
        assert_eq!(met(&rows), [true, false]);
        let text = table(&rows);
        assert!(text.contains("MISSED: security: image of one packed afresh 1.031 x, at most 1.03"), "{text}");
        rows.pop();
        assert_eq!(met(&rows), [false]);
    }
}
