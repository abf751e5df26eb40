//! Options of `runnel-bench launch`, checked before anything is set up.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Parser;
use disk::{MODELS, Model};

use super::program::{PROGRAMS, Profile, Program};
use crate::options::beside;

/// Most runs: more would not end.
const RUNS_MAX: usize = 100;

/// Starts of local programs from slow disks: cold, warm, prefetched perfectly, and by `runnel
/// launch`
///
/// Makes a Debian system with all programs (kept in a cache folder; needs root), serves it as a
/// disk whose reads take as long as a model of a hard disk, SATA SSD, eMMC or network disk says,
/// and starts programs from it. Ends with an error that names what failed, after the report.
#[derive(Clone, Debug, clap::Parser)]
pub struct Options {
    /// Programs without windows on a hard disk and a SATA SSD: about half an hour (default)
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// All programs on all disks: some hours
    #[arg(long)]
    pub full: bool,
    /// Only these disks: hdd, sata, emmc, net
    #[arg(long = "disk", value_name = "NAME", value_delimiter = ',')]
    pub disks: Vec<String>,
    /// Only these programs: python, java, gxx, office, gimp, inkscape, later-0.5, later-2, later-4
    #[arg(long = "program", value_name = "NAME", value_delimiter = ',')]
    pub programs: Vec<String>,
    /// Only these modes: cold, warm, perfect, readahead-512, files, preload, runnel, runnel-warm
    #[arg(long = "mode", value_name = "NAME", value_delimiter = ',')]
    pub modes: Vec<String>,
    /// Runs of each program in each mode on each disk
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
    /// Cache folder (default: runnel/launch in the user's caches); up to 8 GB while the system is
    /// made
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// Where the report goes (default: report.html in the cache folder)
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// One JSON line per row instead of tables
    #[arg(long)]
    pub json: bool,
    /// Measure this runnel instead of the one beside this program
    #[arg(long = "binary", value_name = "FILE", default_value_os_t = beside(), hide_default_value = true)]
    pub runnel: PathBuf,
    /// Add the rows to this file
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options::parse_from([""])
    }
}

/// Options that were checked.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The disks.
    pub disks: Vec<&'static Model>,
    /// The programs.
    pub programs: Vec<&'static Program>,
    /// The tree that has them all.
    pub profile: Profile,
    /// Only these modes; all if there are none.
    pub modes: Vec<String>,
    /// See [`Options::runs`].
    pub runs: usize,
    /// The cache folder.
    pub cache: PathBuf,
}

impl Options {
    /// Checks the options.
    ///
    /// # Errors
    /// A name that nothing has, or no place for the cache; the message says what there is.
    pub fn plan(&self) -> anyhow::Result<Plan> {
        ensure!((1..=RUNS_MAX).contains(&self.runs), "--runs {}: from 1 to {RUNS_MAX}", self.runs);
        let programs = self.programs()?;
        let profile = programs.iter().map(|program| program.profile).max().unwrap_or(Profile::Small);
        let known: Vec<&str> = super::run::Mode::ALL.iter().map(|mode| mode.name()).collect();
        for mode in &self.modes {
            let is_known = known.contains(&mode.as_str()) || mode == super::results::PERFECT;
            ensure!(is_known, "no mode '{mode}'; there are: {}", known.join(", "));
        }
        let (modes, runs) = (self.modes.clone(), self.runs);
        Ok(Plan { disks: self.disks()?, programs, profile, modes, runs, cache: self.cache()? })
    }

    fn disks(&self) -> anyhow::Result<Vec<&'static Model>> {
        if self.disks.is_empty() {
            let quick = |model: &&Model| self.full || ["hdd", "sata"].contains(&model.name);
            return Ok(MODELS.iter().filter(quick).collect());
        }
        let known = MODELS.map(|model| model.name).join(", ");
        let find = |name: &String| Model::named(name).with_context(|| format!("no disk '{name}'; there are: {known}"));
        self.disks.iter().map(find).collect()
    }

    fn programs(&self) -> anyhow::Result<Vec<&'static Program>> {
        if self.programs.is_empty() {
            let quick = |program: &&Program| self.full || program.profile == Profile::Small;
            return Ok(PROGRAMS.iter().filter(quick).collect());
        }
        let known = PROGRAMS.map(|program| program.name).join(", ");
        let find =
            |name: &String| Program::named(name).with_context(|| format!("no program '{name}'; there are: {known}"));
        self.programs.iter().map(find).collect()
    }

    fn cache(&self) -> anyhow::Result<PathBuf> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let caches = || variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
        let folder = self.work.clone().or_else(|| caches().map(|caches| caches.join("runnel/launch")));
        folder.context("neither HOME nor XDG_CACHE_HOME is set; give a cache folder with --work DIR")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(change: impl FnOnce(&mut Options)) -> anyhow::Result<Plan> {
        let mut options = Options { work: Some("/cache".into()), ..Options::default() };
        change(&mut options);
        options.plan()
    }

    #[test]
    fn the_size_chooses_programs_disks_and_tree() -> anyhow::Result<()> {
        let quick = plan(|_| {})?;
        assert_eq!(quick.disks.iter().map(|disk| disk.name).collect::<Vec<_>>(), ["hdd", "sata"]);
        assert_eq!((quick.programs.len(), quick.profile, quick.runs), (6, Profile::Small, 3));
        let full = plan(|options| options.full = true)?;
        assert_eq!((full.disks.len(), full.programs.len(), full.profile), (4, PROGRAMS.len(), Profile::Full));
        let one = plan(|options| options.programs = vec!["gimp".into()])?;
        assert_eq!((one.programs.len(), one.profile), (1, Profile::Full));
        Ok(())
    }

    #[test]
    fn bad_options_are_refused_before_anything_runs() {
        type Change = fn(&mut Options);
        let cases: [(Change, &str); 4] = [
            (|options| options.runs = 0, "--runs 0: from 1"),
            (|options| options.disks = vec!["tape".into()], "no disk 'tape'; there are: hdd, sata, emmc, net"),
            (|options| options.programs = vec!["vi".into()], "no program 'vi'; there are: python"),
            (|options| options.modes = vec!["hot".into()], "no mode 'hot'; there are: cold, warm"),
        ];
        for (change, expected) in cases {
            let error = format!("{:#}", plan(change).expect_err(expected));
            assert!(error.contains(expected), "{error}");
        }
    }
}
