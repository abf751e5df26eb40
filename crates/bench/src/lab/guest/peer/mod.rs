//! Other systems in the lab, each used as its own manual says, with its defaults where it has any.
//!
//! [`block`] is a compressed file system of the kernel over its network block device. The others
//! are programs that mount over FUSE ([`client`]): [`nydus`] and [`casync`] fetch from the web
//! server of the lab ([`http`]) what they made of the tree, [`web_folder`] mounts the tree on that
//! server as it is, [`sshfs`] over SSH. [`super::system::make`] calls [`make`]. A row whose
//! programs are missing fails and says which package has them.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::system::{CONTENT, System};
use crate::process::find_program;
use client::Mounted;

pub mod block;
pub mod casync;
pub mod client;
pub mod http;
pub mod listing;
pub mod nydus;
pub mod sshfs;
pub mod web_folder;
pub mod web_server;

/// The system called `system`, if it is one of these. They have no modes.
pub fn make(system: &str, mode: &str) -> Option<Box<dyn System>> {
    if !mode.is_empty() {
        return None;
    }
    Some(match system {
        "squashfs" => Box::new(block::Block::new(block::Kind::Squashfs)),
        "erofs" => Box::new(block::Block::new(block::Kind::Erofs)),
        "nydus" => Box::new(Mounted::new(nydus::Nydus)),
        "casync" => Box::new(Mounted::new(casync::Casync)),
        "sshfs" => Box::new(Mounted::new(sshfs::Sshfs { writable: false })),
        "httpdirfs" => Box::new(Mounted::new(web_folder::Httpdirfs)),
        "rclone" => Box::new(Mounted::new(web_folder::Rclone)),
        _ => return None,
    })
}

/// The image of `tree` in the form called `extension`.
pub fn image(tree: &str, extension: &str) -> anyhow::Result<PathBuf> {
    let path = Path::new(CONTENT).join("images").join(format!("{tree}.{extension}"));
    anyhow::ensure!(path.exists(), "there is no {}: set the lab up for this row", path.display());
    Ok(path)
}

/// The program called `name`, or what to install.
fn program(name: &str, package: &str) -> anyhow::Result<PathBuf> {
    find_program(name).with_context(|| format!("the guest has no {name}; it comes with {package}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_has_a_name_and_no_mode() {
        for name in ["squashfs", "erofs", "nydus", "casync", "sshfs", "httpdirfs", "rclone"] {
            assert!(make(name, "").is_some() && make(name, "fast").is_none(), "{name}");
        }
        assert!(make("nfs", "").is_none());
    }
}
