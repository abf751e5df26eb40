//! Where programs are started: a root folder on an emulated disk, with what a running system adds
//! to it.
//!
//! The disk is mounted read-only; `/tmp`, `/root` and `/run` are fresh memory for each start,
//! `/proc` and `/dev` are those of the machine. The home folder holds what one earlier start left
//! there, because programs set themselves up when they are started for the first time (GIMP asks
//! all its plug-ins what they are). Nothing else that a start leaves behind reaches the next one
//! but the page cache of the disk's file system, and that only if it is not mounted anew.

use std::fs;
use std::io::{BufRead, BufReader, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use disk::{Counters, Disk, Model};
use rustix::mount::{MountFlags, mount, mount_bind, mount_bind_recursive};
use rustix::process::{Pid, Signal, kill_process_group};
use wait4::Wait4;

use crate::interrupt;
use crate::process::tool;
use crate::stage::remove;

/// Longest start that is waited for.
const LIMIT: Duration = Duration::from_secs(300);

/// How often a wait looks whether the bench was interrupted. Measured times do not depend on it.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Bytes of error output that a message shows.
const SAID_BYTES_MAX: usize = 1500;

/// The environment of every start, besides what a mode adds.
const ENVIRONMENT: [(&str, &str); 5] = [
    ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/root"),
    ("LC_ALL", "C.UTF-8"),
    ("XDG_RUNTIME_DIR", "/run"),
    ("TMPDIR", "/tmp"),
];

/// Folders of a start that are memory.
const MEMORY: [&str; 3] = ["tmp", "root", "run"];

/// Where the binary that is measured lies in the root.
pub const BINARY: &str = "/run/runnel";

/// The libraries that it loads into programs, if they lie beside it.
const LIBRARIES: [&str; 2] = ["librunnel_trace.so", "librunnel_audit.so"];

/// Where it keeps what must outlive a start: a folder of the machine.
pub const STATE: &str = "/mnt";

/// A disk with its root folder.
pub struct Place {
    /// The disk.
    pub disk: Disk,
    /// The binary that is measured.
    runnel: PathBuf,
    /// What is seen at [`STATE`].
    state: PathBuf,
    /// What the home folder holds at first; nothing if it is empty.
    home: Option<PathBuf>,
}

/// What a start did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// From the beginning (of the prefetch, if that is first) to the end of the program, seconds.
    pub wall: f64,
    /// CPU time of the program and all it waited for, seconds.
    pub cpu: f64,
    /// How long later loading phases took, in their order, seconds.
    pub loads: Vec<f64>,
    /// What the disk did.
    pub disk: Counters,
    /// How much later than its model the disk answered, mean of its answers, seconds.
    pub late: f64,
    /// What the program and its launcher wrote to their error output.
    pub said: String,
}

impl Run {
    /// What the bench compares: later loading for programs that have such phases, else the whole
    /// start, seconds.
    pub fn measured(&self) -> f64 {
        if self.loads.is_empty() { self.wall } else { self.loads.iter().sum() }
    }
}

impl Place {
    /// A place on a disk without delay, with the image `image`; `folder` is an empty one, `state`
    /// is seen at [`STATE`].
    ///
    /// # Errors
    /// The disk cannot be made.
    pub fn open(image: &Path, folder: &Path, runnel: &Path, state: &Path) -> anyhow::Result<Place> {
        fs::create_dir_all(state).with_context(|| format!("cannot make {}", state.display()))?;
        hold_in_memory(image)?;
        let disk = Disk::attach(image, &disk::INSTANT, folder)?;
        Ok(Place { disk, runnel: runnel.to_path_buf(), state: state.to_path_buf(), home: None })
    }

    /// Becomes a disk of `model` with nothing cached, and furnishes the root.
    ///
    /// # Errors
    /// Something cannot be mounted.
    pub fn refresh(&mut self, model: &Model, read_ahead: u32) -> anyhow::Result<()> {
        // Mounting costs no time that would be measured, so it is done quickly.
        self.disk.unmount()?;
        self.disk.change(&disk::INSTANT, read_ahead)?;
        self.disk.mount_cold()?;
        self.furnish().context("cannot furnish the root on the disk")?;
        self.disk.change(model, read_ahead)?;
        Ok(())
    }

    fn furnish(&self) -> anyhow::Result<()> {
        let root = self.disk.root();
        for name in MEMORY {
            mount("launch", root.join(name), "tmpfs", MountFlags::empty(), Some(c"mode=1777"))?;
        }
        self.fill_home()?;
        mount("proc", root.join("proc"), "proc", MountFlags::empty(), None)?;
        mount_bind_recursive("/sys", root.join("sys"))?;
        mount_bind_recursive("/dev", root.join("dev"))?;
        mount_bind(&self.state, root.join(STATE.trim_start_matches('/')))?;
        let binary = root.join(BINARY.trim_start_matches('/'));
        bind_file(&self.runnel, &binary)?;
        for name in LIBRARIES {
            let library = self.runnel.with_file_name(name);
            if library.is_file() {
                bind_file(&library, &binary.with_file_name(name))?;
            }
        }
        Ok(())
    }

    /// Makes `/tmp` and the like empty again, and leaves the page cache as it is.
    ///
    /// # Errors
    /// They cannot be mounted.
    pub fn tidy(&self) -> anyhow::Result<()> {
        for name in ["tmp", "root"] {
            let path = self.disk.root().join(name);
            rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH)?;
            mount("launch", path, "tmpfs", MountFlags::empty(), Some(c"mode=1777"))?;
        }
        self.fill_home()
    }

    /// Starts `command` once with an empty home folder; what it leaves there is what later starts
    /// find.
    ///
    /// # Errors
    /// It fails, or what it left cannot be copied.
    pub fn settle(&mut self, command: &[String], template: &Path) -> anyhow::Result<()> {
        self.home = None;
        self.refresh(&disk::INSTANT, 128)?;
        self.run(command, Instant::now(), &self.disk.counters(), &mut |_| {})?;
        remove(template)?;
        tool(Command::new("cp").arg("-a").arg(self.disk.root().join("root")).arg(template))?;
        self.home = Some(template.to_path_buf());
        Ok(())
    }

    fn fill_home(&self) -> anyhow::Result<()> {
        let Some(home) = &self.home else { return Ok(()) };
        tool(Command::new("cp").arg("-aT").arg(home).arg(self.disk.root().join("root"))).map(drop)
    }

    /// Starts `command` in the root and waits for its end. `start` is when the clock began;
    /// `on_phase` is told when a later phase is announced, by its number. Of `disk`, what was read
    /// since `before` is filled in.
    ///
    /// # Errors
    /// The program fails or takes too long, or the bench is interrupted; the message holds what it
    /// said.
    pub fn run(
        &self,
        command: &[String],
        start: Instant,
        before: &Counters,
        on_phase: &mut dyn FnMut(usize),
    ) -> anyhow::Result<Run> {
        interrupt::check()?;
        let mut errors = tempfile::tempfile().context("cannot make a temporary file")?;
        let mut chroot = Command::new("chroot");
        chroot.arg(self.disk.root()).args(command).env_clear().envs(ENVIRONMENT);
        chroot.current_dir("/");
        chroot.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors.try_clone()?).process_group(0);
        let mut child = chroot.spawn().context("cannot start chroot")?;
        let output = child.stdout.take().context("a pipe")?;
        let (sender, lines) = std::sync::mpsc::channel();
        // It ends when the last process that has the pipe does.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut run = Run::default();
        let heard = listen(&lines, &mut run, on_phase);
        if heard.is_err() {
            kill(&child);
        }
        let used = child.wait4().context("cannot wait for a program")?;
        run.wall = start.elapsed().as_secs_f64();
        // What it left running would use the disk.
        kill(&child);
        run.said = said(&mut errors);
        heard?;
        if !used.status.success() {
            bail!("{} failed ({}): {}", command.join(" "), used.status, run.said);
        }
        run.cpu = (used.rusage.utime + used.rusage.stime).as_secs_f64();
        run.disk = self.disk.counters().since(before);
        run.late = self.disk.lateness().mean() / 1e9;
        Ok(run)
    }
}

fn bind_file(file: &Path, target: &Path) -> anyhow::Result<()> {
    fs::write(target, "")?;
    mount_bind(file, target).with_context(|| format!("cannot bind {}", file.display()))
}

/// Reads what the program prints until it closes its output.
fn listen(
    lines: &std::sync::mpsc::Receiver<String>,
    run: &mut Run,
    on_phase: &mut dyn FnMut(usize),
) -> anyhow::Result<()> {
    let deadline = Instant::now() + LIMIT;
    loop {
        match lines.recv_timeout(LOOK_INTERVAL) {
            Ok(line) => match line.split(' ').collect::<Vec<_>>()[..] {
                ["compute", number, _] => on_phase(number.parse().context("the number of a phase")?),
                ["loaded", _, seconds] => run.loads.push(seconds.parse().context("the time of a phase")?),
                _ => {}
            },
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                interrupt::check()?;
                ensure!(Instant::now() < deadline, "it did not end within {LIMIT:?}");
            }
        }
    }
}

fn kill(child: &Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended by itself just now.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// The end of what was written to a file.
fn said(file: &mut fs::File) -> String {
    let mut bytes = Vec::new();
    let _ = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(SAID_BYTES_MAX)..]).trim().to_string()
}

/// Reads a file once, so that its bytes lie in memory.
fn hold_in_memory(path: &Path) -> anyhow::Result<()> {
    let mut file = fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut buffer = vec![0; 4 << 20];
    while file.read(&mut buffer)? > 0 {
        interrupt::check()?;
    }
    Ok(())
}
