//! Disks that count what is written to them: loop devices on files in memory, with ext4.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, ensure};

/// Size of a disk.
const BYTES: u64 = 512 << 20;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A disk. Dropping it takes it away.
pub struct Disk {
    file: PathBuf,
    device: String,
}

/// A disk that is mounted. Dropping it unmounts it, which empties the page cache of its files.
pub struct Mounted(PathBuf);

impl Disk {
    /// An empty file system.
    pub fn new(name: &str) -> anyhow::Result<Disk> {
        let file = path(name);
        std::fs::File::create(&file)?.set_len(BYTES)?;
        // All of it is written now, not while something is measured.
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        tool(Command::new("mkfs.ext4").args(["-q", "-F", "-E", options]).arg(&file))?;
        Disk::of(file)
    }

    /// What is on the disk now, without what the kernel has not written yet.
    pub fn copy(&self) -> anyhow::Result<Disk> {
        let file = path("copy");
        tool(Command::new("cp").arg("--sparse=always").arg(&self.file).arg(&file))?;
        Disk::of(file)
    }

    fn of(file: PathBuf) -> anyhow::Result<Disk> {
        let device = tool(Command::new("losetup").args(["--find", "--show"]).arg(&file))?.trim().to_owned();
        Ok(Disk { file, device })
    }

    /// Bytes that were written to it.
    pub fn written_bytes(&self) -> anyhow::Result<u64> {
        let name = self.device.rsplit('/').next().unwrap_or_default();
        let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat"))?;
        let sectors: u64 = stat.split_whitespace().nth(6).context("a device counts sectors")?.parse()?;
        Ok(sectors * 512)
    }

    pub fn mount(&self) -> anyhow::Result<Mounted> {
        let point = path("mounted");
        std::fs::create_dir(&point)?;
        tool(Command::new("mount").arg(&self.device).arg(&point))?;
        Ok(Mounted(point))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = tool(Command::new("losetup").args(["--detach", &self.device]));
        let _ = std::fs::remove_file(&self.file);
    }
}

impl Mounted {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = tool(Command::new("umount").arg(&self.0));
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A name that no other has.
pub fn path(name: &str) -> PathBuf {
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    PathBuf::from(format!("/dev/shm/cache-engines-{}-{name}-{number}", std::process::id()))
}

/// What a tool printed.
fn tool(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
