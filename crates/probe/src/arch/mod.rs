//! What differs between processors: the breakpoint instruction and where the program counter stands
//! after it.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use nix::errno::Errno;
use nix::unistd::Pid;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::Aarch64 as Native;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::X86_64 as Native;

/// Longest breakpoint instruction, in bytes.
pub(crate) const CODE_BYTES_MAX: usize = 4;

/// A processor architecture.
pub(crate) trait Arch {
    /// The breakpoint instruction.
    const BREAKPOINT: &'static [u8];
    /// `si_code` of the SIGTRAP that a breakpoint instruction causes; single steps and watchpoints
    /// have others.
    const TRAP_CODE: i32;
    /// Instructions may begin at multiples of this.
    const ALIGN: usize;
    /// Code that may precede the return in an empty function.
    const PADDING: &'static [&'static [u8]];
    /// A return instruction.
    const RETURN: &'static [u8];

    /// The address of the breakpoint that this thread, stopped by SIGTRAP or before its delivery,
    /// has run into.
    fn trap_address(tid: Pid) -> Result<u64, Errno>;

    /// Sets where a stopped thread goes on.
    fn set_pc(tid: Pid, address: u64) -> Result<(), Errno>;

    /// The registers of a thread.
    type Registers: Clone;

    /// The registers of a stopped thread.
    fn registers(tid: Pid) -> Result<Self::Registers, Errno>;

    /// Gives a stopped thread these registers.
    fn set_registers(tid: Pid, registers: &Self::Registers) -> Result<(), Errno>;

    /// The registers of a thread that stands behind a system call, changed so that it makes another
    /// one with one argument.
    fn call_again(registers: &Self::Registers, number: i64, argument: u64) -> Self::Registers;

    /// A stopped thread may have been woken from a system call that the kernel does not start again
    /// by itself, as it does for most. If `may_restart` agrees, it goes on in that call as if
    /// nothing had been. Where the arguments of the call are lost by then, nothing is done, and the
    /// program sees EINTR.
    fn restart_call(tid: Pid, may_restart: impl FnOnce() -> bool) -> Result<(), Errno>;
}

/// The breakpoint instruction of this machine.
pub(crate) const BREAKPOINT: &[u8] = Native::BREAKPOINT;
