//! Page faults one by one, without root.
//!
//! On a fault in a mapped file the kernel also maps all pages of the surrounding 64 KiB that are in
//! memory (`fault_around_bytes`). Page faults so show windows and not pages, and a plan learned
//! from them fetches up to half as much again as is touched. The kernel maps single pages in
//! mappings that a userfaultfd watches for writes. So a followed program is made to open one, at
//! its first mapping of a file. We take it over (`pidfd_getfd`), the program closes its own, and we
//! register every mapping of a file while the thread that made it is stopped. No page is ever
//! protected, so the program never waits for us; a kernel with `UFFD_FEATURE_WP_ASYNC` (Linux 6.7)
//! would not wait even then. `fault_around_bytes` itself is in debugfs, for root, and for all
//! programs at once.
//!
//! A process with seccomp filters of its own is left alone: they may kill it for a call that it
//! would not have made. Its faults show windows.
//!
//! Layouts are those of `include/uapi/linux/userfaultfd.h` and of ioctl_userfaultfd(2).

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use {
    crate::arch::{Arch, Native},
    crate::ptrace::{EVENT_STOP, INFO_EXIT, call_info, request, wait_for},
    nix::unistd::Pid,
};

/// `UFFD_USER_MODE_ONLY`, which asks for no privileges.
const USER_MODE_ONLY: i32 = 1;
/// `UFFD_FEATURE_WP_ASYNC`: mappings of any kind may be watched.
const FEATURE_WP_ASYNC: u64 = 1 << 15;
/// `_IOWR(0xaa, 0x3f, struct uffdio_api)` and `_IOWR(0xaa, 0x00, struct uffdio_register)`.
const IOCTL_API: u64 = 0xc018_aa3f;
const IOCTL_REGISTER: u64 = 0xc020_aa00;
const API: u64 = 0xaa;
/// `UFFDIO_REGISTER_MODE_WP`.
const MODE_WRITE_PROTECT: u64 = 2;

/// Threads whose process is remembered; then all are forgotten.
const THREADS_MAX: usize = 4096;

const PAGE: u64 = 4096;

/// Whether this kernel can do it.
///
/// # Errors
/// Why not.
pub fn probe() -> io::Result<()> {
    // SAFETY: the call takes a number and gives a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
    Watch::new(owned(fd)?).map(drop)
}

/// The processes of a tree, with what watches them.
#[derive(Debug, Default)]
pub(crate) struct Exact {
    /// By process; `None` where it did not work.
    watches: HashMap<u32, Option<Watch>>,
    processes: HashMap<u32, u32>,
    /// Filters of a thread that has installed none itself; `None` if this kernel does not say.
    filters: Option<u32>,
}

/// A thread ended instead of making a call: its wait status.
#[derive(Debug)]
pub(crate) struct Ended(pub(crate) i32);

impl Exact {
    /// A thread has just executed the first program, under the filters of those who started it.
    pub(crate) fn begin(&mut self, thread: u32) {
        self.filters = filters(thread);
    }

    /// A thread stands where it has mapped a file at `mapped`. Gives the addresses where faults
    /// come one by one from now on.
    pub(crate) fn mapped(&mut self, thread: u32, mapped: Range<u64>) -> Result<Vec<Range<u64>>, Ended> {
        let process = self.process(thread);
        if let Some(watch) = self.watches.get(&process) {
            let watched = watch.as_ref().is_some_and(|watch| watch.register(&mapped).is_ok());
            return Ok(if watched { vec![mapped] } else { Vec::new() });
        }
        let is_free = self.filters.is_some() && filters(thread) == self.filters;
        let watch = if is_free { open(thread, process)? } else { None };
        // What it mapped before: itself, and its interpreter.
        let maps =
            watch.as_ref().map_or_else(Vec::new, |_| fs::read(format!("/proc/{process}/maps")).unwrap_or_default());
        let files = maps.split(|byte| *byte == b'\n').filter_map(file_mapping);
        let watched = files.filter(|range| watch.as_ref().is_some_and(|watch| watch.register(range).is_ok())).collect();
        self.watches.insert(process, watch);
        Ok(watched)
    }

    /// A process has new memory, or is gone.
    pub(crate) fn forget(&mut self, thread: u32) {
        self.watches.remove(&thread);
        self.processes.remove(&thread);
    }

    fn process(&mut self, thread: u32) -> u32 {
        if self.processes.len() >= THREADS_MAX {
            self.processes.clear();
        }
        *self.processes.entry(thread).or_insert_with(|| process_of(thread))
    }
}

/// The process of a thread.
pub fn process_of(thread: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(thread)
}

/// Number of the seccomp filters that a thread is under; Linux 5.9 and later. None also in the
/// strict mode, which has no filters.
fn filters(thread: u32) -> Option<u32> {
    filters_of(&fs::read_to_string(format!("/proc/{thread}/status")).ok()?)
}

fn filters_of(status: &str) -> Option<u32> {
    /// `SECCOMP_MODE_STRICT`.
    const STRICT: u32 = 1;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse::<u32>().ok();
    (field("Seccomp:")? != STRICT).then_some(())?;
    field("Seccomp_filters:")
}

/// A userfaultfd of another process.
#[derive(Debug)]
struct Watch(OwnedFd);

impl Watch {
    fn new(fd: OwnedFd) -> io::Result<Watch> {
        // Version, features, and the calls that it then knows.
        let mut api = [API, FEATURE_WP_ASYNC, 0];
        // SAFETY: the kernel reads and writes the 24 bytes of `api`.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), IOCTL_API as _, api.as_mut_ptr()) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(Watch(fd)) }
    }

    fn register(&self, range: &Range<u64>) -> io::Result<()> {
        let bytes = range.end.saturating_sub(range.start).next_multiple_of(PAGE);
        let mut request = [range.start, bytes, MODE_WRITE_PROTECT, 0];
        // SAFETY: the kernel reads and writes the 32 bytes of `request`; the range is of the other
        // process.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), IOCTL_REGISTER as _, request.as_mut_ptr()) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Making a thread call is not known for this processor.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn open(_: u32, _: u32) -> Result<Option<Watch>, Ended> {
    Ok(None)
}

/// Makes a thread, which stands behind a system call, open a userfaultfd for us. Afterwards it
/// stands there as if nothing had been.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn open(thread: u32, process: u32) -> Result<Option<Watch>, Ended> {
    let tid = Pid::from_raw(thread as i32);
    let Ok(before) = Native::registers(tid) else { return Ok(None) };
    let mut held = Held::default();
    let fd = make_call(thread, &before, libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY, &mut held)?;
    let watch = if fd >= 0 {
        let taken = take(process, fd as i32).and_then(Watch::new);
        make_call(thread, &before, libc::SYS_close, fd as i32, &mut held)?;
        taken.ok()
    } else {
        None
    };
    // If the thread is gone, the next wait says so.
    let _ = Native::set_registers(tid, &before);
    for signal in held.signals {
        // SAFETY: the call takes numbers only. A thread that is gone needs no signal.
        unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
    }
    if held.is_stopped {
        // It reports again, when it goes on, whether its process is stopped.
        let _ = request(libc::PTRACE_INTERRUPT, tid, 0);
    }
    Ok(watch)
}

/// What came while a thread made a call for us.
#[derive(Default)]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
struct Held {
    /// Signals that it did not get.
    signals: Vec<i32>,
    /// Whether its process was stopped, or continued.
    is_stopped: bool,
}

/// Makes a thread, which stands behind a system call that it made with the registers `before`, make
/// another with one argument. Signals that arrive meanwhile are held back.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn make_call(
    thread: u32,
    before: &<Native as Arch>::Registers,
    number: i64,
    argument: i32,
    held: &mut Held,
) -> Result<i64, Ended> {
    let again = Native::call_again(before, number, argument as u64);
    let tid = Pid::from_raw(thread as i32);
    if Native::set_registers(tid, &again).is_err() {
        return Ok(-1);
    }
    loop {
        if request(libc::PTRACE_SYSCALL, tid, 0).is_err() {
            // Killed: the wait reports how.
            let _ = request(libc::PTRACE_CONT, tid, 0);
        }
        let Ok((_, status)) = wait_for(thread as i32) else { return Ok(-1) };
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            return Err(Ended(status));
        }
        if libc::WSTOPSIG(status) != libc::SIGTRAP | 0x80 {
            match status >> 16 {
                0 => held.signals.push(libc::WSTOPSIG(status)),
                EVENT_STOP => held.is_stopped = true,
                _ => {}
            }
            continue;
        }
        if let Some(info) = call_info(thread).filter(|info| info[0] & 0xff == INFO_EXIT) {
            return Ok(info[3] as i64);
        }
    }
}

/// The descriptor `fd` of another process, as one of ours.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn take(process: u32, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: both calls take numbers and give a descriptor.
    let pidfd = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) })?;
    // SAFETY: as above.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) })
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Addresses of a line of /proc/PID/maps, if a file lies there.
fn file_mapping(line: &[u8]) -> Option<Range<u64>> {
    let line = str::from_utf8(line).ok()?;
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let path = fields.nth(4).filter(|path| path.starts_with('/') && !path.starts_with("/dev/"))?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    (!path.is_empty()).then_some(number(start)?..number(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_counted_unless_the_mode_is_strict() {
        assert_eq!(filters_of("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t3\n"), Some(3));
        for other in ["Seccomp:\t1\nSeccomp_filters:\t0\n", "Seccomp:\t2\n", ""] {
            assert_eq!(filters_of(other), None, "{other}");
        }
    }

    #[test]
    fn mappings_of_files_are_found() {
        let line = b"7f0b1c026000-7f0b1c17b000 r--p 00026000 fe:01 1234                       /usr/lib/a b.so";
        assert_eq!(file_mapping(line), Some(0x7f0b1c026000..0x7f0b1c17b000));
        for other in [
            "7ffd0-7ffd1 r-xp 00000000 00:00 0                          [vdso]",
            "7ffd0-7ffd1 rw-p 00000000 00:00 0",
            "7ffd0-7ffd1 rw-s 00000000 00:05 9 /dev/zero",
            "7ffd0 r-xp",
            "",
        ] {
            assert_eq!(file_mapping(other.as_bytes()), None, "{other}");
        }
    }
}
