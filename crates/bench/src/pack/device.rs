//! What really is read: an image of a kernel file system on a loop device of its own, counted by
//! the block layer.
//!
//! Each measurement attaches and mounts anew, so nothing is cached and no cache of the machine has
//! to be dropped. Pages are read in the order of the program, those of chosen sets in the order of
//! the files in the image. Without read-ahead this is what the layout costs; with that of the
//! device, what a kernel at its defaults reads. Needs root and loop devices.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use units::PAGE_BYTES;

use super::read_set::Page;
use crate::interrupt;
use crate::process::{tool, try_tool};

/// Bytes of a sector in the counters of the kernel.
const SECTOR_BYTES: u64 = 512;

/// What a device gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Bytes read while mounting.
    pub mount_bytes: u64,
    /// Bytes read for the pages, metadata of their files included.
    pub bytes: u64,
    /// Requests for them.
    pub requests: u64,
    /// Time of reading them, seconds.
    pub seconds: f64,
    /// Read-ahead of the device, bytes.
    pub read_ahead: u64,
}

struct Attached {
    device: String,
    folder: PathBuf,
}

impl Attached {
    fn name(&self) -> &str {
        self.device.trim_start_matches("/dev/")
    }

    /// Completed read requests and bytes.
    fn counters(&self) -> anyhow::Result<(u64, u64)> {
        let path = format!("/sys/block/{}/stat", self.name());
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        ensure!(numbers.len() >= 3, "{path} holds {text:?}");
        Ok((numbers[0], numbers[2] * SECTOR_BYTES))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        try_tool(Command::new("umount").arg(&self.folder));
        try_tool(Command::new("losetup").args(["-d", &self.device]));
    }
}

/// Reads `pages` of `image` from a fresh mount; without read-ahead unless `read_ahead`.
///
/// # Errors
/// Not root, no loop device, a kernel without this file system, or a file that the image does not
/// have.
pub fn count(image: &Path, kind: &str, pages: &[Page], read_ahead: bool, folder: &Path) -> anyhow::Result<Counted> {
    ensure!(rustix::process::geteuid().is_root(), "mounting a loop device needs root");
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let output = tool(Command::new("losetup").args(["--find", "--show", "--read-only"]).arg(image))?;
    let device = String::from_utf8_lossy(&output).trim().to_string();
    let attached = Attached { device, folder: folder.to_path_buf() };
    let setting = format!("/sys/block/{}/queue/read_ahead_kb", attached.name());
    if !read_ahead {
        fs::write(&setting, "0").with_context(|| format!("cannot write {setting}"))?;
    }
    let ahead: u64 = fs::read_to_string(&setting)?.trim().parse().with_context(|| format!("{setting} is no number"))?;
    let before = attached.counters()?;
    tool(Command::new("mount").args(["-t", kind, "-o", "ro"]).arg(&attached.device).arg(folder))?;
    let mounted = attached.counters()?;
    let start = Instant::now();
    read(folder, pages)?;
    let seconds = start.elapsed().as_secs_f64();
    let after = attached.counters()?;
    Ok(Counted {
        mount_bytes: mounted.1 - before.1,
        bytes: after.1 - mounted.1,
        requests: after.0 - mounted.0,
        seconds,
        read_ahead: ahead * 1024,
    })
}

fn read(folder: &Path, pages: &[Page]) -> anyhow::Result<()> {
    let mut open: Option<(&[u8], File)> = None;
    let mut buffer = [0; PAGE_BYTES];
    for page in pages {
        interrupt::check()?;
        let file = match &mut open {
            Some((path, file)) if *path == page.path => file,
            other => {
                let relative = page.path.strip_prefix(b"/").unwrap_or(&page.path);
                let path = folder.join(std::ffi::OsStr::from_bytes(relative));
                let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
                &mut other.insert((&page.path, file)).1
            }
        };
        let offset = u64::from(page.index) * PAGE_BYTES as u64;
        file.read_at(&mut buffer, offset).with_context(|| String::from_utf8_lossy(&page.path).into_owned())?;
    }
    Ok(())
}
