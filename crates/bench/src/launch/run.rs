//! A run: every program in every mode on every disk, some times, then the report.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use disk::Model;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::fetch::{Fetch, Style};
use super::options::{Options, Plan};
use super::place::{Place, Run};
use super::product::{self, Product};
use super::program::Program;
use super::results::{Case, Facts, Learning, Results};
use super::touched::{self, Touched};
use super::{report, tree};
use crate::history::append_history;
use crate::interrupt;
use crate::lab::report::About;
use crate::options::{binary, revision};
use crate::stage::Stages;
use crate::stream::say;

/// The kernel's read-ahead unless a mode says otherwise, KiB.
pub const READ_AHEAD: u32 = 128;

/// Loading phases of programs that have such, the start included.
const PHASES: usize = 3;

/// Least share of the bytes that a program needs from the disk which a cold start must have read.
const COLD_SHARE: f64 = 0.5;

/// Largest such share of a warm start: no two starts touch quite the same, and kernels with
/// proactive reclaim take away pages that were not used for some seconds.
const WARM_SHARE: f64 = 0.10;

/// Starts before one counts as warm.
const WARMING_RUNS: usize = 2;

/// How a program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing cached, nothing prefetched.
    Cold,
    /// Everything cached.
    Warm,
    /// Cold, and the kernel reads ahead 512 KiB.
    ReadAhead,
    /// All touched pages; the program is held until all files are open.
    Gate,
    /// All touched pages; the program starts at once.
    Overlap,
    /// All touched pages in windows of first touches; the program starts at once.
    Windows,
    /// All touched files, whole.
    Files,
    /// All mapped parts of files.
    Preload,
    /// By `runnel launch`.
    Runnel,
    /// By `runnel launch`, everything cached.
    RunnelWarm,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 10] = [
        Mode::Cold,
        Mode::Warm,
        Mode::Gate,
        Mode::Overlap,
        Mode::Windows,
        Mode::ReadAhead,
        Mode::Files,
        Mode::Preload,
        Mode::Runnel,
        Mode::RunnelWarm,
    ];

    /// Those with exact knowledge.
    pub const PERFECT: [Mode; 3] = [Mode::Gate, Mode::Overlap, Mode::Windows];

    /// Its name in options and rows.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Cold => "cold",
            Mode::Warm => "warm",
            Mode::ReadAhead => "readahead-512",
            Mode::Gate => "perfect-gate",
            Mode::Overlap => "perfect-overlap",
            Mode::Windows => "perfect-windows",
            Mode::Files => "files",
            Mode::Preload => "preload",
            Mode::Runnel => "runnel",
            Mode::RunnelWarm => "runnel-warm",
        }
    }

    /// Whether it is the product that is measured.
    pub fn is_ours(self) -> bool {
        matches!(self, Mode::Runnel | Mode::RunnelWarm)
    }

    fn style(self) -> Option<Style> {
        match self {
            Mode::Gate | Mode::Overlap => Some(Style::Sorted),
            Mode::Windows => Some(Style::Windows),
            Mode::Files => Some(Style::WholeFiles),
            Mode::Preload => Some(Style::Mapped),
            _ => None,
        }
    }

    /// Whether it makes sense: nobody holds a program in its middle, and windows gain nothing where
    /// places count.
    fn fits(self, program: &Program, model: &Model) -> bool {
        match self {
            Mode::Gate => model.is_rotating() && program.lead.is_none(),
            Mode::Windows => !model.is_rotating(),
            _ => true,
        }
    }
}

/// Runs the bench; tables or rows go to `out`.
///
/// # Errors
/// Nothing could be set up, the bench was interrupted, or cases failed; the report is written
/// before the last.
pub fn run(options: &Options, out: &mut dyn Write) -> anyhow::Result<()> {
    let plan = options.plan()?;
    if let Some(reason) = disk::missing() {
        say(&format!("launch: skipped: {reason}"));
        return Ok(());
    }
    interrupt::listen()?;
    fs::create_dir_all(&plan.cache).with_context(|| format!("cannot make {}", plan.cache.display()))?;
    let cache = fs::canonicalize(&plan.cache)?;
    let lock = fs::File::create(cache.join("lock")).context("cannot write to the cache folder")?;
    let alone = flock(&lock, FlockOperation::NonBlockingLockExclusive);
    alone.map_err(|_| anyhow::anyhow!("another bench uses {}; wait for it or give --work DIR", cache.display()))?;
    // Prefetching holds thousands of files open.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
    disk::private_mounts()?;
    let stages = Stages::titled("launch", cache.join("stamps"))?;
    let image = tree::prepare(plan.profile, &cache, &stages)?;
    let folder = tempfile::Builder::new().prefix("runnel-launch-").tempdir().context("cannot make a folder")?;
    let runnel = binary(&options.runnel)?;
    let place = Place::open(&image.path, folder.path(), &runnel, &folder.path().join("state"))?;
    let product = Product::find(&runnel);
    let mut bench = Bench {
        place,
        product,
        sets: cache.join("sets").join(format!("{}-{}", plan.profile.name(), image.fingerprint)),
        folder: folder.path().to_path_buf(),
        plan,
        results: Results::default(),
        failures: Vec::new(),
    };
    fs::create_dir_all(&bench.sets)?;
    let about = About::here(fs::metadata(&runnel).map_or(0, |found| found.len()), Vec::new());
    let path = options.report.clone().unwrap_or_else(|| cache.join("report.html"));
    let measured = bench.measure(&about, &path);
    // What was measured before an interruption is worth having.
    let finished = bench.finish(options, &about, &path, out);
    measured.and(finished)
}

struct Bench {
    place: Place,
    product: Option<Product>,
    /// Where touched sets are kept.
    sets: PathBuf,
    folder: PathBuf,
    plan: Plan,
    results: Results,
    failures: Vec<String>,
}

impl Bench {
    fn measure(&mut self, about: &About, report: &Path) -> anyhow::Result<()> {
        if self.product.is_none() {
            let text = "this runnel has no `launch`, `plans learn` and `record -- APP`: its modes are left out";
            say(&format!("launch: {text}"));
            self.results.notes.push(text.into());
        }
        for program in self.plan.programs.clone() {
            let touched = match self.learn(program) {
                Ok(touched) => touched,
                Err(error) => {
                    interrupt::check()?;
                    self.fail(format!("{}: {error:#}", program.name));
                    continue;
                }
            };
            for model in self.plan.disks.clone() {
                self.program(program, model, &touched)?;
                // Long runs can be looked at before they end.
                fs::write(report, report::page(&self.results, about)).context("cannot write the report")?;
            }
        }
        Ok(())
    }

    fn fail(&mut self, text: String) {
        say(&format!("launch: FAILED: {text}"));
        self.results.notes.push(format!("failed: {text}"));
        self.failures.push(text);
    }

    fn learn(&mut self, program: &'static Program) -> anyhow::Result<Touched> {
        let name = program.learned_as();
        let file = self.sets.join(format!("{name}.json"));
        let command: Vec<String> = program.command.iter().map(|word| word.to_string()).collect();
        self.place.settle(&command, &self.folder.join(format!("home-{name}")))?;
        let touched = touched::learn(&mut self.place, program, &self.folder, &file)?;
        if self.results.facts.iter().all(|facts| facts.program != name) {
            let bytes = touched.pages() * units::PAGE_BYTES as u64;
            let files = touched.files.len();
            say(&format!("launch: {name} touches {:.1} MB of {files} files", bytes as f64 / 1e6));
            self.results.facts.push(Facts { program: name, files, touched: bytes, disk: touched.disk_bytes });
        }
        if let Some(product) = self.product.filter(|_| self.wants(Mode::Runnel) || self.wants(Mode::RunnelWarm)) {
            let runs = product.learn(&mut self.place, program);
            match runs {
                Ok(runs) => self.results.learning.push(Learning { program: program.name, runs }),
                Err(error) => {
                    interrupt::check()?;
                    self.fail(format!("{} is not learned: {error:#}", program.name));
                }
            }
        }
        Ok(touched)
    }

    fn wants(&self, mode: Mode) -> bool {
        let named = |name: &String| name == mode.name() || (name == "perfect" && Mode::PERFECT.contains(&mode));
        self.plan.modes.is_empty() || self.plan.modes.iter().any(named)
    }

    /// All modes of a program on a disk, turn by turn, so that what else the machine does meets all
    /// alike.
    fn program(&mut self, program: &'static Program, model: &'static Model, touched: &Touched) -> anyhow::Result<()> {
        let learned = self.results.learning.iter().any(|learning| learning.program == program.name);
        let possible = |mode: &Mode| mode.fits(program, model) && self.wants(*mode) && (learned || !mode.is_ours());
        let mut modes: Vec<Mode> = Mode::ALL.into_iter().filter(possible).collect();
        let first = self.results.cases.len();
        let case = |mode: &Mode| Case { program, disk: model.name, mode: *mode, runs: Vec::new() };
        self.results.cases.extend(modes.iter().map(case));
        for _ in 0..self.plan.runs {
            for mode in modes.clone() {
                let start = Start { program, model, mode, touched, product: self.product };
                match start.run(&mut self.place) {
                    Ok(run) => {
                        let known = self.results.cases[first..].iter_mut().find(|case| case.mode == mode);
                        known.context("a case for each mode")?.runs.push(run);
                    }
                    Err(error) => {
                        interrupt::check()?;
                        self.fail(format!("{} on {}, {}: {error:#}", program.name, model.name, mode.name()));
                        modes.retain(|other| *other != mode);
                    }
                }
            }
        }
        for case in &self.results.cases[first..] {
            let Some(summary) = case.summary(Run::measured) else { continue };
            let (read, seeks) = case.runs.first().map_or((0, 0), |run| (run.disk.bytes, run.disk.seeks));
            say(&format!(
                "launch: {:9} {:4} {:15} {:7.3} s ({:.3}-{:.3}), {:6.1} MB, {seeks} seeks",
                program.name,
                model.name,
                case.mode.name(),
                summary.median,
                summary.min,
                summary.max,
                read as f64 / 1e6
            ));
            if let Some(told) = case.runs.first().and_then(|run| product::told(&run.said)) {
                say(&format!("launch: {:15} the launcher told {told}", ""));
            }
        }
        Ok(())
    }

    fn finish(self, options: &Options, about: &About, path: &Path, out: &mut dyn Write) -> anyhow::Result<()> {
        let lines = self.results.rows(&revision())?;
        if options.json {
            lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        } else {
            out.write_all(report::text(&self.results).as_bytes())?;
        }
        if let Some(history) = &options.history {
            append_history(history, &lines)?;
        }
        fs::write(path, report::page(&self.results, about))
            .with_context(|| format!("cannot write the report {}", path.display()))?;
        say(&format!("launch: report in {}", path.display()));
        ensure!(self.failures.is_empty(), "not everything could be measured: {}", self.failures.join("; "));
        Ok(())
    }
}

/// One start.
struct Start<'a> {
    program: &'static Program,
    model: &'static Model,
    mode: Mode,
    touched: &'a Touched,
    product: Option<Product>,
}

impl Start<'_> {
    fn run(&self, place: &mut Place) -> anyhow::Result<Run> {
        let run = match self.mode {
            Mode::Warm | Mode::RunnelWarm => self.warm(place)?,
            Mode::ReadAhead => self.plain(place, 4 * READ_AHEAD)?,
            _ if self.mode.style().is_some() => self.prefetched(place)?,
            _ => self.plain(place, READ_AHEAD)?,
        };
        let share = run.disk.bytes as f64 / self.touched.disk_bytes.max(1) as f64;
        let is_warm = matches!(self.mode, Mode::Warm | Mode::RunnelWarm);
        ensure!(
            is_warm || share >= COLD_SHARE,
            "it was not cold: the disk gave {:.1} % of what it needs",
            share * 100.0
        );
        ensure!(
            !is_warm || share <= WARM_SHARE,
            "it was not warm: the disk gave {:.1} % of what it needs",
            share * 100.0
        );
        Ok(run)
    }

    /// What is started.
    fn command(&self) -> Vec<String> {
        match self.product.filter(|_| self.mode.is_ours()) {
            Some(product) => product.launch(self.program, self.mode == Mode::Runnel),
            None => self.program.command.iter().map(|word| word.to_string()).collect(),
        }
    }

    fn plain(&self, place: &mut Place, read_ahead: u32) -> anyhow::Result<Run> {
        place.refresh(self.model, read_ahead)?;
        let command = self.command();
        place.run(&command, Instant::now(), &place.disk.counters(), &mut |_| {})
    }

    fn warm(&self, place: &mut Place) -> anyhow::Result<Run> {
        place.refresh(&disk::INSTANT, READ_AHEAD)?;
        let command = self.command();
        for _ in 0..WARMING_RUNS {
            place.run(&command, Instant::now(), &place.disk.counters(), &mut |_| {})?;
            place.tidy()?;
        }
        place.disk.change(self.model, READ_AHEAD)?;
        place.run(&command, Instant::now(), &place.disk.counters(), &mut |_| {})
    }

    fn prefetched(&self, place: &mut Place) -> anyhow::Result<Run> {
        place.refresh(self.model, READ_AHEAD)?;
        let place = &*place;
        let style = self.mode.style().context("a mode that prefetches")?;
        let phases = if self.program.lead.is_some() { PHASES } else { 1 };
        let fetches: Vec<Fetch> =
            (0..phases).map(|phase| Fetch::new(place.disk.root(), self.touched, phase, style)).collect();
        let command = self.command();
        let (start, before) = (Instant::now(), place.disk.counters());
        let run = std::thread::scope(|scope| {
            let begin = |phase: usize| {
                if let Some(fetch) = fetches.get(phase) {
                    scope.spawn(|| {
                        fetch.open();
                        fetch.read();
                    });
                }
            };
            if self.mode == Mode::Gate {
                fetches[0].open();
                scope.spawn(|| fetches[0].read());
            } else {
                begin(0);
            }
            let run = place.run(&command, start, &before, &mut |phase| begin(phase));
            fetches.iter().for_each(Fetch::stop);
            run
        });
        // What was still on its way when the program ended counts too.
        run.map(|run| Run { disk: place.disk.counters().since(&before), ..run })
    }
}
