//! Trees on disks of the device: `local`, a free disk, `sd`, a slow card, and `squashfs` with the
//! name of a card, an image of squashfs on it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use rustix::mount::{MountFlags, mount_bind, mount_remount};

use super::card::{self, Kind, SPACE_BYTES, SlowCard, unmount_if_mounted};
use super::machine::CONTENT_DEVICE;
use super::system::{APP, CONTENT, System};
use super::{Values, kernel, peer};
use crate::process::tool;

/// The content image itself, an ext4 in the guest's memory: a disk that costs nothing.
#[derive(Debug, Default)]
pub struct Local;

/// Counters of a disk by the names of records.
fn counters_of(disk: &str) -> anyhow::Result<Values> {
    let reads = kernel::disk_reads(disk)?;
    Ok(Values::from([("requests".to_string(), reads.requests), ("disk_bytes".to_string(), reads.bytes)]))
}

/// Where the trees are in the content.
pub const TREES: &str = "trees";

/// How images of squashfs end that are for a disk: as small as zstd makes them.
pub const SMALL_SQUASHFS: &str = "small.squashfs";

/// Where folders for writing are in the content: nothing else is below it.
pub const WRITABLE: &str = "writable";

/// The folder of a tree in the content.
pub fn tree_folder(tree: &str) -> PathBuf {
    Path::new(CONTENT).join(TREES).join(tree)
}

/// The folder for writing called `name` in the content.
pub fn writable_folder(name: &str) -> PathBuf {
    Path::new(CONTENT).join(WRITABLE).join(name)
}

impl System for Local {
    fn serve(&mut self, _tree: &str) -> anyhow::Result<()> {
        Ok(())
    }

    fn mount(&mut self, tree: &str) -> anyhow::Result<()> {
        let folder = tree_folder(tree);
        mount_bind(&folder, APP).with_context(|| format!("cannot mount {} on {APP}", folder.display()))?;
        // A bind mount takes flags only when it is mounted again.
        mount_remount(APP, MountFlags::BIND | MountFlags::RDONLY, "").context("cannot make the tree read-only")
    }

    fn counters(&self) -> anyhow::Result<Values> {
        counters_of(CONTENT_DEVICE)
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        unmount_if_mounted(APP)
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// The tree alone on a slow card, as files or as an image of squashfs.
#[derive(Debug)]
pub struct Card {
    kind: Kind,
    is_squashfs: bool,
    card: Option<SlowCard>,
}

impl Card {
    /// A card of the kind called `name`.
    pub fn named(name: &str) -> anyhow::Result<Card> {
        Ok(Card { kind: Kind::named(name)?, is_squashfs: false, card: None })
    }

    /// A card of the kind called `name` with the tree as squashfs.
    pub fn of_squashfs(name: &str) -> anyhow::Result<Card> {
        Ok(Card { is_squashfs: true, ..Card::named(name)? })
    }
}

impl System for Card {
    fn serve(&mut self, tree: &str) -> anyhow::Result<()> {
        self.card = Some(match self.is_squashfs {
            true => {
                tool(Command::new("modprobe").arg("squashfs")).context("the guest's kernel lacks a module")?;
                SlowCard::holding(self.kind, &peer::image(tree, SMALL_SQUASHFS)?)?
            }
            false => SlowCard::filled(self.kind, &tree_folder(tree), SPACE_BYTES)?,
        });
        Ok(())
    }

    fn mount(&mut self, _tree: &str) -> anyhow::Result<()> {
        let name = if self.is_squashfs { "squashfs" } else { "ext4" };
        self.card.as_ref().context("the card is made before it is mounted")?.mount(name, APP)
    }

    fn counters(&self) -> anyhow::Result<Values> {
        counters_of(card::NAME)
    }

    fn device(&self) -> Option<PathBuf> {
        self.card.as_ref().map(SlowCard::device)
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        unmount_if_mounted(APP)
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.card = None;
        Ok(())
    }
}
