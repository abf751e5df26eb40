//! What the systems that mount over FUSE have in common: a server in the server's name space, and a
//! client in the foreground that ends when its mount is taken away.
//!
//! Every mount gets a fresh folder in memory for whatever the client keeps (cache, socket, log), so
//! that a cold start finds nothing of the one before.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::super::card::unmount_if_mounted;
use super::super::disk::tree_folder;
use super::super::system::{APP, System, WORK};
use super::super::{Values, kernel, pages};
use crate::lab::program::Program;
use crate::process::Service;

/// How long a mount may take: an index page or metadata over the slowest link takes minutes.
const READY_DEADLINE: Duration = Duration::from_secs(3600);

/// How long a client may take to end once its mount is gone.
const END_DEADLINE: Duration = Duration::from_secs(30);

/// The server's end while a row is measured; dropping it ends it.
pub trait Server {
    /// Requests answered so far, if it counts them.
    fn requests(&self) -> Option<f64>;
}

/// In what one system differs from another.
pub trait Mounter {
    /// Its name, also that of its log.
    fn name(&self) -> &'static str;

    /// Starts its server for `tree`; `folder` is the server's own.
    fn serve(&self, tree: &str, folder: &Path) -> anyhow::Result<Box<dyn Server>>;

    /// The client's command: mounts `tree` on [`APP`] and stays in the foreground. `folder` is
    /// empty and in memory.
    fn command(&self, tree: &str, folder: &Path) -> anyhow::Result<Command>;

    /// What the server reads for `program`.
    fn server_files(&self, program: &Program) -> Vec<PathBuf>;

    /// Names of the client's programs, some of which may be found only by it.
    fn programs(&self) -> &'static [&'static str];
}

/// One of these systems: its server, and its client while something is mounted.
pub struct Mounted<M: Mounter> {
    mounter: M,
    server: Option<Box<dyn Server>>,
    client: Option<Service>,
}

impl<M: Mounter> Mounted<M> {
    /// Not yet served.
    pub fn new(mounter: M) -> Mounted<M> {
        Mounted { mounter, server: None, client: None }
    }

    /// The folder called `part` of this system, emptied.
    fn fresh_folder(&self, part: &str) -> anyhow::Result<PathBuf> {
        let folder = Path::new(WORK).join(self.mounter.name()).join(part);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder)
    }
}

impl<M: Mounter> System for Mounted<M> {
    fn serve(&mut self, tree: &str) -> anyhow::Result<()> {
        let folder = self.fresh_folder("server")?;
        self.server = Some(self.mounter.serve(tree, &folder)?);
        Ok(())
    }

    fn mount(&mut self, tree: &str) -> anyhow::Result<()> {
        ensure!(self.client.is_none(), "{} is mounted already", self.mounter.name());
        let folder = self.fresh_folder("client")?;
        let mut command = self.mounter.command(tree, &folder)?;
        let mut client = Service::start(self.mounter.name(), &mut command, &folder)?;
        // The mount is there before its client answers; looking at its root waits for the client.
        let ready = || (kernel::is_mounted(Path::new(APP)) && fs::metadata(APP).is_ok()).then_some(());
        let mounted = client.wait_ready(READY_DEADLINE, ready);
        self.client = Some(client);
        mounted
    }

    fn counters(&self) -> anyhow::Result<Values> {
        let requests = self.server.as_ref().and_then(|server| server.requests());
        Ok(requests.map(|requests| ("requests".to_string(), requests)).into_iter().collect())
    }

    fn server_files(&self, program: &Program) -> Vec<PathBuf> {
        self.mounter.server_files(program)
    }

    fn client_files(&self) -> Vec<PathBuf> {
        self.mounter.programs().iter().filter_map(|name| crate::process::find_program(name)).collect()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        let Some(mut client) = self.client.take() else { return Ok(()) };
        unmount_if_mounted(APP).with_context(|| format!("{}{}", self.mounter.name(), client.log_tail()))?;
        // Dropping it would kill it: then its end has been waited for long enough.
        client.wait_end(END_DEADLINE).map(drop)
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.server = None;
        Ok(())
    }
}

/// What the server of a plain tree reads for `program`; nothing if nobody knows.
pub fn tree_files(program: &Program) -> Vec<PathBuf> {
    let folder = tree_folder(program.tree);
    // Without a list nothing is read back: the server's disk is in memory anyway.
    let pages = pages::list_of(program).unwrap_or_default();
    pages::files_of(&pages).iter().map(|path| pages::below(&folder, path)).collect()
}
