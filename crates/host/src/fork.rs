//! A copy of this process, and another program in its place.

#![allow(unsafe_code)]

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::exit::Exit;

/// The two sides of [`fork`].
pub enum Forked {
    /// This process, which has a copy now.
    Parent(Copy),
    /// The copy.
    Child,
}

/// A copy that was made by [`fork`]. It runs on if this is dropped.
pub struct Copy {
    pid: Pid,
    handle: OwnedFd,
}

/// Copies this process, which must have one thread: a lock that another one holds would be held in
/// the copy for ever.
///
/// # Errors
/// There are several threads, or the system has no process or descriptor left.
pub fn fork() -> io::Result<Forked> {
    // Without /proc nobody can tell.
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, |tasks| tasks.count());
    if threads > 1 {
        return Err(io::Error::other(format!("this process runs {threads} threads already")));
    }
    // SAFETY: there is one thread, so the copy is whole.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Child => Ok(Forked::Child),
        ForkResult::Parent { child } => {
            // Not reaped yet, so the number is its own.
            let pid = rustix::process::Pid::from_raw(child.as_raw()).ok_or(io::ErrorKind::NotFound)?;
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(handle) => Ok(Forked::Parent(Copy { pid: child, handle })),
                Err(error) => {
                    let _ = nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL);
                    let _ = wait(child);
                    Err(error.into())
                }
            }
        }
    }
}

/// Replaces this process by the program in `file`, with this environment and these arguments, the
/// first of which is its name. It inherits the descriptors `inherited`, which [`inherited`] takes
/// there. Returns only if that failed.
pub fn execute(file: BorrowedFd<'_>, arguments: Vec<OsString>, inherited: &[BorrowedFd<'_>]) -> io::Error {
    for descriptor in inherited {
        if let Err(error) = fcntl_setfd(descriptor, FdFlags::empty()) {
            return error.into();
        }
    }
    let variable = |(name, value): (OsString, OsString)| [name, "=".into(), value].into_iter().collect();
    let environment: Vec<OsString> = std::env::vars_os().map(variable).collect();
    let text = |words: Vec<OsString>| -> Result<Vec<CString>, _> {
        words.into_iter().map(|word| CString::new(word.into_vec())).collect()
    };
    match text(arguments).and_then(|arguments| Ok((arguments, text(environment)?))) {
        Ok((arguments, environment)) => {
            match nix::unistd::execveat(file, c"", &arguments, &environment, AtFlags::AT_EMPTY_PATH) {
                Ok(never) => match never {},
                Err(error) => error.into(),
            }
        }
        Err(error) => error.into(),
    }
}

/// Takes a descriptor that this process got from the one that executed it. Programs that this
/// process executes do not get it.
///
/// # Errors
/// No descriptor has that number, or it is one of the standard streams.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number <= libc::STDERR_FILENO {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the number belongs to what this process was given and nothing has taken yet; if it is
    // no descriptor, that is an error of the first call, and nothing is closed.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_getfd(descriptor)?;
    fcntl_setfd(descriptor, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and whoever gave the number gave the descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

impl Copy {
    /// Sends a signal; no error if it has ended.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn send(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.handle, signal) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Whether it has ended, with all its threads.
    pub fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.handle, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Names of the threads that it still has, without those that have ended.
    pub fn threads(&self) -> Vec<String> {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{}/task", self.pid)) else { return Vec::new() };
        let names = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
        // The name is in parentheses, which it may hold itself; the state follows.
        let names = names.filter_map(|stat| {
            let (name, rest) = stat.rsplit_once(')')?;
            let has_ended = rest.trim_start().starts_with(['Z', 'X']);
            (!has_ended).then(|| name.split_once('(').map(|(_, name)| name.to_string()))?
        });
        names.collect()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Somebody else has waited for it.
    pub fn wait(self) -> io::Result<Exit> {
        wait(self.pid)
    }
}

/// Readable once it has ended.
impl AsFd for Copy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

fn wait(pid: Pid) -> io::Result<Exit> {
    loop {
        match waitpid(pid, None) {
            Ok(WaitStatus::Exited(_, code)) => return Ok(Exit::Code(code)),
            Ok(WaitStatus::Signaled(_, signal, _)) => return Ok(Exit::Signal(signal as i32)),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
