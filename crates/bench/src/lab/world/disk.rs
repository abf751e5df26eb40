//! The disks of the guest: ext4 images of folders, made without mounting anything.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::kernel::Kernel;
use super::stage::{Fingerprint, finish, unfinished};
use crate::process::{find_program, tool};

/// Sizes are multiples of this: what the kernel's memory hot-plug, which nvdimm uses, takes as a
/// section.
const ALIGNMENT_BYTES: u64 = 128 << 20;

/// Text of the guest's first program.
const INIT: &str = include_str!("../init.sh");

/// Folders of the guest's root where things are mounted.
const MOUNT_POINTS: [&str; 8] =
    ["host", "mnt/content", "mnt/app", "mnt/card", "mnt/image", "mnt/work", "lib/modules", "usr/local/bin"];

/// Makes the ext4 image `image` of `folder` with at least `spare_bytes` free.
pub fn make(folder: &Path, image: &Path, spare_bytes: u64) -> anyhow::Result<()> {
    let bytes = disk_bytes(folder)?;
    let size = image_bytes(bytes, spare_bytes);
    let new = unfinished(image)?;
    let program = find_program("mke2fs").context("mke2fs is missing; apt-get install e2fsprogs")?;
    let mut command = Command::new(program);
    // No journal: nothing survives the guest. Fixed identity: equal content gives an equal file
    // system.
    command.args(["-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-d"]).arg(folder);
    command.args([
        "-U",
        "2e5a0c64-6f5d-4d0a-9d49-72756e6e656c",
        "-E",
        "hash_seed=2e5a0c64-6f5d-4d0a-9d49-72756e6e656c",
    ]);
    tool(command.arg(&new).arg(format!("{}M", size >> 20)))?;
    finish(image)
}

/// Bytes that `folder` takes on a disk, each hard link counted once.
pub(crate) fn disk_bytes(folder: &Path) -> anyhow::Result<u64> {
    let output = tool(Command::new("du").args(["-s", "--block-size=1"]).arg(folder))?;
    let text = String::from_utf8_lossy(&output).into_owned();
    let number = text.split_whitespace().next().and_then(|word| word.parse().ok());
    number.with_context(|| format!("du printed {text:?}"))
}

/// Size of a disk for content of `bytes`: a sixteenth more for tables.
pub(crate) fn image_bytes(bytes: u64, spare_bytes: u64) -> u64 {
    (bytes + bytes / 16 + spare_bytes).next_multiple_of(ALIGNMENT_BYTES)
}

/// What the guest's root consists of besides its Debian system.
#[derive(Clone, Debug)]
pub struct Additions<'a> {
    /// Modules and release.
    pub kernel: &'a Kernel,
    /// Nydus' daemon.
    pub nydusd: Option<PathBuf>,
}

impl Additions<'_> {
    /// What they depend on, as text.
    pub fn inputs(&self) -> anyhow::Result<String> {
        let nydusd = match &self.nydusd {
            Some(path) => Fingerprint::EMPTY.and_file(path)?.to_string(),
            None => "none".to_string(),
        };
        Ok(format!(
            "kernel {}\nnydusd {nydusd}\ninit {}\n",
            self.kernel.release,
            Fingerprint::EMPTY.and(INIT.as_bytes())
        ))
    }

    /// Puts them into the root in `folder`.
    pub fn install(&self, folder: &Path) -> anyhow::Result<()> {
        for name in MOUNT_POINTS {
            fs::create_dir_all(folder.join(name)).with_context(|| format!("cannot make {name} of the guest"))?;
        }
        let modules = folder.join("lib/modules").join(&self.kernel.release);
        super::stage::remove(&modules)?;
        let source = self.kernel.modules.join("lib/modules").join(&self.kernel.release);
        tool(Command::new("cp").arg("-a").arg(source).arg(&modules))?;
        fs::write(folder.join("lab-init"), INIT)?;
        tool(Command::new("chmod").arg("755").arg(folder.join("lab-init")))?;
        if let Some(nydusd) = &self.nydusd {
            fs::copy(nydusd, folder.join("usr/local/bin/nydusd")).context("cannot copy nydusd into the guest")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_room_and_fit_the_kernels_sections() {
        assert_eq!(image_bytes(1 << 30, 256 << 20), 11 * ALIGNMENT_BYTES);
        assert_eq!(image_bytes(0, 1), ALIGNMENT_BYTES);
    }

    #[test]
    fn the_first_program_is_a_short_script() {
        assert!(INIT.starts_with("#!/bin/sh\n") && INIT.lines().count() <= 50);
    }
}
