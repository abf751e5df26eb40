//! Many threads at the same breakpoints, while the engine detaches.

use std::fs::{self, File};
use std::io::{PipeWriter, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use probe::{End, Exit, Hit, Observer, Program, Site, Stop, Stops};
use units::{Rng, SplitMix64};

use crate::support::{Log, breakpoints, compile, site};

/// Runs of the test command; the long one is for changes to the engine: `cargo test -p runnel-probe
/// -- --ignored`.
const RUNS: u64 = 100;
const RUNS_LONG: u64 = 10_000;

/// Orders in which the program calls its functions.
const SEEDS: u64 = 16;

/// Lets the program end once it is free, and stops the tracing at one of the hits.
struct Watcher {
    log: Log,
    input: Option<PipeWriter>,
    stop: Option<(usize, Stop)>,
    program: Vec<u8>,
}

impl Observer for Watcher {
    fn started(&mut self, pid: u32) {
        self.log.started(pid);
    }

    fn hit(&mut self, hit: Hit) {
        self.log.hit(hit);
        if let Some((at, stop)) = &self.stop
            && *at == self.log.hits.len()
        {
            stop.request();
        }
    }

    fn released(&mut self, end: End) {
        // The program waits for the end of its input: it lives.
        is_free(self.log.pid, &self.program);
        self.log.released(end);
        self.input.take();
    }
}

/// No thread has a tracer, and the code in memory is that of the file.
fn is_free(pid: u32, program: &[u8]) {
    for task in fs::read_dir(format!("/proc/{pid}/task")).expect("lives") {
        // A thread may end while we look.
        let status = fs::read_to_string(task.expect("entry").path().join("status")).unwrap_or_default();
        assert!(status.is_empty() || status.contains("TracerPid:\t0\n"), "{status}");
    }
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("lives");
    let exe = fs::read_link(format!("/proc/{pid}/exe")).expect("lives");
    let line = maps.lines().find(|line| line.contains(" r-xp ") && line.ends_with(exe.to_str().expect("text")));
    let fields: Vec<&str> = line.expect("code").split_whitespace().collect();
    let (start, end) = fields[0].split_once('-').expect("range");
    let number = |text: &str| usize::from_str_radix(text, 16).expect("hexadecimal");
    let mut code = vec![0u8; number(end) - number(start)];
    let memory = File::open(format!("/proc/{pid}/mem")).expect("lives");
    memory.read_exact_at(&mut code, number(start) as u64).expect("readable");
    let offset = number(fields[2]);
    let bytes = code.len().min(program.len() - offset);
    assert!(code[..bytes] == program[offset..offset + bytes], "a breakpoint is left");
}

struct Bench {
    program: std::path::PathBuf,
    bytes: Vec<u8>,
    sites: Vec<Site>,
    /// Sum and exit code without breakpoints, by seed.
    expected: Vec<(String, Exit)>,
    /// Further arguments.
    arguments: Vec<&'static str>,
}

impl Bench {
    fn new(program: &Path, arguments: &[&'static str]) -> Bench {
        let names = (1..=16).flat_map(|tens| (0..4).map(move |ones| format!("f{tens}{ones}")));
        let sites = names.enumerate().map(|(id, name)| site(program, &name, id as u32)).collect();
        let expected = (0..SEEDS).map(|seed| {
            let mut command = std::process::Command::new(program);
            let output = command.arg(seed.to_string()).stdin(std::process::Stdio::null()).output().expect("started");
            (String::from_utf8(output.stdout).expect("text"), Exit::Code(output.status.code().expect("a code")))
        });
        let expected = expected.collect();
        let bytes = fs::read(program).expect("readable");
        Bench { program: program.to_path_buf(), bytes, sites, expected, arguments: arguments.to_vec() }
    }

    fn run(&self, run: u64) -> Stops {
        let seed = run % SEEDS;
        let mut rng = SplitMix64(run);
        let mut sites = self.sites.clone();
        let mut chosen = Vec::new();
        while chosen.len() < 8 {
            chosen.push(sites.swap_remove(rng.below(sites.len() as u64) as usize));
        }
        let breakpoints = breakpoints(chosen);
        let (reader, input) = std::io::pipe().expect("pipe");
        let mut file = tempfile::tempfile().expect("file");
        // Every other run detaches before the last hit, with threads in and around traps.
        let stop = (run % 2 == 1).then(|| (1 + rng.below(8) as usize, breakpoints.stop()));
        let mut watcher = Watcher { log: Log::default(), input: Some(input), stop, program: self.bytes.clone() };
        let mut arguments = vec![self.program.clone().into_os_string(), seed.to_string().into()];
        arguments.extend(self.arguments.iter().map(Into::into));
        let program =
            Program::new(arguments).input(File::from(OwnedFd::from(reader))).output(file.try_clone().expect("cloned"));
        let outcome = breakpoints.launch(&program, &mut watcher).expect("started");
        let mut output = String::new();
        file.rewind().expect("file");
        file.read_to_string(&mut output).expect("text");
        assert_eq!((output, outcome.exit), self.expected[seed as usize], "run {run}: {:?}", outcome.traced);
        let traced = outcome.traced.expect("traced");
        assert!(matches!(traced.end, End::AllHit | End::Stopped), "run {run}: {traced:?}");
        traced.stops
    }
}

fn stress(flags: &[&str], arguments: &[&'static str], runs: u64) {
    let Some(program) = compile("cc", "threads", &[flags, &["-pthread"]].concat()) else { return };
    let bench = Bench::new(&program, arguments);
    let (mut late, mut hits) = (0, 0);
    for run in 0..runs {
        let stops = bench.run(run);
        late += stops.late;
        hits += stops.site;
        if run % 500 == 499 {
            let _ = writeln!(std::io::stderr(), "{} runs, {hits} hits, {late} late", run + 1);
        }
    }
    println!("{runs} runs: {hits} hits, {late} late");
}

#[test]
fn ptrace_threads_outlive_breakpoints() {
    stress(&[], &[], RUNS);
}

#[test]
fn ptrace_static_threads_outlive_breakpoints() {
    stress(&["-static"], &[], RUNS);
}

#[test]
fn ptrace_threads_that_come_and_go_outlive_breakpoints() {
    stress(&[], &["churn"], RUNS);
}

#[test]
#[ignore = "takes minutes"]
fn ptrace_threads_outlive_breakpoints_for_long() {
    stress(&[], &[], RUNS_LONG);
}

#[test]
#[ignore = "takes minutes"]
fn ptrace_static_threads_outlive_breakpoints_for_long() {
    stress(&["-static"], &[], RUNS_LONG);
}

#[test]
#[ignore = "takes minutes"]
fn ptrace_threads_that_come_and_go_outlive_breakpoints_for_long() {
    stress(&[], &["churn"], RUNS_LONG);
}
