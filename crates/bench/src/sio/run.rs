//! Runs the bench: the lab measures, the report judges. Called by `runnel bench sio`.

use std::fs;
use std::io::Write;

use anyhow::Context;

use super::measured::Measured;
use super::{report, rows};
use crate::lab::options::Options;
use crate::lab::run::{Collected, collect};
use crate::row::append_history;
use crate::stream::say;

/// Runs the bench. Tables, or rows with `json`, go to `out`; progress to standard error. An error if a row failed, after the
/// report was written.
pub fn run(options: &Options, out: &mut dyn Write) -> anyhow::Result<()> {
    let collected = collect(options)?;
    let Collected { records, about, cache, .. } = &collected;
    let measured = Measured::new(records);
    let path = options.report.clone().unwrap_or_else(|| cache.join("sio.html"));
    let page = report::page(measured, about);
    fs::write(&path, page).with_context(|| format!("cannot write the report {}", path.display()))?;
    say(&format!("sio: {} after {}", path.display(), collected.elapsed()));
    let lines = rows::lines(measured, &about.commit)?;
    if options.json {
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    } else {
        write!(out, "{}", report::text(measured))?;
    }
    collected.judge()?;
    // A run with failures is no point of the history.
    options.history.as_deref().map_or(Ok(()), |history| append_history(history, &lines))
}
