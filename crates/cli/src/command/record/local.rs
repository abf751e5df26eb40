//! `runnel record -- COMMAND`: a program of this machine.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use record::{CandidatesChoice, MapsChoice, Outcome, ReadsChoice, RecordError, Request, SourceChoice};

use crate::failure;
use crate::progress::{self, counted};
use crate::recording::output::{Output, incomplete};

/// The end of `record --help`.
pub const AFTER_HELP: &str = "Standard output is the program's alone; what was recorded is told on standard error. The \
trace is complete however the program ends.\n\n\
Of an image (TARGET): the mount is new, so all that the program reads is seen; the kernel reads nothing ahead.\n\n\
Of this machine: the program, its threads and children are followed until the program itself ends (--wait-all: until all of \
them have). Recorded is what they touch, also what is in memory already, but not what the kernel reads ahead. Files that are \
written meanwhile are left out. Set-user-id programs cannot be watched without root.\n\n\
Where page faults can be made exact (Linux 6.7), and for static programs, the program is traced (ptrace): debuggers and other \
programs that trace (strace, gdb) fail while they are recorded, set-user-id programs that it starts have no privileges without \
root, the recording lasts until the last process has ended, and if this recorder is killed by SIGKILL, so are the program and \
all that it started. --mmaps perf does without: no ptrace, and page faults tell 64 KiB each.";

/// Options of recordings on this machine.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Recording a program of this machine")]
pub struct Options {
    /// What tells which pages are touched
    #[arg(long, value_enum, default_value = "auto", conflicts_with = "target")]
    source: SourceArg,

    /// What tells which parts of files are read, and which paths are looked up
    #[arg(long, value_enum, default_value = "auto", conflicts_with = "target")]
    reads: ReadsArg,

    /// What tells which files are mapped
    #[arg(long, value_enum, default_value = "auto", conflicts_with = "target")]
    mmaps: MapsArg,

    /// Where breakpoints may be set
    #[arg(long, value_enum, default_value = "faults", conflicts_with = "target")]
    candidates: CandidatesArg,

    /// The library to preload (default: librunnel_trace.so beside this program, or in
    /// ../lib/runnel)
    #[arg(long, value_name = "FILE", conflicts_with = "target")]
    library: Option<PathBuf>,

    /// Go on until every process that the program started has ended
    #[arg(long, conflicts_with = "target")]
    wait_all: bool,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum SourceArg {
    /// The best that works here
    Auto,
    /// Page faults as perf events: no root
    Perf,
    /// The kernel's filemap trace points: exact ranges; root
    Filemap,
    /// What of the files is in memory afterwards, of files that are yours
    Residency,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum ReadsArg {
    /// A preloaded library; for static programs stops, or the trace points where these are the
    /// source
    Auto,
    /// A preloaded library: no stops
    Preload,
    /// Stops at each call that reads or looks up; the whole tree is traced to its end
    Seccomp,
    /// Mapped files only, or what the source sees itself
    None,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum CandidatesArg {
    /// Where code of a page runs first, by its page fault
    Faults,
    /// Where strlen, memcpy, memmove, memcmp, strcpy and malloc return to, if they do so once: as
    /// the paper has it, for comparison; needs a librunnel_trace.so with the feature `calls`
    Calls,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum MapsArg {
    /// Perf events, and stops at each mapping of a file where page faults can be made exact so, or
    /// there are no perf events
    Auto,
    /// Perf events: no ptrace and no stops, for programs that trace others; page faults tell 64 KiB
    /// each
    Perf,
    /// Stops at each mapping of a file as well; page faults tell pages since Linux 6.7
    Seccomp,
    /// Stops at each mapping of a file that code may run in as well
    SeccompExec,
}

/// Runs the program, writes the trace, and ends with the program's exit code.
pub fn run(args: &super::Args) -> anyhow::Result<ExitCode> {
    let request = request(args)?;
    let path = args.output.clone().unwrap_or_else(|| default_output(&request.program));
    let mut output = Output::create(&path, args.force)?;
    let outcome = record::record(&request).inspect_err(|_| output.discard()).map_err(not_started)?;
    // Exceeding a limit of file sizes must only end our trace.
    host::signals::block_file_size().context("cannot block a signal")?;
    tell(args.json, &path, &outcome)?;
    if is_empty(&outcome) {
        output.discard();
    } else {
        output.write_all(&outcome.trace).map_err(|error| incomplete(&output, error))?;
    }
    Ok(ExitCode::from(outcome.exit.follow()))
}

fn request(args: &super::Args) -> anyhow::Result<Request> {
    let plan = args.plan.plan(PathBuf::new(), args.command.clone())?;
    if !plan.binds.is_empty() || plan.own_users {
        return Err(failure::usage("--bind and --user-namespace are for images: name a TARGET"));
    }
    let mut command = plan.command.into_iter();
    let program = command.next().ok_or_else(|| failure::usage("name a program after --"))?;
    let mut request = Request::new(program);
    request.arguments = command.collect();
    request.environment = plan.env;
    request.directory = plan.cwd;
    request.wait_all = args.local.wait_all;
    request.source = match args.local.source {
        SourceArg::Auto => SourceChoice::Auto,
        SourceArg::Perf => SourceChoice::Perf,
        SourceArg::Filemap => SourceChoice::Filemap,
        SourceArg::Residency => SourceChoice::Residency,
    };
    request.reads = match args.local.reads {
        ReadsArg::Auto => ReadsChoice::Auto,
        ReadsArg::Preload => ReadsChoice::Preload,
        ReadsArg::Seccomp => ReadsChoice::Seccomp,
        ReadsArg::None => ReadsChoice::None,
    };
    request.maps = match args.local.mmaps {
        MapsArg::Auto => MapsChoice::Auto,
        MapsArg::Perf => MapsChoice::Perf,
        MapsArg::Seccomp => MapsChoice::Seccomp,
        MapsArg::SeccompExec => MapsChoice::SeccompExecutable,
    };
    request.candidates = match args.local.candidates {
        CandidatesArg::Faults => CandidatesChoice::Faults,
        CandidatesArg::Calls => CandidatesChoice::Calls,
    };
    request.library.clone_from(&args.local.library);
    Ok(request)
}

/// A program that cannot be started ends as shells let it end.
fn not_started(error: RecordError) -> anyhow::Error {
    match &error {
        RecordError::Start { source, .. } => {
            let code = if source.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
            failure::with_code(code, error.to_string())
        }
        _ => error.into(),
    }
}

/// Look-ups alone are worth a trace: to open files is half of a launch.
fn is_empty(outcome: &Outcome) -> bool {
    outcome.summary.pages == 0 && outcome.summary.lookups == 0
}

fn tell(json: bool, path: &Path, outcome: &Outcome) -> anyhow::Result<()> {
    let summary = &outcome.summary;
    if json {
        let mut json = serde_json::to_value(summary)?;
        json["trace"] = path.display().to_string().into();
        json["trace_bytes"] = outcome.trace.len().into();
        json["exit_code"] = outcome.exit.code().into();
        json["source"] = outcome.source.to_string().into();
        let stops = &outcome.stops;
        json["stops"] = serde_json::json!({ "maps": stops.maps, "calls": stops.calls, "others": stops.others });
        json["notes"] = outcome.notes.clone().into();
        tell!("{json}");
        return Ok(());
    }
    for note in &outcome.notes {
        tell!("note: {note}");
    }
    if is_empty(outcome) {
        tell!("no file was touched, so there is no trace");
        return Ok(());
    }
    let size = progress::human(summary.bytes);
    tell!(
        "recorded {}, {}, {size}, {} of {} in {} (source: {})",
        counted(summary.files as u64, "file"),
        counted(summary.pages as u64, "page"),
        counted(summary.lookups as u64, "look-up"),
        if summary.processes == 1 { "1 process".into() } else { format!("{} processes", summary.processes) },
        path.display(),
        outcome.source
    );
    Ok(())
}

/// `app.trace` for `/usr/bin/app`.
fn default_output(program: &std::ffi::OsStr) -> PathBuf {
    let mut name = Path::new(program).file_name().unwrap_or(program).to_os_string();
    name.push(".trace");
    name.into()
}
