//! The binary under test and the one that measures it in the guest: static, so that they run there
//! whatever library the host has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::stage::{Fingerprint, Stages};
use crate::options;
use crate::process::tool;

/// Makes the static binaries, below the source folder.
const SCRIPT: &str = "scripts/dist.sh";

/// What the script leaves.
const RESULT: &str = "target/dist/runnel-x86_64-full";

/// The static binaries.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// The product.
    pub runnel: PathBuf,
    /// The guest's half of the lab.
    pub bench: PathBuf,
}

/// The binary given by the user, with the guest's half beside it; or those built from the source
/// folder if its sources changed.
pub fn prepare(given: Option<&Path>, stages: &Stages) -> anyhow::Result<Binaries> {
    let given = given.map(options::binary).transpose()?;
    if let Some(runnel) = &given {
        let bench = bench_beside(runnel);
        if bench.is_file() {
            return Ok(Binaries { runnel: runnel.clone(), bench });
        }
    }
    let folder = source_folder().with_context(|| {
        format!(
            "the lab runs static binaries, which it builds from Runnel's source folder; neither the current folder nor \
             that of this program is one: go there, or give --binary FILE with its runnel-bench beside it (made by \
             {SCRIPT} x86_64 --full)"
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
    let bench = bench_beside(&result);
    for file in [&result, &bench] {
        ensure!(file.is_file(), "{SCRIPT} left no {}", file.display());
    }
    Ok(Binaries { runnel: given.unwrap_or(result), bench })
}

/// `runnel-bench-X` for `runnel-X`, in the same folder.
fn bench_beside(runnel: &Path) -> PathBuf {
    let name = runnel.file_name().unwrap_or_default().to_string_lossy();
    runnel.with_file_name(format!("runnel-bench{}", name.strip_prefix("runnel").unwrap_or_default()))
}

/// The source folder: the current one or one above it, or one above this program.
fn source_folder() -> Option<PathBuf> {
    let (current, program) = (std::env::current_dir().unwrap_or_default(), std::env::current_exe().unwrap_or_default());
    let mut folders = current.ancestors().chain(program.ancestors());
    folders.find(|folder| folder.join(SCRIPT).is_file() && folder.join("Cargo.lock").is_file()).map(Path::to_path_buf)
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
