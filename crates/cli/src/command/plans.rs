//! `runnel plans`.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ::launch::{Entry, PlanStore, Program, learn};
use anyhow::Context;
use clap::Subcommand;
use profile::plan::{AnalyseConfig, Analysis, BurstConfig, LaunchPlan};
use trace::{Tail, Trace};

use crate::progress::counted;
use crate::{failure, progress};

/// Launch plans: list them, what each saved, learn, switch, forget
#[derive(clap::Args)]
pub struct Args {
    /// The folder of plans (default: ~/.cache/runnel/plans)
    #[arg(long, value_name = "DIR", global = true)]
    plans: Option<PathBuf>,

    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    /// List all plans: programs, bytes, launches, what each saves (the default)
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a plan from traces of `runnel record`; two runs are better than one
    Learn(LearnArgs),
    /// Use the plan whatever it saves
    On(CommandArgs),
    /// Do not use the plan
    Off(CommandArgs),
    /// Let measurements decide (the default)
    Auto(CommandArgs),
    /// Take the plan of a program away, with all that was measured
    Forget(CommandArgs),
    /// Take away plans whose program is gone, that cannot be read, or of which fewer than half the
    /// files are as they were
    Prune {
        /// Only say which
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(clap::Args)]
struct LearnArgs {
    /// Traces of local programs
    #[arg(required = true)]
    traces: Vec<PathBuf>,

    /// The command that the plan is for, if it is an interpreter with a script (default: the traced
    /// program)
    #[arg(last = true)]
    command: Vec<OsString>,

    #[command(flatten)]
    analyse: AnalyseArgs,
}

/// How bursts are told from idle periods.
#[derive(clap::Args)]
#[command(next_help_heading = "Bursts")]
pub struct AnalyseArgs {
    /// Seconds: the reads of the queue are a burst while they took less. With --auto, the largest
    /// that is chosen
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    burst_threshold: f64,

    /// Reads that the circular queue holds
    #[arg(long, value_name = "READS", default_value_t = 32, value_parser = clap::value_parser!(u32).range(2..=65_536))]
    burst_queue: u32,

    /// Choose the threshold from each trace (always so for `launch --learn`)
    #[arg(long)]
    auto: bool,
}

#[derive(clap::Args)]
struct CommandArgs {
    /// The program, and for an interpreter its script
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// One line a plan; or what the action says.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let store = PlanStore::open(args.plans.as_deref())?;
    match args.action.unwrap_or(Action::List { json: false }) {
        Action::List { json } => list(&store, json)?,
        Action::Learn(args) => learn_traces(&store, &args)?,
        Action::On(args) => force(&store, &args.command, Some(true))?,
        Action::Off(args) => force(&store, &args.command, Some(false))?,
        Action::Auto(args) => force(&store, &args.command, None)?,
        Action::Forget(args) => {
            let program = Program::find(&args.command)?;
            if !store.forget(&program)? {
                return Err(no_plan(&program));
            }
        }
        Action::Prune { dry_run } => prune(&store, dry_run)?,
    }
    Ok(ExitCode::SUCCESS)
}

impl AnalyseArgs {
    /// The configuration of the analyser; `auto` as if --auto were given.
    ///
    /// # Errors
    /// The threshold is no time.
    pub fn config(&self, auto: bool) -> anyhow::Result<AnalyseConfig> {
        // A day is longer than any idle period.
        if !(0.001..=86_400.0).contains(&self.burst_threshold) {
            return Err(failure::usage("--burst-threshold takes seconds, 0.001 to 86400"));
        }
        let burst = BurstConfig {
            queue_reads: self.burst_queue as usize,
            reads_min: self.burst_queue as usize,
            threshold: Duration::from_secs_f64(self.burst_threshold),
            ..BurstConfig::default()
        };
        Ok(AnalyseConfig { burst, auto: self.auto || auto, ..AnalyseConfig::default() })
    }
}

fn no_plan(program: &Program) -> anyhow::Error {
    failure::not_found(format!("{}: there is no plan of it", program.title()))
}

fn list(store: &PlanStore, json: bool) -> anyhow::Result<()> {
    let entries = store.list()?;
    if json {
        outln!("{}", serde_json::Value::Array(entries.iter().map(json_of).collect()));
        return Ok(());
    }
    if entries.is_empty() {
        tell!("no plans yet; `runnel launch --learn -- PROGRAM` makes one");
        return Ok(());
    }
    outln!(
        "{:>6} {:>9} {:>8} {:>8} {:>8} {:>6}  {:<5} program",
        "groups",
        "bytes",
        "launches",
        "without",
        "with",
        "saves",
        "state"
    );
    for entry in &entries {
        // The title comes from a file, and may hold anything.
        let title = &entry.history.title.replace(|letter: char| letter.is_control(), " ");
        match &entry.plan {
            Ok(plan) => {
                let seconds = |us: u64| format!("{:.2} s", us as f64 / 1e6);
                let found = entry.history.comparison();
                let column = |value: Option<String>| value.unwrap_or_else(|| "-".into());
                let title = if title.is_empty() { plan.program.escape_ascii().to_string() } else { title.clone() };
                outln!(
                    "{:>6} {:>9} {:>8} {:>8} {:>8} {:>6}  {:<5} {title}",
                    plan.groups.len(),
                    progress::human(bytes(plan)),
                    entry.history.launches,
                    column(found.map(|found| seconds(found.without_us))),
                    column(found.map(|found| seconds(found.with_us))),
                    column(found.map(|found| format!("{:.0} %", found.gain * 100.0))),
                    state(entry),
                );
            }
            Err(error) => outln!("{:>6} {:>48}  bad   {title}: {error}", "-", ""),
        }
    }
    Ok(())
}

/// Bytes that all groups fetch.
fn bytes(plan: &LaunchPlan) -> u64 {
    plan.groups.iter().map(|group| plan.bytes(group)).sum()
}

fn state(entry: &Entry) -> &'static str {
    match (entry.history.forced, entry.history.is_on()) {
        (None, true) => "on",
        (None, false) => "idle",
        (Some(true), _) => "on!",
        (Some(false), _) => "off!",
    }
}

fn json_of(entry: &Entry) -> serde_json::Value {
    let mut json = serde_json::json!({
        "file": entry.path.display().to_string(), "title": entry.history.title, "state": state(entry),
        "launches": entry.history.launches, "cold_launches": entry.history.cold, "comparison": entry.history.comparison(),
    });
    match &entry.plan {
        Ok(plan) => {
            json["program"] = plan.program.escape_ascii().to_string().into();
            json["groups"] = plan.groups.len().into();
            json["bytes"] = bytes(plan).into();
            json["runs"] = plan.runs.into();
        }
        Err(error) => json["error"] = error.to_string().into(),
    }
    json
}

fn learn_traces(store: &PlanStore, args: &LearnArgs) -> anyhow::Result<()> {
    let config = args.analyse.config(false)?;
    let traces = args.traces.iter().map(|path| read_trace(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let program = match args.command.is_empty() {
        false => Program::find(&args.command)?,
        true => {
            let run = profile::plan::Run::from_trace(&traces[0].1)
                .map_err(|error| failure::usage(format!("{}: {error}", args.traces[0].display())))?;
            Program::find(&[std::ffi::OsStr::from_bytes(&run.program).to_os_string()])?
        }
    };
    let (path, analysis) = store.learn(&program, &traces, &config)?;
    tell!("{}", told(&analysis));
    outln!("{}", path.display());
    Ok(())
}

/// A trace and its bytes.
fn read_trace(path: &Path) -> anyhow::Result<(Vec<u8>, Trace)> {
    let name = path.display();
    let mut bytes = Vec::new();
    let file = host::file::open(path).with_context(|| format!("cannot read the trace {name}"))?;
    file.take(learn::TRACE_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(|| format!("cannot read {name}"))?;
    if bytes.len() as u64 > learn::TRACE_BYTES_MAX {
        return Err(failure::corrupt(format!("{name}: over {}", progress::human(learn::TRACE_BYTES_MAX))));
    }
    let trace =
        trace::read(&bytes, &trace::Limits::default()).map_err(|error| failure::corrupt(format!("{name}: {error}")))?;
    if trace.tail != Tail::Whole {
        tell!("warning: {name}: {}", trace.tail);
    }
    Ok((bytes, trace))
}

/// A summary of the plan, in a line or two.
pub fn told(analysis: &Analysis) -> String {
    let plan = &analysis.plan;
    let runs = plan.runs;
    let mut text = format!(
        "learned from {}: {}, {}, {}",
        counted(runs, "run"),
        counted(plan.groups.len() as u64, "group"),
        progress::human(bytes(plan)),
        counted(analysis.report.breakpoints as u64, "breakpoint"),
    );
    if analysis.report.libraries > 0 {
        text.push_str(&format!(" ({} without ptrace, where a library tells)", analysis.report.libraries));
    }
    if analysis.report.linked > 0 {
        let go = if analysis.report.linked == 1 { "goes" } else { "go" };
        text.push_str(&format!(", {} {go} with an earlier one", counted(analysis.report.linked as u64, "group")));
    }
    let lost = analysis.report.files_gone + analysis.report.files_changed;
    if lost > 0 {
        text.push_str(&format!("; {} changed since: left out", counted(lost as u64, "file")));
    }
    if runs == 1 {
        text.push_str("\nhint: a second run leaves out what only the first one touched");
    }
    text
}

fn force(store: &PlanStore, command: &[OsString], forced: Option<bool>) -> anyhow::Result<()> {
    let program = Program::find(command)?;
    let Some((_, mut history)) = store.load(&program)? else { return Err(no_plan(&program)) };
    history.forced = forced;
    store.save_history(&program, &history)?;
    Ok(())
}

fn prune(store: &PlanStore, dry_run: bool) -> anyhow::Result<()> {
    for entry in store.list()? {
        let why = match &entry.plan {
            Err(error) => Some(error.to_string()),
            Ok(plan) => {
                let fit = ::launch::fit(plan);
                let program = Path::new(std::ffi::OsStr::from_bytes(&plan.program));
                if !program.exists() {
                    Some(format!("{} is gone", program.display()))
                } else if fit.same < fit.changed + fit.gone {
                    let all = fit.same + fit.changed + fit.gone;
                    Some(format!("{} of {all} files are no longer what they were", fit.changed + fit.gone))
                } else {
                    None
                }
            }
        };
        let Some(why) = why else { continue };
        if !dry_run {
            store.remove(&entry.path)?;
        }
        outln!("{}: {why}", entry.path.display());
    }
    for path in store.leftovers()? {
        if !dry_run {
            std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        outln!("{}: left by a process that was killed", path.display());
    }
    Ok(())
}
