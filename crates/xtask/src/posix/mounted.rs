//! A server of one volume, and mounts of it, which tests may kill and start again.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::watch;

/// Until a mount is there: it is started on this machine, beside tests that use all processors.
const MOUNT_LIMIT: Duration = Duration::from_secs(60);

/// A server of one volume named `data`.
pub struct Server {
    runnel: PathBuf,
    folder: PathBuf,
    child: Child,
    /// Where it listens.
    pub address: String,
}

impl Server {
    /// Starts one whose store and volume lie in `folder`, which must be new.
    pub fn start(runnel: &Path, folder: &Path) -> anyhow::Result<Server> {
        fs::create_dir(folder).with_context(|| folder.display().to_string())?;
        fs::create_dir(folder.join("data"))?;
        let (child, address) = serve(runnel, folder, "127.0.0.1:0")?;
        Ok(Server { runnel: runnel.to_owned(), folder: folder.to_owned(), child, address })
    }

    /// The folder that is the volume.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// kill -9, and a new one at the same address.
    pub fn kill_and_restart(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        (self.child, self.address) = serve(&self.runnel, &self.folder, &self.address)?;
        Ok(())
    }

    /// Mounts the volume on the new folder `name`, by way of `address`.
    pub fn mount_by(&self, address: &str, name: &str, options: &[&str]) -> anyhow::Result<Mount> {
        let path = self.folder.join(name);
        fs::create_dir(&path)?;
        let mut mount = Mount {
            runnel: self.runnel.clone(),
            target: format!("runnel://{address}/volume/data"),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            child: None,
            path,
        };
        mount.start()?;
        Ok(mount)
    }

    /// Mounts the volume on the new folder `name`.
    pub fn mount(&self, name: &str) -> anyhow::Result<Mount> {
        self.mount_by(&self.address, name, &[])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        terminate(&self.child);
        // It was told to end, or had ended.
        let _ = self.child.wait();
    }
}

/// A server in its own process, and its address.
fn serve(runnel: &Path, folder: &Path, listen: &str) -> anyhow::Result<(Child, String)> {
    let volume = format!("data={}:rw", folder.join("data").display());
    let mut server = Command::new(runnel);
    server.arg("serve").arg(folder.join("store")).args(["--listen", listen, "--volume", &volume]);
    let mut server = server.stderr(Stdio::piped()).spawn().context("cannot start the server")?;
    let mut said = BufReader::new(server.stderr.take().context("the server has no output")?).lines();
    // What a recovery did is said before.
    let address = loop {
        let line = said.next().context("the server ended before it said where it listens")??;
        match line.trim().rsplit_once(" on ") {
            Some((_, address)) if address.starts_with("127.0.0.1:") => break address.to_owned(),
            _ => eprintln!("server: {line}"),
        }
    };
    // What it says later has to go somewhere.
    std::thread::spawn(move || said.map_while(Result::ok).for_each(|line| eprintln!("server: {line}")));
    Ok((server, address))
}

/// A mount in the foreground of a child process.
pub struct Mount {
    runnel: PathBuf,
    target: String,
    options: Vec<String>,
    child: Option<Child>,
    /// Where it is mounted.
    pub path: PathBuf,
}

impl Mount {
    fn start(&mut self) -> anyhow::Result<()> {
        let ready = self.path.with_extension("ready");
        // Of a mount that was killed.
        let _ = fs::remove_file(&ready);
        let mut command = Command::new(&self.runnel);
        command.arg("mount").arg(&self.target).arg(&self.path).args(["--foreground", "--ready-file"]).arg(&ready);
        let child = self.child.insert(command.args(&self.options).stdin(Stdio::null()).spawn()?);
        let begun = Instant::now();
        while !ready.exists() {
            let ended = child.try_wait()?;
            ensure!(ended.is_none(), "the mount ended with {ended:?}");
            ensure!(begun.elapsed() < MOUNT_LIMIT, "no mount after {MOUNT_LIMIT:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// What kills the mount, from any thread: its keeper, which would start another daemon, and
    /// its daemon.
    pub fn killer(&self) -> impl FnOnce() + Send + 'static {
        let keeper = self.child.as_ref().map(Child::id);
        let daemon = keeper.and_then(daemon_of);
        move || [keeper, daemon].into_iter().for_each(|id| signal(id, Signal::KILL))
    }

    /// Kills it if it lives, and mounts anew at the same place.
    pub fn kill_and_remount(&mut self) -> anyhow::Result<()> {
        self.killer()();
        if let Some(mut child) = self.child.take() {
            child.wait()?;
        }
        // A helper may do the same at this moment.
        self.unmount_dead();
        ensure!(self.path.read_dir().is_ok(), "{} stays mounted", self.path.display());
        self.start()
    }

    /// Takes the mount of a dead process away, though programs may still have files there open.
    fn unmount_dead(&self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).stderr(Stdio::null()).status();
    }

    /// Unmounts: nothing may be unsent or lost.
    pub fn end(mut self) -> anyhow::Result<()> {
        watch::run(Command::new(&self.runnel).arg("umount").arg(&self.path))?;
        let mut child = self.child.take().context("a mount has a process")?;
        let status = child.wait()?;
        ensure!(status.success(), "the mount ended with {status}");
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let killer = self.killer();
        let Some(mut child) = self.child.take() else {
            return;
        };
        // A test failed: the mount must go before its server does.
        self.unmount_dead();
        killer();
        let _ = child.wait();
    }
}

/// The daemon that a keeper has started.
fn daemon_of(keeper: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
    children.split_whitespace().last()?.parse().ok()
}

fn terminate(child: &Child) {
    signal(Some(child.id()), Signal::TERM);
}

fn signal(id: Option<u32>, signal: Signal) {
    if let Some(pid) = id.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
        // It may have ended by itself. Nobody has waited for it, so no other process has its
        // number.
        let _ = kill_process(pid, signal);
    }
}
