//! A device to try a kernel on: QEMU without hardware support, a console, and a deadline.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::KernelError;

/// Longest line of a console that is kept.
const LINE_BYTES_MAX: u64 = 1 << 16;

/// Lines that may wait.
const LINES_WAITING_MAX: usize = 1024;

/// What is started.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The kernel (bzImage).
    pub kernel: PathBuf,
    /// Its initial file system.
    pub initramfs: PathBuf,
    /// Its command line.
    pub command_line: String,
    /// A disk, `vda`; what is written to it is gone afterwards.
    pub disk: Option<PathBuf>,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Processors.
    pub processors: u32,
    /// When a machine that still runs counts as hung.
    pub deadline: Duration,
}

/// What a machine did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// All that it wrote.
    pub console: String,
    /// Whether it ended by itself.
    pub ended: bool,
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Machine {
    /// Starts the machine and waits until it powers off, or for its deadline.
    ///
    /// # Errors
    /// QEMU cannot be started.
    pub fn run(&self) -> Result<Boot, KernelError> {
        let program = "qemu-system-x86_64";
        let failed = |error: std::io::Error| KernelError::Tool {
            program: program.to_string(),
            status: error.to_string(),
            tail: "hint: apt-get install qemu-system-x86".to_string(),
        };
        let mut command = self.command(program);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut running = Running(command.spawn().map_err(failed)?);
        let console = running.0.stdout.take().ok_or_else(|| failed(std::io::Error::other("it has no console")))?;
        let lines = lines(console).map_err(failed)?;
        let end = Instant::now() + self.deadline;
        let mut boot = Boot { console: String::new(), ended: false };
        loop {
            match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => boot.console.push_str(&String::from_utf8_lossy(&line)),
                Err(RecvTimeoutError::Disconnected) => {
                    boot.ended = true;
                    return Ok(boot);
                }
                Err(RecvTimeoutError::Timeout) => return Ok(boot),
            }
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["-M", "q35", "-accel", "tcg", "-m", &self.memory_mib.to_string()]);
        command.args(["-smp", &self.processors.to_string(), "-cpu", "max"]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"]);
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.initramfs);
        command.args(["-append", &self.command_line]);
        command.args(["-netdev", "user,id=net,restrict=on", "-device", "virtio-net-pci,netdev=net"]);
        if let Some(disk) = &self.disk {
            command.arg("-drive").arg(drive(disk));
        }
        command
    }
}

fn drive(disk: &Path) -> String {
    // QEMU takes a doubled comma for one.
    format!("file={},format=raw,if=virtio,snapshot=on", disk.display().to_string().replace(',', ",,"))
}

/// The lines of a console, read by a thread of its own so that the wait has a deadline.
fn lines(console: impl Read + Send + 'static) -> std::io::Result<Receiver<Vec<u8>>> {
    let (said, hears) = sync_channel(LINES_WAITING_MAX);
    let read = move || {
        let mut reader = BufReader::new(console);
        loop {
            let mut line = Vec::new();
            match reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if said.send(line).is_err() => return,
                Ok(_) => {}
            }
        }
    };
    std::thread::Builder::new().name("console".into()).spawn(read)?;
    Ok(hears)
}
