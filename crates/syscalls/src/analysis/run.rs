//! The analysis, from files to a report.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use elf::Root;

use super::files::{Files, Start, base};
use super::object::Object;
use super::reach::{FunctionId, Reach, Scope};
use super::report::{CallReport, ObjectReport, ProgramReport, Report, Site, Source};
use super::resolve::{Arguments, Solver, join};
use super::{AnalysisError, Policy, Why};
use crate::{Arch, name, number};

/// What to analyse.
#[derive(Clone, Debug)]
pub enum Subject {
    /// These programs, by path or by a name sought in the usual directories.
    Programs(Vec<Vec<u8>>),
    /// Every program of the tree.
    Tree,
}

/// How.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Look for constant arguments as well.
    pub with_arguments: bool,
    /// Libraries that programs may open, beside those that are found.
    pub plugins: Vec<Vec<u8>>,
    /// What somebody vouches for.
    pub policy: Policy,
}

/// Functions that open libraries.
const OPENERS: [&[u8]; 3] = [b"dlopen", b"dlmopen", b"__libc_dlopen_mode"];

/// Functions that find symbols by name.
const FINDERS: [&[u8]; 2] = [b"dlsym", b"dlvsym"];

/// Which of their arguments is the name.
const NAME_ARGUMENT: usize = 1;

/// The kernel starts these again by a call of its own after a stop.
const RESTARTED: [&str; 7] =
    ["nanosleep", "clock_nanosleep", "poll", "futex", "ppoll", "clock_nanosleep_time64", "futex_waitv"];

/// Longest name of a symbol or library that is looked for among strings.
const NAME_BYTES_MAX: usize = 128;

/// Analyses programs in the tree of `root`.
///
/// # Errors
/// Files that are missing, damaged, or for another processor. Damaged files of a whole tree are
/// noted instead.
pub fn analyse(root: &dyn Root, subject: &Subject, options: &Options) -> Result<Report, AnalysisError> {
    let mut files = Files::new(root);
    let mut loose = match subject {
        Subject::Programs(paths) => {
            for path in paths {
                files.program(path)?;
            }
            Vec::new()
        }
        Subject::Tree => files.tree()?,
    };
    if files.starts.is_empty() {
        return Err(AnalysisError::Nothing);
    }
    for plugin in &options.plugins {
        files.library(plugin)?;
        loose.push(plugin.clone());
    }
    if matches!(subject, Subject::Programs(_)) {
        loose.extend(named_libraries(&mut files)?);
    }
    let (starts, content) = (std::mem::take(&mut files.starts), std::mem::take(&mut files.content));
    let mut objects: Vec<Object<'_>> = Vec::new();
    let mut index: HashMap<Vec<u8>, usize> = HashMap::new();
    for (path, bytes) in &content {
        let object =
            Object::new(path.clone(), bytes).map_err(|source| AnalysisError::Elf { path: path.clone(), source })?;
        index.insert(path.clone(), objects.len());
        objects.push(object);
    }
    let mut report =
        Report { notes: files.notes.into_iter().collect(), is_partial: files.is_partial, ..Report::default() };
    let mut all = All::default();
    for start in &starts {
        program(start, &objects, &index, &loose, options, &mut all, &mut report);
    }
    all.finish(&objects, options, &mut report);
    Ok(report)
}

/// What was found over all programs.
#[derive(Default)]
struct All {
    /// By place: calls with arguments and choosers, and why there may be others.
    sites: BTreeMap<(usize, u64), Found>,
}

struct Found {
    function: u64,
    calls: BTreeMap<u32, (Arguments, BTreeSet<FunctionId>)>,
    why: Option<(Why, FunctionId)>,
}

/// Analyses one program.
fn program(
    start: &Start,
    objects: &[Object<'_>],
    index: &HashMap<Vec<u8>, usize>,
    loose: &[Vec<u8>],
    options: &Options,
    all: &mut All,
    report: &mut Report,
) {
    let loaded = start.loaded(index, &|object| objects[object].linked.program.clone());
    let mut scope = Scope { objects, loaded, opened: Vec::new(), asked: Vec::new() };
    let mut reach = scope.reach();
    let path = String::from_utf8_lossy(&start.path).into_owned();
    let opens = OPENERS.iter().any(|name| reach.imported.contains(*name));
    let libraries = loose.iter().filter_map(|path| index.get(path)).copied();
    scope.opened = libraries.filter(|object| opens || is_of_libc(&objects[*object].path)).collect();
    scope.opened.retain(|object| !scope.loaded.contains(object));
    scope.asked = asked(&scope, &reach);
    if opens && matches!(options.plugins.len(), 0) {
        report
            .notes
            .push(format!("{path}: opens libraries while it runs; {} of the image are counted", scope.opened.len()));
    }
    if !scope.opened.is_empty() || !scope.asked.is_empty() {
        needs(&mut scope, objects, index);
        reach = scope.reach();
    }
    report.is_partial |= reach.is_cut;
    let mut solver = Solver::new(&scope, &reach, options.with_arguments);
    let mut mine =
        ProgramReport { path, calls: BTreeSet::new(), sites: 0, unresolved: 0, functions: reach.functions.len() };
    let mut seen: BTreeMap<(usize, u64), bool> = BTreeMap::new();
    for place in &reach.functions {
        for (at, gate) in &objects[place.0].function(place.1).gates {
            let outcome = solver.gate(*place, *at, *gate);
            mine.calls.extend(outcome.calls.keys());
            *seen.entry((place.0, *at)).or_default() |= outcome.why.is_some();
            let found = all.sites.entry((place.0, *at)).or_insert_with(|| Found {
                function: place.1,
                calls: BTreeMap::new(),
                why: None,
            });
            found.why = found.why.take().or(outcome.why);
            for (number, (arguments, places)) in outcome.calls {
                match found.calls.get_mut(&number) {
                    Some((known, from)) => {
                        join(known, &arguments);
                        from.extend(places);
                    }
                    None => {
                        found.calls.insert(number, (arguments, places));
                    }
                }
            }
        }
    }
    mine.sites = seen.len();
    mine.unresolved = seen.values().filter(|is_unresolved| **is_unresolved).count();
    report.programs.push(mine);
}

/// Adds what opened libraries need themselves.
fn needs(scope: &mut Scope<'_>, objects: &[Object<'_>], index: &HashMap<Vec<u8>, usize>) {
    let mut next = 0;
    while let Some(object) = scope.opened.get(next).copied() {
        next += 1;
        for needed in &objects[object].linked.program.needed {
            let found = index.iter().find(|(path, at)| {
                base(path) == base(needed) || objects[**at].linked.program.soname.as_ref() == Some(needed)
            });
            if let Some((_, at)) = found
                && !scope.loaded.contains(at)
                && !scope.opened.contains(at)
            {
                scope.opened.push(*at);
            }
        }
    }
}

/// Libraries that the C library itself opens: name services and character sets.
fn is_of_libc(path: &[u8]) -> bool {
    base(path).starts_with(b"libnss_") || path.windows(7).any(|window| window == b"/gconv/")
}

/// Functions of loaded objects that are asked for by name: the names that are passed to the
/// functions that look names up, where they are known. Of objects that pass others, every string
/// counts.
fn asked(scope: &Scope<'_>, reach: &Reach) -> Vec<FunctionId> {
    let mut solver = Solver::of_addresses(scope, reach);
    let (mut found, mut vague) = (BTreeSet::new(), BTreeSet::new());
    for finder in FINDERS {
        for place in scope.find(finder) {
            if !reach.functions.contains(&place) {
                continue;
            }
            if reach.taken.contains(&place) {
                vague.extend(scope.loaded.iter().copied().filter(|index| imports(&scope.objects[*index], finder)));
            }
            for (from, names) in solver.argument(place, NAME_ARGUMENT) {
                let names = names.ok().and_then(|all| all.iter().map(|at| text(&scope.objects[from.0], *at)).collect());
                let Some(names): Option<Vec<Vec<u8>>> = names else {
                    // The name may come from whoever calls the function that passes it on.
                    let above = reach.callers.get(&from).into_iter().flatten().map(|caller| caller.from.0);
                    vague.extend(above.chain([from.0]));
                    continue;
                };
                found.extend(names.iter().flat_map(|name| scope.find(name)));
            }
        }
    }
    for index in vague {
        let linked = &scope.objects[index].linked;
        let names = linked.strings.0..linked.strings.1;
        for region in linked.layout.space.regions().iter().filter(|region| !region.executable) {
            let mut at = region.address;
            for text in region.bytes.split(|byte| *byte == 0) {
                // The names of the symbols themselves ask for nothing.
                if !names.contains(&at) && is_name(text) {
                    found.extend(scope.find(text));
                }
                at += text.len() as u64 + 1;
            }
        }
    }
    found.into_iter().collect()
}

fn imports(object: &Object<'_>, name: &[u8]) -> bool {
    object.linked.imports.iter().any(|import| import == name)
}

/// The string at an address.
fn text(object: &Object<'_>, address: u64) -> Option<Vec<u8>> {
    let bytes = object.linked.layout.space.bytes_at(address);
    let end = bytes.iter().take(NAME_BYTES_MAX + 1).position(|byte| *byte == 0)?;
    Some(bytes[..end].to_vec())
}

/// Whether a string may be the name of a symbol or a library: not too long, without blanks.
fn is_name(text: &[u8]) -> bool {
    (2..=NAME_BYTES_MAX).contains(&text.len()) && text.iter().all(u8::is_ascii_graphic)
}

/// Libraries that the programs' files name as strings and that lie beside those that they load.
fn named_libraries(files: &mut Files<'_>) -> Result<Vec<Vec<u8>>, AnalysisError> {
    let mut names: BTreeSet<Vec<u8>> = BTreeSet::new();
    for content in files.content.values() {
        let opens =
            OPENERS.iter().any(|name| content.windows(name.len() + 1).any(|window| &window[..name.len()] == *name));
        let is_library = |text: &&[u8]| text.starts_with(b"lib") && text.windows(3).any(|window| window == b".so");
        if opens {
            let texts = content.split(|byte| *byte == 0).filter(|text| is_name(text));
            names.extend(texts.filter(is_library).map(<[u8]>::to_vec));
        }
    }
    let directories: BTreeSet<Vec<u8>> =
        files.content.keys().map(|path| path[..path.len() - base(path).len()].to_vec()).collect();
    let mut found = Vec::new();
    for name in names {
        for directory in &directories {
            let path = [directory.as_slice(), &name].concat();
            if !files.content.contains_key(&path) && files.library(&path).unwrap_or(false) {
                found.push(path);
            }
        }
    }
    Ok(found)
}

impl All {
    fn finish(self, objects: &[Object<'_>], options: &Options, report: &mut Report) {
        let shown = |object: usize| String::from_utf8_lossy(&objects[object].path).into_owned();
        let mut by_object: BTreeMap<usize, ObjectReport> = BTreeMap::new();
        for ((index, at), found) in self.sites {
            let object = &objects[index];
            let row = by_object.entry(index).or_insert_with(|| ObjectReport {
                path: shown(index),
                build_id: object.build_id.clone(),
                sites: 0,
                resolved: 0,
                calls: BTreeSet::new(),
            });
            row.sites += 1;
            report.sites += 1;
            let function = object.function_name(found.function);
            for (number, (arguments, places)) in found.calls {
                row.calls.insert(number);
                let call = report.calls.entry(number).or_insert_with(|| CallReport {
                    name: name(Arch::X86_64, number),
                    arguments: arguments.clone(),
                    sources: BTreeSet::new(),
                });
                join(&mut call.arguments, &arguments);
                call.sources.extend(places.into_iter().map(|(index, start)| Source {
                    object: shown(index),
                    function: objects[index].function_name(start),
                }));
            }
            let Some((why, (place, start))) = found.why else {
                row.resolved += 1;
                report.resolved += 1;
                continue;
            };
            match options.policy.vouched(object, &function, at) {
                Some(numbers) => {
                    report.vouched += 1;
                    row.calls.extend(&numbers);
                    for number in numbers {
                        add(report, number, Source { object: shown(index), function: function.clone() });
                    }
                }
                None => {
                    let from = Source { object: shown(place), function: objects[place].function_name(start) };
                    report.unresolved.push(Site { object: shown(index), function, address: at, why, from });
                }
            }
        }
        report.objects = by_object.into_values().collect();
        for text in &options.policy.also {
            if let Some(number) = number(Arch::X86_64, text) {
                add(report, number, Source { object: "policy".into(), function: String::new() });
            }
        }
        let kernel = |function: &str| Source { object: "kernel".into(), function: function.into() };
        let restarts = report.calls.values().any(|call| call.name.is_some_and(|name| RESTARTED.contains(&name)));
        for (text, why) in [("execve", "start"), ("restart_syscall", "restart")] {
            if (restarts || text == "execve")
                && let Some(number) = number(Arch::X86_64, text)
            {
                add(report, number, kernel(why));
            }
        }
        if !report.is_complete() {
            // Who makes an unknown call may make a known one with any arguments.
            report.calls.values_mut().for_each(|call| call.arguments = Arguments::default());
        }
        report.unresolved.sort();
        report.notes.sort();
    }
}

fn add(report: &mut Report, number: u32, source: Source) {
    let call = report.calls.entry(number).or_insert_with(|| CallReport {
        name: name(Arch::X86_64, number),
        arguments: Arguments::default(),
        sources: BTreeSet::new(),
    });
    call.arguments = Arguments::default();
    call.sources.insert(source);
}
