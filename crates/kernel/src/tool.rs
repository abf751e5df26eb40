//! Programs that must succeed: make, the linker's script, QEMU's companions.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::KernelError;
use crate::error::io_at;

/// Bytes of a log that an error shows.
const TAIL_BYTES: u64 = 2000;

/// Runs `command`, with all that it writes in the file `log`.
pub(crate) fn run(command: &mut Command, log: &Path) -> Result<(), KernelError> {
    let file = File::create(log).map_err(io_at(log))?;
    let copy = file.try_clone().map_err(io_at(log))?;
    command.stdin(Stdio::null()).stdout(file).stderr(copy);
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |status: String| KernelError::Tool { program: program.clone(), status, tail: tail(log) };
    let status = command.status().map_err(|error| failed(error.to_string()))?;
    if status.success() { Ok(()) } else { Err(failed(format!("{status}, {}", log.display()))) }
}

/// Whether all `programs` are there; `packages`: Debian's packages with them.
pub(crate) fn require(programs: &[&str], packages: &str) -> Result<(), KernelError> {
    let folders: Vec<_> =
        std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
    let is_there = |name: &&&str| folders.iter().any(|folder: &std::path::PathBuf| folder.join(name).is_file());
    let missing: Vec<&str> = programs.iter().filter(|name| !is_there(name)).copied().collect();
    if missing.is_empty() {
        return Ok(());
    }
    let reason = format!("{}: not installed; hint: apt-get install {packages}", missing.join(", "));
    Err(KernelError::Config { reason })
}

/// The end of a log.
pub(crate) fn tail(log: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_string())
    };
    read().unwrap_or_default()
}
