//! A slow card: a disk of the kernel's `null_blk` driver in memory, with a delay for each request
//! and a bandwidth.
//!
//! One request at a time, as an SD card takes them. The card is filled by `mke2fs` straight from a
//! folder, at its own speed: the guest's clock skips idle time, so that this costs nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::kernel;
use crate::process::tool;

/// Where the kernel lets disks be made.
const CONFIGURATION: &str = "/sys/kernel/config";

/// Name of the disk, below `/dev` too.
pub const NAME: &str = "card";

/// Space beside the files, bytes: inodes, and a little for what is written later.
pub const SPACE_BYTES: u64 = 64 << 20;

/// The same file system every time: identifier and seed of its folders' hashes.
const IDENTIFIER: &str = "5a1c0de0-0000-4000-8000-000000000001";

/// What a card is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Delay of each request, nanoseconds.
    pub delay_nanos: u64,
    /// Megabytes per second.
    pub rate_megabytes: u64,
}

/// Kinds by their names in plans: a good card, a poor one, and a hard disk that seeks for each
/// request.
const KINDS: [(&str, Kind); 3] = [
    ("a", Kind { delay_nanos: 700_000, rate_megabytes: 25 }),
    ("b", Kind { delay_nanos: 2_000_000, rate_megabytes: 20 }),
    ("disk", Kind { delay_nanos: 8_000_000, rate_megabytes: 150 }),
];

impl Kind {
    /// `a`, `b` or `disk`.
    pub fn named(name: &str) -> anyhow::Result<Kind> {
        let found = KINDS.iter().find(|known| known.0 == name);
        found.map(|known| known.1).with_context(|| format!("no card '{name}'; there are a, b and disk"))
    }
}

/// A card with a file system. Dropping it takes it away.
#[derive(Debug)]
pub struct SlowCard {
    configuration: PathBuf,
}

impl SlowCard {
    /// Makes a card that holds the files of `folder` and has so much space beside them.
    pub fn filled(kind: Kind, folder: &Path, space_bytes: u64) -> anyhow::Result<SlowCard> {
        // Inodes and the rounding of files to blocks take their part.
        let card = SlowCard::made(kind, size_of(folder)? * 5 / 4 + space_bytes)?;
        let device = card.device();
        let mut command = Command::new("mke2fs");
        command.args(["-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-U", IDENTIFIER]);
        command.arg("-E").arg(format!("hash_seed={IDENTIFIER}")).arg("-d").arg(folder).arg(&device);
        tool(&mut command).with_context(|| format!("cannot fill the card with {}", folder.display()))?;
        rustix::fs::sync();
        Ok(card)
    }

    /// Makes a card that holds an image of a file system and nothing else.
    pub fn holding(kind: Kind, image: &Path) -> anyhow::Result<SlowCard> {
        let context = || format!("cannot write {} to a card", image.display());
        let card = SlowCard::made(kind, image.metadata().with_context(context)?.len() + (1 << 20))?;
        let mut device = fs::File::options().write(true).open(card.device()).with_context(context)?;
        let mut image = fs::File::open(image).with_context(context)?;
        std::io::copy(&mut image, &mut device).with_context(context)?;
        device.sync_all().with_context(context)?;
        Ok(card)
    }

    /// A card with room for so many bytes.
    fn made(kind: Kind, bytes: u64) -> anyhow::Result<SlowCard> {
        tool(Command::new("modprobe").args(["null_blk", "nr_devices=0"])).context("slow cards need null_blk")?;
        if !kernel::is_mounted(Path::new(CONFIGURATION)) {
            mount("configfs", CONFIGURATION, "configfs", MountFlags::empty(), None)
                .with_context(|| format!("cannot mount {CONFIGURATION}"))?;
        }
        let configuration = Path::new(CONFIGURATION).join("nullb").join(NAME);
        fs::create_dir(&configuration).with_context(|| format!("cannot make a disk at {}", configuration.display()))?;
        let card = SlowCard { configuration };
        for (name, value) in [
            ("size", bytes >> 20),
            ("blocksize", 512),
            ("memory_backed", 1),
            ("queue_mode", 2),
            ("submit_queues", 1),
            ("hw_queue_depth", 1),
            ("irqmode", 2),
            ("completion_nsec", kind.delay_nanos),
            ("mbps", kind.rate_megabytes),
            ("power", 1),
        ] {
            let path = card.configuration.join(name);
            fs::write(&path, value.to_string()).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let device = card.device();
        ensure!(device.exists(), "the kernel made no {}", device.display());
        Ok(card)
    }

    /// The block device.
    pub fn device(&self) -> PathBuf {
        Path::new("/dev").join(NAME)
    }

    /// Mounts the card's file system, of the type called `name`, for reading only.
    pub fn mount(&self, name: &str, point: &str) -> anyhow::Result<()> {
        self.mount_with(name, point, MountFlags::RDONLY)
    }

    /// Mounts the card for writing too, until the returned card is dropped.
    pub fn mounted(self, point: &'static str) -> anyhow::Result<MountedCard> {
        self.mount_with("ext4", point, MountFlags::NOATIME)?;
        Ok(MountedCard { point, _card: self })
    }

    fn mount_with(&self, name: &str, point: &str, flags: MountFlags) -> anyhow::Result<()> {
        mount(self.device(), point, name, flags, None).with_context(|| format!("cannot mount the card on {point}"))
    }
}

impl Drop for SlowCard {
    fn drop(&mut self) {
        // Removal fails while it is in use, and the row has failed before that.
        let _ = fs::write(self.configuration.join("power"), "0");
        let _ = fs::remove_dir(&self.configuration);
    }
}

/// A card that is mounted. Dropping it takes both away.
#[derive(Debug)]
pub struct MountedCard {
    /// Where.
    pub point: &'static str,
    // Dropped after the mount is gone.
    _card: SlowCard,
}

impl Drop for MountedCard {
    fn drop(&mut self) {
        if unmount(self.point, UnmountFlags::empty()).is_err() {
            // Something still uses it; it goes away with its last user.
            let _ = unmount(self.point, UnmountFlags::DETACH);
        }
    }
}

/// Unmounts `point` if something is mounted there.
pub fn unmount_if_mounted(point: &str) -> anyhow::Result<()> {
    if !kernel::is_mounted(Path::new(point)) {
        return Ok(());
    }
    unmount(point, UnmountFlags::empty()).with_context(|| format!("cannot unmount {point}"))
}

/// Bytes of the files in a folder, each rounded up to a block.
fn size_of(folder: &Path) -> anyhow::Result<u64> {
    let context = || format!("cannot read {}", folder.display());
    let mut bytes = 0;
    for entry in fs::read_dir(folder).with_context(context)? {
        let entry = entry.with_context(context)?;
        let data = entry.metadata().with_context(context)?;
        bytes += if data.is_dir() { 4096 + size_of(&entry.path())? } else { data.len().next_multiple_of(4096) };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_blocks() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        fs::create_dir(folder.path().join("sub"))?;
        fs::write(folder.path().join("sub/one"), [0; 1])?;
        fs::write(folder.path().join("two"), [0; 5000])?;
        assert_eq!(size_of(folder.path())?, 4096 * 4);
        assert!(Kind::named("a")?.delay_nanos < Kind::named("b")?.delay_nanos && Kind::named("c").is_err());
        Ok(())
    }
}
