//! The tree itself on a web server, mounted by clients that read its index pages: httpdirfs and
//! rclone, with their defaults (no cache of files on the device; rclone's `--vfs-cache-mode off`).
//!
//! HTTP carries neither modes nor links. The server shows what links point to, and both clients are
//! told to give every file the mode 0755, since nothing could be executed otherwise.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::disk::tree_folder;
use super::super::system::APP;
use super::client::{Mounter, Server, tree_files};
use super::program;
use super::web_server::{WebServer, address};
use crate::lab::program::Program;

/// httpdirfs.
#[derive(Clone, Copy, Debug)]
pub struct Httpdirfs;

impl Mounter for Httpdirfs {
    fn name(&self) -> &'static str {
        "httpdirfs"
    }

    fn serve(&self, tree: &str, folder: &Path) -> anyhow::Result<Box<dyn Server>> {
        Ok(Box::new(WebServer::start(&tree_folder(tree), folder)?))
    }

    fn command(&self, _tree: &str, folder: &Path) -> anyhow::Result<Command> {
        let mut command = Command::new(program("httpdirfs", "the package httpdirfs")?);
        // `umask` is an option of the FUSE library: the mode of everything is 0777 without these
        // bits.
        command.args(["-f", "-o", "ro,umask=022"]).arg(address("")).arg(APP).env("HOME", folder);
        Ok(command)
    }

    fn server_files(&self, program: &Program) -> Vec<PathBuf> {
        tree_files(program)
    }

    fn programs(&self) -> &'static [&'static str] {
        &["httpdirfs"]
    }
}

/// rclone.
#[derive(Clone, Copy, Debug)]
pub struct Rclone;

impl Mounter for Rclone {
    fn name(&self) -> &'static str {
        "rclone"
    }

    fn serve(&self, tree: &str, folder: &Path) -> anyhow::Result<Box<dyn Server>> {
        Ok(Box::new(WebServer::start(&tree_folder(tree), folder)?))
    }

    fn command(&self, _tree: &str, folder: &Path) -> anyhow::Result<Command> {
        let mut command = Command::new(program("rclone", "the package rclone")?);
        command.args(["mount", ":http:", APP, "--http-url", &address(""), "--read-only", "--file-perms", "0755"]);
        // No settings but those of the command line.
        command.env("RCLONE_CONFIG", "/dev/null").env("HOME", folder);
        Ok(command)
    }

    fn server_files(&self, program: &Program) -> Vec<PathBuf> {
        tree_files(program)
    }

    fn programs(&self) -> &'static [&'static str] {
        &["rclone"]
    }
}
