//! Nydus 2.2 over HTTP: an image made by `nydus-image` (RAFS v6, zstd, its own chunk size), mounted
//! by `nydusd fuse` with the `http-proxy` back end and an empty cache of blobs in memory. Its
//! metadata ("bootstrap") is a local file of the device, as in its own setups, so that mounting
//! costs no traffic.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::super::system::APP;
use super::client::{Mounter, Server};
use super::web_server::{WebServer, address};
use super::{image, program};
use crate::lab::program::Program;
use crate::peer::nydus::configuration;

/// The system.
#[derive(Clone, Copy, Debug)]
pub struct Nydus;

impl Mounter for Nydus {
    fn name(&self) -> &'static str {
        "nydus"
    }

    fn serve(&self, tree: &str, folder: &Path) -> anyhow::Result<Box<dyn Server>> {
        Ok(Box::new(WebServer::start(&image(tree, "nydus")?, folder)?))
    }

    fn command(&self, tree: &str, folder: &Path) -> anyhow::Result<Command> {
        let (cache, configuration) = (folder.join("cache"), folder.join("nydusd.toml"));
        fs::create_dir(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
        fs::write(&configuration, configuration_of(&cache))
            .with_context(|| format!("cannot write {}", configuration.display()))?;
        let mut command = Command::new(program("nydusd", "nydus-rs 2.2 (./x lab --nydus builds it)")?);
        // The limit of open files stays as it is, as in the bench on the host.
        command.args(["fuse", "--rlimit-nofile", "0", "--log-level", "warn", "--config"]).arg(configuration);
        command.arg("--bootstrap").arg(image(tree, "nydus")?.join("bootstrap"));
        command.args(["--mountpoint", APP, "--apisock"]).arg(folder.join("api.socket"));
        Ok(command)
    }

    fn server_files(&self, program: &Program) -> Vec<PathBuf> {
        image(program.tree, "nydus").map(|folder| folder.join("blobs")).into_iter().collect()
    }

    fn programs(&self) -> &'static [&'static str] {
        &["nydusd"]
    }
}

fn configuration_of(cache: &Path) -> String {
    let url = address("");
    configuration(url.trim_start_matches("http://").trim_end_matches('/'), cache)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_names_server_and_cache() {
        let text = configuration_of(Path::new("/run/lab/nydus/client/cache"));
        assert!(text.contains("addr = \"http://10.0.0.1:8080\"\n"), "{text}");
        assert!(text.contains("work_dir = \"/run/lab/nydus/client/cache\"\n"), "{text}");
    }
}
