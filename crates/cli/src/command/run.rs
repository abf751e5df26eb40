//! `runnel run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use ::mount::enter::Plan;
use ::mount::run::Request;
use ::mount::{MountError, Options};
use client::{Session, Target};

use crate::command::enter::PlanArgs;
use crate::command::mount::short_name;
use crate::command::session::SessionArgs;

/// Start a program inside an image, without root
#[derive(clap::Args)]
pub struct Args {
    /// runnel://host[:port]/name[:tag] (runnels:// for TLS), http://host/path/app.rnl, or app.rnl
    target: String,

    /// Let the program write: changes go to this folder
    #[arg(long, value_name = "DIR")]
    overlay: Option<PathBuf>,

    #[command(flatten)]
    plan: PlanArgs,

    #[command(flatten)]
    session: SessionArgs,

    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Mounts the image where only the program sees it, runs the program, and ends with its exit code.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let target = Target::parse(&args.target)?;
    let options = Options {
        name: short_name(&args.target),
        target: args.target.clone(),
        overlay: args.overlay.clone(),
        ..Options::default()
    };
    let plan: Plan = args.plan.plan(PathBuf::new(), args.command.clone())?;
    let config = args.session.config();
    let exit =
        ::mount::run::run(Request::new(options, plan), || Session::open(&target, config).map_err(MountError::Session))?;
    Ok(ExitCode::from(exit.follow()))
}
