//! sshfs with its defaults, read-only or for writing, over OpenSSH with keys made for the row. The
//! programs inside the tree resolve its links, so that sshfs must hand them out as they are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use super::super::disk::{tree_folder, writable_folder};
use super::super::net::{SERVER_ADDRESS, server_command};
use super::super::system::{APP, WORK};
use super::client::{Mounter, Server, tree_files};
use super::program;
use crate::lab::program::Program;
use crate::process::{Service, ready_text, tool};

/// How long the server may take to start.
const READY_DEADLINE: Duration = Duration::from_secs(20);

/// Folder that sshd wants for the separation of its rights.
const SSHD_FOLDER: &str = "/run/sshd";

/// Since 2026 sshfs refuses absolute links and those with `..` unless it is given this option,
/// which older ones lack. A tree of Debian is full of both.
const LINKS_OPTION: &str = "no_contain_symlinks";

/// The system.
#[derive(Clone, Copy, Debug)]
pub struct Sshfs {
    /// Whether it is a folder for writing that is mounted, not a tree.
    pub writable: bool,
}

#[derive(Debug)]
struct Sshd {
    #[allow(dead_code, reason = "held for its drop")]
    service: Service,
}

impl Server for Sshd {
    fn requests(&self) -> Option<f64> {
        None
    }
}

/// The device's key: made with the server, used by the client.
fn client_key() -> PathBuf {
    Path::new(WORK).join("sshfs/server/client_key")
}

impl Mounter for Sshfs {
    fn name(&self) -> &'static str {
        "sshfs"
    }

    fn serve(&self, _tree: &str, folder: &Path) -> anyhow::Result<Box<dyn Server>> {
        let sshd = program("sshd", "the package openssh-server")?;
        let host_key = folder.join("host_key");
        for key in [&host_key, &client_key()] {
            tool(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(key))?;
        }
        let (configuration, ready) = (folder.join("sshd_config"), folder.join("sshd.pid"));
        std::fs::write(&configuration, configuration_of(&host_key, &ready))
            .with_context(|| format!("cannot write {}", configuration.display()))?;
        std::fs::create_dir_all(SSHD_FOLDER).with_context(|| format!("cannot make {SSHD_FOLDER}"))?;
        // sshd starts itself again for every connection and wants to be called by its whole path.
        let mut command = server_command(&sshd.to_string_lossy());
        command.args(["-D", "-e", "-f"]).arg(&configuration);
        let mut service = Service::start("sshd", &mut command, folder)?;
        // It writes the file when it listens.
        service.wait_ready(READY_DEADLINE, || ready_text(&ready))?;
        Ok(Box::new(Sshd { service }))
    }

    fn command(&self, tree: &str, _folder: &Path) -> anyhow::Result<Command> {
        let sshfs = program("sshfs", "the package sshfs")?;
        let help = Command::new(&sshfs).arg("--help").output().context("cannot run sshfs")?;
        let hands_out_links = String::from_utf8_lossy(&help.stdout).contains(LINKS_OPTION);
        let mut command = Command::new(sshfs);
        command.args(["-f", "-o", &options_of(self.writable, hands_out_links)]);
        let folder = if self.writable { writable_folder(tree) } else { tree_folder(tree) };
        command.arg(format!("root@{SERVER_ADDRESS}:{}", folder.display())).arg(APP);
        Ok(command)
    }

    fn server_files(&self, program: &Program) -> Vec<PathBuf> {
        let mut files = tree_files(program);
        // Started anew for every connection.
        files.extend(crate::process::find_program("sshd"));
        files
    }

    fn programs(&self) -> &'static [&'static str] {
        &["sshfs", "ssh"]
    }
}

fn options_of(writable: bool, has_links_option: bool) -> String {
    let key = client_key();
    // The host key is a new one each time; there is nobody to ask about it.
    let ssh = "StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null,LogLevel=ERROR";
    let links = if has_links_option { format!(",{LINKS_OPTION}") } else { String::new() };
    let access = if writable { "rw" } else { "ro" };
    format!("{access},IdentityFile={},{ssh}{links}", key.display())
}

fn configuration_of(host_key: &Path, ready: &Path) -> String {
    let (host_key, ready, client_key) = (host_key.display(), ready.display(), client_key());
    let client_key = client_key.display();
    format!(
        "ListenAddress {SERVER_ADDRESS}\n\
         HostKey {host_key}\n\
         PidFile {ready}\n\
         AuthorizedKeysFile {client_key}.pub\n\
         PermitRootLogin prohibit-password\n\
         StrictModes no\n\
         UsePAM no\n\
         Subsystem sftp internal-sftp\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_handed_out_by_every_version() {
        assert!(options_of(false, true).ends_with(",no_contain_symlinks"));
        let old = options_of(false, false);
        assert!(old.starts_with("ro,IdentityFile=/run/lab/sshfs/server/client_key,") && !old.contains("symlinks"));
        assert!(options_of(true, false).starts_with("rw,"));
    }

    #[test]
    fn sshd_listens_for_the_key_of_the_device() {
        let text = configuration_of(Path::new("/a/host_key"), Path::new("/a/sshd.pid"));
        for line in ["ListenAddress 10.0.0.1", "HostKey /a/host_key", "PidFile /a/sshd.pid"] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
        assert!(text.contains("\nAuthorizedKeysFile /run/lab/sshfs/server/client_key.pub\n"), "{text}");
    }
}
