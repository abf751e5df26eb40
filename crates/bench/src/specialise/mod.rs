//! `runnel-bench specialise`: kernels for one device, beside stock and beside the kernel's own
//! means, all in one run.
//!
//! [`variant`] builds a kernel once, then reduces and links it with one pass more each time;
//! [`micro`] starts stock and reduced kernels in a guest that counts instructions; [`frozen`] keeps
//! code compressed that its service does not run; [`sites`] says how many system calls of Debian's
//! programs are resolved; [`results`] holds what was measured, as rows and beside the project's
//! bars.

pub mod frozen;
pub mod micro;
pub mod results;
pub mod sites;
pub mod variant;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::history::append_history;
use crate::options::revision;
use crate::stage::Stages;
use results::Results;
use variant::Device;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// The small configuration: stock, collected by the linker, all passes.
    Quick,
    /// The small configuration with each pass in turn.
    Usual,
    /// The mainstream configuration too.
    Full,
}

/// Kernels for one device: sizes beside stock and the linker's own collection, instructions, and
/// system calls of Debian's programs
///
/// Builds Linux 6.12 once (minutes; kept in a cache folder), reduces and links it with one pass
/// more each time, and starts stock and reduced kernels in a QEMU guest that counts instructions.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The small configuration, stock, gc-sections and all passes only
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// The mainstream configuration too
    #[arg(long)]
    pub full: bool,
    /// Source of Linux 6.12 (default: `source` in the cache folder, where `./x bench specialise`
    /// puts it)
    #[arg(long = "kernel-source", value_name = "DIR")]
    pub source: Option<PathBuf>,
    /// Cache folder (default: runnel/kernel in the user's caches); about 4 GB
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// One JSON line per value instead of tables
    #[arg(long)]
    pub json: bool,
    /// Add the rows to this file
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
}

impl Options {
    fn size(&self) -> Size {
        match (self.quick, self.full) {
            (true, _) => Size::Quick,
            (_, true) => Size::Full,
            _ => Size::Usual,
        }
    }

    fn work(&self) -> anyhow::Result<PathBuf> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let caches = || variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
        let folder = self.work.clone().or_else(|| caches().map(|caches| caches.join("runnel/kernel")));
        folder.context("neither HOME nor XDG_CACHE_HOME is set; give a cache folder with --work DIR")
    }
}

/// Runs the bench. Tables, or rows with `json`, go to `out`; progress to standard error.
///
/// # Errors
/// A kernel cannot be built, linked or started.
pub fn run(options: &Options, out: &mut dyn Write) -> anyhow::Result<()> {
    let work = options.work()?;
    std::fs::create_dir_all(&work).with_context(|| work.display().to_string())?;
    let source = options.source.clone().unwrap_or_else(|| work.join("source"));
    let stages = Stages::titled("specialise", work.join("programs"))?;
    let tree = sites::programs(&work, &stages)?;
    let mut results = Results::default();
    sites::measure(&tree, &mut results)?;
    let outcome = kernels(options, &source, &work, &tree, &mut results);
    // Kernels take long: what was measured before one fails is not lost.
    if outcome.is_err() {
        results.notes.push("not all was measured".to_string());
    }
    let commit = revision();
    let lines = results.lines(&commit)?;
    if options.json {
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    } else {
        write!(out, "{}", results.text())?;
    }
    options.history.as_deref().map_or(Ok(()), |history| append_history(history, &lines))?;
    outcome
}

fn kernels(options: &Options, source: &Path, work: &Path, tree: &Path, results: &mut Results) -> anyhow::Result<()> {
    let mut devices = vec![Device::small(source, work, tree)?];
    if options.size() == Size::Full {
        devices.push(Device::mainstream(source, work, tree)?);
    }
    for device in &devices {
        let beside = variant::measure(device, options.size(), results)?;
        if options.size() == Size::Quick {
            results.notes.push("frozen code is not measured: not with --quick".to_string());
        } else {
            frozen::measure(device, options.size(), &beside, results)?;
        }
    }
    Ok(())
}
