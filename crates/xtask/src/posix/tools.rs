//! Tools that others publish, in versions that we name.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::watch;

/// A tool from the registry, once for each version. `cache` is where it is kept.
pub fn install(tool: &str, version: &str, cache: &Path) -> anyhow::Result<PathBuf> {
    let program = cache.join("bin").join(tool);
    let has = Command::new(&program).arg("--version").output().is_ok_and(|said| {
        let said = String::from_utf8_lossy(&said.stdout);
        said.split_whitespace().any(|word| word == version)
    });
    if !has {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // They wait for the file system; optimised, they take twice as long to build.
        cargo.args(["install", "--debug", "--quiet", "--locked", "--version", version, "--root"]).arg(cache).arg(tool);
        watch::run(&mut cargo)?;
    }
    Ok(program)
}

/// Whether this machine has a program; says so if not.
pub fn has(program: &str, what: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("== posix: {what}: skipped: {program} is not here");
    }
    found
}
