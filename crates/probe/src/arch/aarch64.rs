//! AArch64: BRK #0 is four bytes and leaves the program counter on it. The kernel makes the
//! instruction caches see writes through /proc/PID/mem. Written after the architecture manual; no
//! machine has run it yet.

use nix::errno::Errno;
use nix::sys::ptrace::{self, regset::NT_PRSTATUS};
use nix::unistd::Pid;

use super::Arch;

/// See the module.
pub(crate) struct Aarch64;

impl Arch for Aarch64 {
    /// 0xd4200000, little-endian: instructions are so on big-endian systems too.
    const BREAKPOINT: &'static [u8] = &[0x00, 0x00, 0x20, 0xd4];
    const TRAP_CODE: i32 = libc::TRAP_BRKPT;
    const ALIGN: usize = 4;
    /// BTI c and NOP, which compilers put at the start of functions for branch target
    /// identification.
    const PADDING: &'static [&'static [u8]] = &[&[0x5f, 0x24, 0x03, 0xd5], &[0x1f, 0x20, 0x03, 0xd5]];
    /// RET, to the address in the link register.
    const RETURN: &'static [u8] = &[0xc0, 0x03, 0x5f, 0xd6];

    fn trap_address(tid: Pid) -> Result<u64, Errno> {
        Ok(ptrace::getregset::<NT_PRSTATUS>(tid)?.pc)
    }

    fn set_pc(tid: Pid, address: u64) -> Result<(), Errno> {
        let mut registers = ptrace::getregset::<NT_PRSTATUS>(tid)?;
        registers.pc = address;
        ptrace::setregset::<NT_PRSTATUS>(tid, registers)
    }

    type Registers = libc::user_regs_struct;

    fn registers(tid: Pid) -> Result<Self::Registers, Errno> {
        ptrace::getregset::<NT_PRSTATUS>(tid)
    }

    fn set_registers(tid: Pid, registers: &Self::Registers) -> Result<(), Errno> {
        ptrace::setregset::<NT_PRSTATUS>(tid, *registers)
    }

    /// SVC is four bytes; the number stands in x8.
    fn call_again(registers: &Self::Registers, number: i64, argument: u64) -> Self::Registers {
        let mut registers = *registers;
        registers.pc -= 4;
        (registers.regs[8], registers.regs[0]) = (number as u64, argument);
        registers
    }

    /// The result has taken the place of the first argument, and the kernel's copy of that is not
    /// shown to tracers.
    fn restart_call(_: Pid, _: impl FnOnce() -> bool) -> Result<(), Errno> {
        Ok(())
    }
}
