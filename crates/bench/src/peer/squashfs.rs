//! squashfs over NBD: `nbdkit file` serves the image, `nbdfuse` shows it as a local file, the
//! kernel mounts that file. Readahead, caching and decompression are the kernel's. This is the peer
//! to beat on slow links.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use report::row::{Metric, Sample};

use super::Peer;
use crate::link::{Link, ShapedLink, Traffic, Upstream};
use crate::process::{Service, find_program, ready_text, tool};
use crate::site::{MountPoint, Site};

/// Bytes of a read request on the wire (simple and structured replies alike), so that requests can
/// be counted exactly.
const REQUEST_BYTES: u64 = 28;

const READY_DEADLINE: Duration = Duration::from_secs(20);

/// The peer; `image` once prepared.
#[derive(Debug, Default)]
pub struct Squashfs {
    programs: Vec<PathBuf>,
    image: PathBuf,
}

impl Squashfs {
    /// Looks for the programs; the error says what to install.
    pub fn find() -> Result<Squashfs, String> {
        let mut programs = Vec::new();
        for (name, package) in [("mksquashfs", "squashfs-tools"), ("nbdkit", "nbdkit"), ("nbdfuse", "libnbd-bin")] {
            let program = find_program(name);
            programs
                .push(program.ok_or_else(|| format!("squashfs-nbd: {name} is missing; apt-get install {package}"))?);
        }
        Ok(Squashfs { programs, image: PathBuf::new() })
    }
}

impl Peer for Squashfs {
    fn name(&self) -> &'static str {
        "squashfs-nbd"
    }

    fn prepare(&mut self, tree: &Path, folder: &Path) -> anyhow::Result<()> {
        let stem = tree.file_stem().unwrap_or_default().to_string_lossy();
        self.image = folder.join(format!("{stem}.squashfs"));
        if self.image.exists() {
            return Ok(());
        }
        let unfinished = folder.join(format!("{stem}.squashfs.new"));
        // Whatever an interrupted run left would be appended to.
        let _ = std::fs::remove_file(&unfinished);
        let mut command = Command::new("mksquashfs");
        command.arg(tree).arg(&unfinished).args(["-comp", "zstd", "-noappend", "-no-progress", "-quiet"]);
        tool(&mut command)?;
        std::fs::rename(&unfinished, &self.image)?;
        Ok(())
    }

    fn warm_files(&self) -> Vec<PathBuf> {
        self.programs.iter().chain([&self.image]).cloned().collect()
    }

    fn mount(&self, link: &Link, seed: u64, folder: &Path) -> anyhow::Result<Box<dyn Site>> {
        let (socket, server_ready) = (folder.join("nbdkit.socket"), folder.join("nbdkit.pid"));
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--readonly", "--exit-with-parent", "--unix"]).arg(&socket);
        command.arg("--pidfile").arg(&server_ready).arg("file").arg(&self.image);
        let mut server = Service::start("nbdkit", &mut command, folder)?;
        server.wait_ready(READY_DEADLINE, || ready_text(&server_ready))?;
        let shaped = ShapedLink::start(link, Upstream::Unix(socket), seed)?;

        let start = Instant::now();
        let device = MountPoint::create(folder.join("device"))?;
        let client_ready = folder.join("nbdfuse.pid");
        let mut command = Command::new("nbdfuse");
        command.arg("--readonly").arg("--pidfile").arg(&client_ready).arg(device.path().join("nbd"));
        command.arg(format!("nbd://{}", shaped.address()));
        let mut client = Service::start("nbdfuse", &mut command, folder)?;
        client.wait_ready(READY_DEADLINE, || ready_text(&client_ready))?;
        let root = MountPoint::create(folder.join("root"))?;
        let mut command = Command::new("mount");
        command.args(["-t", "squashfs", "-o", "ro,loop"]).arg(device.path().join("nbd")).arg(root.path());
        tool(&mut command)?;
        let mounted_in = start.elapsed();
        let mounted_bytes = shaped.traffic().down_bytes;
        Ok(Box::new(Mounted { root, device, client, shaped, mounted_in, mounted_bytes, _server: server }))
    }
}

/// Fields are dropped in this order: the file system, its device, the client, the link, the server.
#[derive(Debug)]
struct Mounted {
    root: MountPoint,
    #[allow(dead_code, reason = "held for its drop")]
    device: MountPoint,
    client: Service,
    shaped: ShapedLink,
    mounted_in: Duration,
    mounted_bytes: u64,
    _server: Service,
}

impl Site for Mounted {
    fn root(&self) -> &Path {
        self.root.path()
    }

    fn traffic(&self) -> Traffic {
        self.shaped.traffic()
    }

    fn counters(&self) -> anyhow::Result<Sample> {
        Ok(Sample::from([(Metric::Requests, (self.shaped.traffic().up_bytes / REQUEST_BYTES) as f64)]))
    }

    fn mounting(&self) -> Sample {
        let seconds = self.mounted_in.as_secs_f64();
        Sample::from([(Metric::Mount, seconds), (Metric::MountBytes, self.mounted_bytes as f64)])
    }

    fn client(&self) -> Option<u32> {
        Some(self.client.pid())
    }
}
