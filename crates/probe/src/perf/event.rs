//! One perf event: `struct perf_event_attr`, `perf_event_open(2)` and its ioctls.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `struct perf_event_attr` up to version 5 (Linux 4.8). [`open_attributes`] fills in the size.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attributes {
    pub(crate) kind: u32,
    pub(crate) size: u32,
    pub(crate) config: u64,
    pub(crate) sample_period: u64,
    pub(crate) sample_type: u64,
    pub(crate) read_format: u64,
    pub(crate) flags: u64,
    /// Records, or bytes if the flag says so, after which a reader is woken.
    pub(crate) wakeup_watermark: u32,
    pub(crate) bp_type: u32,
    pub(crate) config1: u64,
    pub(crate) config2: u64,
    pub(crate) branch_sample_type: u64,
    pub(crate) sample_regs_user: u64,
    pub(crate) sample_stack_user: u32,
    pub(crate) clockid: i32,
    pub(crate) sample_regs_intr: u64,
    pub(crate) aux_watermark: u32,
    pub(crate) sample_max_stack: u16,
    pub(crate) reserved: u16,
}

const _: () = assert!(size_of::<Attributes>() == 112);

/// `PERF_TYPE_SOFTWARE`.
pub(crate) const TYPE_SOFTWARE: u32 = 1;

/// The event does not count until it is switched on.
pub(crate) const FLAG_DISABLED: u64 = 1;

/// Close on exec, for `perf_event_open`.
const OPEN_CLOEXEC: libc::c_ulong = 1 << 3;
/// `_IO('$', 0)`, `_IO('$', 1)`, `_IO('$', 5)` and `_IOR('$', 7, u64 *)`.
const IOCTL_ENABLE: libc::c_ulong = 0x2400;
const IOCTL_DISABLE: libc::c_ulong = 0x2401;
const IOCTL_SET_OUTPUT: libc::c_ulong = 0x2405;
const IOCTL_ID: libc::c_ulong = 0x8008_2407;

/// Opens an event. `path` is what some kinds of event look at; `thread` 0 is the calling one, -1
/// all of them.
pub(crate) fn open_attributes(
    attributes: Attributes,
    path: Option<&CStr>,
    thread: i32,
    processor: i32,
) -> io::Result<OwnedFd> {
    let config1 = path.map_or(0, |path| path.as_ptr() as u64);
    let attributes = Attributes { size: size_of::<Attributes>() as u32, config1, ..attributes };
    // SAFETY: the kernel reads `size` bytes of the attributes, and the path up to its NUL; both
    // outlive the call.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &attributes, thread, processor, -1, OPEN_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call just returned this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Switches an event on or off. This is far cheaper than closing it.
pub(crate) fn ioctl_switch(event: &OwnedFd, on: bool) -> io::Result<()> {
    let request = if on { IOCTL_ENABLE } else { IOCTL_DISABLE };
    // SAFETY: takes a descriptor and a number, touches no memory of ours.
    let done = unsafe { libc::ioctl(event.as_raw_fd(), request as _, 0) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(crate) fn ioctl_set_output(from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
    // SAFETY: takes two descriptors, touches no memory of ours.
    let done = unsafe { libc::ioctl(from.as_raw_fd(), IOCTL_SET_OUTPUT as _, to.as_raw_fd()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(crate) fn ioctl_id(event: &OwnedFd) -> io::Result<u64> {
    let mut id = 0_u64;
    // SAFETY: the kernel writes eight bytes to `id`, which outlives the call.
    let done = unsafe { libc::ioctl(event.as_raw_fd(), IOCTL_ID as _, &mut id) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(id) }
}

pub(crate) fn page_bytes() -> usize {
    // SAFETY: asks for a constant.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}
