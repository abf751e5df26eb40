//! The memory of another process, by /proc/PID/mem. This works while its threads run. Writes to
//! read-only code make a private copy of the page, as debuggers expect.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use nix::unistd::Pid;

use crate::arch::{BREAKPOINT, CODE_BYTES_MAX};

/// As many bytes as the breakpoint instruction has.
pub(crate) type Code = [u8; CODE_BYTES_MAX];

/// One address space. It is the one of the moment when this was opened: an exec of the process
/// leads to another.
#[derive(Debug)]
pub(crate) struct Memory(File);

impl Memory {
    /// Opens the memory of a process that may be traced.
    pub(crate) fn open(pid: Pid) -> io::Result<Memory> {
        Ok(Memory(OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?))
    }

    /// Reads exactly as many bytes as `buffer` has.
    pub(crate) fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buffer, address)
    }

    /// Four numbers of `bytes` bytes (4 or 8) each, in the order of this machine.
    pub(crate) fn four_words(&self, address: u64, bytes: usize) -> io::Result<[u64; 4]> {
        let mut buffer = [0u8; 32];
        self.read(address, &mut buffer[..4 * bytes])?;
        Ok([0, 1, 2, 3].map(|index| {
            let word = &buffer[index * bytes..][..bytes];
            word.iter().enumerate().fold(0, |sum, (place, byte)| {
                let power = if cfg!(target_endian = "big") { bytes - 1 - place } else { place };
                sum | u64::from(*byte) << (8 * power)
            })
        }))
    }

    /// The instruction bytes at `address` that a breakpoint would replace.
    pub(crate) fn code(&self, address: u64) -> io::Result<Code> {
        let mut code = Code::default();
        self.read(address, &mut code[..BREAKPOINT.len()])?;
        Ok(code)
    }

    /// Puts instruction bytes back where a breakpoint stands; anything else there is not ours.
    pub(crate) fn restore(&self, address: u64, code: &Code) {
        // Memory that cannot be read is gone, with the library or with the process.
        if self.code(address).is_ok_and(|current| current == breakpoint_code()) {
            let _ = self.set_code(address, code);
        }
    }

    /// Puts instruction bytes back, or a breakpoint there.
    pub(crate) fn set_code(&self, address: u64, code: &Code) -> io::Result<()> {
        self.0.write_all_at(&code[..BREAKPOINT.len()], address)
    }
}

/// A breakpoint in the form of [`Memory::code`].
pub(crate) fn breakpoint_code() -> Code {
    let mut code = Code::default();
    code[..BREAKPOINT.len()].copy_from_slice(BREAKPOINT);
    code
}
