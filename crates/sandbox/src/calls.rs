//! The seccomp filter: it allows the system calls of a role and refuses the rest.
//!
//! Calls that a program of ours would make only after others had taken it over fail with EPERM.
//! Calls that are in no list fail with ENOSYS, as on a kernel that lacks them: C libraries try new
//! calls first, and fall back to an older one after that error alone. Nothing is killed: an
//! incomplete list must not end a server.
//!
//! The crate `syscalls` makes the filter, because it knows 32-bit ARM too. The crate `seccompiler`
//! installs it.

use std::io;

use rustix::io::Errno;
use syscalls::{Arch, Argument, Filter, Operator, Profile, Rule};

use crate::{Role, SandboxError};

/// Memory, threads, signals, time: what any program does.
const RUN: &[&str] = &[
    "arch_prctl",
    "brk",
    "capget",
    "clock_getres",
    "clock_getres_time64",
    "clock_gettime",
    "clock_gettime64",
    "clock_nanosleep",
    "clock_nanosleep_time64",
    "exit",
    "exit_group",
    "futex",
    "futex_time64",
    "futex_waitv",
    "get_robust_list",
    "get_tls",
    "getcpu",
    "getegid",
    "getegid32",
    "geteuid",
    "geteuid32",
    "getgid",
    "getgid32",
    "getgroups",
    "getgroups32",
    "getpgid",
    "getpgrp",
    "getpid",
    "getppid",
    "getpriority",
    "getrandom",
    "getrlimit",
    "getrusage",
    "getsid",
    "gettid",
    "gettimeofday",
    "getuid",
    "getuid32",
    "madvise",
    "membarrier",
    "mincore",
    "mlock",
    "mlock2",
    "mmap",
    "mmap2",
    "mprotect",
    "mremap",
    "munlock",
    "munmap",
    "nanosleep",
    "pause",
    "prlimit64",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigpending",
    "rt_sigprocmask",
    "rt_sigreturn",
    "rt_sigsuspend",
    "rt_sigtimedwait",
    "rt_sigtimedwait_time64",
    "sched_getaffinity",
    "sched_getparam",
    "sched_getscheduler",
    "sched_setaffinity",
    "sched_yield",
    "set_robust_list",
    "set_tid_address",
    "set_tls",
    "setpriority",
    "setrlimit",
    "sigaltstack",
    "sigreturn",
    "sysinfo",
    "tgkill",
    "time",
    "times",
    "tkill",
    "ugetrlimit",
    "umask",
    "uname",
    "breakpoint",
    "cacheflush",
];

/// Descriptors: reading, writing, waiting.
const DESCRIPTORS: &[&str] = &[
    "_llseek",
    "_newselect",
    "close",
    "close_range",
    "copy_file_range",
    "dup",
    "dup2",
    "dup3",
    "epoll_create",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "eventfd",
    "eventfd2",
    "fadvise64",
    "arm_fadvise64_64",
    "fallocate",
    "fcntl",
    "fcntl64",
    "fdatasync",
    "flock",
    "fstat",
    "fstat64",
    "fstatfs",
    "fstatfs64",
    "fsync",
    "ftruncate",
    "ftruncate64",
    "getdents",
    "getdents64",
    "lseek",
    "pidfd_open",
    "pipe",
    "pipe2",
    "poll",
    "ppoll",
    "ppoll_time64",
    "pread64",
    "preadv",
    "preadv2",
    "pselect6",
    "pselect6_time64",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "read",
    "readahead",
    "readv",
    "select",
    "sendfile",
    "sendfile64",
    "signalfd4",
    "splice",
    "sync_file_range",
    "arm_sync_file_range",
    "syncfs",
    "timerfd_create",
    "timerfd_gettime",
    "timerfd_gettime64",
    "timerfd_settime",
    "timerfd_settime64",
    "write",
    "writev",
];

/// Names: which of them, says Landlock.
const NAMES: &[&str] = &[
    "access",
    "chdir",
    "creat",
    "faccessat",
    "faccessat2",
    "fchdir",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "fgetxattr",
    "flistxattr",
    "fstatat64",
    "getcwd",
    "getxattr",
    "lgetxattr",
    "link",
    "linkat",
    "listxattr",
    "llistxattr",
    "lstat",
    "lstat64",
    "mkdir",
    "mkdirat",
    "newfstatat",
    "open",
    "openat",
    "openat2",
    "readlink",
    "readlinkat",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "stat",
    "stat64",
    "statfs",
    "statfs64",
    "statx",
    "symlink",
    "symlinkat",
    "truncate",
    "truncate64",
    "unlink",
    "unlinkat",
    "utimensat",
    "utimensat_time64",
];

/// Sockets that are there.
const CONNECTIONS: &[&str] = &[
    "accept",
    "accept4",
    "getpeername",
    "getsockname",
    "getsockopt",
    "recv",
    "recvfrom",
    "recvmmsg",
    "recvmmsg_time64",
    "recvmsg",
    "send",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "setsockopt",
    "shutdown",
];

/// New connections. A resolver binds its socket to any port; Landlock leaves no TCP port to bind
/// to.
const CONNECT: &[&str] = &["bind", "connect"];

/// Attributes of files of volumes, which say whose they are; not by path but below /proc/self/fd.
const ATTRIBUTES: &[&str] = &["fremovexattr", "fsetxattr", "removexattr", "setxattr"];

/// Calls of programs that unpack a file system, and of their processes.
const UNPACK: &[&str] = &[
    "alarm",
    "chmod",
    "chown",
    "chown32",
    "execve",
    "fchown",
    "fchown32",
    "fchownat",
    "fork",
    "fremovexattr",
    "fsetxattr",
    "futimesat",
    "kill",
    "lchown",
    "lchown32",
    "lremovexattr",
    "lsetxattr",
    "mknod",
    "mknodat",
    "prctl",
    "removexattr",
    "setitimer",
    "setpgid",
    "setxattr",
    "sigprocmask",
    "sync",
    "utime",
    "utimes",
    "vfork",
    "wait4",
    "waitid",
    "pidfd_send_signal",
];

/// Calls that only a program makes that others have taken over: a telling error, instead of
/// "not implemented".
const REFUSED: &[&str] = &[
    "add_key",
    "bind",
    "bpf",
    "chroot",
    "clone",
    "connect",
    "delete_module",
    "execve",
    "execveat",
    "finit_module",
    "fork",
    "fsopen",
    "init_module",
    "io_uring_setup",
    "kexec_load",
    "kill",
    "listen",
    "mount",
    "move_mount",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pidfd_getfd",
    "pivot_root",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "reboot",
    "setns",
    "socket",
    "socketpair",
    "umount2",
    "unshare",
    "userfaultfd",
    "vfork",
];

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// `CLONE_THREAD`.
const THREAD: u64 = 0x0001_0000;

/// `CLONE_FILES` of `unshare`: a thread gets a table of descriptors of its own.
const DESCRIPTOR_TABLE: u64 = 0x400;

/// The flags of `clone` that make name spaces.
const NAME_SPACES: u64 = 0x7e02_0000;

/// `PR_SET_NAME`, `PR_GET_NAME`, and `PR_SET_VMA`, by which allocators name their memory.
const PROCESS_CONTROLS: [u64; 3] = [15, 16, 0x5356_4d41];

/// Requests to descriptors: whether one is a terminal and how wide (TCGETS, TIOCGWINSZ), bytes
/// to read (FIONREAD), not to wait (FIONBIO), not to inherit (FIOCLEX), to share blocks of a file
/// (FICLONE), another descriptor of a FUSE device (FUSE_DEV_IOC_CLONE). Not TIOCSTI, which types
/// into a terminal.
const CONTROLS: [u64; 7] = [0x5401, 0x5413, 0x541b, 0x5421, 0x5451, 0x4004_9409, 0x8004_e500];

/// Families and kinds of sockets.
const UNIX: u64 = 1;
const INTERNET: [u64; 2] = [2, 10];
const STREAM: u64 = 1;
const DATAGRAM: u64 = 2;
/// The part of a kind beside flags.
const KIND: u64 = 0xf;

/// False if this kernel, or the container, has no seccomp, or the processor is one that no filter
/// is made for.
pub(crate) fn restrict(role: Role) -> Result<bool, SandboxError> {
    let Some(arch) = Arch::HERE else { return Ok(false) };
    let filter = Filter::new(&profile(role), arch)?;
    let instructions: Vec<_> = filter
        .instructions()
        .iter()
        .map(|step| seccompiler::sock_filter { code: step.code, jt: step.jt, jf: step.jf, k: step.k })
        .collect();
    match seccompiler::apply_filter_all_threads(&instructions) {
        Ok(()) => Ok(true),
        Err(seccompiler::Error::Seccomp(error)) if is_absent(&error) => Ok(false),
        Err(error) => Err(SandboxError::Seccomp(error)),
    }
}

/// Whether the kernel was built without filters, or something around us refuses them.
fn is_absent(error: &io::Error) -> bool {
    let absent = [Errno::NOSYS, Errno::INVAL, Errno::PERM, Errno::ACCESS];
    absent.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn profile(role: Role) -> Profile {
    let mut allowed: Vec<&str> = [RUN, DESCRIPTORS, NAMES].concat();
    let mut rules = Vec::new();
    match role {
        Role::Server | Role::RemoteServer => {
            allowed.extend(CONNECTIONS);
            allowed.extend(ATTRIBUTES);
            // How the runtime gets signals. Datagrams could be sent to any address.
            rules.push(allow_if("socketpair", vec![equal(0, UNIX), masked(1, KIND, STREAM)]));
        }
        Role::Archive | Role::Tree => {}
        Role::Converter => allowed.extend(UNPACK),
        Role::LocalMount | Role::RemoteMount => allowed.extend(CONNECTIONS),
    }
    if matches!(role, Role::RemoteMount | Role::RemoteServer) {
        allowed.extend(CONNECT);
        for family in INTERNET {
            for kind in [STREAM, DATAGRAM] {
                rules.push(allow_if("socket", vec![equal(0, family), masked(1, KIND, kind)]));
            }
        }
    }
    if matches!(role, Role::LocalMount | Role::RemoteMount) {
        rules.push(allow_if("unshare", vec![equal(0, DESCRIPTOR_TABLE)]));
    }
    rules.extend(CONTROLS.map(|control| allow_if("ioctl", vec![equal(1, control)])));
    if role == Role::Converter {
        rules.push(allow_if("clone", vec![masked(0, NAME_SPACES, 0)]));
    } else {
        rules.push(allow_if("clone", vec![masked(0, THREAD, THREAD)]));
        rules.extend(PROCESS_CONTROLS.map(|control| allow_if("prctl", vec![equal(0, control)])));
    }
    let refused: Vec<&str> = REFUSED.iter().filter(|name| !allowed.contains(name)).copied().collect();
    rules.push(rule(&refused, "SCMP_ACT_ERRNO", Some(EPERM)));
    rules.push(rule(&allowed, "SCMP_ACT_ALLOW", None));
    Profile {
        default_action: "SCMP_ACT_ERRNO".into(),
        default_errno_ret: Some(ENOSYS),
        architectures: Vec::new(),
        flags: Vec::new(),
        syscalls: rules,
    }
}

fn rule(names: &[&str], action: &str, errno_ret: Option<u32>) -> Rule {
    let names = names.iter().map(ToString::to_string).collect();
    Rule { names, action: action.into(), errno_ret, args: Vec::new() }
}

fn allow_if(name: &str, args: Vec<Argument>) -> Rule {
    Rule { names: vec![name.into()], action: "SCMP_ACT_ALLOW".into(), errno_ret: None, args }
}

/// The lower half of an argument is `value`: the kernel looks at no more of these.
fn equal(index: u32, value: u64) -> Argument {
    masked(index, u64::from(u32::MAX), value)
}

fn masked(index: u32, mask: u64, value: u64) -> Argument {
    Argument { index, value: mask, value_two: value, op: Operator::MaskedEq }
}

#[cfg(test)]
mod tests;
