//! Programs that are launched without breakpoints, or are refused them: the load of a library has
//! the later group fetched, and nothing else about them changes.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, OnceLock};

use launch::{DiskKind, Hints, Program, Request};
use profile::plan::{Breakpoint, Group, GroupExtent, LaunchPlan, Library, PlanFile, Trigger};
use units::Moment;

fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().expect("folder")).path()
}

/// The auditor that was built for this test.
fn auditor() -> PathBuf {
    let exe = std::env::current_exe().expect("known");
    exe.ancestors()
        .map(|folder| folder.join("librunnel_audit.so"))
        .find(|path| path.exists())
        .expect("cargo build --package runnel-rtld-audit")
}

/// The program and its library; `None`, and a line that says so, without a compiler.
fn built() -> Option<&'static (PathBuf, PathBuf)> {
    static BUILT: OnceLock<Option<(PathBuf, PathBuf)>> = OnceLock::new();
    let build = || {
        let [program, library, source] = ["loads", "libanswer.so", "answer.c"].map(|name| folder().join(name));
        fs::write(&source, "int answer(void) { return 42; }").expect("written");
        let loads = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/loads.c");
        let compile = |options: &[&str], from: &Path, to: &Path| {
            let status = Command::new("cc").args(options).arg("-o").arg(to).arg(from).arg("-ldl").status();
            status.inspect_err(|error| eprintln!("skipped: cc: {error}")).ok().map(|status| assert!(status.success()))
        };
        compile(&["-O1", "-pthread"], &loads, &program)?;
        compile(&["-shared", "-fPIC"], &source, &library)?;
        Some((program, library))
    };
    BUILT.get_or_init(build).as_ref()
}

/// Prints what is hinted, and takes it: so it shows at once when a group is fetched, whatever is in
/// memory.
struct Printed;

impl Hints for Printed {
    fn hint(&self, path: &Path, _: &[Range<u32>]) -> bool {
        println!("\nfetched {}", path.file_name().expect("a file").display());
        true
    }
}

/// A launch group of the program, one that the library tells of, and one that goes with that. With
/// breakpoints the second one has a site that nothing runs.
fn plan(program: &Path, library: &Path, files: [&Path; 2]) -> LaunchPlan {
    let file =
        |path: &Path| PlanFile { path: path.as_os_str().as_bytes()[1..].to_vec(), identity: launch::identity(path) };
    let group = |number: u32, trigger, library| Group {
        trigger,
        library,
        at: Moment(u64::from(number)),
        opens: vec![],
        extents: vec![GroupExtent { file: number, page: 0, pages: 1 }],
    };
    let byte = fs::read(program).expect("readable")[0];
    let breakpoint = Breakpoint { file: 0, offset: 0, process: 0, byte, at: Moment(0) };
    let groups = vec![
        group(0, Trigger::Launch, None),
        group(1, Trigger::Breakpoint(breakpoint), Some(Library { file: 3, at: Moment(0) })),
        group(2, Trigger::With(1), None),
    ];
    let files = vec![file(program), file(files[0]), file(files[1]), file(library)];
    LaunchPlan { program: program.as_os_str().as_bytes().to_vec(), runs: 2, files, groups }
}

#[test]
#[ignore = "the launcher of the tests below"]
fn role_launcher() {
    let variable = |name: &str| PathBuf::from(std::env::var_os(name).expect("set"));
    let [program, library, big, more] = ["TEST_PROGRAM", "TEST_LIBRARY", "TEST_BIG", "TEST_MORE"].map(variable);
    let mode: OsString = variable("TEST_MODE").into();
    let command = vec![program.clone().into(), mode, library.clone().into(), variable("TEST_FILE").into()];
    let breakpoints = std::env::var_os("TEST_BREAKPOINTS").is_some();
    let request = Request {
        program: Program::find(&command).expect("there"),
        command,
        store: None,
        plan: Some(plan(&program, &library, [&big, &more])),
        disk: Some(DiskKind::Other),
        budget_bytes: None,
        always: true,
        breakpoints,
        // Any library does: it is loaded only where breakpoints are to be had.
        preload: breakpoints.then(|| library.clone()),
        auditor: Some(auditor()),
        hints: Arc::new(Printed),
    };
    let outcome = launch::launch(&request, launch::decide(&request)).expect("started");
    println!("\noutcome {} libraries {:?} notes {:?}", outcome.exit.code(), outcome.libraries, outcome.notes);
}

/// A launcher, or the program alone.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// What was fetched so far.
    fetched: BTreeSet<String>,
    /// What the program said.
    said: Vec<String>,
}

impl Running {
    fn start(mut command: Command) -> Running {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Running { child, lines, fetched: BTreeSet::new(), said: Vec::new() }
    }

    /// A launcher of the program in this mode. What it is to fetch later has these names.
    fn launched(mode: &str, breakpoints: bool) -> Option<Running> {
        let (program, library) = built()?;
        let exe = std::env::current_exe().expect("known");
        let mut command = match breakpoints {
            // Under a filter that forbids ptrace.
            true => {
                let mut command = Command::new(program);
                command.args(["denied".as_ref(), exe.as_os_str(), "".as_ref()]).env("TEST_BREAKPOINTS", "1");
                command
            }
            false => {
                let mut command = Command::new(exe);
                command.args(["--exact", "role_launcher", "--ignored", "--nocapture"]);
                command
            }
        };
        for name in ["big", "more"] {
            let path = folder().join(format!("{name}-{mode}-{breakpoints}"));
            fs::write(&path, [1; 4096]).expect("written");
            command.env(format!("TEST_{}", name.to_uppercase()), path);
        }
        let file = folder().join(format!("file-{mode}-{breakpoints}"));
        command.env("TEST_PROGRAM", program).env("TEST_LIBRARY", library).env("TEST_MODE", mode).env("TEST_FILE", file);
        Some(Running::start(command))
    }

    fn send_line(&mut self) {
        self.child.stdin.as_mut().expect("piped").write_all(b"\n").expect("sent");
    }

    /// Reads until the line `end` came, or one that starts with it; that line.
    fn until(&mut self, end: &str) -> String {
        loop {
            let line = self.lines.next().unwrap_or_else(|| panic!("no {end:?} in {:?}", self.said)).expect("text");
            match line.strip_prefix("fetched ") {
                Some(name) => drop(self.fetched.insert(name.to_string())),
                None if ["errno", "answer", "descriptors", "loaded", "size"]
                    .iter()
                    .any(|word| line.starts_with(word)) =>
                {
                    self.said.push(line.clone());
                }
                None => {}
            }
            if line.starts_with(end) {
                return line;
            }
        }
    }

    fn has_fetched(&self, name: &str) -> bool {
        self.fetched.iter().any(|fetched| fetched.starts_with(name))
    }
}

/// What the program says without a launcher.
fn plainly(mode: &str) -> Vec<String> {
    let (program, library) = built().expect("built");
    let mut command = Command::new(program);
    command.arg(mode).arg(library).arg(folder().join(format!("plain-{mode}")));
    let mut running = Running::start(command);
    running.send_line();
    running.send_line();
    running.until("size");
    assert_eq!(running.child.wait().expect("ended").code(), Some(5), "{mode}");
    running.said
}

/// Launches in this mode; whether the later groups are fetched before the program goes on.
fn check(mode: &str, breakpoints: bool, tells: bool) {
    let Some(mut running) = Running::launched(mode, breakpoints) else { return };
    running.until("fetched loads");
    assert!(!running.has_fetched("big") && !running.has_fetched("more"), "{mode}: the program has loaded nothing yet");
    running.send_line();
    if tells {
        // The program still waits for its second line, or this would end without the line.
        for name in ["big", "more"] {
            if !running.has_fetched(name) {
                running.until(&format!("fetched {name}"));
            }
        }
    } else {
        running.until("loaded");
    }
    running.send_line();
    let outcome = running.until("outcome");
    assert!(outcome.starts_with(&format!("outcome 5 libraries Some({}) ", u32::from(tells))), "{mode}: {outcome}");
    assert_eq!(running.has_fetched("big"), tells, "{mode}");
    assert_eq!(running.said, plainly(mode), "{mode}");
    assert!(running.child.wait().expect("ended").success());
}

#[test]
fn a_library_that_is_loaded_has_its_groups_fetched() {
    for mode in ["plain", "thread", "child"] {
        check(mode, false, true);
    }
}

#[test]
fn a_program_that_closes_and_counts_its_descriptors_does_not_notice() {
    check("closes", false, true);
}

#[test]
fn a_program_that_cleans_its_environment_goes_on_unheard() {
    check("clean", false, false);
}

#[test]
fn a_filter_that_kills_for_a_socket_does_not_kill() {
    check("filter", false, false);
}

#[test]
fn ptrace_where_it_is_denied_libraries_tell_in_its_place() {
    check("plain", true, true);
}

#[test]
fn without_a_launcher_it_is_unloaded() {
    let Some((program, library)) = built() else { return };
    for value in [None, Some("nonsense"), Some("runnel-nobody 0 1:1")] {
        let mut command = Command::new(program);
        command.arg("plain").arg(library).arg(folder().join("plain-plain")).env("LD_AUDIT", auditor());
        value.map(|value| command.env("RUNNEL_AUDIT", value));
        let mut running = Running::start(command);
        running.send_line();
        running.send_line();
        running.until("size");
        assert_eq!(running.child.wait().expect("ended").code(), Some(5), "{value:?}");
        assert_eq!(running.said, plainly("plain"), "{value:?}");
    }
}
