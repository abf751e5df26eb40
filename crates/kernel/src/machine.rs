//! A machine that starts kernels: QEMU without hardware support, a console, and a deadline.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::{KernelError, Processor, tool};

/// Longest line of a console that is kept.
pub(crate) const LINE_BYTES_MAX: u64 = 1 << 16;

/// Lines that may wait.
const LINES_WAITING_MAX: usize = 1024;

/// What is started.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The kernel: a bzImage, or an Image or Image.gz of AArch64, which says what kind of machine
    /// is started.
    pub kernel: PathBuf,
    /// Its initial file system; an empty path for none.
    pub initramfs: PathBuf,
    /// Its command line.
    pub command_line: String,
    /// Disks, `vda` and so on; what is written to them is gone afterwards.
    pub disks: Vec<PathBuf>,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Processors.
    pub processors: u32,
    /// Whether its clock counts instructions, one each nanosecond, instead of time: what it
    /// measures is the same in every run.
    pub counted: bool,
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

/// A machine, killed when it is dropped.
pub(crate) struct Running(pub(crate) Child);

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
        self.run_with(&[])
    }

    /// As [`Machine::run`], and a machine that restarts goes on instead of ending.
    ///
    /// # Errors
    /// QEMU cannot be started.
    pub fn run_restarting(&self) -> Result<Boot, KernelError> {
        self.run_with(&["-action", "reboot=reset"])
    }

    /// As [`Machine::run`]; what was in its memory at its end is then in `file`, by physical
    /// address.
    ///
    /// # Errors
    /// QEMU cannot be started.
    pub fn run_keeping_memory(&self, file: &Path) -> Result<Boot, KernelError> {
        let path = file.display().to_string().replace(',', ",,");
        let memory = format!("memory-backend-file,id=memory,size={}M,mem-path={path},share=on", self.memory_mib);
        self.run_with(&["-object", &memory, "-machine", "memory-backend=memory"])
    }

    fn run_with(&self, more: &[&str]) -> Result<Boot, KernelError> {
        let mut command = self.command()?;
        command.args(more).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut running = Running(command.spawn().map_err(failed)?);
        let console = running.0.stdout.take().ok_or_else(|| failed(std::io::Error::other("it has no console")))?;
        let lines = console_lines(console, LINE_BYTES_MAX).map_err(failed)?;
        let start = Instant::now();
        let mut boot = Boot { console: String::new(), ended: false };
        loop {
            match lines.recv_timeout(self.deadline.saturating_sub(start.elapsed())) {
                Ok(line) => boot.console.push_str(&String::from_utf8_lossy(&line)),
                Err(RecvTimeoutError::Disconnected) => {
                    boot.ended = true;
                    return Ok(boot);
                }
                Err(RecvTimeoutError::Timeout) => return Ok(boot),
            }
        }
    }

    /// The processor of its kernel.
    ///
    /// # Errors
    /// As [`Processor::of_image`].
    pub(crate) fn processor(&self) -> Result<Processor, KernelError> {
        Processor::of_image(&self.kernel)
    }

    /// What starts it, with the console on standard output.
    ///
    /// # Errors
    /// The kernel is no boot image, or QEMU is not installed.
    pub(crate) fn command(&self) -> Result<Command, KernelError> {
        let processor = self.processor()?;
        let (program, package) = processor.qemu();
        tool::require(&[program], package)?;
        // It ends with us, however we end.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", program]);
        command.args(processor.machine(self.counted));
        command.args(["-m", &self.memory_mib.to_string(), "-smp", &self.processors.to_string()]);
        // One thread: with several the emulator may run a trap that the kernel has already taken
        // out of its code again.
        command.args(["-accel", "tcg,thread=single"]);
        if self.counted {
            command.args(["-icount", "shift=0,sleep=off"]);
        }
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"]);
        command.arg("-kernel").arg(&self.kernel);
        if !self.initramfs.as_os_str().is_empty() {
            command.arg("-initrd").arg(&self.initramfs);
        }
        command.args(["-append", &self.command_line]);
        command.args(["-netdev", "user,id=net,restrict=on", "-device", "virtio-net-pci,netdev=net"]);
        for disk in &self.disks {
            command.arg("-drive").arg(drive(disk));
        }
        Ok(command)
    }
}

fn drive(disk: &Path) -> String {
    // QEMU takes a doubled comma for one.
    format!("file={},format=raw,if=virtio,snapshot=on", disk.display().to_string().replace(',', ",,"))
}

/// QEMU did not start.
pub(crate) fn failed(error: std::io::Error) -> KernelError {
    KernelError::Tool { program: "QEMU".to_string(), status: error.to_string(), tail: String::new() }
}

/// The lines of a console, read by a thread of its own so that the wait for one has a deadline.
/// Longer ones come in parts.
///
/// # Errors
/// There is no thread for it.
pub fn console_lines(console: impl Read + Send + 'static, line_bytes_max: u64) -> std::io::Result<Receiver<Vec<u8>>> {
    let (sender, lines) = sync_channel(LINES_WAITING_MAX);
    let read = move || {
        let mut reader = BufReader::new(console);
        loop {
            let mut line = Vec::new();
            match reader.by_ref().take(line_bytes_max).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                // The receiver is gone: nobody wants to know.
                Ok(_) if sender.send(line).is_err() => return,
                Ok(_) => {}
            }
        }
    };
    std::thread::Builder::new().name("console".into()).spawn(read)?;
    Ok(lines)
}
