//! A mount as a service of systemd, restarted under programs that use it.
//!
//! The manager is one of a user, in a mount table of its own, where it believes that systemd has
//! booted the machine. The unit is that of the guide.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::continuity::{READ, begun};
use crate::support::*;

const MANAGER: &str = "/lib/systemd/systemd";

/// Starts it where a machine seems to run with systemd.
const START: &str = "mount -t tmpfs tmpfs /run/systemd && mkdir /run/systemd/system && exec \"$@\"";

/// The name of the unit, and the one of the guide.
const UNIT: &str = "runnel-mount@python.service";
const TEMPLATE: &str = "runnel-mount@.service";

/// How long anything may take before it counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Manager {
    child: Child,
    folder: tempfile::TempDir,
}

impl Manager {
    /// `None` where it cannot run.
    fn start() -> Option<Manager> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", START, "sh", MANAGER, "--user"])
            .arg("--unit=basic.target")
            .env("XDG_RUNTIME_DIR", folder.path())
            .env("HOME", folder.path())
            .env("RUNNEL_CACHE", "none")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let start = Instant::now();
        while !folder.path().join("systemd/private").exists() {
            if child.try_wait().expect("a child").is_some() || start.elapsed() > TIMEOUT {
                let _ = child.kill();
                return None;
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        Some(Manager { child, folder })
    }

    /// A command that sees what services mount.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.child.id())).arg(program);
        command.env("XDG_RUNTIME_DIR", self.folder.path()).env("HOME", self.folder.path());
        command
    }

    fn control(&self, arguments: &[&str]) -> String {
        let output = output(self.command("systemctl").arg("--user").args(arguments));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "systemctl {arguments:?}: {text}{}", self.state());
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    }

    fn state(&self) -> String {
        let told = output(self.command("systemctl").args(["--user", "status", "--no-pager", UNIT]));
        String::from_utf8_lossy(&told.stdout).into_owned()
    }

    fn keeper(&self) -> u32 {
        self.control(&["show", "--property=MainPID", "--value", UNIT]).parse().expect("a process")
    }

    /// What is mounted below its folder.
    fn mounted(&self) -> usize {
        let table = std::fs::read_to_string(format!("/proc/{}/mountinfo", self.child.id())).expect("a table");
        let folder = self.folder.path().to_str().expect("text");
        table.lines().filter(|line| line.contains(folder) && line.contains("runnel")).count()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = output(self.command("systemctl").args(["--user", "stop", UNIT]));
        let _ = output(self.command("systemctl").args(["--user", "exit"]));
        let start = Instant::now();
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) && start.elapsed() < TIMEOUT {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The unit of the guide, for another program and other files.
fn unit(program: &Path, settings: &Path) -> String {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/streaming.md");
    let guide = std::fs::read_to_string(guide).expect("the guide");
    let lines = guide.lines().skip_while(|line| !line.ends_with(TEMPLATE));
    let lines = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
    let text: String = lines.map(|line| format!("{}\n", line.trim_start())).collect();
    assert!(text.contains("FileDescriptorStoreMax"), "the guide has no unit");
    let text = text.replace("/usr/bin/runnel", program.to_str().expect("text"));
    text.replace("/etc/runnel/mounts", settings.to_str().expect("text"))
}

#[test]
fn fuse_programs_do_not_notice_that_their_mount_is_restarted_by_systemd() {
    if !can_mount("fuse_programs_do_not_notice_that_their_mount_is_restarted") {
        return;
    }
    let Some(manager) = Manager::start() else {
        eprintln!(
            "skipped fuse_programs_do_not_notice_that_their_mount_is_restarted: needs {MANAGER} and control groups"
        );
        return;
    };
    let folder = manager.folder.path();
    let (source, mountpoint, units) = (folder.join("source"), folder.join("mnt"), folder.join("systemd/user"));
    let server = Server::start(&folder.join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    ok(&["extract".as_ref(), "-C".as_ref(), source.as_os_str(), python_image().as_os_str()]);
    let installed = Installed::new();
    std::fs::create_dir(&mountpoint).expect("the mount point");
    std::fs::create_dir_all(&units).expect("a folder of units");
    std::fs::write(units.join(TEMPLATE), unit(&installed.path(), folder)).expect("written");
    let settings = format!("TARGET={}\nDIRECTORY={}\n", server.url("python"), mountpoint.display());
    std::fs::write(folder.join("python"), settings).expect("written");
    manager.control(&["daemon-reload"]);
    manager.control(&["start", UNIT]);

    let modules: [PathBuf; 2] = [&mountpoint, &source].map(|root| root.join("usr/lib/python3.11"));
    let mut reader = manager.command("/usr/bin/python3");
    reader.args(["-c", READ]).args(&modules).arg("read");
    let mut reader = begun(reader);
    for _ in 0..3 {
        let before = manager.keeper();
        installed.install(env!("CARGO_BIN_EXE_runnel").as_ref());
        manager.control(&["restart", UNIT]);
        let after = manager.keeper();
        assert!(after != before && installed.runs(after) && installed.runs(child_of(after)));
        assert_eq!(manager.mounted(), 1, "the same mount goes on");
    }
    // A keeper that is killed is started again.
    let before = manager.keeper();
    manager.control(&["kill", "--kill-who=main", "--signal=SIGKILL", UNIT]);
    let start = Instant::now();
    while manager.control(&["show", "--property=SubState", "--value", UNIT]) != "running" || manager.keeper() == before
    {
        assert!(start.elapsed() < TIMEOUT, "{}", manager.state());
    }
    assert_eq!(manager.mounted(), 1);
    drop(reader.stdin.take());
    let read = reader.wait_with_output().expect("it ends");
    assert!(read.status.success(), "{}", manager.state());
    eprintln!("files read, longest read in ms: {}", String::from_utf8_lossy(&read.stdout).trim());
    manager.control(&["stop", UNIT]);
    assert_eq!(manager.mounted(), 0, "stopping unmounts");
}
