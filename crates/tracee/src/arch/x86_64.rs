//! x86-64: INT3 is one byte, and the processor reports it with the instruction pointer behind it. Programs of 32 bits in
//! a 64-bit kernel behave the same.

use std::mem::offset_of;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use super::Arch;

/// See the module.
pub(crate) struct X86_64;

/// Where the kernel's `struct user` holds the instruction pointer; its registers come first.
const RIP: usize = offset_of!(libc::user_regs_struct, rip);

impl Arch for X86_64 {
    const BREAKPOINT: &'static [u8] = &[0xcc];
    const ALIGN: usize = 1;
    /// ENDBR64 and ENDBR32, which compilers put at the start of functions for control-flow enforcement.
    const PADDING: &'static [&'static [u8]] = &[&[0xf3, 0x0f, 0x1e, 0xfa], &[0xf3, 0x0f, 0x1e, 0xfb]];
    const RETURN: &'static [u8] = &[0xc3];

    fn trap_address(tid: Pid) -> Result<u64, Errno> {
        Ok((ptrace::read_user(tid, RIP as *mut _)? as u64).wrapping_sub(1))
    }

    fn set_pc(tid: Pid, address: u64) -> Result<(), Errno> {
        ptrace::write_user(tid, RIP as *mut _, address as i64)
    }
}
