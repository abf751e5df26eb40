//! `runnel record`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use ::mount::record::exact;
use ::mount::run::Request;
use ::mount::{MountError, Mounted, Options, Stop, mountpoint};
use client::Session;
use connection::Target;

use crate::command::enter::PlanArgs;
use crate::command::mount::short_name;
use crate::command::session::SessionArgs;
use crate::progress::{self, counted};
use crate::recording::Recording;

#[cfg(feature = "full")]
mod kernel;
mod local;

/// What is done without a program.
#[cfg(feature = "full")]
const NO_PROGRAM: [&str; 5] = ["mount", kernel::WAYS[0], kernel::WAYS[1], kernel::WAYS[2], kernel::WAYS[3]];
#[cfg(not(feature = "full"))]
const NO_PROGRAM: [&str; 1] = ["mount"];

/// Record which pages a program touches, in order: of an image, for `pack --trace`, or of this
/// machine, for `launch`; or which code of a kernel a device executes (--kernel, --kernel-counters,
/// --kernel-thawed, --merge)
#[derive(clap::Args)]
#[command(
    override_usage = "runnel record [OPTIONS] -- COMMAND [ARGUMENT]...\n       runnel record [OPTIONS] TARGET -- COMMAND [ARGUMENT]...\n       \
runnel record --kernel BZIMAGE --vmlinux VMLINUX [OPTIONS] --output FILE\n       runnel record --merge FILE --merge FILE --output FILE",
    after_help = local::AFTER_HELP
)]
pub struct Args {
    /// runnel://host[:port]/name[:tag] (runnels:// for TLS), http://host/path/app.rnl, or app.rnl.
    /// Without it, a program of this machine is recorded
    target: Option<String>,

    /// The trace or coverage file (default: the name of the image or program and `.trace`, in the
    /// current directory)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace the file if there is one
    #[arg(long)]
    force: bool,

    /// Mount on this directory and record all that is read there, until it is unmounted or Ctrl-C
    #[arg(long, value_name = "DIR", requires = "target", conflicts_with_all = ["command", "overlay"])]
    mount: Option<PathBuf>,

    /// Tell what was recorded as JSON
    #[arg(long)]
    json: bool,

    /// Let the program write: changes go to this folder. A file that is changed is read whole for
    /// that
    #[arg(long, value_name = "DIR", requires = "target")]
    overlay: Option<PathBuf>,

    /// The program and its arguments
    #[arg(last = true, required_unless_present_any = NO_PROGRAM)]
    command: Vec<OsString>,

    #[command(flatten)]
    local: local::Options,

    #[cfg(feature = "full")]
    #[command(flatten)]
    kernel: kernel::Options,

    #[command(flatten)]
    plan: PlanArgs,

    #[command(flatten)]
    session: SessionArgs,
}

/// Runs the program in a recorded mount of its own, or serves a recorded mount; ends with the
/// program's exit code.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    #[cfg(feature = "full")]
    if let Some(done) = kernel::run(&args) {
        return done;
    }
    let Some(name) = &args.target else { return local::run(&args) };
    let target = Target::parse(name)?;
    let plan = args.plan.plan(PathBuf::new(), args.command.clone())?;
    if let Some(directory) = &args.mount {
        mountpoint::validate(directory)?;
    }
    let target_name = name.clone();
    let name = short_name(name);
    let output = args.output.clone().unwrap_or_else(|| default_output(&name));
    let recording = Arc::new(Recording::create(&output, args.force)?);
    let options = Options {
        name,
        target: target_name,
        overlay: args.overlay.clone(),
        recorder: Some(recording.clone()),
        ..Options::default()
    };
    let config = exact(args.session.config()?);
    let open = || Session::open(&target, config).map_err(MountError::Session);
    let ended = match &args.mount {
        Some(directory) => serve(directory, options, open),
        None => ::mount::run::run(Request::new(options, plan), |_| open()),
    };
    let exit = ended.inspect_err(|_| recording.discard())?;
    let summary = recording.finish()?;
    if summary.pages == 0 {
        recording.discard();
        tell!("nothing was read from the image, so there is no trace");
    }
    if args.json {
        let mut json = serde_json::to_value(summary)?;
        json["trace"] = output.display().to_string().into();
        json["exit_code"] = exit.code().into();
        tell!("{json}");
    } else if summary.pages > 0 {
        let size = progress::human(summary.bytes);
        let (files, pages) = (counted(summary.files as u64, "file"), counted(summary.pages as u64, "page"));
        tell!("recorded {files}, {pages}, {size} in {}", output.display());
    }
    Ok(ExitCode::from(exit.follow()))
}

fn serve(
    directory: &std::path::Path,
    options: Options,
    open: impl FnOnce() -> Result<Arc<Session>, MountError>,
) -> Result<host::Exit, MountError> {
    // Before any thread starts, so that Ctrl-C ends the mount and the trace.
    let stop = Stop::listen()?;
    let allow_other = rustix::process::geteuid().is_root();
    let mounted = Mounted::start(open()?, directory, Options { allow_other, ..options })?;
    tell!("recording what is read in {}; Ctrl-C or `runnel umount` ends it", directory.display());
    mounted.wait_or_stop(&stop)?;
    Ok(host::Exit::Code(0))
}

/// `app.trace` for `runnel://host/some/app:tag`.
fn default_output(name: &str) -> PathBuf {
    let last = name.rsplit('/').next().unwrap_or(name);
    let stem = last.split_once(':').map_or(last, |(stem, _)| stem).trim_start_matches('@');
    let stem = if stem.is_empty() { "image" } else { stem };
    PathBuf::from(format!("{stem}.trace"))
}
