//! What /proc says about one process or thread.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use nix::unistd::Pid;
use rustix::time::{ClockId, clock_gettime};

use crate::file_id::FileId;

/// The parts of /proc/PID/status that the engine needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Process (thread group) that the thread belongs to.
    pub(crate) group: i32,
    /// Thread that traces it; 0 if none does.
    pub(crate) tracer: i32,
    /// Its own process ends, or has ended and waits for other threads.
    pub(crate) is_dead: bool,
    /// Signals sent to this thread alone that it has not got yet; bit N-1 is signal N.
    pub(crate) pending: u64,
    /// Signals sent to the process that no thread has got yet.
    pub(crate) shared: u64,
    /// Signals that the process has handlers for, and those that it ignores.
    pub(crate) caught: u64,
    pub(crate) ignored: u64,
    /// Signals that it blocks.
    pub(crate) blocked: u64,
}

impl State {
    /// Reads the state of a thread.
    pub(crate) fn read(tid: Pid) -> io::Result<State> {
        Ok(State::parse(&fs::read_to_string(format!("/proc/{tid}/status"))?))
    }

    fn parse(text: &str) -> State {
        let set = |value| u64::from_str_radix(value, 16).unwrap_or(0);
        let mut state = State::default();
        for line in text.lines() {
            let Some((name, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            match name {
                "Tgid" => state.group = value.parse().unwrap_or(0),
                "TracerPid" => state.tracer = value.parse().unwrap_or(0),
                "State" => state.is_dead = value.starts_with(['Z', 'X']),
                "SigPnd" => state.pending = set(value),
                "ShdPnd" => state.shared = set(value),
                "SigBlk" => state.blocked = set(value),
                "SigCgt" => state.caught = set(value),
                "SigIgn" => state.ignored = set(value),
                _ => {}
            }
        }
        state
    }

    /// Whether `signal` will certainly be delivered to this thread next.
    pub(crate) fn will_get(&self, signal: i32) -> bool {
        self.pending & !self.blocked & bit(signal) != 0
    }

    /// Whether some signal that means something waits to be delivered to this thread.
    pub(crate) fn will_get_any(&self) -> bool {
        (self.pending | self.shared) & !self.blocked & !self.dropped() != 0
    }

    /// Whether a signal means nothing to the process. Without a tracer the kernel drops such a
    /// signal when it is sent.
    pub(crate) fn drops(&self, signal: i32) -> bool {
        self.dropped() & bit(signal) != 0
    }

    fn dropped(&self) -> u64 {
        let by_default = bit(libc::SIGCHLD) | bit(libc::SIGURG) | bit(libc::SIGWINCH);
        self.ignored | (by_default & !self.caught)
    }
}

/// A signal in a set of them.
fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The file that a process executes.
pub(crate) fn executable(pid: Pid) -> io::Result<FileId> {
    FileId::of(Path::new(&format!("/proc/{pid}/exe")))
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// Whether this process may trace every other (CAP_SYS_PTRACE); then traced programs keep the
/// privileges of their files.
pub(crate) fn may_trace_all() -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|value| u64::from_str_radix(value.trim(), 16).ok());
    effective.is_some_and(|capabilities| capabilities & (1 << CAP_SYS_PTRACE) != 0)
}

/// Whether a program file gives privileges: set-user-id, set-group-id, capabilities, on a mount
/// that lets them.
pub(crate) fn has_privileges(path: &Path) -> bool {
    use rustix::fs::{StatVfsMountFlags, statvfs};
    if statvfs(path).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::NOSUID)) {
        return false;
    }
    const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
    let set_id = fs::metadata(path).is_ok_and(|metadata| metadata.mode() & SET_ID != 0);
    set_id || rustix::fs::getxattr(path, "security.capability", &mut [0u8; 64]).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_interest_are_read() {
        let text = "Name:\tx\nState:\tt (tracing stop)\nTgid:\t70\nSigPnd:\t0000000000000010\nSigBlk:\t0\n";
        let state = State::parse(text);
        assert_eq!((state.group, state.is_dead), (70, false));
        assert!(state.will_get(libc::SIGTRAP) && !state.will_get(libc::SIGINT));
        assert!(!State { blocked: 0x10, ..state }.will_get(libc::SIGTRAP));
        assert!(State::parse("State:\tZ (zombie)\n").is_dead);
        let state = State::parse("ShdPnd:\t1\nSigBlk:\t2\nSigIgn:\t4\nSigCgt:\t10000\n");
        assert!(state.will_get_any() && state.drops(3) && !state.drops(17) && !state.drops(2));
        assert!(State::default().drops(libc::SIGWINCH) && !State::default().will_get_any());
        assert!(!State::parse("ShdPnd:\t10000\n").will_get_any(), "a child's end that nobody wants to know of");
    }

    #[test]
    fn our_own_group_is_our_process() {
        assert_eq!(State::read(Pid::this()).expect("readable").group, Pid::this().as_raw());
    }
}
