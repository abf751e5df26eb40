//! x86-64: INT3 is one byte, and the processor reports it with the instruction pointer behind it.
//! This is also true of 32-bit programs in a 64-bit kernel.

use std::mem::offset_of;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use super::Arch;

/// See the module.
pub(crate) struct X86_64;

/// Where the kernel's `struct user` holds the instruction pointer; its registers come first.
const RIP: usize = offset_of!(libc::user_regs_struct, rip);

/// System calls that fail with EINTR when the thread is woken, be it only to be stopped (signal(7),
/// last section). Outside of a call the register that holds the number is negative.
const NOT_RESTARTED: [i64; 7] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
];

/// Code segment of 64-bit programs (`__USER_CS`); those of 32 bits have other numbers of system
/// calls.
const CODE_64_BITS: u64 = 0x33;

/// Bytes of the SYSCALL instruction.
const SYSCALL_BYTES: u64 = 2;

impl Arch for X86_64 {
    const BREAKPOINT: &'static [u8] = &[0xcc];
    const TRAP_CODE: i32 = libc::SI_KERNEL;
    const ALIGN: usize = 1;
    /// ENDBR64 and ENDBR32, which compilers put at the start of functions for control-flow
    /// enforcement.
    const PADDING: &'static [&'static [u8]] = &[&[0xf3, 0x0f, 0x1e, 0xfa], &[0xf3, 0x0f, 0x1e, 0xfb]];
    const RETURN: &'static [u8] = &[0xc3];

    fn trap_address(tid: Pid) -> Result<u64, Errno> {
        Ok((ptrace::read_user(tid, RIP as *mut _)? as u64).wrapping_sub(1))
    }

    fn set_pc(tid: Pid, address: u64) -> Result<(), Errno> {
        ptrace::write_user(tid, RIP as *mut _, address as i64)
    }

    type Registers = libc::user_regs_struct;

    fn registers(tid: Pid) -> Result<Self::Registers, Errno> {
        ptrace::getregs(tid)
    }

    fn set_registers(tid: Pid, registers: &Self::Registers) -> Result<(), Errno> {
        ptrace::setregs(tid, *registers)
    }

    fn call_again(registers: &Self::Registers, number: i64, argument: u64) -> Self::Registers {
        let (rip, rax) = (registers.rip - SYSCALL_BYTES, number as u64);
        libc::user_regs_struct { rip, rax, rdi: argument, ..*registers }
    }

    fn restart_call(tid: Pid, may_restart: impl FnOnce() -> bool) -> Result<(), Errno> {
        let mut registers = ptrace::getregs(tid)?;
        let is_interrupted = registers.rax as i64 == -i64::from(libc::EINTR);
        let is_of_64_bits = registers.cs == CODE_64_BITS;
        if is_interrupted && is_of_64_bits && NOT_RESTARTED.contains(&(registers.orig_rax as i64)) && may_restart() {
            registers.rax = registers.orig_rax;
            registers.rip -= SYSCALL_BYTES;
            ptrace::setregs(tid, registers)?;
        }
        Ok(())
    }
}
