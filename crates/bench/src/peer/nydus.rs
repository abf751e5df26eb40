//! Nydus 2.2 over HTTP: `nydus-image` converts the tree (RAFS v6, zstd, its own chunk size),
//! `nydusd fuse` mounts it with the `http-proxy` back end and an empty blob cache. Its metadata
//! ("bootstrap") is a local file, as in its own setups.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use report::row::{Metric, Sample};

use super::Peer;
use super::range_server::RangeServer;
use crate::link::{Link, ShapedLink, Traffic, Upstream};
use crate::process::{Service, find_program, tool};
use crate::site::{MountPoint, Site, is_mounted};

const READY_DEADLINE: Duration = Duration::from_secs(20);

/// The peer; `folder` holds `blobs/` and `bootstrap` once prepared.
#[derive(Debug)]
pub struct Nydus {
    daemon: PathBuf,
    converter: PathBuf,
    folder: PathBuf,
}

impl Nydus {
    /// Looks for the programs in $NYDUS_BIN and PATH; the error says what to install.
    pub fn find() -> Result<Nydus, String> {
        let folder = std::env::var_os("NYDUS_BIN").map(PathBuf::from);
        let find = |name: &str| {
            let inside = folder.as_ref().map(|folder| folder.join(name)).filter(|path| path.is_file());
            let advice = "cargo install nydus-rs --version 2.2.0 --locked, then set NYDUS_BIN to its folder";
            inside.or_else(|| find_program(name)).ok_or_else(|| format!("nydus: {name} is missing; {advice}"))
        };
        Ok(Nydus { daemon: find("nydusd")?, converter: find("nydus-image")?, folder: PathBuf::new() })
    }

    fn blobs(&self) -> PathBuf {
        self.folder.join("blobs")
    }

    fn bootstrap(&self) -> PathBuf {
        self.folder.join("bootstrap")
    }
}

impl Peer for Nydus {
    fn name(&self) -> &'static str {
        "nydus"
    }

    fn prepare(&mut self, tree: &Path, folder: &Path) -> anyhow::Result<()> {
        let stem = tree.file_stem().unwrap_or_default().to_string_lossy();
        self.folder = folder.join(format!("{stem}.nydus"));
        // The bootstrap is written last.
        if self.bootstrap().exists() {
            return Ok(());
        }
        std::fs::create_dir_all(self.blobs()).context("cannot make the folder of blobs")?;
        let unfinished = self.folder.join("bootstrap.new");
        let mut command = Command::new(&self.converter);
        command.args([
            "create",
            "--type",
            "dir-rafs",
            "--fs-version",
            "6",
            "--compressor",
            "zstd",
            "--log-level",
            "error",
        ]);
        command.arg("--blob-dir").arg(self.blobs()).arg("--bootstrap").arg(&unfinished).arg(tree);
        tool(&mut command)?;
        std::fs::rename(&unfinished, self.bootstrap())?;
        Ok(())
    }

    fn warm_files(&self) -> Vec<PathBuf> {
        let blobs = std::fs::read_dir(self.blobs()).into_iter().flatten().flatten().map(|entry| entry.path());
        blobs.chain([self.daemon.clone(), self.bootstrap()]).collect()
    }

    fn mount(&self, link: &Link, seed: u64, folder: &Path) -> anyhow::Result<Box<dyn Site>> {
        let socket = folder.join("http.socket");
        let server = RangeServer::start(&self.blobs(), &socket)?;
        let shaped = ShapedLink::start(link, Upstream::Unix(socket), seed)?;
        let cache = folder.join("cache");
        std::fs::create_dir_all(&cache)?;
        let config = folder.join("nydusd.toml");
        std::fs::write(&config, configuration(&shaped.address().to_string(), &cache))?;

        let start = Instant::now();
        let root = MountPoint::create(folder.join("root"))?;
        let mut command = Command::new(&self.daemon);
        // Raising the limit of open files needs a right that a container may lack.
        command.args(["fuse", "--rlimit-nofile", "0", "--log-level", "warn"]);
        command.arg("--config").arg(&config).arg("--bootstrap").arg(self.bootstrap());
        command.arg("--mountpoint").arg(root.path()).arg("--apisock").arg(folder.join("api.socket"));
        let mut client = Service::start("nydusd", &mut command, folder)?;
        client.wait_ready(READY_DEADLINE, || {
            (is_mounted(root.path()) && root.path().join("usr").is_dir()).then_some(())
        })?;
        let mounted_in = start.elapsed();
        let mounted_bytes = shaped.traffic().down_bytes;
        Ok(Box::new(Mounted { root, client, shaped, server, mounted_in, mounted_bytes }))
    }
}

/// The configuration of nydusd: blobs from the HTTP server at `address` (host:port), an empty blob
/// cache in `cache`.
pub(crate) fn configuration(address: &str, cache: &Path) -> String {
    let cache = cache.display();
    // Paths are ours and hold no quotes. No prefetch: on a thin link it only competes with demand
    // (measured by others).
    format!(
        r#"version = 2
[backend]
type = "http-proxy"
[backend.http-proxy]
addr = "http://{address}"
path = "/blobs"
timeout = 120
connect_timeout = 20
retry_limit = 2
[cache]
type = "blobcache"
[cache.filecache]
work_dir = "{cache}"
[rafs]
mode = "direct"
"#
    )
}

/// Fields are dropped in this order: the mount, its daemon, the link, the server.
#[derive(Debug)]
struct Mounted {
    root: MountPoint,
    client: Service,
    shaped: ShapedLink,
    server: RangeServer,
    mounted_in: Duration,
    mounted_bytes: u64,
}

impl Site for Mounted {
    fn root(&self) -> &Path {
        self.root.path()
    }

    fn traffic(&self) -> Traffic {
        self.shaped.traffic()
    }

    fn counters(&self) -> anyhow::Result<Sample> {
        Ok(Sample::from([(Metric::Requests, self.server.requests() as f64)]))
    }

    fn mounting(&self) -> Sample {
        let seconds = self.mounted_in.as_secs_f64();
        Sample::from([(Metric::Mount, seconds), (Metric::MountBytes, self.mounted_bytes as f64)])
    }

    fn client(&self) -> Option<u32> {
        Some(self.client.pid())
    }
}
