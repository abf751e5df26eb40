//! Makes a plan from learning runs.
//!
//! The bursts of one run, the reference, become groups ([`super::burst`]). All runs together decide
//! what is in them (`merge`). Pages become extents (`extent`). Each later group gets the first
//! unique address of the idle period before it (`breakpoint`); if there is none, it goes with the
//! nearest earlier group that has a trigger of its own. For programs without breakpoints it also
//! gets the first library that is new in that period (`library`). The caller says what the files
//! are now ([`Files`]), so that this stays a pure function.

use std::collections::{HashMap, HashSet};

use trace::Found;
use units::{Moment, PAGE_BYTES};

use super::breakpoint::Executions;
use super::burst::{BurstConfig, Timeline};
use super::extent::{Touched, extents};
use super::library::Libraries;
use super::merge::{Common, Item, Kept, align, keep, reference};
use super::{Breakpoint, Group, Identity, LaunchPlan, Library, Limits, PlanFile, Run, RunError, Trigger};

/// How runs become a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnalyseConfig {
    /// How bursts differ from idle periods.
    pub burst: BurstConfig,
    /// Choose the threshold of each run from the run itself ([`BurstConfig::auto`]).
    pub auto: bool,
    /// Leave out what fewer runs touched; never more is asked than there are runs.
    pub runs_min: usize,
    /// Longest hole between touched pages that is fetched with them. 16 KiB: reading them takes a
    /// disk of 120 MB/s 0.14 ms, about as long as another request.
    pub hole_pages_max: u32,
    /// Pages in holes, in percent of touched pages, over the whole plan. Never more than
    /// [`OVER_FETCH_PERCENT_MAX`]; half of that by default, because the kernel reads ahead of what
    /// the program asks for itself.
    pub over_fetch_percent_max: u32,
}

/// Upper limit of [`AnalyseConfig::over_fetch_percent_max`]: lists that fetched 2 to 3 times what
/// was touched made programs 14 to 26 % slower on a slow card.
pub const OVER_FETCH_PERCENT_MAX: u32 = 20;

impl Default for AnalyseConfig {
    fn default() -> AnalyseConfig {
        AnalyseConfig {
            burst: BurstConfig::default(),
            auto: false,
            runs_min: 2,
            hole_pages_max: 4,
            over_fetch_percent_max: OVER_FETCH_PERCENT_MAX / 2,
        }
    }
}

/// What the files of the machine are now. Paths are from the root, without a leading slash.
pub trait Files {
    /// What the regular file at `path` is; `None` if there is none.
    fn identity(&self, path: &[u8]) -> Option<Identity>;

    /// The byte at `offset` of that file; `None` if it cannot be read.
    fn byte(&self, path: &[u8], offset: u64) -> Option<u8>;
}

/// A plan and how it came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// The plan. It is within [`Limits::WRITTEN`].
    pub plan: LaunchPlan,
    /// The runs cut into bursts, in the order they were given in.
    pub timelines: Vec<Timeline>,
    /// Position of the run whose bursts make the groups and whose times are those of the plan.
    pub reference: usize,
    /// What was left out, and why.
    pub report: Report,
}

/// What an analysis left out and added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Files that are no longer there.
    pub files_gone: usize,
    /// Files that have another length than in any run.
    pub files_changed: usize,
    /// Pages, and opens of paths, that too few runs touched.
    pub rare: usize,
    /// Pages in the plan that were touched.
    pub pages_touched: u64,
    /// Pages in the plan that were not: holes between touched ones.
    pub pages_hole: u64,
    /// Later groups with a breakpoint of their own.
    pub breakpoints: usize,
    /// Later groups with a library of their own.
    pub libraries: usize,
    /// Later groups that go with an earlier one.
    pub linked: usize,
    /// Pages, opens, extents and bursts that the limits of the format have no room for.
    pub over_limit: usize,
}

/// Makes a plan of learning runs of one program. Equal arguments give equal plans.
///
/// # Errors
/// No run, or runs of different programs.
pub fn analyse(runs: &[Run], files: &dyn Files, config: &AnalyseConfig) -> Result<Analysis, RunError> {
    let first = runs.first().ok_or(RunError::NoRuns)?;
    if let Some(other) = runs.iter().find(|run| run.program != first.program) {
        let [found, expected] = [&other.program, &first.program].map(|path| path.escape_ascii().to_string());
        return Err(RunError::OtherProgram { found, expected });
    }
    let mut report = Report::default();
    let mut timelines: Vec<Timeline> = runs.iter().map(|run| Timeline::new(run, &config.burst, config.auto)).collect();
    for timeline in &mut timelines {
        report.over_limit += timeline.bursts.len().saturating_sub(Limits::WRITTEN.groups_max);
        timeline.bursts.truncate(Limits::WRITTEN.groups_max);
    }
    let (table, maps) = table(runs, files, &mut report);
    let mut common: Vec<Common> = runs
        .iter()
        .zip(&timelines)
        .zip(maps)
        .map(|((run, timeline), files)| Common { run, timeline, files, matched: Vec::new() })
        .collect();
    let runs_min = config.runs_min.clamp(1, runs.len());
    let reference = reference(&common, runs_min);
    common[..=reference].rotate_right(1);
    align(&mut common);
    let (kept, rare) = keep(&common, runs_min);
    report.rare = rare;
    let mut builder =
        Builder { table: &table, numbers: HashMap::new(), path_bytes: 0, plan: LaunchPlan::default(), report };
    builder.plan.program = first.program.clone();
    builder.plan.runs = runs.len() as u32;
    builder.groups(&kept, &common, config);
    builder.triggers(&common, files);
    let Builder { plan, report, .. } = builder;
    Ok(Analysis { plan: plan.groups_only_if_any(), timelines, reference, report })
}

/// A path of any run: what it is now.
struct Entry {
    path: Vec<u8>,
    /// `None` for a directory or a path where nothing was found.
    identity: Option<Identity>,
}

/// All paths of all runs, and for each run where its files are among them. A file that is gone is
/// nowhere; one with another length now than in a run is not in that run.
fn table(runs: &[Run], files: &dyn Files, report: &mut Report) -> (Vec<Entry>, Vec<Vec<Option<u32>>>) {
    // Whether a path was a file in any run.
    let mut kinds: HashMap<&[u8], bool> = HashMap::new();
    for run in runs {
        let executables: HashSet<u32> = run.images.iter().filter_map(|image| image.executable).collect();
        let opened: HashSet<u32> =
            run.lookups.iter().filter(|lookup| lookup.found == Found::File).map(|lookup| lookup.file).collect();
        for (number, file) in run.files.iter().enumerate() {
            let number = number as u32;
            let is_file = file.size.is_some() || executables.contains(&number) || opened.contains(&number);
            *kinds.entry(&file.path).or_default() |= is_file;
        }
    }
    let mut table: Vec<Entry> = Vec::new();
    let mut numbers: HashMap<&[u8], Option<u32>> = HashMap::new();
    let mut changed: HashMap<&[u8], bool> = HashMap::new();
    let mut maps = Vec::new();
    for run in runs {
        let map = run.files.iter().map(|file| {
            let path = file.path.as_slice();
            let number = (*numbers.entry(path).or_insert_with(|| {
                let identity = if kinds[path] { Some(files.identity(path)?) } else { None };
                table.push(Entry { path: path.to_vec(), identity });
                Some(table.len() as u32 - 1)
            }))?;
            let now = table[number as usize].identity.as_ref().map(|identity| identity.size);
            let same = file.size.is_none() || file.size == now;
            *changed.entry(path).or_insert(true) &= !same;
            same.then_some(number)
        });
        maps.push(map.collect());
    }
    report.files_gone = numbers.values().filter(|number| number.is_none()).count();
    report.files_changed = changed.values().filter(|changed| **changed).count();
    (table, maps)
}

struct Builder<'a> {
    table: &'a [Entry],
    /// Positions in the plan of the entries of the table that are used.
    numbers: HashMap<u32, u32>,
    path_bytes: usize,
    plan: LaunchPlan,
    report: Report,
}

impl Builder<'_> {
    /// The position in the plan of an entry of the table; `None` if the plan is full.
    fn number(&mut self, entry: u32) -> Option<u32> {
        if let Some(number) = self.numbers.get(&entry) {
            return Some(*number);
        }
        let Entry { path, identity } = &self.table[entry as usize];
        let path_bytes = self.path_bytes + path.len();
        let number = self.plan.files.len();
        if number >= Limits::WRITTEN.files_max || path_bytes > Limits::WRITTEN.path_bytes_max {
            return None;
        }
        self.path_bytes = path_bytes;
        self.plan.files.push(PlanFile { path: path.clone(), identity: identity.clone() });
        self.numbers.insert(entry, number as u32);
        Some(number as u32)
    }

    /// Makes the groups, still with positions of periods as triggers' groups.
    fn groups(&mut self, kept: &[Kept], common: &[Common], config: &AnalyseConfig) {
        let bursts = &common[0].timeline.bursts;
        self.plan.groups = bursts.iter().map(|burst| Group { at: burst.began, ..Group::default() }).collect();
        if self.plan.groups.is_empty() {
            self.plan.groups.push(Group::default());
        }
        let mut touched = Vec::new();
        for (rank, kept) in kept.iter().enumerate() {
            let (Item::Open(entry) | Item::Page(entry, _)) = kept.item;
            let Some(file) = self.number(entry) else {
                self.report.over_limit += 1;
                continue;
            };
            match kept.item {
                Item::Open(_) => self.plan.groups[kept.period].opens.push(file),
                Item::Page(_, page) => touched.push(Touched { group: kept.period, rank: rank as u32, file, page }),
            }
        }
        let config = AnalyseConfig {
            over_fetch_percent_max: config.over_fetch_percent_max.min(OVER_FETCH_PERCENT_MAX),
            ..*config
        };
        self.report.pages_touched = touched.len() as u64;
        let (extents, holes) = extents(touched, self.plan.groups.len(), &config);
        self.report.pages_hole = holes;
        let mut room = Limits::WRITTEN.extents_max;
        for (group, mut extents) in self.plan.groups.iter_mut().zip(extents) {
            self.report.over_limit += extents.len().saturating_sub(room);
            extents.truncate(room);
            room -= extents.len();
            group.extents = extents;
        }
    }

    /// Drops groups that hold nothing and gives each other one its trigger.
    fn triggers(&mut self, common: &[Common], files: &dyn Files) {
        let executions = Executions::new(common);
        let table = self.table;
        let path = |entry: u32| table[entry as usize].path.clone();
        let libraries = Libraries::new(common, &path);
        let groups = std::mem::take(&mut self.plan.groups);
        let mut own = 0;
        for (period, mut group) in groups.into_iter().enumerate() {
            if period > 0 {
                if group.opens.is_empty() && group.extents.is_empty() {
                    continue;
                }
                group.trigger = match self.breakpoint(period, &executions, common, files) {
                    Some(breakpoint) => {
                        self.report.breakpoints += 1;
                        own = self.plan.groups.len() as u32;
                        Trigger::Breakpoint(breakpoint)
                    }
                    None => {
                        self.report.linked += 1;
                        Trigger::With(own)
                    }
                };
                let library = libraries.candidates(period, common, &path);
                group.library = library.into_iter().find_map(|(entry, at)| {
                    table[entry as usize].identity.as_ref()?;
                    Some(Library { file: self.number(entry)?, at })
                });
                self.report.libraries += usize::from(group.library.is_some());
            }
            self.plan.groups.push(group);
        }
    }

    fn breakpoint(
        &mut self,
        period: usize,
        executions: &Executions,
        common: &[Common],
        files: &dyn Files,
    ) -> Option<Breakpoint> {
        let table = self.table;
        let path = |entry: u32| table[entry as usize].path.clone();
        for candidate in executions.candidates(period, common, &path) {
            let (process, file, offset) = candidate.address;
            let inside = |entry: u32| table[entry as usize].identity.as_ref().map(|identity| identity.size);
            if inside(process).is_none() || inside(file).is_none_or(|size| offset >= size) {
                continue;
            }
            let Some(byte) = files.byte(&table[file as usize].path, offset) else { continue };
            let (file, process) = (self.number(file)?, self.number(process)?);
            return Some(Breakpoint { file, offset, process, byte, at: candidate.at });
        }
        None
    }
}

impl LaunchPlan {
    /// A plan of nothing has no groups at all.
    fn groups_only_if_any(mut self) -> LaunchPlan {
        if self.groups.iter().all(|group| group.opens.is_empty() && group.extents.is_empty()) {
            self.groups.clear();
        }
        self
    }

    /// Bytes that a group fetches; the last page of a file counts as long as it is.
    pub fn bytes(&self, group: &Group) -> u64 {
        let bytes = |extent: &super::GroupExtent| {
            let size = self.files.get(extent.file as usize).and_then(|file| Some(file.identity.as_ref()?.size));
            let [start, end] = [extent.page, extent.end()].map(|page| u64::from(page) * PAGE_BYTES as u64);
            size.unwrap_or(end).min(end).saturating_sub(start)
        };
        group.extents.iter().map(bytes).sum()
    }

    /// The group whose library starts the prefetch of the group at `position` where there are no
    /// breakpoints: its own, or the nearest earlier one that has a library, or that of the launch.
    pub fn library_leader(&self, position: usize) -> usize {
        let groups = self.groups.get(..=position).unwrap_or_default();
        groups.iter().rposition(|group| group.library.is_some()).unwrap_or(0)
    }

    /// How long before its burst the prefetch of the group at `position` starts, in the learning
    /// run: from its own or its earlier group's breakpoint, or from the start of the program.
    pub fn lead(&self, position: usize) -> std::time::Duration {
        let Some(group) = self.groups.get(position) else { return std::time::Duration::ZERO };
        let trigger = match &group.trigger {
            Trigger::With(earlier) => {
                self.groups.get(*earlier as usize).map_or(&Trigger::Launch, |group| &group.trigger)
            }
            own => own,
        };
        match trigger {
            Trigger::Breakpoint(breakpoint) => group.at.since(breakpoint.at),
            Trigger::Launch | Trigger::With(_) => group.at.since(Moment(0)),
        }
    }
}
