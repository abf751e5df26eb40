//! The disk as the kernel sees it: a loop device over the served file, and the file system on it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags};

use crate::error::{DiskError, tool};
use crate::model::Model;
use crate::server::{Lateness, Server};
use crate::timeline::Counters;

/// How long a device may take to be let go.
const RELEASE_WAIT: Duration = Duration::from_secs(10);

/// How long to wait before asking again whether it is free.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// What this machine or process lacks to have emulated disks; nothing if it lacks nothing.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("emulated disks need root: a loop device and mounts of their own".into());
    }
    let files = ["/dev/fuse", "/dev/loop-control"].into_iter().find(|path| !Path::new(path).exists());
    if let Some(path) = files {
        return Some(format!("there is no {path}"));
    }
    let tools = ["losetup", "blockdev", "mkfs.ext4"].into_iter().find(|name| !has(name));
    tools.map(|name| format!("{name} is missing; apt-get install mount util-linux e2fsprogs"))
}

fn has(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(extra).any(|folder| folder.join(name).is_file())
}

/// Gives the calling thread, and the threads and processes it starts from now on, mounts of its
/// own: what is mounted then is gone with the last of them, and no other process can keep a file
/// system of ours alive, and so warm.
///
/// # Errors
/// The process may not (it needs root).
pub fn private_mounts() -> Result<(), DiskError> {
    host::mounts::own().map_err(|error| DiskError::step("make private the mounts of", Path::new("/"), error))
}

/// An emulated disk with its file system. Dropping it takes everything away.
pub struct Disk {
    /// First, as it must be gone before the server is.
    device: Loop,
    server: Server,
    mountpoint: PathBuf,
    is_mounted: bool,
    model: Model,
    read_ahead: u32,
}

/// A loop device that is detached when dropped, or when this process ends in any other way.
struct Loop {
    path: PathBuf,
    /// The kernel detaches it when this, its last user besides mounts, is closed.
    _open: File,
}

impl Loop {
    fn attach(file: &Path) -> Result<Loop, DiskError> {
        let mut command = losetup();
        command.args(["--find", "--show", "--read-only", "--direct-io=on"]).arg(file);
        let path = PathBuf::from(tool(&mut command)?);
        let open = File::open(&path).map_err(|error| DiskError::step("open", &path, error));
        // Of a device in use, this only says that it is to go with its last user.
        tool(losetup().arg("--detach").arg(&path))?;
        Ok(Loop { _open: open?, path })
    }
}

/// Read-ahead of the kernel's default, KiB.
const READ_AHEAD: u32 = 128;

impl Disk {
    /// Serves the file `image`, which holds an ext4, as a disk of `model`. `folder` is an empty one
    /// for mount points. The calling thread should have [`private_mounts`].
    ///
    /// # Errors
    /// See [`missing`]; or a loop device cannot be had.
    pub fn attach(image: &Path, model: &Model, folder: &Path) -> Result<Disk, DiskError> {
        let (served, mountpoint) = (folder.join("served"), folder.join("root"));
        for path in [&served, &mountpoint] {
            fs::create_dir_all(path).map_err(|error| DiskError::step("make", path, error))?;
        }
        let server = Server::start(image, *model, &served)?;
        let device = Loop::attach(&server.file())?;
        let disk = Disk { device, server, mountpoint, is_mounted: false, model: *model, read_ahead: READ_AHEAD };
        let direct = disk.attribute("loop/dio")?;
        if direct.trim() != "1" {
            return Err(DiskError::Device(
                "the loop device does no direct I/O: its reads would be cached twice".into(),
            ));
        }
        disk.settle()?;
        Ok(disk)
    }

    /// Mounts the file system with nothing of it cached.
    ///
    /// # Errors
    /// It cannot be unmounted because something uses it, or it cannot be mounted.
    pub fn mount_cold(&mut self) -> Result<(), DiskError> {
        self.unmount()?;
        // Metadata lie in the cache of the device, which outlives a mount.
        let flush = tool(Command::new("blockdev").arg("--flushbufs").arg(&self.device.path).env("PATH", paths()));
        flush?;
        let flags = MountFlags::RDONLY | MountFlags::NOATIME;
        rustix::mount::mount(&self.device.path, &self.mountpoint, "ext4", flags, None)
            .map_err(|error| DiskError::step("mount ext4 on", &self.mountpoint, error))?;
        self.is_mounted = true;
        Ok(())
    }

    /// Unmounts the file system, with what others have mounted in it.
    ///
    /// # Errors
    /// Something still uses it after ten seconds.
    pub fn unmount(&mut self) -> Result<(), DiskError> {
        let deadline = Instant::now() + RELEASE_WAIT;
        while self.is_mounted {
            unmount_below(&self.mountpoint);
            match rustix::mount::unmount(&self.mountpoint, UnmountFlags::empty()) {
                Ok(()) => self.is_mounted = false,
                // A process that was killed just now.
                Err(rustix::io::Errno::BUSY) if Instant::now() < deadline => std::thread::sleep(LOOK_INTERVAL),
                Err(error) => return Err(DiskError::step("unmount", &self.mountpoint, error)),
            }
        }
        Ok(())
    }

    /// Goes on as a disk of another model, read-ahead included.
    ///
    /// # Errors
    /// The settings of the device cannot be changed.
    pub fn change(&mut self, model: &Model, read_ahead: u32) -> Result<(), DiskError> {
        self.server.change(*model);
        (self.model, self.read_ahead) = (*model, read_ahead);
        self.settle()
    }

    /// Where the file system is mounted.
    pub fn root(&self) -> &Path {
        &self.mountpoint
    }

    /// The block device.
    pub fn device(&self) -> &Path {
        &self.device.path
    }

    /// What was read from it so far.
    pub fn counters(&self) -> Counters {
        self.server.counters()
    }

    /// How much later than the model its answers were, since it took this model.
    pub fn lateness(&self) -> Lateness {
        self.server.lateness()
    }

    fn settle(&self) -> Result<(), DiskError> {
        self.set("queue/rotational", u32::from(self.model.is_rotating()))?;
        // Last: a write to `rotational` sets it to a default of its own.
        self.set("queue/read_ahead_kb", self.read_ahead)
    }

    fn sysfs(&self, name: &str) -> PathBuf {
        Path::new("/sys/block").join(self.device.path.file_name().unwrap_or_default()).join(name)
    }

    fn attribute(&self, name: &str) -> Result<String, DiskError> {
        let path = self.sysfs(name);
        fs::read_to_string(&path).map_err(|error| DiskError::step("read", &path, error))
    }

    fn set(&self, name: &str, value: u32) -> Result<(), DiskError> {
        let path = self.sysfs(name);
        fs::write(&path, value.to_string()).map_err(|error| DiskError::step("set", &path, error))?;
        let now = self.attribute(name)?;
        if now.trim() != value.to_string() {
            return Err(DiskError::Device(format!("{} is {} and not {value}", path.display(), now.trim())));
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.unmount().is_err() {
            let _ = rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH);
        }
    }
}

/// Unmounts what is mounted below `root`, the last first.
fn unmount_below(root: &Path) {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let inside = |line: &str| {
        let path = PathBuf::from(line.split(' ').nth(1)?);
        (path.starts_with(root) && path != root).then_some(path)
    };
    let paths: Vec<PathBuf> = table.lines().filter_map(inside).collect();
    for path in paths.iter().rev() {
        // Lazily: a process that is about to end may still stand in it; the mount below is tried
        // until it is free.
        let _ = rustix::mount::unmount(path, UnmountFlags::DETACH);
    }
}

fn losetup() -> Command {
    let mut command = Command::new("losetup");
    command.env("PATH", paths());
    command
}

/// System tools live in sbin folders that not every user has in PATH.
fn paths() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}
