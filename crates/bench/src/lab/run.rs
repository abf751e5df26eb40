//! Runs the lab: options, world, guests, results, report.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::report::statistic::Summary;
use anyhow::{Context, bail, ensure};
use rustix::fs::{FlockOperation, flock};

use super::job::{self, News};
use super::options::{Options, Size};
use super::plan::{Entry, Row};
use super::record::Record;
use super::report::{self, About, PageLists};
use super::results::Results;
use super::slice::slices;
use super::world::needs::Needs;
use super::world::{self, Settings, World, nydus};
use crate::history::append_history;
use crate::interrupt;
use crate::stream::say;

/// How often the wait for news looks for an interrupt.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// What came of a plan.
pub struct Collected {
    /// The rows, less those of systems that this machine lacks.
    pub entries: Vec<Entry>,
    /// Their records, as far as there are any.
    pub records: Vec<Record>,
    /// Rows that failed now, with reasons.
    pub failures: Vec<(Row, String)>,
    /// Where and of what the records are.
    pub about: About,
    /// The cache folder.
    pub cache: PathBuf,
    /// When it began.
    start: Instant,
    _lock: File,
}

/// Measures what of the plan was not measured before with the same binary. Progress goes to
/// standard error.
pub fn collect(options: &Options) -> anyhow::Result<Collected> {
    let entries = options.entries()?;
    let guests = options.guests()?;
    let cache = options.cache()?;
    ensure!(
        rustix::process::geteuid().is_root(),
        "the lab makes Debian systems and mounts file systems, which needs root; run it with sudo"
    );
    fs::create_dir_all(&cache).with_context(|| format!("cannot make the cache folder {}", cache.display()))?;
    let cache = fs::canonicalize(&cache)?;
    interrupt::listen()?;
    let _lock = lock(&cache)?;

    let start = Instant::now();
    let mut notes = Vec::new();
    let (world, entries) = set_up(options, entries, &cache, &mut notes)?;
    let mut results = Results::open(&cache, &world.key)?;
    if options.fresh {
        results.forget(&entries)?;
    }
    let missing: Vec<Entry> = entries.iter().filter(|entry| !results.has(entry)).cloned().collect();
    say(&format!(
        "lab: set-up took {}; {} rows, {} of them measured before, in {}",
        duration(start.elapsed()),
        entries.len(),
        entries.len() - missing.len(),
        results.path().display()
    ));
    let failures = measure(&world, &missing, guests, &cache, &mut results)?;
    notes.extend(failures.iter().map(|(row, reason)| format!("{row}: {}", first_line(reason))));
    let records = results.of(&entries);
    Ok(Collected { entries, records, failures, about: about(&world, notes), cache, start, _lock })
}

impl Collected {
    /// Time since it began.
    pub fn elapsed(&self) -> String {
        duration(self.start.elapsed())
    }

    /// An error that names the rows that failed, if any did.
    pub fn judge(&self) -> anyhow::Result<()> {
        if self.failures.is_empty() {
            return Ok(());
        }
        let list: Vec<String> =
            self.failures.iter().map(|(row, reason)| format!("  {row}: {}", first_line(reason))).collect();
        bail!("{} of {} rows failed:\n{}", self.failures.len(), self.entries.len(), list.join("\n"));
    }
}

/// Runs the lab. Tables, or records with `json`, go to `out`; progress to standard error. An error
/// if a row failed, after the report was written.
pub fn run(options: &Options, out: &mut dyn Write) -> anyhow::Result<()> {
    let collected = collect(options)?;
    let Collected { records, about, cache, .. } = &collected;
    let path = options.report.clone().unwrap_or_else(|| cache.join("report.html"));
    let pages = page_lists(cache)?;
    report::write(records, &pages, about, &path)?;
    say(&format!("lab: {} after {}", path.display(), collected.elapsed()));
    if options.json {
        records
            .iter()
            .try_for_each(|record| writeln!(out, "{}", serde_json::to_string(record)?).map_err(anyhow::Error::from))?;
    } else {
        writeln!(out, "{}", report::tables(records, &pages))?;
    }
    collected.judge()?;
    if options.size() == Size::Smoke && options.plan.is_none() {
        check_smoke(records, &path)?;
    }
    // A run with failures is no point of the history: the next one goes on from it.
    match &options.history {
        Some(history) => append_history(history, &[super::history::line(records, about)]),
        None => Ok(()),
    }
}

/// Makes the world; rows of systems that this machine lacks are left out with a note.
fn set_up(
    options: &Options,
    mut entries: Vec<Entry>,
    cache: &Path,
    notes: &mut Vec<String>,
) -> anyhow::Result<(World, Vec<Entry>)> {
    let mut needs = Needs::of(&entries)?;
    if needs.nydus() && nydus::find(cache).is_none() {
        let why = match options.nydus || options.full {
            false => "--nydus builds it (18 minutes), or set NYDUS_BIN to its folder".to_string(),
            true => match nydus::build(cache, &world::stage::Stages::open(cache.join("stamps"))?) {
                Ok(()) => String::new(),
                Err(error) => format!("{error:#}"),
            },
        };
        interrupt::check()?;
        if !why.is_empty() {
            entries.retain(|entry| entry.row.system != "nydus");
            let note = format!("rows of nydus are left out: {why}");
            say(&format!("lab: {note}"));
            notes.push(first_line(&note).to_string());
            needs = Needs::of(&entries)?;
        }
    }
    ensure!(!entries.is_empty(), "nothing is left of the plan: {}", notes.join("; "));
    // Into the guest whether or not this plan uses it, so that plans do not undo each other's
    // set-up.
    let nydus = nydus::find(cache);
    let settings = Settings { cache: cache.to_path_buf(), binary: options.binary.clone(), nydus };
    Ok((world::prepare(&needs, &settings)?, entries))
}

/// Keeps a second lab from the same cache, until it is dropped.
fn lock(cache: &Path) -> anyhow::Result<File> {
    let path = cache.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .with_context(|| format!("another lab uses {}; wait for it or give another --work", cache.display()))?;
    Ok(file)
}

/// Measures `entries` in up to `guests` guests at once; returns the rows that failed, with reasons.
fn measure(
    world: &World,
    entries: &[Entry],
    guests: usize,
    cache: &Path,
    results: &mut Results,
) -> anyhow::Result<Vec<(Row, String)>> {
    let slices = Mutex::new(VecDeque::from(slices(entries, guests)));
    let next = || slices.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let (tell, hear) = channel();
    std::thread::scope(|scope| {
        let spawn = |index: usize| {
            let (tell, next): (Sender<News>, _) = (tell.clone(), &next);
            let folder = cache.join(format!("guest-{}", index + 1));
            scope.spawn(move || {
                world::stage::remove(&folder.join("console.log"))?;
                // If nobody listens any more, the lab is ending because of an error elsewhere.
                let mut tell = |news| tell.send(news).ok().context("the lab is ending");
                std::iter::from_fn(next).try_for_each(|slice| job::run(world, slice, &folder, &mut tell))
            })
        };
        let jobs: Vec<_> = (0..guests).map(spawn).collect();
        drop(tell);
        let failures = follow(&hear, entries.len(), results);
        drop(hear);
        let ends: Vec<_> = jobs.into_iter().map(|job| job.join()).collect();
        let failures = failures?;
        ends.into_iter().try_for_each(|end| end.unwrap_or_else(|_| bail!("the thread of a guest panicked")))?;
        Ok(failures)
    })
}

/// Keeps records and tells about rows until all guests have ended.
fn follow(hear: &Receiver<News>, total: usize, results: &mut Results) -> anyhow::Result<Vec<(Row, String)>> {
    let start = Instant::now();
    let mut failures = Vec::new();
    let mut cold: BTreeMap<Row, Vec<f64>> = Default::default();
    let mut count = 0;
    loop {
        let news = match hear.recv_timeout(LOOK_INTERVAL) {
            Ok(news) => news,
            Err(RecvTimeoutError::Disconnected) => return Ok(failures),
            Err(RecvTimeoutError::Timeout) => {
                interrupt::check()?;
                continue;
            }
        };
        match news {
            News::Kernel(_) => {}
            News::Record(record) => {
                if let Some(seconds) = record.values.get("cold").or(record.values.get("seconds")) {
                    cold.entry(record.row.clone()).or_default().push(*seconds);
                }
                results.add(record)?;
            }
            News::Finished(row, outcome) => {
                count += 1;
                let what = match &outcome {
                    Err(reason) => format!("FAILED: {reason}"),
                    Ok(()) => match cold.get(&row).and_then(|values| Summary::of(values)) {
                        Some(cold) if cold.median >= 10.0 => format!("cold {:.1} s", cold.median),
                        Some(cold) => format!("cold {:.0} ms", 1000.0 * cold.median),
                        None => "done".to_string(),
                    },
                };
                say(&format!("{count}/{total} {:>6}  {row}: {what}", duration(start.elapsed())));
                if let Err(reason) = outcome {
                    failures.push((row, reason));
                }
            }
        }
    }
}

/// The smoke plan looks at the values themselves.
fn check_smoke(records: &[Record], report: &Path) -> anyhow::Result<()> {
    for record in records {
        let cold = record.values.get("cold").copied().unwrap_or_default();
        ensure!(cold.is_finite() && cold > 0.0, "{}: a cold start of {cold} s", record.row);
        let odd = record.values.iter().find(|(_, value)| !value.is_finite() || **value < 0.0);
        ensure!(odd.is_none(), "{}: {odd:?}", record.row);
    }
    let written = fs::metadata(report).map(|found| found.len()).unwrap_or(0);
    ensure!(written > 0, "no report was written to {}", report.display());
    Ok(())
}

/// The page lists of the content, by program.
fn page_lists(cache: &Path) -> anyhow::Result<PageLists> {
    let mut lists = PageLists::new();
    for entry in fs::read_dir(cache.join("content/pages")).into_iter().flatten() {
        let path = entry?.path();
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let line =
            |line: &str| line.split_once(' ').and_then(|(page, file)| Some((file.to_string(), page.parse().ok()?)));
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        lists.insert(name, text.lines().filter_map(line).collect());
    }
    Ok(lists)
}

/// Where and of what the results are.
fn about(world: &World, notes: Vec<String>) -> About {
    let binary_bytes = fs::metadata(&world.binaries.runnel).map(|found| found.len()).unwrap_or(0);
    let (kernel, rivals) = (world.kernel.release.clone(), world.rivals.clone());
    About { kernel, rivals, ..About::here(binary_bytes, notes) }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Minutes and seconds.
fn duration(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}
