//! Kernel NFS 4.2 with the kernel's own server, and default options on both sides.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::mount::{MountFlags, mount};

use super::card::unmount_if_mounted;
use super::disk::{TREES, WRITABLE, tree_folder};
use super::net::{SERVER_ADDRESS, server_command};
use super::system::{APP, CONTENT, System};
use super::{Values, kernel, pages};
use crate::lab::program::Program;
use crate::process::{Service, tool, try_tool};

/// Files of the server; the root file system cannot be written.
const STATE: &str = "/var/lib/nfs";

/// The kernel's side of the server.
const CONTROL: &str = "/proc/fs/nfsd";

/// After its start a server lets old clients take back their locks; opens wait as long. The
/// shortest that it takes.
const GRACE_SECONDS: &str = "10";

/// How long the end of that time is waited for.
const GRACE_DEADLINE: Duration = Duration::from_secs(60);

/// Threads of the server, its default.
const THREADS: &str = "8";

/// The server and one mount.
#[derive(Debug, Default)]
pub struct Nfs {
    mountd: Option<Service>,
    /// Whether it is the folder for writing that is exported and mounted, not the trees.
    writable: bool,
}

impl Nfs {
    /// Of the trees, for reading only, or of the folder for writing.
    pub fn new(writable: bool) -> Nfs {
        Nfs { mountd: None, writable }
    }

    fn access(&self) -> &'static str {
        if self.writable { "rw" } else { "ro" }
    }
}

fn server_tool(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    tool(server_command(program).args(arguments)).map(drop)
}

impl System for Nfs {
    fn serve(&mut self, _tree: &str) -> anyhow::Result<()> {
        tool(Command::new("modprobe").args(["-a", "nfsd", "nfsv4"])).context("NFS needs the kernel's modules")?;
        if !kernel::is_mounted(Path::new(STATE)) {
            mount("tmpfs", STATE, "tmpfs", MountFlags::empty(), None)
                .with_context(|| format!("cannot mount {STATE}"))?;
        }
        for folder in ["v4recovery", "rpc_pipefs", "nfsdcld"] {
            let path = Path::new(STATE).join(folder);
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        for file in ["etab", "rmtab"] {
            let path = Path::new(STATE).join(file);
            fs::write(&path, "").with_context(|| format!("cannot write {}", path.display()))?;
        }
        // What is seen here is the server of the name space that mounted it.
        if !kernel::is_mounted(Path::new(CONTROL)) {
            server_tool("mount", &["-t", "nfsd", "nfsd", CONTROL])?;
        }
        let folder = if self.writable { WRITABLE } else { TREES };
        let export = format!("10.0.0.0/24:{CONTENT}/{folder}");
        let options = format!("{},fsid=0,no_subtree_check,no_root_squash,insecure", self.access());
        server_tool("exportfs", &["-o", &options, &export])?;
        let mut mountd = server_command("rpc.mountd");
        mountd.args(["-F", "-N", "2", "-N", "3"]);
        self.mountd = Some(Service::start("mountd", &mut mountd, Path::new(super::system::WORK))?);
        server_tool("rpc.nfsd", &["-N", "3", "-L", GRACE_SECONDS, "-G", GRACE_SECONDS, THREADS])?;
        wait_grace()
    }

    fn mount(&mut self, tree: &str) -> anyhow::Result<()> {
        let source = format!("{SERVER_ADDRESS}:/{tree}");
        let options = format!("vers=4.2,{}", self.access());
        tool(Command::new("mount").args(["-t", "nfs", "-o", &options, &source, APP])).map(drop)
    }

    fn counters(&self) -> anyhow::Result<Values> {
        Ok(Values::from([("requests".to_string(), kernel::nfs_calls(APP)?)]))
    }

    fn server_files(&self, program: &Program) -> Vec<PathBuf> {
        let folder = tree_folder(program.tree);
        // Without a list nothing is read back: the server's disk is in memory anyway.
        let pages = pages::list_of(program).unwrap_or_default();
        pages::files_of(&pages).iter().map(|path| pages::below(&folder, path)).collect()
    }

    fn client_files(&self) -> Vec<PathBuf> {
        ["/usr/bin/mount", "/usr/sbin/mount.nfs"].map(PathBuf::from).into()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        unmount_if_mounted(APP)
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        if self.mountd.is_none() {
            return Ok(());
        }
        server_tool("rpc.nfsd", &["0"])?;
        try_tool(server_command("exportfs").args(["-ua"]));
        self.mountd.take().map_or(Ok(()), Service::stop)
    }
}

/// Waits until the server says that the time for old clients is over.
fn wait_grace() -> anyhow::Result<()> {
    let path = Path::new(CONTROL).join("v4_end_grace");
    let end = Instant::now() + GRACE_DEADLINE;
    while !fs::read_to_string(&path).with_context(|| path.display().to_string())?.starts_with('Y') {
        ensure!(Instant::now() < end, "the NFS server's time of grace did not end within {GRACE_DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
