//! `runnel redirect`.

use std::path::PathBuf;
use std::process::ExitCode;

use ::mount::MountError;
use client::Session;

use crate::command::session::SessionArgs;

/// Put chosen executables from images over local paths, until it ends
#[derive(clap::Args)]
pub struct Args {
    /// The configuration: [[image]] sections with `source` and `paths`
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,

    /// End the redirects of this configuration
    #[arg(long)]
    stop: bool,

    #[command(flatten)]
    session: SessionArgs,
}

/// Runs until SIGINT, SIGTERM or `--stop`; everything is undone then.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.stop {
        ::mount::redirect::stop(&args.config)?;
        return Ok(ExitCode::SUCCESS);
    }
    let config = args.session.config()?;
    ::mount::redirect::run(
        &args.config,
        |target| Session::open(target, config.clone()).map_err(MountError::Session),
        |paths| {
            for path in paths {
                tell!("{} comes from its image", path.display());
            }
        },
    )?;
    Ok(ExitCode::SUCCESS)
}
