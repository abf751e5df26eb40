//! Starts a program in another place: control group, network name space, root folder.
//!
//! A process of its own, because all of this can be done between `fork` and `exec` only with unsafe
//! code. It writes the time just before `exec`, so that a measured program is charged for nothing
//! that happens here. It is the command `runnel-bench lab-exec`.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{group, kernel};

/// Where `ip netns` keeps its network name spaces.
const SPACES: &str = "/run/netns";

/// Start a program in another control group, network name space or root folder of the lab's guest
#[derive(Clone, Debug, clap::Args)]
pub struct Exec {
    /// Network name space
    #[arg(long, value_name = "NAME")]
    pub space: Option<String>,
    /// Control group
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Folder that becomes the root
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Write the time of the start to this file: seconds of the monotonic clock
    #[arg(long, value_name = "FILE")]
    pub stamp: Option<PathBuf>,
    /// Program and arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Becomes the program; returns only if that fails.
pub fn exec(what: &Exec) -> anyhow::Result<()> {
    let (program, arguments) = what.command.split_first().context("no program given")?;
    if let Some(name) = &what.group {
        group::join(name)?;
    }
    if let Some(name) = &what.space {
        enter_network(name)?;
    }
    // Opened before the root changes.
    let stamp = what.stamp.as_ref().map(|path| {
        File::create(path).with_context(|| format!("cannot write the time of the start to {}", path.display()))
    });
    let stamp = stamp.transpose()?;
    if let Some(root) = &what.root {
        rustix::process::chroot(root).with_context(|| format!("cannot make {} the root", root.display()))?;
        std::env::set_current_dir("/").context("cannot enter the new root")?;
    }
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(mut file) = stamp {
        write!(file, "{:.9}", kernel::clock_seconds()).context("cannot write the time of the start")?;
    }
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start {}", Path::new(program).display()))
}

/// Moves the calling thread, and what it starts, into the network name space `name`.
pub fn enter_network(name: &str) -> anyhow::Result<()> {
    let path = Path::new(SPACES).join(name);
    let file = File::open(&path).with_context(|| format!("no network name space {}", path.display()))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("cannot enter the network name space {}", path.display()))
}
