//! What POSIX says of files, tried on a mounted volume: pjdfstest and fsx, from the registry, on a
//! real server and mount.
//!
//! `crates/xtask/posix/pjdfstest.toml` names the tests that a volume fails, with the reasons. One
//! that fails and is not named there is an error, and so is one that is named and passes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::watch;

/// The tools, by the names of their crates, and their versions.
const TOOLS: [(&str, &str); 2] = [("pjdfstest", "0.2.2"), ("fsx", "0.3.2")];

/// Sequences of fsx.
const SEEDS: [u32; 3] = [1, 2, 3];

/// A server of one volume, and the volume mounted.
struct Mounted<'a> {
    runnel: &'a Path,
    server: Child,
    mountpoint: PathBuf,
}

impl Mounted<'_> {
    fn start<'a>(runnel: &'a Path, folder: &Path) -> anyhow::Result<Mounted<'a>> {
        let [store, data, mountpoint] = ["store", "data", "mnt"].map(|name| folder.join(name));
        fs::create_dir(&data)?;
        fs::create_dir(&mountpoint)?;
        let volume = format!("data={}:rw", data.display());
        let mut server = Command::new(runnel);
        server.arg("serve").arg(store).args(["--listen", "127.0.0.1:0", "--volume", &volume]).stderr(Stdio::piped());
        let mut server = server.spawn().context("cannot start the server")?;
        let mut said = BufReader::new(server.stderr.take().context("the server has no output")?);
        let mut line = String::new();
        said.read_line(&mut line)?;
        // What it says later has to go somewhere.
        std::thread::spawn(move || said.lines().map_while(Result::ok).for_each(|line| eprintln!("server: {line}")));
        let mounted = Mounted { runnel, server, mountpoint };
        let address = line.trim().rsplit_once(" on ").with_context(|| format!("the server said {line:?}"))?.1;
        let target = format!("runnel://{address}/volume/data");
        watch::run(Command::new(runnel).args(["mount", &target]).arg(&mounted.mountpoint))?;
        Ok(mounted)
    }

    /// Unmounts: nothing may be unsent or lost.
    fn end(&self) -> anyhow::Result<()> {
        watch::run(Command::new(self.runnel).arg("umount").arg(&self.mountpoint))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // Where a test failed the mount is still there, and must go before its server does.
        let _ = Command::new("umount").arg("-l").arg(&self.mountpoint).stderr(Stdio::null()).status();
        if let Some(id) = Pid::from_raw(self.server.id() as i32) {
            // It may have ended by itself.
            let _ = kill_process(id, Signal::TERM);
        }
        let _ = self.server.wait();
    }
}

/// Runs the tools on a volume. `cache` is where they are kept.
pub fn run(root: &Path, runnel: &Path, cache: &Path, operations: u32) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("== posix: skipped: pjdfstest changes owners and users, which takes root");
        return Ok(());
    }
    for (tool, version) in TOOLS {
        install(tool, version, cache)?;
    }
    let folder = Folder::new()?;
    let mounted = Mounted::start(runnel, &folder.0)?;
    pjdfstest(&cache.join("bin/pjdfstest"), &root.join("crates/xtask/posix/pjdfstest.toml"), &mounted.mountpoint)?;
    for seed in SEEDS {
        let mut fsx = Command::new(cache.join("bin/fsx"));
        fsx.args(["-q", "-S", &seed.to_string(), "-N", &operations.to_string(), "-P"]).arg(&folder.0);
        watch::run(fsx.arg(mounted.mountpoint.join(format!("fsx-{seed}"))))?;
    }
    mounted.end()
}

/// A tool from the registry, once for each version.
fn install(tool: &str, version: &str, cache: &Path) -> anyhow::Result<()> {
    let mut installed = Command::new(cache.join("bin").join(tool));
    let has = installed.arg("--version").output().is_ok_and(|said| {
        let said = String::from_utf8_lossy(&said.stdout);
        said.split_whitespace().any(|word| word == version)
    });
    if has {
        return Ok(());
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["install", "--quiet", "--locked", "--version", version, "--root"]).arg(cache).arg(tool);
    watch::run(&mut cargo)
}

/// Runs all tests below `folder`; prints those that fail, and the sums.
fn pjdfstest(program: &Path, config: &Path, folder: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    command
        .env("RUST_BACKTRACE", "0")
        .arg("-c")
        .arg(config)
        .arg("-p")
        .arg(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = command.output().context("cannot start pjdfstest")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let matters =
        |line: &&str| !line.is_empty() && !["ok", "skipped", "expected"].iter().any(|end| line.ends_with(end));
    said.lines().filter(matters).for_each(|line| println!("{line}"));
    let Some(summary) = said.lines().find(|line| line.starts_with("Summary")) else {
        bail!("pjdfstest ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    };
    ensure!(output.status.success(), "pjdfstest: {summary}; {} names what may fail", config.display());
    Ok(())
}

/// A folder that goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Folder> {
        let path = std::env::temp_dir().join(format!("runnel-posix-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Fails while a mount is left below it, which is better than to remove what is mounted.
        let _ = fs::remove_dir_all(&self.0);
    }
}
