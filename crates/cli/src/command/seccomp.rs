//! Seccomp profiles for programs that we start.

use std::path::{Path, PathBuf};

use anyhow::Context;
use syscalls::{Arch, Filter, Profile};

use crate::failure;

/// Bytes of a profile; those of container runtimes have 30 KiB.
const PROFILE_BYTES_MAX: usize = 16 << 20;

/// What a program may ask of the kernel.
#[derive(clap::Args)]
#[command(next_help_heading = "Program")]
pub struct SeccompArgs {
    /// Put the program under this seccomp profile (OCI runtime specification), such as
    /// `runnel syscalls --seccomp` writes
    #[arg(long, value_name = "PROFILE")]
    seccomp: Option<PathBuf>,
}

impl SeccompArgs {
    /// The profile's absolute path, after a look that it can be put on.
    pub fn checked(&self) -> anyhow::Result<Option<PathBuf>> {
        let Some(path) = &self.seccomp else { return Ok(None) };
        compile(path)?;
        Ok(Some(std::path::absolute(path).with_context(|| path.display().to_string())?))
    }

    /// The filter to put on.
    pub fn filter(&self) -> anyhow::Result<Option<probe::seccomp::Filter>> {
        let Some(path) = &self.seccomp else { return Ok(None) };
        let filter = compile(path)?;
        let raw = filter.instructions().iter().map(|step| (step.code, step.jt, step.jf, step.k));
        Ok(Some(probe::seccomp::Filter::of_instructions(raw)))
    }
}

fn compile(path: &Path) -> anyhow::Result<Filter> {
    let name = path.display().to_string();
    let text = host::file::read(path).with_context(|| name.clone())?;
    if text.len() > PROFILE_BYTES_MAX {
        return Err(failure::usage(format!("{name}: larger than a profile may be")));
    }
    let arch = Arch::HERE.ok_or_else(|| failure::usage("--seccomp: system calls of this processor are not known"))?;
    let profile = Profile::parse(&String::from_utf8_lossy(&text)).with_context(|| name.clone())?;
    let filter = Filter::new(&profile, arch).with_context(|| name.clone())?;
    if !filter.may_allow(&profile, arch, "execve") {
        return Err(failure::usage(format!("{name}: does not allow execve, by which the program itself is started")));
    }
    Ok(filter)
}
