//! The systems we are compared with, in the same run, behind the same shaped link.

pub(crate) mod nydus;
pub(crate) mod range_server;
mod squashfs;

use std::path::{Path, PathBuf};

use crate::link::Link;
use crate::site::Site;

/// A system that can serve a tree over a link.
pub trait Peer {
    /// Name in tables and rows.
    fn name(&self) -> &'static str;

    /// Makes its image of `tree` in `folder`.
    fn prepare(&mut self, tree: &Path, folder: &Path) -> anyhow::Result<()>;

    /// Files of the server side and programs, kept in the page cache when caches are dropped.
    fn warm_files(&self) -> Vec<PathBuf>;

    /// Serves the image over `link` and mounts it afresh, with nothing cached. Working files go to
    /// `folder`.
    fn mount(&self, link: &Link, seed: u64, folder: &Path) -> anyhow::Result<Box<dyn Site>>;
}

/// The peers that this machine has, and for each other one what to install.
pub fn available() -> (Vec<Box<dyn Peer>>, Vec<String>) {
    let mut peers: Vec<Box<dyn Peer>> = Vec::new();
    let mut skipped = Vec::new();
    match squashfs::Squashfs::find() {
        Ok(peer) => peers.push(Box::new(peer)),
        Err(reason) => skipped.push(reason),
    }
    match nydus::Nydus::find() {
        Ok(peer) => peers.push(Box::new(peer)),
        Err(reason) => skipped.push(reason),
    }
    (peers, skipped)
}
