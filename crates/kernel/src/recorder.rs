//! Records the code that a kernel executes while a device does its work: QEMU logs each block of
//! code when it translates it for the first time.
//!
//! When the console says that the service begins, the machine is stopped and gets a log of its own
//! and other flags for translation. Then QEMU finds nothing that it translated before, so all code
//! that runs from then on is logged again. Both logs are in a private folder and are read at the
//! end, in pieces. Dropping the recorder ends the machine.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use coverage::{Collector, Coverage, How, LogParser, Phase, Seen, Symbols};

use rustix::fs::statvfs;

use crate::build::bytes;
use crate::error::io_at;
use crate::machine::{LINE_BYTES_MAX, Machine, Running, console_lines, failed};
use crate::{KernelError, Processor, tool};

/// Room that a disk with logs still has at the end: QEMU does not say what it could not write.
const ROOM_BYTES_MIN: u64 = 1 << 20;

/// Logs that are taken: a small kernel that does much writes 25 MiB.
const LOG_BYTES_MAX: u64 = 4 << 30;

/// How often the logs' size is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// How long the monitor may take for an answer, on a busy machine too.
const ANSWER: Duration = Duration::from_secs(60);

/// Longest answer of the monitor.
const ANSWER_BYTES_MAX: u64 = 1 << 16;

/// Bytes of a log that are read at once.
const PIECE_BYTES: usize = 1 << 16;

/// Where the header of a boot image says that the kernel may be loaded anywhere
/// (`relocatable_kernel`).
const RELOCATABLE_OFFSET: usize = 0x234;

/// One scenario of a device.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// The device; its deadline ends the scenario if it does not power off.
    pub machine: Machine,
    /// The linked kernel of the machine's boot image, with symbols.
    pub vmlinux: PathBuf,
    /// The service begins when the console says a line with this text. Without it nothing tells
    /// boot and service apart.
    pub service_at: Option<String>,
    /// The scenario ends when the console says a line with this text, after the service has begun;
    /// without it when the device powers off.
    pub until: Option<String>,
    /// What the scenario is called.
    pub scenario: String,
}

/// A scenario that was recorded.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// What ran.
    pub coverage: Coverage,
    /// What the log had.
    pub seen: Seen,
    /// Functions of the kernel, and their bytes.
    pub totals: (usize, u64),
    /// Why it ended.
    pub end: End,
}

/// Why a scenario ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The machine powered off.
    PoweredOff,
    /// The console said what was waited for.
    Said,
    /// It took too long.
    Deadline,
    /// Somebody asked for it.
    Asked,
}

impl Recorder {
    /// Runs the scenario; `say` gets the lines of the console. Each second `asked` says whether it
    /// is to end.
    ///
    /// # Errors
    /// A file cannot be read, QEMU cannot be started or fails, the service never begins, or another
    /// kernel ran than `vmlinux`.
    pub fn run(&self, asked: &dyn Fn() -> bool, say: &mut dyn FnMut(&str)) -> Result<Recorded, KernelError> {
        let at = |source| KernelError::Coverage { path: self.vmlinux.clone(), source };
        let symbols = Symbols::read(&bytes(&self.vmlinux)?).map_err(at)?;
        let mut machine = self.machine.clone();
        let processor = machine.processor()?;
        if symbols.is_aarch64() != (processor == Processor::Aarch64) {
            let reason = format!("it is for another processor than {}", machine.kernel.display());
            return Err(KernelError::Input { path: self.vmlinux.clone(), reason });
        }
        if moves(&machine.kernel, processor, &symbols)?
            && !machine.command_line.split_whitespace().any(|word| word == "nokaslr")
        {
            machine.command_line = format!("{} nokaslr", machine.command_line).trim_start().to_string();
        }
        let folder = Folder::create()?;
        let end = self.follow(&machine, &symbols, &folder, asked, say)?;
        let mut collector = Collector::new(&symbols);
        let before = if self.service_at.is_some() { Phase::Boot } else { Phase::Whole };
        collect(&folder.log(Phase::Boot), before, &mut collector)?;
        if self.service_at.is_some() {
            collect(&folder.log(Phase::Service), Phase::Service, &mut collector)?;
        }
        let seen = collector.seen();
        let Seen { blocks, different, .. } = seen;
        if blocks == 0 {
            let reason = "nothing of the kernel ran in the machine; hint: it may be damaged, or of another kernel than --vmlinux";
            return Err(KernelError::Input { path: machine.kernel, reason: reason.to_string() });
        }
        // The kernel replaces some instructions by better ones; of another kernel next to nothing
        // is the same.
        if different * 2 >= blocks {
            let reason = format!(
                "not the kernel that ran, or it never ran: of {blocks} blocks that ran in its range {different} are others; hint: it \
                 must be the file that the boot image was made of, and the kernel needs time to start"
            );
            return Err(KernelError::Input { path: self.vmlinux.clone(), reason });
        }
        let coverage = collector.finish(&self.scenario, How::Qemu).map_err(at)?;
        Ok(Recorded { coverage, seen, totals: symbols.totals(), end })
    }

    /// Runs the machine until the end of the scenario.
    fn follow(
        &self,
        machine: &Machine,
        symbols: &Symbols,
        folder: &Folder,
        asked: &dyn Fn() -> bool,
        say: &mut dyn FnMut(&str),
    ) -> Result<End, KernelError> {
        let ranges = symbols.ranges().map(|range| format!("{:#x}+{:#x}", range.start, range.end - range.start));
        let (monitor, errors) = (folder.0.join("monitor"), folder.0.join("errors"));
        let listener = UnixListener::bind(&monitor).map_err(io_at(&monitor))?;
        let mut command = machine.command()?;
        command.args(["-d", "in_asm", "-dfilter", &ranges.join(","), "-D"]).arg(folder.log(Phase::Boot));
        command.arg("-qmp").arg(format!("unix:{}", monitor.display()));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(File::create(&errors).map_err(io_at(&errors))?);
        let mut running = Running(command.spawn().map_err(failed)?);
        let console = running.0.stdout.take().ok_or_else(|| failed(std::io::Error::other("it has no console")))?;
        let lines = console_lines(console, LINE_BYTES_MAX).map_err(failed)?;
        let start = Instant::now();
        let mut awaited = self.service_at.as_deref();
        let until = |line: &str| self.until.as_ref().is_some_and(|text| line.contains(text));
        let ended = loop {
            folder.check()?;
            if asked() {
                break End::Asked;
            }
            match lines.recv_timeout(machine.deadline.saturating_sub(start.elapsed()).min(LOOK)) {
                Ok(line) => {
                    let line = String::from_utf8_lossy(&line);
                    say(line.trim_end());
                    match awaited {
                        Some(text) if line.contains(text) => {
                            awaited = None;
                            Monitor::accept(&listener)?.switch(&folder.log(Phase::Service))?;
                        }
                        None if until(&line) => break End::Said,
                        _ => {}
                    }
                }
                Err(RecvTimeoutError::Timeout) if start.elapsed() >= machine.deadline => break End::Deadline,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break End::PoweredOff,
            }
        };
        if ended == End::PoweredOff {
            let status = running.0.wait().map_err(failed)?;
            if !status.success() {
                return Err(refused(status.to_string(), &tool::tail(&errors)));
            }
        }
        // What it had no room for it did not tell.
        folder.check()?;
        drop(running);
        match awaited {
            Some(text) => Err(KernelError::Recording {
                reason: format!("the console never said '{text}', so that the service did not begin"),
            }),
            None => Ok(ended),
        }
    }
}

fn refused(status: String, tail: &str) -> KernelError {
    KernelError::Tool { program: "QEMU".to_string(), status, tail: tail.to_string() }
}

/// Whether a kernel may choose where it runs. One that cannot would give the word against it to its
/// first program.
fn moves(kernel: &Path, processor: Processor, symbols: &Symbols) -> Result<bool, KernelError> {
    if processor == Processor::Aarch64 {
        return Ok(["kaslr_init", "kaslr_early_init"].iter().any(|name| symbols.contains(name)));
    }
    let mut header = Vec::new();
    let file = File::open(kernel).map_err(io_at(kernel))?;
    file.take(RELOCATABLE_OFFSET as u64 + 1).read_to_end(&mut header).map_err(io_at(kernel))?;
    Ok(header.get(RELOCATABLE_OFFSET).is_some_and(|byte| *byte != 0))
}

/// Reads a log, in pieces.
fn collect(path: &Path, phase: Phase, collector: &mut Collector) -> Result<(), KernelError> {
    let mut file = File::open(path).map_err(io_at(path))?;
    let mut parser = LogParser::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => parser.push(&piece[..count], &mut |address, bytes| collector.block(address, bytes, phase)),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(io_at(path)(error)),
        }
    }
    parser.finish(&mut |address, bytes| collector.block(address, bytes, phase));
    Ok(())
}

/// A folder for one scenario that is ours alone; it is removed with all that is in it.
struct Folder(PathBuf);

impl Folder {
    fn create() -> Result<Self, KernelError> {
        let base = std::env::temp_dir();
        for number in 0..1000u32 {
            let path = base.join(format!("runnel-record-{}-{number}", std::process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io_at(path)(error)),
            }
        }
        Err(KernelError::Recording { reason: format!("{}: cannot make a folder of its own", base.display()) })
    }

    fn log(&self, phase: Phase) -> PathBuf {
        self.0.join(if phase == Phase::Service { "service" } else { "boot" })
    }

    /// Whether the logs are not too large, and there was room for them.
    fn check(&self) -> Result<(), KernelError> {
        let bytes = |phase| fs::metadata(self.log(phase)).map_or(0, |metadata| metadata.len());
        if bytes(Phase::Boot) + bytes(Phase::Service) > LOG_BYTES_MAX {
            let reason = format!("QEMU's log has more than {} GiB", LOG_BYTES_MAX >> 30);
            return Err(KernelError::Recording { reason });
        }
        let room = statvfs(&self.0).map_err(|error| io_at(&self.0)(error.into()))?;
        if room.f_bavail.saturating_mul(room.f_frsize) < ROOM_BYTES_MIN {
            let reason = format!(
                "{}: its disk is full, so that QEMU's log is not whole; hint: TMPDIR=DIR puts it elsewhere",
                self.0.display()
            );
            return Err(KernelError::Recording { reason });
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// QEMU's monitor, which it has connected to our socket when it started.
struct Monitor(BufReader<UnixStream>);

impl Monitor {
    /// The connection. Only for a machine that has said something: it is made before.
    fn accept(listener: &UnixListener) -> Result<Self, KernelError> {
        let (stream, _) = listener.accept().map_err(broken)?;
        stream.set_read_timeout(Some(ANSWER)).map_err(broken)?;
        let mut monitor = Self(BufReader::new(stream));
        monitor.answer()?;
        monitor.ask(&serde_json::json!({ "execute": "qmp_capabilities" }))?;
        Ok(monitor)
    }

    /// Lets the machine log all that it runs from now on in another file.
    fn switch(&mut self, log: &Path) -> Result<(), KernelError> {
        self.ask(&serde_json::json!({ "execute": "stop" }))?;
        self.command(&format!("logfile \"{}\"", log.display()))?;
        // Blocks that jump to each other directly are others than those that do not: none that is
        // there is used again.
        self.command("log in_asm,nochain")?;
        self.ask(&serde_json::json!({ "execute": "cont" }))?;
        Ok(())
    }

    fn command(&mut self, line: &str) -> Result<(), KernelError> {
        let said = self
            .ask(&serde_json::json!({ "execute": "human-monitor-command", "arguments": { "command-line": line } }))?;
        match said.as_str() {
            Some("") => Ok(()),
            _ => Err(refused(format!("its monitor refuses '{line}'"), &said.to_string())),
        }
    }

    fn ask(&mut self, question: &serde_json::Value) -> Result<serde_json::Value, KernelError> {
        self.0.get_mut().write_all(format!("{question}\n").as_bytes()).map_err(broken)?;
        loop {
            let mut answer = self.answer()?;
            if let Some(error) = answer.get("error") {
                return Err(refused(format!("its monitor refuses {question}"), &error.to_string()));
            }
            // What happens meanwhile is told too.
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    fn answer(&mut self) -> Result<serde_json::Value, KernelError> {
        let mut line = Vec::new();
        self.0.by_ref().take(ANSWER_BYTES_MAX).read_until(b'\n', &mut line).map_err(broken)?;
        serde_json::from_slice(&line).map_err(|error| broken(error.into()))
    }
}

fn broken(error: std::io::Error) -> KernelError {
    refused(format!("its monitor: {error}"), "")
}
