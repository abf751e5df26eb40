//! Programs whose launcher is killed go on, and programs with handlers of their own do not notice
//! the library.

#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use object::{Object, ObjectSegment, ObjectSymbol};
use probe::{Breakpoints, FileId, Hit, Observer, Program, Site};

fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().expect("folder")).path()
}

/// The library that was built for this test.
fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("known");
    exe.ancestors().map(|folder| folder.join("librunnel_trace.so")).find(|path| path.exists()).expect("built")
}

/// Compiles a test program of the engine; `None`, and a line that says so, without a compiler.
fn compile(name: &str) -> Option<PathBuf> {
    let output = folder().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../probe/tests/ptrace/programs/{name}.c"));
    let mut command = Command::new("cc");
    let command = command.args(["-O1", "-fno-inline", "-pthread", "-o"]).args([&output, &source]);
    let status = command.status().inspect_err(|error| eprintln!("skipped: cc: {error}")).ok()?;
    assert!(status.success(), "{name}");
    Some(output)
}

fn site(path: &Path, function: &str) -> Site {
    let bytes = fs::read(path).expect("readable");
    let file = object::File::parse(&*bytes).expect("ELF");
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(function)).expect("defined");
    let offset = file.segments().find_map(|segment| {
        let (offset, bytes) = segment.file_range();
        let distance = symbol.address().checked_sub(segment.address())?;
        (distance < bytes).then_some(offset + distance)
    });
    Site { file: FileId::of(path).expect("there"), offset: offset.expect("in a segment"), executable: None, id: 0 }
}

/// Kills this process at one of the hits, or at the start (0).
struct Killed {
    at: usize,
    hits: usize,
}

impl Killed {
    fn step(&self) {
        if self.hits == self.at {
            raise(Signal::SIGKILL).expect("sent");
        }
    }
}

impl Observer for Killed {
    fn started(&mut self, pid: u32) {
        println!("\npid {pid}");
        self.step();
    }

    fn hit(&mut self, _: Hit) {
        self.hits += 1;
        self.step();
    }
}

#[test]
#[ignore = "the launcher of the tests below"]
fn role_launcher() {
    let variable = |name: &str| std::env::var(name).expect("set");
    let program = PathBuf::from(variable("TEST_PROGRAM"));
    let functions = variable("TEST_FUNCTIONS");
    let sites: Vec<Site> = functions.split(' ').map(|function| site(&program, function)).collect();
    let mut observer = Killed { at: variable("TEST_AT").parse().expect("a number"), hits: 0 };
    let mut program = Program::new([&program]).output(File::create(variable("TEST_OUTPUT")).expect("there"));
    if variable("TEST_PRELOAD") == "1" {
        program = program.variable("LD_PRELOAD", library()).variable("RUNNEL_TRAP", "once");
    }
    // Nothing is left of this process after the launch.
    let _ = Breakpoints::new(sites).launch(&program, &mut observer);
}

/// Has a launcher killed at its `at`-th hit; how its program ended, and what it wrote.
fn orphaned(program: &Path, functions: &str, at: usize, preload: bool) -> (WaitStatus, String) {
    nix::sys::prctl::set_child_subreaper(true).expect("set");
    let output = folder().join(format!("output-{at}-{preload}-{}", program.file_name().expect("name").display()));
    let mut launcher = Command::new(std::env::current_exe().expect("known"))
        .args(["--exact", "role_launcher", "--ignored", "--nocapture"])
        .env("TEST_PROGRAM", program)
        .env("TEST_FUNCTIONS", functions)
        .env("TEST_AT", at.to_string())
        .env("TEST_OUTPUT", &output)
        .env("TEST_PRELOAD", if preload { "1" } else { "0" })
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let lines = BufReader::new(launcher.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let pid = lines.filter_map(|line| line.strip_prefix("pid ").map(str::to_string)).next().expect("told");
    let pid = Pid::from_raw(pid.parse().expect("a number"));
    let status = launcher.wait().expect("ended");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc_sigkill()), "{status}");
    // The program is our child now.
    let ended = waitpid(pid, None).expect("ended");
    (ended, fs::read_to_string(output).expect("text"))
}

fn libc_sigkill() -> i32 {
    Signal::SIGKILL as i32
}

fn plainly(program: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().expect("started");
    (output.status.code(), String::from_utf8(output.stdout).expect("text"))
}

#[test]
fn ptrace_a_program_survives_its_launcher() {
    let functions = "f10 f21 f32 f43 f50 f61 f72 f83 f90 f101 f112 f123";
    for (name, functions) in
        [("threads", functions), ("phases", "first second third"), ("signals", "before between after")]
    {
        let Some(program) = compile(name) else { return };
        let (code, text) = plainly(&program, &[]);
        for at in 0..functions.split(' ').count() {
            let (ended, output) = orphaned(&program, functions, at, true);
            let WaitStatus::Exited(_, ended) = ended else { panic!("{name} at {at}: {ended:?}") };
            assert_eq!((Some(ended), &output), (code, &text), "{name} at {at}");
        }
    }
}

#[test]
fn ptrace_without_the_library_it_would_not() {
    let Some(program) = compile("phases") else { return };
    let (ended, _) = orphaned(&program, "first second third", 1, false);
    assert!(matches!(ended, WaitStatus::Signaled(_, Signal::SIGTRAP, _)), "{ended:?}");
}

#[test]
fn a_handler_of_the_program_keeps_its_meaning() {
    let Some(program) = compile("signals") else { return };
    for arguments in [&[][..], &["die"]] {
        let mut command = Command::new(&program);
        command.args(arguments).env("LD_PRELOAD", library()).env("RUNNEL_TRAP", "1");
        let output = command.output().expect("started");
        let (code, text) = plainly(&program, arguments);
        assert_eq!((output.status.code(), String::from_utf8(output.stdout).expect("text")), (code, text));
    }
}

#[test]
fn the_environment_is_as_without_the_library() {
    let library = library();
    let library = library.to_str().expect("a path");
    // What the user preloads himself stays, an empty list too.
    for own in [None, Some(""), Some("libm.so.6"), Some("libm.so.6:libdl.so.2")] {
        for command in
            [&["env"][..], &["sh", "-c", "env; exec env"], &["python3", "-c", "import os; print(*os.environ.items())"]]
        {
            let output = |preloaded: Option<String>, trap: Option<&str>| {
                let mut command_line = Command::new(command[0]);
                command_line.args(&command[1..]).env_clear().env("PATH", std::env::var_os("PATH").expect("set"));
                command_line
                    .envs(preloaded.map(|list| ("LD_PRELOAD", list)))
                    .envs(trap.map(|trap| ("RUNNEL_TRAP", trap)));
                Some(String::from_utf8(command_line.env("Z", "z").output().ok()?.stdout).expect("text"))
            };
            let list = own.map_or(library.to_string(), |own| format!("{library}:{own}"));
            let Some(plain) = output(own.map(str::to_string), None) else { continue };
            assert_eq!(output(Some(list), Some("once")), Some(plain), "{command:?} {own:?}");
        }
    }
}
