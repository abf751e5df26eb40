//! casync: an index and a store of compressed chunks on a web server, mounted by `casync mount`
//! with its defaults. It fetches the index when it mounts, and chunks through its helper
//! `casync-http` when the archive is read; its own cache of them is a fresh folder in memory.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::system::APP;
use super::client::{Mounter, Server};
use super::web_server::{WebServer, address};
use super::{image, program};
use crate::lab::program::Program;

/// Name of the store of chunks beside the index.
const STORE: &str = "store.castr";

/// The system.
#[derive(Clone, Copy, Debug)]
pub struct Casync;

impl Mounter for Casync {
    fn name(&self) -> &'static str {
        "casync"
    }

    fn serve(&self, tree: &str, folder: &Path) -> anyhow::Result<Box<dyn Server>> {
        Ok(Box::new(WebServer::start(&image(tree, "casync")?, folder)?))
    }

    fn command(&self, tree: &str, folder: &Path) -> anyhow::Result<Command> {
        let mut command = Command::new(program("casync", "the package casync")?);
        command.arg("mount").arg(format!("--store={}", address(STORE)));
        command.arg(address(&format!("{tree}.caidx"))).arg(APP);
        // Where it keeps its cache.
        command.env("TMPDIR", folder);
        Ok(command)
    }

    fn server_files(&self, program: &Program) -> Vec<PathBuf> {
        image(program.tree, "casync").into_iter().collect()
    }

    fn programs(&self) -> &'static [&'static str] {
        &["casync", "/usr/lib/casync/protocols/casync-http"]
    }
}
