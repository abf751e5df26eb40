//! The report of a lab run: one HTML file that needs nothing else, and text tables for the
//! terminal.
//!
//! Everything is computed from [`Record`]s. [`measured`] finds medians by row, [`limit`] says how
//! fast a start can be at all, [`target`] judges the bars of the project, [`figure`] makes the
//! tables and figures of the SYSFLOW paper and ours, [`plot`] draws them as SVG, [`html`] puts the
//! page together and [`text`] writes for people. What was not measured leaves a note in its place,
//! so a report of a short run is a valid report. Times are seconds, sizes bytes, shares fractions.
//! `runnel-bench lab` calls [`write`] and [`tables`] after its runs.

pub mod figure;
pub mod html;
pub mod limit;
pub mod measured;
pub mod target;
pub mod text;

#[cfg(test)]
mod synthetic;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use report::html::escape;
use report::table::aligned;

use super::plan::{FIRST, MOUNT, START};
use super::record::Record;
use crate::process::tool;
use measured::Measured;
pub use report::plot;
use target::Verdict;

/// The pages of each program in the order of their first touch: path of the file and index of the
/// page in it.
pub type PageLists = BTreeMap<String, Vec<(String, u64)>>;

/// Where and of what the records are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// Source revision that was measured, or `unknown`.
    pub commit: String,
    /// Model of the host's CPU.
    pub cpu: String,
    /// Cores of the host.
    pub cores: usize,
    /// Memory of the host, bytes.
    pub memory_bytes: u64,
    /// When, as people write it; also goes into the history.
    pub date: String,
    /// Release of the guest's kernel.
    pub kernel: String,
    /// Names and versions of the other systems.
    pub rivals: Vec<String>,
    /// Size of the measured binary, bytes; 0 if unknown.
    pub binary_bytes: u64,
    /// What a reader must know besides, one sentence each; rows that failed, for example.
    pub notes: Vec<String>,
}

impl About {
    /// The notes as a list in HTML; empty without notes.
    pub(crate) fn notes_html(&self) -> String {
        if self.notes.is_empty() {
            return String::new();
        }
        let items: String = self.notes.iter().map(|note| format!("<li>{}</li>", escape(note))).collect();
        format!("<ul class=\"notes\">{items}</ul>\n")
    }

    /// Of this machine, its kernel, and the binary that runs.
    pub fn here(binary_bytes: u64, notes: Vec<String>) -> About {
        let field = |path: &str, name: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(name)).and_then(|line| line.split_once(':'));
            line.map(|(_, value)| value.trim().to_string()).unwrap_or_default()
        };
        let memory = field("/proc/meminfo", "MemTotal");
        let kilobytes: u64 = memory.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let date = tool(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"])).unwrap_or_default();
        About {
            commit: crate::options::revision(),
            cpu: field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kilobytes * 1024,
            date: String::from_utf8_lossy(&date).trim().to_string(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            rivals: Vec::new(),
            binary_bytes,
            notes,
        }
    }

    /// CPU, cores and memory in one line.
    pub fn machine(&self) -> String {
        let cores = if self.cores == 1 { "core" } else { "cores" };
        format!("{}, {} {cores}, {:.1} GiB", self.cpu, self.cores, self.memory_bytes as f64 / (1u64 << 30) as f64)
    }
}

/// Writes the report to `path`. `pages` are the page lists of learned starts, as far as they are
/// known.
pub fn write(records: &[Record], pages: &PageLists, about: &About, path: &Path) -> anyhow::Result<()> {
    let page = html::page(&Measured::new(records, pages), about);
    fs::write(path, page).with_context(|| format!("cannot write the report {}", path.display()))
}

/// The bars and the start times, for the terminal. With the page lists of the report, both judge
/// alike.
pub fn tables(records: &[Record], pages: &PageLists) -> String {
    let measured = Measured::new(records, pages);
    let mut text = aligned(&target_lines(&measured));
    for link in measured.links(START).iter().filter(|link| **link != "-") {
        for (experiment, value, heading) in TABLES {
            let lines = start_lines(&measured, experiment, link, value, heading);
            if lines.len() > 1 {
                text.push('\n');
                text.push_str(&aligned(&lines));
            }
        }
    }
    text
}

/// Tables of a link for the terminal: experiment, value, and what it is called.
const TABLES: [(&str, &str, &str); 4] = [
    (START, "cold", "cold start"),
    (FIRST, "cold", "first cold start after the server came up"),
    (START, "cold_apart", "cold start without the server's processor time"),
    (MOUNT, "together", "mount and start"),
];

fn target_lines(measured: &Measured) -> Vec<Vec<String>> {
    let mut lines = vec![["bar", "demanded", "worst", "verdict"].map(str::to_string).to_vec()];
    for target in target::all(measured) {
        let verdict = match target.verdict() {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::NotMeasured => "not measured",
        };
        let worst = target.worst().map_or("-".into(), |case| format!("{} ({})", target.show(case.value), case.label));
        lines.push(vec![target.name.to_string(), target.demand(), worst, verdict.to_string()]);
    }
    lines
}

/// A value over one link: a line per system, a column per program.
fn start_lines(measured: &Measured, experiment: &str, link: &str, value: &str, heading: &str) -> Vec<Vec<String>> {
    let programs = measured.programs(experiment);
    let heading = format!("{heading}, {link}");
    let mut lines = vec![std::iter::once(heading).chain(programs.iter().map(|name| name.to_string())).collect()];
    // Disks know no loss: they stand in the table of the link without it.
    let is_shown = |system: &&str| measured::loss(link) == 0.0 || !measured::is_free_of_links(system);
    for system in measured.systems(experiment, link).into_iter().filter(is_shown) {
        let times: Vec<Option<f64>> =
            programs.iter().map(|program| measured.value(experiment, link, system, program, value)).collect();
        if times.iter().any(Option::is_some) {
            let cells = times.into_iter().map(|time| time.map_or("-".into(), text::seconds));
            lines.push(std::iter::once(system.to_string()).chain(cells).collect());
        }
    }
    lines
}
