//! `runnel bench specialise`: kernels for one device, beside stock and beside the kernel's own means, all in one run.
//!
//! [`variant`] builds a kernel once, then reduces and links it with one pass more each time; [`micro`] starts stock and reduced kernels
//! in a guest that counts instructions; [`frozen`] keeps code compressed that its service does not run; [`sites`] says how many system calls of Debian's programs are resolved; [`results`] holds
//! what was measured, as rows and beside the project's bars. Called by the command line through [`run`].

pub mod frozen;
pub mod micro;
pub mod results;
pub mod sites;
pub mod variant;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::options::revision;
use crate::row::append_history;
use crate::stage::Stages;
use results::Results;
use variant::Device;

/// How much is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Size {
    /// The small configuration: stock, collected by the linker, all passes.
    Quick,
    /// The small configuration with each pass in turn.
    #[default]
    Usual,
    /// The mainstream configuration too.
    Full,
}

/// What the user asks for.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How much.
    pub size: Size,
    /// Source of the kernel; by default where `scripts/kernel-source.sh` puts it.
    pub source: Option<PathBuf>,
    /// Cache folder.
    pub work: Option<PathBuf>,
    /// Rows instead of tables.
    pub json: bool,
    /// File that rows are added to.
    pub history: Option<PathBuf>,
}

impl Options {
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
    if options.size == Size::Full {
        devices.push(Device::mainstream(source, work, tree)?);
    }
    for device in &devices {
        let beside = variant::measure(device, options.size, results)?;
        if options.size == Size::Quick {
            results.notes.push("frozen code is not measured: not with --quick".to_string());
        } else {
            frozen::measure(device, options.size, &beside, results)?;
        }
    }
    Ok(())
}
