//! Seccomp filters that stop a program at chosen system calls only: a dozen instructions of classic
//! BPF, written by hand. Filters from elsewhere, such as those of profiles, can be installed as
//! well.
//!
//! The filter answers a named call with `SECCOMP_RET_TRACE`: a stop for the tracer
//! ([`crate::follow`]) before the call. The filter tests arguments, so that mappings without a
//! file, the bulk of all `mmap`, never stop. On a stock kernel this replaces the paper's
//! `PTRACE_O_MMAPTRACE`.
//!
//! **A filter is for ever.** It cannot be removed, children inherit it, and without a tracer the
//! named calls fail with ENOSYS. So a program under a filter must be traced to its end. Learning
//! may do that, launching must not.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Which calls stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calls {
    /// Mappings of files.
    pub maps: Maps,
    /// Calls that always stop, by number.
    pub numbers: Vec<i64>,
}

/// Which mappings stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Maps {
    /// None.
    #[default]
    None,
    /// Mappings of files that code may run in.
    Executable,
    /// All of files.
    Files,
}

/// The call that maps a file.
#[cfg(not(target_arch = "arm"))]
pub const MMAP: i64 = libc::SYS_mmap;
/// The call that maps a file.
#[cfg(target_arch = "arm")]
pub const MMAP: i64 = libc::SYS_mmap2 as i64;

/// Bytes of which the last argument of [`MMAP`] is a multiple.
pub const MMAP_UNIT: u64 = if cfg!(target_arch = "arm") { 4096 } else { 1 };

/// The call that reads the names of a directory.
pub const GETDENTS: i64 = number(libc::SYS_getdents64);

/// Calls that read from a place given in their fourth argument.
pub const PLACED_READS: &[i64] = &[number(libc::SYS_pread64), number(libc::SYS_preadv)];

/// Calls that read from a descriptor.
pub const READS: &[i64] =
    &[number(libc::SYS_read), number(libc::SYS_pread64), number(libc::SYS_readv), number(libc::SYS_preadv)];

/// Calls with a path relative to a descriptor.
const RELATIVE: [i64; 5] = [
    number(libc::SYS_openat),
    FSTATAT,
    number(libc::SYS_statx),
    number(libc::SYS_faccessat),
    number(libc::SYS_faccessat2),
];

#[cfg(not(target_arch = "arm"))]
const FSTATAT: i64 = libc::SYS_newfstatat;
#[cfg(target_arch = "arm")]
const FSTATAT: i64 = number(libc::SYS_fstatat64);

/// Calls with a path that is the first argument: younger architectures have none. The first of them
/// opens.
#[cfg(target_arch = "x86_64")]
const OLD_LOOKUPS: &[i64] = &[libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access];
#[cfg(target_arch = "arm")]
const OLD_LOOKUPS: &[i64] =
    &[number(libc::SYS_open), number(libc::SYS_stat64), number(libc::SYS_lstat64), number(libc::SYS_access)];
#[cfg(not(any(target_arch = "x86_64", target_arch = "arm")))]
const OLD_LOOKUPS: &[i64] = &[];

/// Calls that open a path or look for one, and the one that reads names.
pub fn lookups() -> Vec<i64> {
    [OLD_LOOKUPS, &RELATIVE, &[GETDENTS]].concat()
}

/// Numbers of calls are as long as a word of the processor.
#[allow(clippy::unnecessary_cast)]
const fn number(call: libc::c_long) -> i64 {
    call as i64
}

/// Whether a call of [`lookups`] opens what it finds.
pub fn is_open(call: i64) -> bool {
    call == number(libc::SYS_openat) || OLD_LOOKUPS.first() == Some(&call)
}

/// Whether the path of a call of [`lookups`] is its second argument and relative to its first.
pub fn is_relative(call: i64) -> bool {
    RELATIVE.contains(&call)
}

/// `AUDIT_ARCH_X86_64`; calls of other kinds of programs (32 bits) are let through.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
/// `AUDIT_ARCH_AARCH64`.
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// `AUDIT_ARCH_ARM`.
#[cfg(target_arch = "arm")]
const ARCHITECTURE: u32 = 0x4000_0028;

/// Offsets in `struct seccomp_data`: the lower halves of its fields, on little-endian machines.
const AT_NUMBER: u32 = 0;
const AT_ARCHITECTURE: u32 = 4;
const AT_PROTECTION: u32 = 16 + 2 * 8;
const AT_FLAGS: u32 = 16 + 3 * 8;

const RETURN_TRACE: u32 = libc::SECCOMP_RET_TRACE;
const RETURN_ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

/// A filter, ready to be installed between fork and exec, where nothing may be allocated.
#[derive(Clone, Debug)]
pub struct Filter {
    program: Vec<libc::sock_filter>,
}

impl Filter {
    /// A filter for these calls.
    pub fn new(calls: &Calls) -> Filter {
        let mut program = vec![
            load(AT_ARCHITECTURE),
            skip_unless_equal(ARCHITECTURE, 1),
            // Here is where the right architecture goes on.
            jump(1),
            finish(RETURN_ALLOW),
            load(AT_NUMBER),
        ];
        for number in &calls.numbers {
            program.extend([skip_unless_equal(*number as u32, 1), finish(RETURN_TRACE)]);
        }
        let tests: &[libc::sock_filter] = match calls.maps {
            Maps::None => &[],
            Maps::Files => &[load(AT_FLAGS), skip_if_any(libc::MAP_ANONYMOUS as u32, 1), finish(RETURN_TRACE)],
            Maps::Executable => &[
                load(AT_FLAGS),
                skip_if_any(libc::MAP_ANONYMOUS as u32, 3),
                load(AT_PROTECTION),
                skip_unless_any(libc::PROT_EXEC as u32, 1),
                finish(RETURN_TRACE),
            ],
        };
        if !tests.is_empty() {
            program.push(skip_unless_equal(MMAP as u32, tests.len() as u8));
            program.extend(tests);
        }
        program.push(finish(RETURN_ALLOW));
        Filter { program }
    }

    /// A filter from elsewhere: operation, jumps and constant of each instruction of
    /// classic BPF. Whether it makes sense the kernel says.
    pub fn of_instructions(instructions: impl IntoIterator<Item = (u16, u8, u8, u32)>) -> Filter {
        let program = instructions.into_iter().map(|(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k });
        Filter { program: program.collect() }
    }

    /// Becomes the program of `command` under the filter, which must let `execve` through; returns
    /// only if that fails.
    #[allow(unsafe_code)]
    pub fn execute(&self, command: &mut Command) -> io::Error {
        let filter = self.clone();
        // SAFETY: `exec` runs it in this process, without a fork, and it makes two system calls at
        // most.
        unsafe { command.pre_exec(move || filter.install()) };
        command.exec()
    }

    /// Puts the calling thread under the filter, and all that it starts. Without privileges the
    /// thread gives up, for good and for its children too, that set-user-id programs gain any.
    ///
    /// # Errors
    /// The kernel has no seccomp, or a filter above forbids it.
    #[allow(unsafe_code)]
    pub fn install(&self) -> io::Result<()> {
        let filter = libc::sock_fprog { len: self.program.len() as u16, filter: self.program.as_ptr().cast_mut() };
        // SAFETY: the kernel copies `len` instructions out of the program, which outlives the call.
        let install = || unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &filter) };
        if install() == 0 {
            return Ok(());
        }
        nix::sys::prctl::set_no_new_privs()?;
        if install() == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

const fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

const fn load(at: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, 0, 0)
}

const fn finish(value: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, value, 0, 0)
}

const fn jump(over: u32) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JA, over, 0, 0)
}

const fn skip_unless_equal(value: u32, over: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 0, over)
}

const fn skip_if_any(bits: u32, over: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, bits, over, 0)
}

const fn skip_unless_any(bits: u32, over: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, bits, 0, over)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter answers, by an interpreter of the few instructions that it is made of.
    fn answer(filter: &Filter, architecture: u32, number: i64, arguments: [u32; 6]) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let step = filter.program[at];
            at += 1;
            let code = u32::from(step.code);
            if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS {
                value = match step.k {
                    AT_NUMBER => number as u32,
                    AT_ARCHITECTURE => architecture,
                    offset => arguments[(offset as usize - 16) / 8],
                };
            } else if code == libc::BPF_RET | libc::BPF_K {
                return step.k;
            } else if code == libc::BPF_JMP | libc::BPF_JA {
                at += step.k as usize;
            } else {
                let holds = if code & 0xf0 == libc::BPF_JEQ { value == step.k } else { value & step.k != 0 };
                at += usize::from(if holds { step.jt } else { step.jf });
            }
        }
    }

    #[test]
    fn only_the_named_calls_stop() {
        let filter = Filter::new(&Calls { maps: Maps::None, numbers: READS.to_vec() });
        assert_eq!(answer(&filter, ARCHITECTURE, libc::SYS_read, [0; 6]), RETURN_TRACE);
        assert_eq!(answer(&filter, ARCHITECTURE, libc::SYS_preadv, [0; 6]), RETURN_TRACE);
        assert_eq!(answer(&filter, ARCHITECTURE, libc::SYS_write, [0; 6]), RETURN_ALLOW);
        assert_eq!(answer(&filter, ARCHITECTURE, libc::SYS_mmap, [0; 6]), RETURN_ALLOW);
        assert_eq!(answer(&filter, ARCHITECTURE ^ 1, libc::SYS_read, [0; 6]), RETURN_ALLOW);
    }

    #[test]
    fn mappings_stop_by_their_arguments() {
        let map = |maps, protection: i32, flags: i32| {
            let filter = Filter::new(&Calls { maps, numbers: vec![libc::SYS_read] });
            answer(&filter, ARCHITECTURE, MMAP, [0, 0, protection as u32, flags as u32, 0, 0])
        };
        let (read, code) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_EXEC);
        let (file, memory) = (libc::MAP_PRIVATE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        assert_eq!(map(Maps::Files, read, file), RETURN_TRACE);
        assert_eq!(map(Maps::Files, code, file), RETURN_TRACE);
        assert_eq!(map(Maps::Files, read, memory), RETURN_ALLOW);
        assert_eq!(map(Maps::Executable, read, file), RETURN_ALLOW);
        assert_eq!(map(Maps::Executable, code, file), RETURN_TRACE);
        assert_eq!(map(Maps::Executable, code, memory), RETURN_ALLOW);
        assert_eq!(map(Maps::None, code, file), RETURN_ALLOW);
    }
}
