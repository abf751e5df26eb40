//! Trees on disks of the device: `local`, a free disk, and `sd`, a slow card.

use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::mount::{MountFlags, mount_bind, mount_remount};

use super::card::{self, Kind, SlowCard, unmount_if_mounted};
use super::machine::CONTENT_DEVICE;
use super::system::{APP, CONTENT, System};
use super::{Values, kernel};

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

/// The tree alone on a slow card.
#[derive(Debug)]
pub struct Card {
    kind: Kind,
    card: Option<SlowCard>,
}

impl Card {
    /// A card of the kind called `name`.
    pub fn named(name: &str) -> anyhow::Result<Card> {
        Ok(Card { kind: Kind::named(name)?, card: None })
    }
}

impl System for Card {
    fn serve(&mut self, tree: &str) -> anyhow::Result<()> {
        self.card = Some(SlowCard::filled(self.kind, &tree_folder(tree))?);
        Ok(())
    }

    fn mount(&mut self, _tree: &str) -> anyhow::Result<()> {
        self.card.as_ref().context("the card is made before it is mounted")?.mount(APP)
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
