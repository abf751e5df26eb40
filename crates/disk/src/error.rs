//! Errors of an emulated disk.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why a disk could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A step of setting it up or taking it away.
    #[error("cannot {step} {}: {source}", path.display())]
    Step {
        /// What was tried.
        step: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A tool failed.
    #[error("{tool} failed: {said}")]
    Tool {
        /// Its name.
        tool: String,
        /// What it said.
        said: String,
    },
    /// The device does not do what was asked of it.
    #[error("{0}")]
    Device(String),
}

impl DiskError {
    pub(crate) fn step(step: &'static str, path: &Path, error: impl Into<io::Error>) -> DiskError {
        DiskError::Step { step, path: path.to_path_buf(), source: error.into() }
    }
}

/// Runs a tool to its end; what it printed.
pub(crate) fn tool(command: &mut Command) -> Result<String, DiskError> {
    let tool = command.get_program().to_string_lossy().into_owned();
    let failed = |said: String| DiskError::Tool { tool: tool.clone(), said };
    let output = command.stdin(std::process::Stdio::null()).output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(failed(format!("{}: {}", output.status, said.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}
