//! `runnel umount`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::command::volume;

/// End a mount, also one whose daemon is gone
#[derive(clap::Args)]
pub struct Args {
    /// The mount point
    directory: PathBuf,
}

/// Detaches the mount; programs that still use it keep what they have open until they end. Of a
/// volume it tells what is unsent or lost.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let report = ::mount::umount(&args.directory)?;
    let lost = volume::tell_unsent(&args.directory, &report);
    Ok(if lost { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
