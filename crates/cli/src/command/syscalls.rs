//! `runnel syscalls`.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use client::{Config, Session, SignedNames};
use connection::{Target, Waiting};
use pack::LocalRoot;
use syscalls::analysis::{AnalysisError, Options, Policy, Report, Subject, analyse};

use crate::command::signed::NameArgs;
use crate::command::trust::TrustArgs;
use crate::failure;

mod image_root;
mod show;

use image_root::ImageRoot;

/// Exit code of `--strict` where some calls are unknown.
const UNKNOWN: u8 = 6;

/// Find the system calls that programs may make, from their machine code (x86-64)
///
/// Follows control from where each program is entered through it and all libraries that it loads,
/// and takes the number of each call from the constants that reach it. What cannot be resolved is
/// listed; then any call may be made, unless --policy or --trace vouches for it.
#[derive(clap::Args)]
pub struct Args {
    /// A program or script; a directory that is the root of a system; or an image: app.rnl,
    /// runnel://host/name
    subject: PathBuf,

    /// Of a directory or an image, only this program; may be given several times
    #[arg(long, value_name = "PATH")]
    program: Vec<PathBuf>,

    /// For a program: the directory that is / for it and its libraries; the program is a path in it
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// A library that the programs may open while they run, beside those that are found; may be
    /// given several times
    #[arg(long, value_name = "PATH")]
    plugin: Vec<PathBuf>,

    /// What places call that cannot be resolved (TOML; see docs/guides/syscalls.md)
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,

    /// Calls of a run, as strace writes them or one name a line: places that cannot be resolved
    /// make no others
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,

    /// Print all that was found as JSON
    #[arg(long, conflicts_with_all = ["seccomp", "table"])]
    json: bool,

    /// Print a seccomp profile (OCI runtime specification) that allows these calls and answers
    /// others with ENOSYS
    #[arg(long, conflicts_with = "table")]
    seccomp: bool,

    /// Print a line for each call: number, name, constant arguments, the functions that make it
    #[arg(long)]
    table: bool,

    /// Fail with exit code 6 if some calls are unknown
    #[arg(long)]
    strict: bool,

    #[command(flatten)]
    names: NameArgs,

    #[command(flatten)]
    trust: TrustArgs,
}

/// Analyses and prints.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let options = Options {
        with_arguments: args.json || args.table,
        plugins: args.plugin.iter().map(|path| bytes(path)).collect(),
        policy: policy(&args)?,
    };
    let report = report(&args, &options)?;
    for note in &report.notes {
        tell!("note: {note}");
    }
    if args.json {
        outln!("{}", show::json(&report)?);
    } else if args.seccomp {
        outln!("{}", serde_json::to_string_pretty(&report.profile())?);
    } else if args.table {
        show::table(&report)?;
    } else {
        show::text(&args.subject.display().to_string(), &report)?;
    }
    if !report.is_complete() {
        tell!(
            "warning: {} places are not resolved{}: any call may be made\nhint: vouch for them with --policy or --trace",
            report.unresolved.len(),
            if report.is_partial { ", and some code was not followed" } else { "" }
        );
        if args.strict {
            return Ok(ExitCode::from(UNKNOWN));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn policy(args: &Args) -> anyhow::Result<Policy> {
    let mut policy = match &args.policy {
        Some(path) => Policy::parse(&text(path)?).with_context(|| path.display().to_string())?,
        None => Policy::default(),
    };
    take_traces(&mut policy, &args.trace)?;
    Ok(policy)
}

/// Adds the calls of traces to what a policy vouches for.
pub(super) fn take_traces(policy: &mut Policy, traces: &[PathBuf]) -> anyhow::Result<()> {
    for path in traces {
        policy.trace(&text(path)?).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn text(path: &Path) -> anyhow::Result<String> {
    let bytes = host::file::read(path).with_context(|| path.display().to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn report(args: &Args, options: &Options) -> anyhow::Result<Report> {
    let programs = args.program.iter().map(|path| bytes(path)).collect();
    match &args.root {
        Some(root) if args.program.is_empty() => {
            let program = vec![bytes(&args.subject)];
            let report = analyse(&LocalRoot::new(canonical(root)?), &Subject::Programs(program), options);
            report.with_context(|| args.subject.display().to_string())
        }
        Some(_) => Err(not_for_programs()),
        None => find(&args.subject, programs, (args.trust.connection()?, args.names.signed()?), options),
    }
}

/// The calls of `programs` in a directory or an image, of all that are in it if there are none, or
/// of one program of this machine.
pub(super) fn find(
    subject: &Path,
    programs: Vec<Vec<u8>>,
    (connection, signed): (connection::Config, SignedNames),
    options: &Options,
) -> anyhow::Result<Report> {
    let named = |report: Result<Report, AnalysisError>| report.with_context(|| subject.display().to_string());
    let wanted = if programs.is_empty() { Subject::Tree } else { Subject::Programs(programs) };
    if subject.is_dir() {
        return named(analyse(&LocalRoot::new(canonical(subject)?), &wanted, options));
    }
    if subject.exists() && !subject.is_file() {
        return Err(failure::usage(format!("{}: neither a file nor a directory", subject.display())));
    }
    let text = subject.to_string_lossy();
    if text.contains("://") || is_image(subject) {
        let config = Config { connections: 1, waiting: Waiting::SOFT_DEFAULT, connection, signed, ..Config::default() };
        let session = Session::open(&Target::parse(&text)?, config)?;
        let report = named(analyse(&ImageRoot::new(&session), &wanted, options));
        session.shutdown();
        return report;
    }
    if matches!(wanted, Subject::Programs(_)) {
        return Err(not_for_programs());
    }
    let is_name = !subject.as_os_str().as_bytes().contains(&b'/') && !subject.exists();
    let path = if is_name { subject.to_path_buf() } else { canonical(subject)? };
    named(analyse(&LocalRoot::new("/"), &Subject::Programs(vec![bytes(&path)]), options))
}

fn not_for_programs() -> anyhow::Error {
    failure::usage("--program is for a directory or an image")
}

fn canonical(path: &Path) -> anyhow::Result<PathBuf> {
    std::fs::canonicalize(path).with_context(|| path.display().to_string())
}

/// A path as the analysis takes it.
pub(super) fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// Whether a file is an image.
pub(super) fn is_image(path: &Path) -> bool {
    use std::io::Read;
    let mut magic = [0; image::format::MAGIC.len()];
    let Ok(mut file) = std::fs::File::open(path) else { return false };
    file.read_exact(&mut magic).is_ok() && magic == image::format::MAGIC
}
