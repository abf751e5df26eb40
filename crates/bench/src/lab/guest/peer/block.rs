//! A compressed image over the network block device: `nbdkit file` serves it, the kernel's client
//! reads it, the kernel mounts it. squashfs (zstd) and EROFS (LZ4 HC). Readahead, page cache and
//! decompression are the kernel's; this is the combination to beat on slow links.
//!
//! Everything is as a user gets it: one connection, sectors of 512 bytes as nbdkit offers them, the
//! block layer's own readahead and no limit of time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::super::card::unmount_if_mounted;
use super::super::net::{SERVER_ADDRESS, server_command};
use super::super::system::{APP, System, WORK};
use super::super::{Values, kernel};
use super::{image, program};
use crate::lab::program::Program;
use crate::process::{Service, ready_text, tool};

/// Name of the block device.
const DEVICE: &str = "nbd0";

/// Port of the server, the registered one of NBD.
const PORT: &str = "10809";

/// How long the server may take to start, and the device to be free after it was disconnected.
const DEADLINE: Duration = Duration::from_secs(20);

/// How often the device is looked at meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A file system of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// squashfs.
    Squashfs,
    /// EROFS.
    Erofs,
}

impl Kind {
    /// Its name for `mount`, for `modprobe`, and at the end of an image's name.
    fn name(self) -> &'static str {
        match self {
            Kind::Squashfs => "squashfs",
            Kind::Erofs => "erofs",
        }
    }
}

/// Server and client.
#[derive(Debug)]
pub struct Block {
    kind: Kind,
    server: Option<Service>,
    connected: bool,
}

impl Block {
    /// Not yet served.
    pub fn new(kind: Kind) -> Block {
        Block { kind, server: None, connected: false }
    }

    fn disconnect(&mut self) -> anyhow::Result<()> {
        if !self.connected {
            return Ok(());
        }
        tool(Command::new("nbd-client").arg("-d").arg(device()))?;
        // The kernel takes the connection down in the background. This file exists while there is
        // one.
        let connection = Path::new("/sys/block").join(DEVICE).join("pid");
        let end = Instant::now() + DEADLINE;
        while connection.exists() {
            ensure!(Instant::now() < end, "{DEVICE} is still connected {DEADLINE:?} after it was disconnected");
            std::thread::sleep(LOOK_INTERVAL);
        }
        self.connected = false;
        Ok(())
    }
}

/// The block device.
fn device() -> PathBuf {
    Path::new("/dev").join(DEVICE)
}

impl System for Block {
    fn serve(&mut self, tree: &str) -> anyhow::Result<()> {
        tool(Command::new("modprobe").args(["-a", "nbd", self.kind.name()]))
            .context("the guest's kernel lacks a module")?;
        program("nbd-client", "the package nbd-client")?;
        let nbdkit = program("nbdkit", "the package nbdkit")?;
        let folder = Path::new(WORK).join(self.kind.name());
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let ready = folder.join("nbdkit.pid");
        let _ = fs::remove_file(&ready);
        let mut command = server_command(&nbdkit.to_string_lossy());
        command.args(["--foreground", "--readonly", "--ipaddr", SERVER_ADDRESS, "--port", PORT, "--pidfile"]);
        command.arg(&ready).arg("file").arg(image(tree, self.kind.name())?);
        let mut server = Service::start("nbdkit", &mut command, &folder)?;
        server.wait_ready(DEADLINE, || ready_text(&ready))?;
        self.server = Some(server);
        Ok(())
    }

    fn mount(&mut self, _tree: &str) -> anyhow::Result<()> {
        tool(Command::new("nbd-client").args([SERVER_ADDRESS, PORT]).arg(device()))?;
        self.connected = true;
        tool(Command::new("mount").args(["-t", self.kind.name(), "-o", "ro"]).arg(device()).arg(APP)).map(drop)
    }

    fn counters(&self) -> anyhow::Result<Values> {
        let reads = kernel::disk_reads(DEVICE)?;
        Ok(Values::from([("requests".to_string(), reads.requests), ("disk_bytes".to_string(), reads.bytes)]))
    }

    fn server_files(&self, program: &Program) -> Vec<PathBuf> {
        image(program.tree, self.kind.name()).into_iter().collect()
    }

    fn client_files(&self) -> Vec<PathBuf> {
        ["nbd-client", "mount"].into_iter().filter_map(crate::process::find_program).collect()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        unmount_if_mounted(APP)?;
        self.disconnect()
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.server.take().map_or(Ok(()), Service::stop)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // Only after a failed row: a device that stays connected would fail the next one too. What
        // somebody else mounted there is left alone: plans are checked on the host.
        if self.connected {
            let _ = unmount_if_mounted(APP).and_then(|()| self.disconnect());
        }
    }
}
