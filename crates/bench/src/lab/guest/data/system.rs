//! Who delivers data files: the systems of the lab that mount a folder, a whole download, and our
//! volumes.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::disk::{tree_folder, writable_folder};
use super::super::peer::client::Mounted;
use super::super::peer::{sshfs, web_folder};
use super::super::system::{APP, System};
use super::super::{Values, nfs};
use super::download::Download;
use super::product::{Product, Use};
use crate::lab::data::TREE;
use crate::lab::data::case::{Case, PROGRAM_FILE, SCENES_FILE, Work};
use crate::lab::link::Link;
use crate::lab::plan::Row;

/// Someone who delivers data files. The driver calls `serve` once, then for each run `mount`,
/// `fetch`, the work and `unmount`, and `stop` at the end.
pub trait DataSystem {
    /// Starts the server for the case, and lets it learn if it does.
    fn serve(&mut self) -> anyhow::Result<()>;

    /// Makes the client ready: mounts, as far as that has to be done before the work.
    fn mount(&mut self) -> anyhow::Result<()>;

    /// What has to be done before the work can begin and counts as a part of it.
    fn fetch(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Where the work finds its files.
    fn folder(&self) -> String {
        APP.to_string()
    }

    /// What plays the game.
    fn game(&self) -> Command {
        let mut command = Command::new(Path::new(APP).join(PROGRAM_FILE));
        command.arg(Path::new(APP).join(SCENES_FILE));
        command
    }

    /// Programs of the client, in memory before a run begins.
    fn client_files(&self) -> Vec<PathBuf>;

    /// Programs and files of the server besides the served folder, likewise.
    fn server_files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Counters of the client by the names of records.
    fn counters(&self) -> anyhow::Result<Values> {
        Ok(Values::new())
    }

    /// Takes the client away.
    fn unmount(&mut self) -> anyhow::Result<()>;

    /// Ends the server too.
    fn stop(&mut self) -> anyhow::Result<()>;
}

/// The folder that the server publishes for a case.
pub fn published(case: &Case) -> PathBuf {
    if case.writes() { writable_folder(TREE) } else { tree_folder(TREE) }
}

/// The system of `row`. Nothing is started or changed yet.
pub fn make(row: &Row, case: &'static Case) -> anyhow::Result<Box<dyn DataSystem>> {
    let (writable, link) = (case.writes(), Link::named(&row.link)?);
    let named = (row.system.as_str(), row.mode.as_str());
    let system: Box<dyn System> = match named {
        ("download", "") if !writable => return Ok(Box::new(Download::new(case))),
        ("runnel", "") if case.work == Work::Game => return Ok(Box::new(Product::new(Use::Run, case, link))),
        ("runnel", "") => return Ok(Box::new(Product::new(Use::Library, case, link))),
        ("runnel", "mount") if case.work != Work::Game => return Ok(Box::new(Product::new(Use::Mount, case, link))),
        ("runnel", "program") if case.work == Work::Game => {
            return Ok(Box::new(Product::new(Use::Program, case, link)));
        }
        ("nfs", "") => Box::new(nfs::Nfs::new(writable)),
        ("sshfs", "") => Box::new(Mounted::new(sshfs::Sshfs { writable })),
        ("rclone", "") if !writable => Box::new(Mounted::new(web_folder::Rclone)),
        (system, mode) => {
            let colon = if mode.is_empty() { "" } else { ":" };
            anyhow::bail!("the case {} has no system '{system}{colon}{mode}'", case.name)
        }
    };
    Ok(Box::new(Delivered(system)))
}

/// A system that delivers the folder as it delivers trees of programs.
struct Delivered(Box<dyn System>);

impl DataSystem for Delivered {
    fn serve(&mut self) -> anyhow::Result<()> {
        self.0.serve(TREE)
    }

    fn mount(&mut self) -> anyhow::Result<()> {
        self.0.mount(TREE)
    }

    fn client_files(&self) -> Vec<PathBuf> {
        self.0.client_files()
    }

    fn server_files(&self) -> Vec<PathBuf> {
        // Started anew for every connection.
        crate::process::find_program("sshd").into_iter().collect()
    }

    fn counters(&self) -> anyhow::Result<Values> {
        self.0.counters()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        self.0.unmount()
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.0.stop()
    }
}
