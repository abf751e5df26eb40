//! The user's plans: one folder with a plan and its history for each program.
//!
//! `NAME-KEY.plan` is the plan, `NAME-KEY.json` its history. KEY is the start of a hash of the
//! program's path (and of what an interpreter runs), so two programs of one name have two plans.
//! Files are replaced by rename, so a launch never sees half a file. Two launches that end at once
//! lose one entry of the history, not the history.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use profile::plan::{self, LaunchPlan};

use crate::{History, Launch, LaunchError, Program, small_file};

/// Longest plan that is read, in bytes: a plan takes some 10 bytes an extent, the largest program
/// seen has 30,000.
const PLAN_BYTES_MAX: u64 = 16 << 20;

/// Longest history: 48 launches of 80 bytes, and room.
const HISTORY_BYTES_MAX: u64 = 64 << 10;

/// Traces kept of a program: more say little that three do not, and each takes some 100 KB.
pub(crate) const TRACES_MAX: usize = 3;

/// Names looked at in a folder: some ten thousand programs, and an end for a folder that somebody
/// fills.
const NAMES_MAX: usize = 1 << 16;

/// A folder of plans.
#[derive(Clone, Debug)]
pub struct PlanStore {
    folder: PathBuf,
}

/// A plan in the folder.
#[derive(Debug)]
pub struct Entry {
    /// Its file.
    pub path: PathBuf,
    /// The plan, or why it cannot be read.
    pub plan: Result<LaunchPlan, LaunchError>,
    /// Its history; empty if there is none or it cannot be read. A lost history costs a few
    /// comparisons, no data of the user.
    pub history: History,
}

impl PlanStore {
    /// The folder `given`, or `$XDG_CACHE_HOME/runnel/plans`, or `~/.cache/runnel/plans`. Nothing
    /// is made yet.
    ///
    /// # Errors
    /// Neither is known.
    pub fn open(given: Option<&Path>) -> Result<PlanStore, LaunchError> {
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let caches = || variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
        let folder = given.map(Path::to_path_buf).or_else(|| caches().map(|caches| caches.join("runnel/plans")));
        folder.map(|folder| PlanStore { folder }).ok_or(LaunchError::NoFolder)
    }

    /// Where the plan of a program lies.
    pub fn plan_path(&self, program: &Program) -> PathBuf {
        let key = program.key().to_hex();
        let name = program.real.file_name().unwrap_or(OsStr::new("program")).as_bytes();
        // A file name holds 255 bytes, and key and ending need 22.
        let mut file = OsString::from_vec(name[..name.len().min(200)].to_vec());
        file.push(format!("-{}.plan", &key[..16]));
        self.folder.join(file)
    }

    /// The plan and the history of a program; `None` if it has no plan.
    ///
    /// # Errors
    /// There is one that cannot be read.
    pub fn load(&self, program: &Program) -> Result<Option<(LaunchPlan, History)>, LaunchError> {
        let path = self.plan_path(program);
        let plan = match read_plan(&path) {
            Err(LaunchError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        // The key is a hash of the path, and whoever renames plans shall not launch another
        // program's.
        let fits = plan.program == program.real.as_os_str().as_bytes();
        Ok(fits.then(|| (plan, read_history(&path.with_extension("json")))))
    }

    /// Keeps a plan. A history that is there stays, without the launches of the older plan.
    ///
    /// # Errors
    /// The folder cannot be made or written to.
    pub fn save(&self, program: &Program, plan: &LaunchPlan) -> Result<PathBuf, LaunchError> {
        let path = self.plan_path(program);
        let history = path.with_extension("json");
        let history = History { recent: Vec::new(), title: program.title(), ..read_history(&history) };
        small_file::replace(
            &path,
            &plan::encode(plan).map_err(|source| LaunchError::Plan { path: path.clone(), source })?,
        )?;
        self.save_history(program, &history)?;
        Ok(path)
    }

    /// Keeps the history of a program.
    ///
    /// # Errors
    /// The folder cannot be made or written to.
    pub fn save_history(&self, program: &Program, history: &History) -> Result<(), LaunchError> {
        let path = self.plan_path(program).with_extension("json");
        let text = serde_json::to_vec(history).expect("numbers and names have a JSON form");
        small_file::replace(&path, &text)
    }

    /// Removes plan and history of a program; whether there was a plan.
    ///
    /// # Errors
    /// They cannot be removed.
    pub fn forget(&self, program: &Program) -> Result<bool, LaunchError> {
        self.remove(&self.plan_path(program))
    }

    /// Removes the plan in `path`, as [`PlanStore::list`] gave it, and its history; whether there
    /// was one.
    ///
    /// # Errors
    /// They cannot be removed.
    pub fn remove(&self, path: &Path) -> Result<bool, LaunchError> {
        let removed = |path: PathBuf| match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(LaunchError::io("remove", path)(error)),
        };
        removed(path.with_extension("json"))?;
        for trace in traces_of(path) {
            removed(trace)?;
        }
        removed(path.to_path_buf())
    }

    /// All plans, by file name.
    ///
    /// # Errors
    /// The folder is there and cannot be read.
    pub fn list(&self) -> Result<Vec<Entry>, LaunchError> {
        let entry =
            |path: PathBuf| Entry { plan: read_plan(&path), history: read_history(&path.with_extension("json")), path };
        Ok(self.paths()?.into_iter().map(entry).collect())
    }

    /// The files of all plans, by name.
    pub(crate) fn paths(&self) -> Result<Vec<PathBuf>, LaunchError> {
        self.files("plan")
    }

    /// Half-written files of processes that were killed. (In another process name space they may
    /// still run.)
    ///
    /// # Errors
    /// The folder is there and cannot be read.
    pub fn leftovers(&self) -> Result<Vec<PathBuf>, LaunchError> {
        let is_gone = |path: &PathBuf| {
            let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
            let process = name.rsplit('.').nth(1).and_then(|process| process.parse::<u32>().ok());
            process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists())
        };
        let mut parts = self.files("part")?;
        parts.retain(is_gone);
        Ok(parts)
    }

    fn files(&self, extension: &str) -> Result<Vec<PathBuf>, LaunchError> {
        let names = match fs::read_dir(&self.folder) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(LaunchError::io("read", &self.folder)(error)),
        };
        let mut paths: Vec<PathBuf> = names.take(NAMES_MAX).filter_map(|name| Some(name.ok()?.path())).collect();
        paths.retain(|path| path.extension() == Some(OsStr::new(extension)));
        paths.sort();
        Ok(paths)
    }

    /// Adds a launch to the history of a program as it is now: another launch may have ended
    /// meanwhile.
    ///
    /// # Errors
    /// There is no plan any more, or the folder cannot be written to.
    pub fn enter(&self, program: &Program, launch: Launch) -> Result<(), LaunchError> {
        let Some((_, mut history)) = self.load(program)? else { return Ok(()) };
        history.enter(launch);
        self.save_history(program, &history)
    }

    /// Where the plans lie.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Reads one plan file.
///
/// # Errors
/// It cannot be read, is too long, or is no plan.
pub fn read_plan(path: &Path) -> Result<LaunchPlan, LaunchError> {
    let bytes = small_file::read(path, PLAN_BYTES_MAX).map_err(LaunchError::io("read", path))?;
    plan::decode(&bytes, &plan::Limits::default())
        .map_err(|source| LaunchError::Plan { path: path.to_path_buf(), source })
}

fn read_history(path: &Path) -> History {
    let bytes = small_file::read(path, HISTORY_BYTES_MAX).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// Where the traces of a plan lie.
pub(crate) fn traces_of(plan: &Path) -> Vec<PathBuf> {
    (0..TRACES_MAX).map(|number| plan.with_extension(format!("{number}.trace"))).collect()
}
