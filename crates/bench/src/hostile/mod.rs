//! `runnel-bench hostile`: how far one bad peer hurts twenty good devices of the same server.
//!
//! Server, good devices and bad peer are processes of their own. Peers are told apart by their
//! address, so each device has one of its own (127.0.1.x), and all connections of the bad peer come
//! from one (127.1.0.1). In each run the good devices are measured three times, in an order that
//! changes: *alone*; *beside* the bad peer; and while the same bad peer attacks another server on
//! this machine (*elsewhere*). What is slower beside than alone is the bar; what is slower beside
//! than elsewhere is what the server itself lets happen, since the machine's processors are shared
//! in both. The bad peer runs at nice 19, as an attacker on the network has a processor of its own;
//! what it makes the server do runs at the usual priority.
//!
//! Compared is the time that 99 of 100 operations keep to. One that fails counts as having taken
//! its deadline. Every process has a deadline: one that hangs is killed, and its run is reported as
//! failed with what it said.
//!
//! Beside that, the memory of five thousand idle connections is measured, and what is left of it
//! when they have gone.

mod bad;
mod connection;
mod content;
mod device;
mod good;
mod idle;
mod report;
mod scene;
mod timings;
mod upload;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use units::{Rng, SplitMix64};

pub use bad::{Orders, attack};
pub use good::{Work, work};

use crate::history::append_history;
use crate::interrupt;
use crate::options::{beside, binary, revision};
use crate::product::Product;
use crate::stream::say;
use crate::workload::{Database, Tree};
use bad::{KINDS, Kind};
use good::{DEVICES, PUSH, WARM_UP};
use report::Report;
use scene::{Against, Scene};

/// Measured time of each of the three parts of a run.
const SECONDS: f64 = 8.0;
const SECONDS_QUICK: f64 = 4.0;

/// Bytes of the one file in an image that is pushed.
const PUSHED_BYTES: usize = 48 << 10;

/// How far one bad peer hurts twenty good devices of the same server
///
/// Twenty devices read, commit and push at a modest pace: alone, beside a peer that never reads,
/// floods, or announces what it does not send, and while the same peer attacks another server on
/// this machine. Needs the Debian package python3. About twenty minutes. Ends with an error that
/// names the runs that failed, after the report.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Short runs: about four minutes for one of each kind
    #[arg(long)]
    pub quick: bool,
    /// Only these kinds: never-reads, slow-readers, pings, connects, half-hellos, idle-uploads,
    /// slow-uploads, leases, stops-and-touches, garbage; may be given several times
    #[arg(long = "kind", value_name = "NAME", value_delimiter = ',')]
    pub kinds: Vec<String>,
    /// Runs of each kind (default: 3, with --quick 1)
    #[arg(long, value_name = "N")]
    pub runs: Option<usize>,
    /// Keep images in this folder for the next bench
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// One JSON line per row instead of a table
    #[arg(long)]
    pub json: bool,
    /// Measure this runnel instead of the one beside this program
    #[arg(long = "binary", value_name = "FILE", default_value_os_t = beside(), hide_default_value = true)]
    pub runnel: PathBuf,
    /// Add the rows to this file
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
}

/// Runs the bench. Rows or a table go to `out`.
///
/// # Errors
/// A Debian package of the workload is missing, a program failed, or a process did not end by its
/// deadline; the last after the report.
pub fn run(options: &Options, out: &mut dyn Write) -> anyhow::Result<()> {
    let runs = options.runs.unwrap_or(if options.quick { 1 } else { 3 });
    ensure!(runs > 0, "--runs 0: at least 1");
    let kinds: Vec<&Kind> = match options.kinds.is_empty() {
        true => KINDS.iter().collect(),
        false => options.kinds.iter().map(|name| bad::kind(name)).collect::<anyhow::Result<_>>()?,
    };
    let (runnel, own) = (binary(&options.runnel)?, std::env::current_exe()?);
    interrupt::listen()?;
    let temporary = tempfile::Builder::new().prefix("runnel-bench-").tempdir().context("cannot make a folder")?;
    let folder = options.work.clone().unwrap_or_else(|| temporary.path().to_path_buf());
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let folder = std::fs::canonicalize(&folder)?;
    let seconds = if options.quick { SECONDS_QUICK } else { SECONDS };
    let commit = revision();
    say(&format!("{DEVICES} good devices, {runs} runs of three times {seconds} s, source revision {commit}"));
    let product = Product { runnel: runnel.clone() };
    let (image, pushes) = (image(&product, &folder)?, pushes(&product, &folder, seconds)?);
    let scene =
        Scene { runnel: &runnel, own: &own, image: &image, pushes: &pushes, folder: folder.join("run"), seconds };
    let mut report = Report::default();
    if options.kinds.is_empty() {
        say("idle: 5,000 connections say hello and nothing else");
        let results = report.idle();
        (0..runs).try_for_each(|_| idle::measure(&runnel, &folder.join("idle"), results))?;
    }
    for kind in kinds {
        say(&format!("{}: {}", kind.name, kind.does));
        for run in 0..runs {
            measure(&scene, kind, run, &mut report)?;
        }
    }
    let lines = report.rows(&commit)?;
    if options.json {
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    } else {
        writeln!(out, "\n{}", report.table())?;
    }
    if let Some(history) = &options.history {
        append_history(history, &lines)?;
    }
    report.outcome()
}

/// One run of one kind: its three parts in an order that changes from run to run.
fn measure(scene: &Scene, kind: &'static Kind, run: usize, report: &mut Report) -> anyhow::Result<()> {
    let mut order = Against::ALL;
    order.rotate_left(run % Against::ALL.len());
    if run % 2 == 1 {
        order.reverse();
    }
    let mut parts = Vec::new();
    for against in order {
        match scene.part(kind, against) {
            Ok(part) => parts.push((against, part)),
            Err(error) => {
                // Ctrl-C ends the bench, a process that fails only its run.
                interrupt::check()?;
                let text = format!("{} {}, run {}: {error:#}", kind.name, against.name(), run + 1);
                say(&text);
                report.failed(text);
            }
        }
    }
    report.add(kind, &parts);
    Ok(())
}

/// The image that good devices read from: python with its library.
fn image(product: &Product, folder: &Path) -> anyhow::Result<PathBuf> {
    let database = Database::read()?;
    if let Some(package) = Tree::Python.missing(&database) {
        anyhow::bail!("the Debian package {package} is not installed");
    }
    let (root, _) = Tree::Python.build(&database, folder)?;
    let image = folder.join(format!("{}.rnl", Tree::Python.name()));
    product.pack(&root, &image)?;
    Ok(image)
}

/// A folder of images to push: so many that none is pushed twice in one part of a run.
fn pushes(product: &Product, folder: &Path, seconds: f64) -> anyhow::Result<PathBuf> {
    let images = folder.join("pushes");
    let each = ((WARM_UP + Duration::from_secs_f64(seconds)).as_secs_f64() / PUSH.period.as_secs_f64()).ceil() as u64;
    std::fs::create_dir_all(&images)?;
    for number in 0..each * u64::from(DEVICES) {
        let tree = folder.join("pushed.tree");
        std::fs::create_dir_all(&tree)?;
        let mut rng = SplitMix64(number);
        let bytes: Vec<u8> = (0..PUSHED_BYTES).map(|_| b"0123456789abcdef"[rng.below(16) as usize]).collect();
        std::fs::write(tree.join("data"), bytes)?;
        product.pack(&tree, &images.join(format!("pushed-{number:04}.rnl")))?;
    }
    Ok(images)
}
