//! `runnel umount`.

use std::path::PathBuf;
use std::process::ExitCode;

/// End a mount, also one whose daemon is gone
#[derive(clap::Args)]
pub struct Args {
    /// The mount point
    directory: PathBuf,
}

/// Detaches the mount; programs that still use it keep what they have open until they end.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    ::mount::umount(&args.directory)?;
    Ok(ExitCode::SUCCESS)
}
