//! A process in our group that only blocks signals, and tells which of them it got.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::unistd::{ForkResult, Pid};

/// The witness process. It ends when this is dropped, or with this process.
#[derive(Debug)]
pub(super) struct Witness {
    pid: Pid,
    line: UnixStream,
}

impl Witness {
    /// Starts the process; it blocks the signals that the calling thread blocks.
    pub(super) fn start() -> io::Result<Witness> {
        let (line, other) = UnixStream::pair()?;
        let end = other.as_raw_fd();
        // SAFETY: the child only makes system calls on memory of its own, and never returns.
        match unsafe { nix::unistd::fork() }? {
            ForkResult::Child => watch(end),
            ForkResult::Parent { child } => Ok(Witness { pid: child, line }),
        }
    }

    /// Whether it got this signal as well; `None` if it is gone.
    pub(super) fn got(&mut self, signal: i32) -> Option<bool> {
        let mut answer = [0u8];
        self.line.write_all(&[signal as u8]).and_then(|()| self.line.read_exact(&mut answer)).ok()?;
        Some(answer[0] == 1)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // It ends when there is nobody to ask it.
        let _ = self.line.shutdown(std::net::Shutdown::Both);
        let _ = nix::sys::wait::waitpid(self.pid, None);
    }
}

/// Answers one byte for each byte that names a signal, until the line is closed.
fn watch(line: RawFd) -> ! {
    // SAFETY: system calls on a descriptor and variables of this frame; all of them may be called
    // after a fork.
    unsafe {
        // A process that waits for the end of a pipe of ours must not wait for this one.
        if line > 0 {
            libc::syscall(libc::SYS_close_range, 0, line - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, line + 1, libc::c_uint::MAX, 0);
        libc::prctl(libc::PR_SET_NAME, c"runnel-witness".as_ptr());
        let mut signal = 0u8;
        while libc::read(line, (&raw mut signal).cast(), 1) == 1 {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, signal.into());
            let now = std::mem::zeroed::<libc::timespec>();
            let got = u8::from(libc::sigtimedwait(&set, std::ptr::null_mut(), &now) == signal.into());
            libc::write(line, (&raw const got).cast(), 1);
        }
        libc::_exit(0)
    }
}
