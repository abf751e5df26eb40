//! All that a run found, as the report, the tables and the history need it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::device::Counted;
use super::layout::Reads;
use super::measure::Cost;
use super::row::{Origin, Row};
use super::tree::Tree;
use crate::lab::history::Line;
use crate::lab::report::About;

/// A tree in the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TreeFacts {
    /// Its name.
    pub name: String,
    /// What people read.
    pub title: String,
    /// Bytes of its tar archive.
    pub tar_bytes: u64,
    /// Bytes of its files, each once.
    pub data_bytes: u64,
    /// Files, each once.
    pub files: u64,
}

impl TreeFacts {
    /// Of a tree.
    pub fn of(tree: &Tree) -> TreeFacts {
        TreeFacts {
            name: tree.name.clone(),
            title: tree.title.clone(),
            tar_bytes: tree.tar_bytes,
            data_bytes: tree.data_bytes,
            files: tree.files,
        }
    }
}

/// What a read set costs on one image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadRow {
    /// The tree.
    pub tree: String,
    /// The read set.
    pub set: String,
    /// What the pages were grouped by; empty if by nothing.
    pub grouped_by: String,
    /// Name of the row of the image.
    pub image: String,
    /// `metadata`, `extents` or `model`: how stored and decoded bytes are known. A model knows no
    /// stored bytes.
    pub how: String,
    /// From the layout.
    pub reads: Reads,
    /// Read from a loop device without read-ahead.
    pub counted: Option<Counted>,
    /// Read from a loop device with its own read-ahead.
    pub ahead: Option<Counted>,
    /// Bytes of metadata that opening the image reads, for ours: all of it.
    pub metadata: u64,
    /// CPU seconds of decoding: measured, or decoded bytes times the rate of the codec on our
    /// image.
    pub decode: Option<f64>,
}

/// A yes or a number that belongs to no row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What.
    pub name: String,
    /// The number; 1 for yes.
    pub value: f64,
}

/// Over how many blocks the files of an image are spread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The tree.
    pub tree: String,
    /// Name of the row of the image.
    pub image: String,
    /// Mean number of blocks that hold a file without hot pages.
    pub blocks: f64,
}

/// Where hot chunks lie in an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    /// Which image.
    pub image: String,
    /// Share of hot bytes in equal parts of the decoded data.
    pub cells: Vec<f64>,
}

/// Everything of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The trees.
    pub trees: Vec<TreeFacts>,
    /// Their images.
    pub rows: Vec<Row>,
    /// Start-up reads.
    pub reads: Vec<ReadRow>,
    /// Blocks per cold file.
    pub spread: Vec<Spread>,
    /// Other findings.
    pub checks: Vec<Check>,
    /// Maps of hot chunks.
    pub heat: Vec<Heat>,
    /// Bytes and cost of all trees packed as one.
    pub together: Option<(u64, Cost)>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

impl Results {
    /// The row of this name for a tree, if it has figures.
    pub fn row(&self, tree: &str, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.tree == tree && row.has_bytes() && row.name() == name)
    }

    /// The rows of a tree.
    pub fn of_tree<'a>(&'a self, tree: &'a str) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.tree == tree)
    }

    /// Bytes of the tar archive of a tree.
    pub fn tar_bytes(&self, tree: &str) -> Option<u64> {
        self.trees.iter().find(|facts| facts.name == tree).map(|facts| facts.tar_bytes)
    }

    /// Rows that failed, each with its reason.
    pub fn failures(&self) -> impl Iterator<Item = String> + '_ {
        self.rows.iter().filter_map(|row| match &row.origin {
            Origin::Failed(reason) => Some(format!("{} {}: {reason}", row.tree, row.name())),
            _ => None,
        })
    }

    /// One JSON line per image and per read set.
    pub fn json_lines(&self, commit: &str) -> anyhow::Result<Vec<String>> {
        let line = |kind: &str, value: serde_json::Value| {
            serde_json::json!({"bench": "pack", "commit": commit, kind: value}).to_string()
        };
        let mut lines = Vec::new();
        for row in &self.rows {
            lines.push(line("row", serde_json::to_value(row)?));
        }
        for reads in &self.reads {
            lines.push(line("reads", serde_json::to_value(reads)?));
        }
        for bar in super::bar::all(self) {
            lines.push(line("bar", bar.to_json()));
        }
        Ok(lines)
    }
}

/// The line of a run for the history file: sizes, costs and start-up reads of what was measured, by
/// row.
///
/// # Errors
/// A value that is no number, which would be a bug.
pub fn history_line(results: &Results, about: &About) -> anyhow::Result<String> {
    let mut rows: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
    for row in results.rows.iter().filter(|row| row.is_measured()) {
        let values = rows.entry(format!("{} {}", row.tree, row.name())).or_default();
        values.insert("bytes".into(), row.bytes as f64);
        if let Some(cost) = row.cost {
            let rounded = |value: f64| (value * 100.0).round() / 100.0;
            values.insert("cpu".into(), rounded(cost.cpu));
            values.insert("wall".into(), rounded(cost.wall));
            values.insert("peak".into(), cost.peak as f64);
        }
    }
    for reads in &results.reads {
        let values = rows.entry(format!("{} {}, reads {}", reads.tree, reads.image, reads.set)).or_default();
        values.insert("stored".into(), reads.reads.stored as f64);
        values.insert("decoded".into(), reads.reads.decoded as f64);
        if let Some(counted) = reads.counted {
            values.insert("device".into(), counted.bytes as f64);
        }
    }
    let line = Line {
        bench: "pack".into(),
        machine: about.machine(),
        commit: about.commit.clone(),
        date: about.date.clone(),
        kernel: about.kernel.clone(),
        rivals: about.rivals.clone(),
        runs: rows.keys().map(|row| (row.clone(), 1)).collect(),
        rows,
        spread: BTreeMap::new(),
    };
    Ok(serde_json::to_string(&line)?)
}
