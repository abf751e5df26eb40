//! Nydus' programs: those of the user, or built once from the Rust registry.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::stage::Stages;
use crate::process::{find_program, tool};

/// The release that is compared.
const VERSION: &str = "2.2.0";

/// The two programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nydus {
    /// The client.
    pub daemon: PathBuf,
    /// The converter.
    pub converter: PathBuf,
}

/// Where a build in the cache lies.
fn built(cache: &Path) -> PathBuf {
    cache.join("nydus")
}

/// Looks in $NYDUS_BIN, in the cache and in PATH.
pub fn find(cache: &Path) -> Option<Nydus> {
    let given = std::env::var_os("NYDUS_BIN").map(PathBuf::from);
    let folders = given.into_iter().chain([built(cache).join("bin")]);
    let candidates = folders.map(|folder| (folder.join("nydusd"), folder.join("nydus-image")));
    let from_path = || Some((find_program("nydusd")?, find_program("nydus-image")?));
    let found = candidates.into_iter().find(|(daemon, converter)| daemon.is_file() && converter.is_file());
    found.or_else(from_path).map(|(daemon, converter)| Nydus { daemon, converter })
}

/// Builds them into the cache: about 18 minutes on two cores.
pub fn build(cache: &Path, stages: &Stages) -> anyhow::Result<()> {
    let folder = built(cache);
    stages.run("nydus", &format!("{VERSION}\n"), &folder.join("bin/nydusd"), || {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["install", "nydus-rs", "--version", VERSION, "--locked", "--root"]).arg(&folder);
        tool(&mut command).map(drop).context("Nydus cannot be built; rows of Nydus need it, or $NYDUS_BIN")
    })
}
