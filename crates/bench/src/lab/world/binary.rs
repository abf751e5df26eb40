//! The binary under test: everything, static, so that it runs in the guest whatever library the host has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::stage::{Fingerprint, Stages};
use crate::options;
use crate::process::tool;

/// Makes the static binary, below the source folder.
const SCRIPT: &str = "scripts/dist.sh";

/// What the script leaves.
const RESULT: &str = "target/dist/runnel-x86_64-full";

/// The binary given by the user, or the one built from the source folder if its sources changed.
pub fn prepare(given: Option<&Path>, runnel: &Path, stages: &Stages) -> anyhow::Result<PathBuf> {
    if let Some(path) = given {
        return options::binary(path);
    }
    let folder = source_folder(runnel).with_context(|| {
        format!(
            "the lab runs a static binary, which it builds from Runnel's source folder; neither the current folder nor \
             that of {} is one: go there, or give --binary FILE (made by {SCRIPT} x86_64 --full)",
            runnel.display()
        )
    })?;
    let result = folder.join(RESULT);
    let inputs = format!("{}\n{}\n", folder.display(), sources(&folder)?);
    stages.run("binary", &inputs, &result, || {
        let mut command = Command::new(folder.join(SCRIPT));
        // The script expects the default one.
        command.args(["x86_64", "--full"]).current_dir(&folder).env_remove("CARGO_TARGET_DIR");
        tool(&mut command).map(drop)
    })?;
    ensure!(result.is_file(), "{SCRIPT} left no {}", result.display());
    Ok(result)
}

/// The source folder: the current one or one above it, or one above the binary that runs.
fn source_folder(runnel: &Path) -> Option<PathBuf> {
    let current = std::env::current_dir().unwrap_or_default();
    let folders = current.ancestors().chain(runnel.ancestors());
    folders
        .into_iter()
        .find(|folder| folder.join(SCRIPT).is_file() && folder.join("Cargo.lock").is_file())
        .map(Path::to_path_buf)
}

/// Tells the sources from others: names and contents of all files that the build reads.
fn sources(folder: &Path) -> anyhow::Result<Fingerprint> {
    let mut files = vec![folder.join("Cargo.toml"), folder.join("Cargo.lock"), folder.join(SCRIPT)];
    let mut pending = vec![folder.join("crates")];
    while let Some(next) = pending.pop() {
        for entry in fs::read_dir(&next).with_context(|| format!("cannot list {}", next.display()))? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => pending.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    files.sort();
    files.iter().try_fold(Fingerprint::EMPTY, |sum, file| sum.and(file.as_os_str().as_encoded_bytes()).and_file(file))
}
