//! Experiment `set`: what a start needs, and what the kernel reads because of it.
//!
//! `pages_total` are the pages of all files that the program touches, `pages_needed` those that it
//! touches itself, and `pages_read` those that came from the disk during a cold start, with
//! readahead and metadata; on disks only.

use std::fs;

use anyhow::Context;

use super::Outcome;
use super::disk::tree_folder;
use super::pages::{self, PAGE_BYTES};
use super::start;
use super::system::System;
use crate::lab::program::Program;

/// One run: a start, and the sizes of what it could have read.
pub fn measure(system: &mut dyn System, program: &'static Program) -> anyhow::Result<Outcome> {
    let pages = pages::list_of(program)?;
    let tree = tree_folder(program.tree);
    let mut total = 0;
    for path in pages::files_of(&pages) {
        let data =
            fs::metadata(pages::below(&tree, &path)).with_context(|| format!("no {} in the tree", path.display()))?;
        total += data.len().div_ceil(PAGE_BYTES as u64);
    }
    let mut outcome = start::measure(system, program)?;
    let bytes = outcome.values.get("disk_bytes").copied().context("the experiment 'set' is for disks: local, sd")?;
    let requests = outcome.values.get("requests").copied().unwrap_or_default();
    outcome.set("pages_total", total as f64);
    outcome.set("pages_needed", pages.len() as f64);
    outcome.set("pages_read", bytes / PAGE_BYTES as f64);
    if requests > 0.0 {
        outcome.set("bytes_per_request", bytes / requests);
    }
    Ok(outcome)
}
