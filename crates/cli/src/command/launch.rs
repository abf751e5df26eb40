//! `runnel launch`.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use ::launch::{DiskKind, Hints, LaunchError, Outcome, PlanStore, Program, Request, shim};
use anyhow::Context;
use clap::ValueEnum;
use record::{MapsChoice, RecordError};

use crate::command::plans::{AnalyseArgs, told};
use crate::progress::counted;
use crate::{failure, progress};

/// Start a local program faster: read ahead what it is about to read, as learned from earlier runs
#[derive(clap::Args)]
#[command(after_help = "Without a plan, and whenever anything is in the way, the program starts as it would plainly. \
`runnel launch --learn -- PROGRAM` records a run and makes or betters the plan; two runs are better than one. \
Plans are kept in ~/.cache/runnel/plans; `runnel plans` lists what each saves. Ends as the program does: with its exit code, or by its signal.\n\n\
A run that is learned from is traced to its end where that makes page faults exact (Linux 6.7), and for static programs: debuggers \
inside it (strace, gdb) fail, set-user-id programs have no privileges without root, and SIGKILL of this launcher kills it. \
`--learn --no-ptrace` does without, and learns 64 KiB around each page.")]
pub struct Args {
    /// Record this run, and make or better the plan with it
    #[arg(long, conflicts_with_all = ["plan", "install", "uninstall"], help_heading = "Plans")]
    learn: bool,

    /// Start the program this way from menus and by plain name: a shim in ~/.local/bin, and desktop
    /// entries
    #[arg(long, conflicts_with = "uninstall", help_heading = "Plans")]
    install: bool,

    /// Take away what --install made
    #[arg(long, help_heading = "Plans")]
    uninstall: bool,

    /// Use this plan
    #[arg(long, value_name = "FILE", help_heading = "Plans")]
    plan: Option<PathBuf>,

    /// The folder of plans (default: ~/.cache/runnel/plans)
    #[arg(long, value_name = "DIR", help_heading = "Plans")]
    plans: Option<PathBuf>,

    /// The kind of disk that the program lies on (default: what the kernel says)
    #[arg(long, value_enum)]
    disk: Option<Disk>,

    /// Prefetch at most so many MiB (default: 512, or a quarter of the free memory)
    #[arg(long, value_name = "MIB")]
    budget: Option<u64>,

    /// Prefetch even if memory seems to hold everything, and whatever earlier launches gained
    #[arg(long)]
    always: bool,

    /// No breakpoints, for programs that trace themselves: later groups are fetched when the
    /// program loads a library that tells of them (by LD_AUDIT: glibc, not static, no privileges
    /// from its file), or with the launch. With --learn: the run is recorded without ptrace, too
    #[arg(long)]
    no_ptrace: bool,

    /// Tell on standard error what was done, when the program has ended
    #[arg(short, long)]
    verbose: bool,

    /// The same as one line of JSON
    #[arg(long)]
    json: bool,

    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,

    #[command(flatten)]
    analyse: AnalyseArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Disk {
    /// Heads move: fetch in the order of the disk, and hold the program while its files are opened
    Rotating,
    /// SSD, card, network: fetch in the order of first touches, beside the program
    Other,
}

/// Files on mounts of ours: their server pushes what is hinted.
#[derive(Default)]
pub struct Mounts(::mount::Hinter);

impl Hints for Mounts {
    fn hint(&self, path: &Path, pages: &[Range<u32>]) -> bool {
        self.0.hint(path, pages)
    }
}

/// Launches, learns, or installs a shim.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let program = match Program::find(&args.command) {
        // As shells do it: scripts tell the two apart.
        Err(LaunchError::NotFound(path)) if path.components().count() > 1 && path.exists() => {
            tell!("error: {}: not a program that may be executed", path.display());
            return Ok(ExitCode::from(126));
        }
        Err(error @ LaunchError::NotFound(_)) => {
            tell!("error: {error}");
            return Ok(ExitCode::from(127));
        }
        other => other?,
    };
    if args.install || args.uninstall {
        return install(&args, &program);
    }
    let store = PlanStore::open(args.plans.as_deref());
    if args.learn {
        return learn(store, &program, &args);
    }
    // Without a home there are no plans: the program starts plainly.
    let store = store.ok();
    let plan = args.plan.as_deref().map(::launch::read_plan).transpose();
    // The user wants that plan or none.
    let store = store.filter(|_| plan.is_ok());
    let plan = plan.unwrap_or_else(|error| {
        tell!("warning: {error}\nnote: the program starts plainly");
        None
    });
    let request = Request {
        program,
        store,
        plan,
        disk: args.disk.map(|disk| match disk {
            Disk::Rotating => DiskKind::Rotating,
            Disk::Other => DiskKind::Other,
        }),
        budget_bytes: args.budget.map(|mib| mib.saturating_mul(1 << 20)),
        always: args.always,
        breakpoints: !args.no_ptrace,
        preload: record::find_library(),
        auditor: record::find_auditor(),
        hints: Arc::new(Mounts::default()),
        command: args.command,
    };
    let mut decision = ::launch::decide(&request);
    // A report afterwards needs a process that stays.
    if !args.verbose && !args.json {
        if decision.is_plain() {
            decision.enter(&request);
            return Err(become_plainly(&request.program, &request.command));
        }
        decision = match ::launch::become_program(&request, decision) {
            Ok(error) => {
                tell!("error: {error}");
                return Ok(ExitCode::from(126));
            }
            Err(decision) => decision,
        };
    }
    let outcome = match ::launch::launch(&request, decision) {
        // No descriptor, thread or process to be had for us: the program may need none.
        Err(error @ ::launch::NotStarted::Step { .. }) => {
            tell!("note: {error}; the program starts plainly");
            return Err(become_plainly(&request.program, &request.command));
        }
        Err(error) => {
            tell!("error: {error}");
            return Ok(ExitCode::from(126));
        }
        Ok(outcome) => outcome,
    };
    tell(&outcome, args.verbose, args.json);
    Ok(ExitCode::from(outcome.exit.follow()))
}

/// Becomes the program; returns only if that fails.
fn become_plainly(program: &Program, arguments: &[OsString]) -> anyhow::Error {
    // All that is blocked is blocked by us.
    let _ = host::signals::unblock();
    let mut command = std::process::Command::new(&program.file);
    command.arg0(&arguments[0]).args(&arguments[1..]);
    failure::with_code(126, format!("{}: {}", program.file.display(), command.exec()))
}

/// Records a run and makes the plan anew with it. A program that cannot be recorded starts plainly.
fn learn(store: Result<PlanStore, LaunchError>, program: &Program, args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.analyse.config(true)?;
    let plainly = |error: &dyn std::fmt::Display| {
        tell!("warning: nothing is learned: {error}\nnote: the program starts plainly");
        Err(become_plainly(program, &args.command))
    };
    let store = match store {
        Ok(store) => store,
        Err(error) => return plainly(&error),
    };
    let mut request = record::Request::new(&args.command[0]);
    request.arguments = args.command[1..].to_vec();
    if args.no_ptrace {
        request.maps = MapsChoice::Perf;
    }
    let outcome = match record::record(&request) {
        Ok(outcome) => outcome,
        Err(error @ RecordError::Start { .. }) => return Err(failure::with_code(126, error.to_string())),
        // It may have run.
        Err(error @ RecordError::Wait(_)) => return Err(error.into()),
        Err(error) => return plainly(&error),
    };
    // Exceeding a limit of file sizes must only end our plan.
    host::signals::block_file_size().context("cannot block a signal")?;
    for note in &outcome.notes {
        tell!("note: {note}");
    }
    if outcome.summary.pages == 0 {
        tell!("no file was touched, so nothing was learned");
        return Ok(ExitCode::from(outcome.exit.follow()));
    }
    // The program has run, and its exit code counts.
    let learned =
        trace::read(&outcome.trace, &trace::Limits::default()).map_err(anyhow::Error::from).and_then(|trace| {
            let mut traces = store.traces(program);
            traces.push((outcome.trace, trace));
            Ok(store.learn(program, &traces, &config)?)
        });
    match learned {
        Ok((_, analysis)) => tell!("{}", told(&analysis)),
        Err(error) => tell!("warning: nothing was learned: {error}"),
    }
    Ok(ExitCode::from(outcome.exit.follow()))
}

fn install(args: &Args, program: &Program) -> anyhow::Result<ExitCode> {
    let folders = shim::ShimFolders::of_user()?;
    let runnel = std::env::current_exe().context("cannot find out where this program lies")?;
    let files = match args.install {
        true => shim::install(&folders, &runnel, &program.file)?,
        false => shim::uninstall(&folders, &program.file)?,
    };
    if files.is_empty() {
        return Err(failure::not_found(format!("{}: nothing was installed for it", program.file.display())));
    }
    for file in &files {
        outln!("{}", file.display());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    if args.install && !std::env::split_paths(&path).any(|folder| folder == folders.bin) {
        tell!("hint: {} is not in PATH, so only menus start it this way", folders.bin.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(outcome: &Outcome, verbose: bool, json: bool) {
    if json {
        let traced = outcome.traced.as_ref().map(|traced| match traced {
            Ok(traced) => serde_json::json!({
                "hits": traced.hits, "stops": traced.stops.total(), "planted": traced.planted,
                "cpu_s": traced.cpu.as_secs_f64(), "end": format!("{:?}", traced.end),
            }),
            Err(why) => serde_json::json!({ "untraced": why.to_string() }),
        });
        let line = serde_json::json!({
            "code": outcome.exit.code(), "mode": outcome.mode, "launch_s": outcome.launch.as_secs_f64(),
            "fetched": outcome.fetched, "traced": traced, "libraries": outcome.libraries, "notes": outcome.notes,
        });
        tell!("{line}");
    } else if verbose {
        let fetched = &outcome.fetched;
        let how = match outcome.mode {
            None => "no plan".to_string(),
            Some(::launch::Mode::Warm) => "all was in memory".to_string(),
            Some(::launch::Mode::Without) => "not prefetched: the plan is off, or for comparison".to_string(),
            Some(::launch::Mode::With) => format!(
                "{}, {}, {}, {} changed",
                counted(fetched.groups, "group"),
                progress::human(fetched.bytes),
                counted(fetched.opens, "open"),
                counted(fetched.stale, "file")
            ),
        };
        tell!("runnel launch: {how}; launched in {:.2} s", outcome.launch.as_secs_f64());
        match &outcome.traced {
            Some(Ok(traced)) => {
                tell!(
                    "runnel launch: {} hit, {}",
                    counted(traced.hits, "breakpoint"),
                    counted(traced.stops.total(), "stop")
                )
            }
            Some(Err(why)) => tell!("runnel launch: no breakpoints: {why}"),
            None => {}
        }
        if let Some(libraries) = outcome.libraries {
            tell!("runnel launch: later groups fetched at the load of {libraries} libraries");
        }
        outcome.notes.iter().for_each(|note| tell!("runnel launch: {note}"));
    } else if outcome.mode.is_none() && std::io::stderr().is_terminal() {
        tell!("runnel launch: no plan yet; `runnel launch --learn -- …` makes one");
    }
}
