//! Compiles test programs, finds their functions, runs them with and without breakpoints.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use object::{Object, ObjectSegment, ObjectSymbol};
use probe::{Breakpoints, End, Exit, FileId, Hit, Observer, Outcome, Program, Site, Traced};

/// A folder for everything that this run of the tests builds.
pub(crate) fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().expect("folder")).path()
}

/// Variable that names a copy of the folder of programs, for tests as a user who cannot reach this
/// one.
pub(crate) const PROGRAMS: &str = "RUNNEL_TEST_PROGRAMS";

/// The folder of programs.
pub(crate) fn programs() -> PathBuf {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ptrace/programs");
    std::env::var_os(PROGRAMS).map_or_else(here, PathBuf::from)
}

/// Compiles programs/NAME.c; `None` (and a line that says so) if there is no such compiler, or it
/// cannot do this.
pub(crate) fn compile(compiler: &str, name: &str, flags: &[&str]) -> Option<PathBuf> {
    static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let output = folder().join(format!("{name}-{number}"));
    let source = programs().join(format!("{name}.c"));
    let result = Command::new(compiler)
        .args(["-O1", "-fno-inline", "-Wall", "-Werror", "-o"])
        .args([&output, &source])
        .args(flags)
        .output();
    match result {
        Ok(result) if result.status.success() => Some(output),
        Ok(result) => panic!("{compiler} {name}: {}", String::from_utf8_lossy(&result.stderr)),
        Err(error) => {
            eprintln!("skipped: {compiler}: {error}");
            None
        }
    }
}

/// A site at the start of a function of this file, by its symbol.
pub(crate) fn site(path: &Path, function: &str, id: u32) -> Site {
    let bytes = fs::read(path).expect("readable");
    let file = object::File::parse(&*bytes).expect("ELF");
    let symbol = file
        .symbols()
        .chain(file.dynamic_symbols())
        .find(|symbol| symbol.is_definition() && symbol.name() == Ok(function));
    let address = symbol.unwrap_or_else(|| panic!("{function} in {}", path.display())).address();
    let offset = file.segments().find_map(|segment| {
        let (offset, bytes) = segment.file_range();
        let distance = address.checked_sub(segment.address())?;
        (distance < bytes).then_some(offset + distance)
    });
    Site { file: FileId::of(path).expect("there"), offset: offset.expect("in a segment"), executable: None, id }
}

/// Keeps what it was told.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) pid: u32,
    pub(crate) hits: Vec<Hit>,
    pub(crate) end: Option<End>,
}

impl Observer for Log {
    fn started(&mut self, pid: u32) {
        self.pid = pid;
    }

    fn hit(&mut self, hit: Hit) {
        self.hits.push(hit);
    }

    fn released(&mut self, end: End) {
        assert_eq!(self.end.replace(end), None, "told once");
    }
}

impl Log {
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.hits.iter().map(|hit| hit.id).collect()
    }
}

/// Output and end of a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) exit: Exit,
    pub(crate) output: String,
}

/// Runs a program without us.
pub(crate) fn plainly(arguments: &[&str]) -> Ran {
    use std::os::unix::process::ExitStatusExt;
    let output = Command::new(arguments[0]).args(&arguments[1..]).output().expect("started");
    let text = [output.stdout, output.stderr].concat();
    let exit = match output.status.code() {
        Some(code) => Exit::Code(code),
        None => Exit::Signal(output.status.signal().expect("a signal")),
    };
    Ran { exit, output: String::from_utf8(text).expect("text") }
}

/// Runs a program with breakpoints.
pub(crate) fn launch(breakpoints: &Breakpoints, arguments: &[&str], log: &mut Log) -> (Ran, Outcome) {
    let mut file = tempfile::tempfile().expect("file");
    let clone = |file: &File| file.try_clone().expect("cloned");
    let program = Program::new(arguments).output(clone(&file)).errors(clone(&file));
    let outcome = breakpoints.launch(&program, log).expect("started");
    let mut text = String::new();
    file.rewind().expect("file");
    file.read_to_string(&mut text).expect("text");
    (Ran { exit: outcome.exit, output: text }, outcome)
}

/// Runs a program both ways, and wants the same; returns what was seen.
pub(crate) fn check(sites: Vec<Site>, arguments: &[&str]) -> (Log, Traced) {
    let mut log = Log::default();
    let (ran, outcome) = launch(&breakpoints(sites), arguments, &mut log);
    assert_eq!(ran, plainly(arguments), "{:?}", outcome.traced);
    let traced = outcome.traced.expect("traced");
    assert_eq!(log.hits.len(), traced.hits as usize);
    assert_eq!(log.end, Some(traced.end));
    (log, traced)
}

/// Breakpoints with a limit that only a hanging test reaches.
pub(crate) fn breakpoints(sites: Vec<Site>) -> Breakpoints {
    Breakpoints::new(sites).time_limit(Duration::from_secs(100))
}

/// The C library of programs that the compiler makes, if they have one as a file.
pub(crate) fn mapped_library(program: &Path, part: &str) -> Option<PathBuf> {
    let text = Command::new("ldd").arg(program).output().ok()?;
    let text = String::from_utf8(text.stdout).ok()?;
    let line = text.lines().find(|line| line.contains(part))?;
    let path = line.split_whitespace().find(|word| word.starts_with('/'))?;
    fs::canonicalize(path).ok()
}
