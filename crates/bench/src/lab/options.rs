//! Options of `runnel-bench lab`, checked before anything is set up.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Parser;

use super::guest;
use super::plan::{self, Entry, Row};

/// A plan that comes with the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// The cheapest rows, to see that the lab works: seconds.
    Smoke,
    /// The programs of the SYSFLOW paper over the usual links: minutes.
    Quick,
    /// What is compared before and after a change of the paths of pages: starts, first starts and
    /// single pages on a LAN. Minutes.
    Lan,
    /// What devices keep: starts from the cache, and images that are fetched over bad links.
    /// Minutes.
    Cache,
    /// Everything: more than an hour.
    Full,
    /// Data files, as in the SIO paper: some minutes.
    Sio,
    /// The same, each case once and without the sweep.
    SioQuick,
}

impl Size {
    fn text(self) -> &'static str {
        match self {
            Size::Smoke => include_str!("plans/smoke.plan"),
            Size::Quick => include_str!("plans/quick.plan"),
            Size::Lan => include_str!("plans/lan.plan"),
            Size::Cache => include_str!("plans/cache.plan"),
            Size::Full => include_str!("plans/full.plan"),
            Size::Sio => include_str!("plans/sio.plan"),
            Size::SioQuick => include_str!("plans/sio-quick.plan"),
        }
    }
}

/// Every claim beside NFS, an SD card and other systems, in a reproducible guest
///
/// Sets up a QEMU guest from Debian packages (kept in a cache folder), measures what was not
/// measured before with the same binary, and writes a report. Needs root. Ends with an error that
/// names the rows that failed, after the report.
#[derive(Clone, Debug, clap::Parser)]
#[command(group = clap::ArgGroup::new("what").args(["quick", "lan", "cache", "full", "smoke", "plan"]))]
pub struct Options {
    /// The programs of the paper over the usual links: a few minutes after set-up (default)
    #[arg(long)]
    pub quick: bool,
    /// Starts, first starts and single pages on a LAN, beside NFS: some minutes after set-up
    #[arg(long)]
    pub lan: bool,
    /// Starts from the device cache, beside the link and an SD card: some minutes after set-up
    #[arg(long)]
    pub cache: bool,
    /// Everything: more than an hour after set-up
    #[arg(long)]
    pub full: bool,
    /// The cheapest rows only, to see that the lab works
    #[arg(long)]
    pub smoke: bool,
    /// A plan of your own: lines EXPERIMENT LINK SYSTEM[:MODE] PROGRAM RUNS
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// The plan of another bench, whatever else is said.
    #[arg(skip)]
    pub size: Option<Size>,
    /// Only rows whose line contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Only rows of these systems, with or without their modes; of all if there are none.
    #[arg(skip)]
    pub systems: Vec<String>,
    /// Only rows of these programs or cases; of all if there are none.
    #[arg(skip)]
    pub programs: Vec<String>,
    /// Measure again what was measured already
    #[arg(long)]
    pub fresh: bool,
    /// Cache folder (default: $RUNNEL_LAB, or runnel/lab in the user's caches); about 8 GB
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// Where the report goes (default: report.html in the cache folder)
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// One JSON line per run instead of tables
    #[arg(long)]
    pub json: bool,
    /// Guests at once (default: one per core)
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// Add a line with all medians to this file
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// A static runnel to measure, instead of building one from the source folder
    ///
    /// Where a runnel-bench lies beside it (of the same name otherwise, as scripts/dist.sh names
    /// them), that one is the guest's half; else it is built.
    #[arg(long, value_name = "FILE")]
    pub binary: Option<PathBuf>,
    /// Build Nydus for its rows if it is not there (18 minutes, once); --full does so too
    #[arg(long)]
    pub nydus: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options::parse_from([""])
    }
}

/// Most guests at once: each takes a core and two GiB.
const JOBS_MAX: usize = 64;

/// Longest plan, bytes: some thousand rows, more than anybody can wait for.
const PLAN_BYTES_MAX: u64 = 256 << 10;

impl Options {
    /// Which plan, if none is given as a file.
    pub fn size(&self) -> Size {
        match self.size {
            Some(size) => size,
            None if self.smoke => Size::Smoke,
            None if self.lan => Size::Lan,
            None if self.cache => Size::Cache,
            None if self.full => Size::Full,
            None => Size::Quick,
        }
    }

    /// The rows to measure.
    pub fn entries(&self) -> anyhow::Result<Vec<Entry>> {
        let (name, text) = match &self.plan {
            Some(path) => {
                let text = read_plan(path).with_context(|| format!("cannot read the plan {}", path.display()))?;
                (path.display().to_string(), text)
            }
            None => (format!("{:?}", self.size()).to_lowercase(), self.size().text().to_string()),
        };
        let mut entries = plan::parse(&text).with_context(|| format!("plan {name}"))?;
        check(&entries).with_context(|| format!("plan {name}"))?;
        if let Some(only) = &self.only {
            entries.retain(|entry| entry.row.to_string().contains(only));
            ensure!(!entries.is_empty(), "no row of the plan {name} contains '{only}'");
        }
        ensure!(!entries.is_empty(), "the plan {name} has no rows");
        retain_named(&mut entries, "system", &self.systems, |row| {
            let mode = if row.mode.is_empty() { String::new() } else { format!(":{}", row.mode) };
            vec![row.system.clone(), format!("{}{mode}", row.system)]
        })?;
        retain_named(&mut entries, "program or case", &self.programs, |row| vec![row.program.clone()])?;
        Ok(entries)
    }

    /// The cache folder: as given, $RUNNEL_LAB, or below the user's caches.
    pub fn cache(&self) -> anyhow::Result<PathBuf> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        cache_folder(self.work.as_deref(), variable)
    }

    /// Guests at once.
    pub fn guests(&self) -> anyhow::Result<usize> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let jobs = self.jobs.unwrap_or(cores);
        ensure!((1..=JOBS_MAX).contains(&jobs), "--jobs {jobs}: from 1 to {JOBS_MAX}");
        Ok(jobs)
    }
}

fn cache_folder(work: Option<&Path>, variable: impl Fn(&str) -> Option<PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(folder) = work.map(Path::to_path_buf).or_else(|| variable("RUNNEL_LAB")) {
        return Ok(folder);
    }
    let caches = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    let caches = caches.context("neither HOME nor XDG_CACHE_HOME is set; give a cache folder with --work DIR")?;
    Ok(caches.join("runnel/lab"))
}

/// Keeps the entries that have one of the names `wanted`; each of these must be that of some entry.
fn retain_named(
    entries: &mut Vec<Entry>,
    what: &str,
    wanted: &[String],
    names: impl Fn(&Row) -> Vec<String>,
) -> anyhow::Result<()> {
    for name in wanted {
        let known = entries.iter().any(|entry| names(&entry.row).contains(name));
        ensure!(known, "no row of the plan is of the {what} '{name}'");
    }
    entries.retain(|entry| wanted.is_empty() || names(&entry.row).iter().any(|name| wanted.contains(name)));
    Ok(())
}

fn read_plan(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(PLAN_BYTES_MAX + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= PLAN_BYTES_MAX, "it is longer than {PLAN_BYTES_MAX} bytes");
    Ok(text)
}

/// Refuses what no guest could measure.
fn check(entries: &[Entry]) -> anyhow::Result<()> {
    let mut seen = BTreeSet::new();
    for Entry { row, .. } in entries {
        guest::check(row).with_context(|| row.to_string())?;
        ensure!(seen.insert(row), "the row '{row}' is there twice");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plans_of_the_lab_are_valid_and_grow() -> anyhow::Result<()> {
        let count = |size| Options { size: Some(size), ..Options::default() }.entries().map(|entries| entries.len());
        let (smoke, quick, full) = (count(Size::Smoke)?, count(Size::Quick)?, count(Size::Full)?);
        assert!(smoke < quick && quick < full, "{smoke} {quick} {full}");
        assert!((smoke..full).contains(&count(Size::Lan)?) && (smoke..full).contains(&count(Size::Cache)?));
        Ok(())
    }

    #[test]
    fn only_rows_that_contain_the_text_are_kept() -> anyhow::Result<()> {
        let options = Options { only: Some("nfs perl".into()), ..Options::default() };
        let entries = options.entries()?;
        assert!(entries.iter().all(|entry| entry.row.system == "nfs" && entry.row.program.starts_with("perl")));
        let none = Options { only: Some("emacs".into()), ..Options::default() };
        assert!(none.entries().expect_err("no such row").to_string().contains("'emacs'"));
        Ok(())
    }

    #[test]
    fn rows_that_no_guest_could_measure_are_refused() -> anyhow::Result<()> {
        for (text, expected) in [
            ("start moon nfs perl 1\n", "no link 'moon'"),
            ("start - local emacs 1\n", "no program 'emacs'"),
            ("start - local perl 1\nstart - local perl 2\n", "twice"),
            ("dance - local perl 1\n", "no experiment 'dance'"),
            ("start lan afs perl 1\n", "no system 'afs'"),
            ("start lan squashfs:fast perl 1\n", "with a mode 'fast'"),
            ("start - local:fast perl 1\n", "local has no modes"),
            ("start lan nfs:v3 perl 1\n", "nfs has no modes"),
            ("start lan runnel:of-perl python 1\n", "different images"),
            ("start lan runnel:updated perl 1\n", "no next version"),
            ("start lan runnel:twice perl 1\n", "no mode 'twice'"),
            ("start - sd:c perl 1\n", "no card 'c'"),
            ("start - squashfs:c perl 1\n", "with a mode 'c'"),
            ("start - erofs perl 1\n", "needs a link"),
            ("set wifi nfs perl 1\n", "for disks"),
        ] {
            let error = format!("{:#}", check(&plan::parse(text)?).expect_err(expected));
            assert!(error.contains(expected), "{error}");
        }
        Ok(())
    }

    #[test]
    fn a_plan_without_end_is_not_read() {
        let options = Options { plan: Some("/dev/zero".into()), ..Options::default() };
        let error = format!("{:#}", options.entries().expect_err("no plan"));
        assert!(error.contains("/dev/zero") && error.contains("longer"), "{error}");
    }

    #[test]
    fn the_cache_folder_is_the_nearest_that_was_named() -> anyhow::Result<()> {
        let all = |name: &str| Some(PathBuf::from(format!("/{name}")));
        assert_eq!(cache_folder(Some(Path::new("/given")), all)?, Path::new("/given"));
        assert_eq!(cache_folder(None, all)?, Path::new("/RUNNEL_LAB"));
        let home = |name: &str| (name == "HOME").then(|| PathBuf::from("/home/me"));
        assert_eq!(cache_folder(None, home)?, Path::new("/home/me/.cache/runnel/lab"));
        assert!(cache_folder(None, |_| None).is_err());
        Ok(())
    }
}
