//! `runnel upgrade`.

use std::path::PathBuf;
use std::process::ExitCode;

use ::mount::MountStatus;
use ::mount::control::replace;

use crate::command::status::of_mount;

/// Let mounts and running programs be served by the runnel that is installed now
///
/// Programs that use them see a pause. Without this, a new version serves what is mounted after it
/// was installed.
#[derive(clap::Args)]
pub struct Args {
    /// The mount point; all mounts of this user if left out, also those of `runnel run`
    directory: Option<PathBuf>,
}

/// Replaces daemons one after the other, and tells of each. What cannot be replaced is left as it
/// is.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mounts = match &args.directory {
        Some(directory) => vec![of_mount(directory)?],
        None => ::mount::mounts()?,
    };
    if mounts.is_empty() {
        outln!("no mounts");
    }
    let mut failed = 0;
    for mount in &mounts {
        let (name, at) = (&mount.target, mount.mountpoint.display());
        match replace(mount) {
            Ok(MountStatus { refused: Some(why), .. }) => {
                tell!("error: {name} on {at}: {why}; the one before serves on");
                failed += 1;
            }
            Ok(status) => outln!("{name} on {at}: version {} (process {})", status.version, status.pid),
            Err(error) => {
                tell!("error: {error}");
                failed += 1;
            }
        }
    }
    if failed > 0 {
        tell!("hint: unmount and mount again where programs can do without it");
    }
    Ok(if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
