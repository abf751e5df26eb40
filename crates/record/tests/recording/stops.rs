//! Programs under a filter: stops at chosen calls.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use record::{MapsChoice, ReadsChoice, SourceChoice};

use crate::check;
use crate::support::{self, ProgramFolder, faulted, pages, windows};

#[test]
fn ptrace_reads_of_static_programs_are_recorded() {
    let Some(folder) = ProgramFolder::new("perf").and_then(ProgramFolder::with_static_program) else { return };
    for call in ["pread", "read"] {
        let mut request = folder.request(&[call, "DATA", "8000", "9000"]);
        request.source = SourceChoice::Perf;
        let (outcome, _) = folder.record(request.clone());
        assert!(outcome.stops.calls > 0, "chosen by itself");
        check(&folder, request, &pages(1..=4));
    }
}

#[test]
fn ptrace_all_files_that_a_static_program_reads_are_named() {
    let Some(folder) = ProgramFolder::new("perf").and_then(ProgramFolder::with_static_program) else { return };
    let files: Vec<String> = (0..20).map(|number| folder.path(&format!("file-{number}"))).collect();
    files.iter().for_each(|path| std::fs::write(path, [7; 5000]).expect("written"));
    let arguments: Vec<&str> = ["cat"].into_iter().chain(files.iter().map(String::as_str)).collect();
    let mut request = folder.request(&arguments);
    request.source = SourceChoice::Auto;
    let (outcome, events) = folder.record(request);
    assert_eq!(outcome.exit.code(), 0);
    let is_named = |path: &String| {
        let path = &path.as_bytes()[1..];
        events.iter().any(|event| matches!(event, trace::Event::File { path: other, .. } if other == path))
    };
    assert!(files.iter().all(is_named), "{outcome:?}");
}

#[test]
fn ptrace_lookups_are_seen_by_stops() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    let mut request = folder.request(&["open", "DATA", &folder.path("none"), &folder.path("")]);
    (request.source, request.reads) = (SourceChoice::Perf, ReadsChoice::Seccomp);
    let (_, events) = folder.record(request);
    assert_eq!(support::found(&events, &folder.path("data")), Some(trace::Found::File));
    assert_eq!(support::found(&events, &folder.path("none")), Some(trace::Found::Nothing));
}

#[test]
fn ptrace_only_mappings_of_files_stop() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    let stops = |maps, expected: &dyn Fn(&[u32]) -> BTreeSet<u32>| {
        let mut request = folder.request(&["map", "DATA", "3"]);
        (request.source, request.reads, request.maps) = (SourceChoice::Perf, ReadsChoice::None, maps);
        check(&folder, request.clone(), &expected(&[3]));
        folder.record(request).0.stops
    };
    let (none, code, all) = (
        stops(MapsChoice::Perf, &windows),
        stops(MapsChoice::SeccompExecutable, &windows),
        stops(MapsChoice::Seccomp, &faulted),
    );
    assert_eq!((none.maps, none.calls, none.others), (0, 0, 0));
    assert_eq!((code.calls, all.calls), (0, 0));
    assert!(0 < code.maps && code.maps < all.maps, "{code:?} {all:?}");
    // The data file is one mapping more: a stop before and one after.
    assert_eq!(all.maps % 2, 0);
}

#[test]
fn ptrace_threads_children_and_execs_live_under_a_filter() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    let program = folder.program();
    for arguments in [
        ["thread", "DATA", "200"].as_slice(),
        ["fork", "DATA", "200"].as_slice(),
        ["exec", &program, "fork", "DATA", "200"].as_slice(),
    ] {
        let mut request = folder.request(arguments);
        (request.source, request.reads, request.maps) = (SourceChoice::Perf, ReadsChoice::Seccomp, MapsChoice::Seccomp);
        check(&folder, request, &faulted(&[200]));
    }
}

#[test]
fn ptrace_sandboxed_processes_make_no_call_for_us() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    let program = folder.program();
    for arguments in
        [["sandbox", "fork", "DATA", "200"].as_slice(), ["sandbox", "exec", &program, "map", "DATA", "200"].as_slice()]
    {
        check(&folder, folder.request(arguments), &windows(&[200]));
    }
    // A program that has its watch already keeps it.
    check(&folder, folder.request(&["sandbox", "map", "DATA", "200"]), &faulted(&[200]));
    let Some(folder) = folder.with_static_program() else { return };
    check(&folder, folder.request(&["sandbox", "map", "DATA", "200"]), &windows(&[200]));
}

#[test]
fn ptrace_signals_reach_the_program() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    for signal in [9, 15, 40] {
        let mut request = folder.request(&["raise", &signal.to_string()]);
        (request.reads, request.maps) = (ReadsChoice::Seccomp, MapsChoice::Seccomp);
        let (outcome, events) = folder.record(request);
        assert_eq!(outcome.exit.code(), 128 + signal);
        support::assert_sound(&events);
    }
}

/// Recordings in a row, each of which passes through all of a start.
const STORMY_RECORDINGS: usize = 20;

#[test]
fn ptrace_stop_signals_at_any_moment_only_stop() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    let me = std::env::current_exe().expect("a path");
    let mut recorder = Command::new(me)
        .args(["helper_in_a_storm", "--ignored"])
        .env("RECORD_IN_A_STORM", format!("{}\n{}", folder.program(), folder.path("data")))
        .process_group(0)
        .stdout(Stdio::null())
        .spawn()
        .expect("started");
    let group = Pid::from_raw(-(recorder.id() as i32));
    let signals = [Signal::SIGSTOP, Signal::SIGCONT, Signal::SIGTSTP, Signal::SIGCONT];
    let mut storm = signals.into_iter().cycle();
    let status = loop {
        for signal in storm.by_ref().take(signals.len()) {
            // Until it is waited for it has its number, so this goes to nobody else.
            let _ = kill(group, signal);
            // Time to run, of which the recordings need some.
            for _ in 0..50 {
                std::thread::yield_now();
            }
        }
        if let Some(status) = recorder.try_wait().expect("its end") {
            break status;
        }
    };
    assert!(status.success(), "{status}");
}

#[test]
#[ignore = "started by ptrace_stop_signals_at_any_moment_only_stop"]
fn helper_in_a_storm() {
    let Ok(plan) = std::env::var("RECORD_IN_A_STORM") else { return };
    let (program, data) = plan.split_once('\n').expect("two lines");
    for _ in 0..STORMY_RECORDINGS {
        let mut request = record::Request::new(program);
        request.arguments = ["fork", data, "3"].map(Into::into).to_vec();
        (request.source, request.library) = (SourceChoice::Perf, Some("/nonexistent".into()));
        let outcome = record::record(&request).expect("recorded");
        assert_eq!(outcome.exit.code(), 0);
        assert!(outcome.stops.maps > 0);
    }
}
