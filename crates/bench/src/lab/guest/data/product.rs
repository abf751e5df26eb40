//! Runnel's volumes: through its library, through a mount, or together with the image of a program.
//!
//! Before anything is measured the server learns from the same work done by another device over an
//! open link (one whose pages take seconds each would not look like a program at work), for a
//! search from searches for other keys; then it is started again, so that the measured devices find
//! what it wrote down.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use units::PAGE_BYTES;

use super::super::product::{READY_DEADLINE, copy_store, counters, server_url, settle, start_server, unmount};
use super::super::system::{APP, CONTENT, WORK};
use super::super::{Values, net, peer::web_server::WebServer};
use super::system::{DataSystem, published};
use super::work::How;
use super::{download, play, work_of};
use crate::lab::data::GAME_TREE;
use crate::lab::data::case::{Case, PROGRAM_FILE, SCENES_FILE, Work};
use crate::lab::link::Link;
use crate::options::beside;
use crate::process::{Service, ready_text};

/// Name of the volume.
const VOLUME: &str = "data";

/// Searches from which the server learns, each for another key.
const LEARNING_SEARCHES: u32 = 200;

/// Runs to learn from after which one is said.
const LEARNING_SAID: u32 = 20;

/// Times that the game is played before it is measured: a server takes the second as an exact one.
const LEARNING_PLAYS: u32 = 2;

/// How the product is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A volume by the library, without a mount.
    Library,
    /// A volume by a mount.
    Mount,
    /// The game: its program from an image, its data from a volume, by `runnel run`.
    Run,
    /// The game: its program from a mounted image, its data downloaded before.
    Program,
}

/// Server, store, and a client where one is mounted.
pub struct Product {
    how: Use,
    case: &'static Case,
    link: Link,
    runnel: PathBuf,
    server: Option<Service>,
    client: Option<Service>,
    downloads: Option<WebServer>,
}

/// Address of the volume.
fn volume_url() -> String {
    format!("{}/volume/{VOLUME}", server_url())
}

impl Product {
    /// Not yet served.
    pub fn new(how: Use, case: &'static Case, link: Link) -> Product {
        Product { how, case, link, runnel: beside(), server: None, client: None, downloads: None }
    }

    /// Options of the server besides its store.
    fn options(&self, learns: bool) -> Vec<String> {
        let mut options = Vec::new();
        if self.how != Use::Program {
            let (folder, block) = (published(self.case), self.case.block_bytes);
            let access = match self.case.writes() {
                true => format!("rw,journal={CONTENT}/journal"),
                false => "ro".to_string(),
            };
            options.extend(["--volume".into(), format!("{VOLUME}={}:{access},block={block}", folder.display())]);
            // Nobody else is on the lab's network.
            options.push("--insecure".into());
        }
        if !learns {
            options.push("--frozen".into());
        }
        options
    }

    /// An empty store, or one with the image of the game.
    fn store(&self) -> anyhow::Result<PathBuf> {
        let store = Path::new(CONTENT).join("store");
        for folder in [&store, &Path::new(CONTENT).join("journal")] {
            if folder.exists() {
                fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
            }
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        if self.case.work == Work::Game {
            let image = format!("{GAME_TREE}.rnl");
            copy_store(&Path::new(CONTENT).join("fresh"), &store, &image)?;
            ensure!(store.join(&image).exists(), "the store has no {image}");
        }
        Ok(store)
    }

    /// Does the case's work on clients of their own.
    fn learn(&mut self) -> anyhow::Result<()> {
        let runs = match self.case.work {
            Work::Search => LEARNING_SEARCHES,
            Work::Game => LEARNING_PLAYS,
            _ => 1,
        };
        for run in 1..=runs {
            self.mount()?;
            self.fetch()?;
            match self.case.work {
                Work::Game => drop(play(self)?),
                _ => drop(work_of(self.case, &self.folder(), &How { run, learning: true, compute_seconds: 0.0 })?),
            }
            self.unmount()?;
            // The host takes a guest that says nothing for minutes for dead.
            if run.is_multiple_of(LEARNING_SAID) {
                println!("lab: {run} of {runs} runs to learn from were done");
            }
        }
        settle(&self.runnel)
    }

    fn mount_target(&mut self, target: &str, options: &[&str]) -> anyhow::Result<()> {
        let ready = Path::new(WORK).join("mount.ready");
        // Left by the mount before this one.
        let _ = fs::remove_file(&ready);
        let mut command = Command::new(&self.runnel);
        command.args(["mount", target, APP, "--foreground", "--ready-file"]).arg(&ready).args(options);
        command.env("RUNNEL_CACHE", "none");
        let mut client = Service::start("mount", &mut command, Path::new(WORK))?;
        client.wait_ready(READY_DEADLINE, || ready_text(&ready))?;
        self.client = Some(client);
        Ok(())
    }
}

impl DataSystem for Product {
    fn serve(&mut self) -> anyhow::Result<()> {
        let store = self.store()?;
        if self.how == Use::Program {
            self.downloads = Some(download::serve(self.case)?);
        }
        // There is nothing to learn from writing.
        if !self.case.writes() {
            self.server = Some(start_server(&self.runnel, &store, self.options(true))?);
            net::shape(None)?;
            let learned = self.learn().context("the work to learn from");
            net::shape(Some(&self.link))?;
            learned?;
            self.server.take().map_or(Ok(()), Service::stop)?;
        }
        self.server = Some(start_server(&self.runnel, &store, self.options(false))?);
        Ok(())
    }

    fn mount(&mut self) -> anyhow::Result<()> {
        match self.how {
            Use::Library | Use::Run => Ok(()),
            // The page cache would ask for whole pages.
            Use::Mount if self.case.block_bytes < PAGE_BYTES as u32 => {
                self.mount_target(&volume_url(), &["--insecure", "--direct"])
            }
            Use::Mount => self.mount_target(&volume_url(), &["--insecure"]),
            Use::Program => {
                download::clear()?;
                self.mount_target(&format!("{}/{GAME_TREE}", server_url()), &[])
            }
        }
    }

    fn fetch(&mut self) -> anyhow::Result<()> {
        if self.how == Use::Program { download::fetch(SCENES_FILE) } else { Ok(()) }
    }

    fn folder(&self) -> String {
        if self.how == Use::Library { volume_url() } else { APP.to_string() }
    }

    fn game(&self) -> Command {
        if self.how == Use::Program {
            let mut command = Command::new(Path::new(APP).join(PROGRAM_FILE));
            command.arg(download::folder().join(SCENES_FILE));
            return command;
        }
        let mut command = Command::new(&self.runnel);
        command.arg("run").arg(format!("{}/{GAME_TREE}", server_url())).env("RUNNEL_CACHE", "none");
        command.args(["--data", &format!("{}=/data", volume_url()), "--"]);
        command.arg(format!("/{PROGRAM_FILE}")).arg(format!("/data/{SCENES_FILE}"));
        command
    }

    fn client_files(&self) -> Vec<PathBuf> {
        vec![self.runnel.clone()]
    }

    fn server_files(&self) -> Vec<PathBuf> {
        vec![Path::new(CONTENT).join("store")]
    }

    fn counters(&self) -> anyhow::Result<Values> {
        // A mounted image; volumes count in another way.
        if self.how == Use::Program { counters(&self.runnel, APP) } else { Ok(Values::new()) }
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        self.client.take().map_or(Ok(()), |client| unmount(&self.runnel, client))
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.client = None;
        self.downloads = None;
        self.server.take().map_or(Ok(()), Service::stop)
    }
}
