//! Page faults and mappings of a process tree as perf events: no stop, no root, no kernel module.
//!
//! Three software events per processor, minor and major page faults with period 1 and a clock of processor time ([`CLOCK_PERIOD_NS`]),
//! share one ring of records per processor
//! (an inherited event can only be mapped per processor). They are opened on the calling thread, disabled, and are inherited
//! by what it starts: `enable_on_exec` turns them on in a child at its first exec, and in nothing else. The rings also hold what is
//! needed to make sense of an address: every mapping with its file (`mmap2`, `mmap_data`), fork, exit and exec. Each record
//! carries its time, by the monotonic clock in nanoseconds.
//!
//! Layouts are those of `perf_event_open(2)` and `include/uapi/linux/perf_event.h`. The kernel refuses all this where
//! `/proc/sys/kernel/perf_event_paranoid` is above 2, without privileges. Called by `record`.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::poll::{PollFd, PollFlags};

/// Bytes of a ring at most: 43,000 faults. A processor takes at least 20 ms for so many, and the reader wakes at a quarter.
pub const RING_BYTES_MAX: usize = 2 << 20;

/// Bytes of a ring at least: below this, lists of libraries alone would overflow it.
pub const RING_BYTES_MIN: usize = 64 << 10;

/// Processors we open rings for at most: the largest number a kernel is built for.
const PROCESSORS_MAX: usize = 8192;

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

pub(crate) const TYPE_SOFTWARE: u32 = 1;
/// Processor time between two looks at what a thread runs. A thousand a second cost under a percent, and an idle period of half a
/// second in which the program computes still shows its inner loops.
pub const CLOCK_PERIOD_NS: u64 = 1_000_000;

const CONFIG_TASK_CLOCK: u64 = 1;
const CONFIG_FAULTS_MINOR: u64 = 5;
const CONFIG_FAULTS_MAJOR: u64 = 6;
/// IP, TID, TIME, ADDR, IDENTIFIER.
pub(crate) const SAMPLE_TYPE: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 16;

pub(crate) const FLAG_DISABLED: u64 = 1;
const FLAG_INHERIT: u64 = 1 << 1;
const FLAG_EXCLUDE_KERNEL: u64 = 1 << 5;
const FLAG_EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const FLAG_MMAP: u64 = 1 << 8;
const FLAG_COMM: u64 = 1 << 9;
const FLAG_ENABLE_ON_EXEC: u64 = 1 << 12;
const FLAG_TASK: u64 = 1 << 13;
const FLAG_WATERMARK: u64 = 1 << 14;
const FLAG_MMAP_DATA: u64 = 1 << 17;
const FLAG_SAMPLE_ID_ALL: u64 = 1 << 18;
const FLAG_MMAP2: u64 = 1 << 23;
const FLAG_COMM_EXEC: u64 = 1 << 24;
const FLAG_USE_CLOCKID: u64 = 1 << 25;

/// Close on exec, for `perf_event_open`.
const OPEN_CLOEXEC: libc::c_ulong = 1 << 3;
/// `_IO('$', 0)`, `_IO('$', 1)`, `_IO('$', 5)` and `_IOR('$', 7, u64 *)`.
const IOCTL_ENABLE: libc::c_ulong = 0x2400;
const IOCTL_DISABLE: libc::c_ulong = 0x2401;
const IOCTL_SET_OUTPUT: libc::c_ulong = 0x2405;
const IOCTL_ID: libc::c_ulong = 0x8008_2407;

const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;
pub(crate) const RECORD_SAMPLE: u32 = 9;
const RECORD_MMAP2: u32 = 10;
/// In `misc` of a comm record: an exec, not a thread that names itself.
const MISC_COMM_EXEC: u16 = 1 << 13;

/// Where the ring's positions are in its first page.
const DATA_HEAD_AT: usize = 1024;
const DATA_TAIL_AT: usize = 1032;

/// Bytes that end every record but a sample: thread, time, identifier.
const TRAILER_BYTES: usize = 24;

/// What happened, and when: nanoseconds of the monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Nanoseconds of the monotonic clock.
    pub at: u64,
    /// The process.
    pub process: u32,
    /// What it did.
    pub what: What,
}

/// What a process did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A page fault at `address`, by the instruction at `instruction`; `major` if the disk had to be read for it.
    Fault {
        /// The address that was not mapped.
        address: u64,
        /// The instruction that used it; the same if it was itself to be fetched.
        instruction: u64,
        /// Whether the page was read from a disk.
        major: bool,
    },
    /// It was running this instruction when the clock asked.
    Runs {
        /// Its address.
        instruction: u64,
    },
    /// A mapping was made, or its protection changed.
    Map(Map),
    /// A new program in the old process.
    Exec,
    /// A process or thread started: a thread if `parent` is the process itself.
    Fork {
        /// The process that called.
        parent: u32,
    },
    /// A thread ended.
    Exit,
    /// So many records found no room in the ring.
    Lost(u64),
}

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// Where in the file it starts, bytes.
    pub offset: u64,
    /// Major and minor number of the file system's device; both zero without a file.
    pub device: (u32, u32),
    /// The file's inode number.
    pub inode: u64,
    /// `PROT_` bits.
    pub protection: u32,
    /// Path of the file as the process sees it, or a name such as `//anon` or `[heap]`.
    pub path: Vec<u8>,
}

/// The rings of all processors. Closing them ends the recording.
#[derive(Debug)]
pub struct Rings {
    rings: Vec<Ring>,
    major: Vec<u64>,
    /// Identifiers of the clocks.
    clock: Vec<u64>,
    ring_bytes: usize,
    kernel_faults: bool,
}

#[derive(Debug)]
struct Ring {
    /// The event that owns the ring.
    minor: OwnedFd,
    /// Kept open: it writes to the same ring.
    /// Major faults and the clock: open as long as they shall count.
    _others: [OwnedFd; 2],
    map: Mapping,
    /// The bytes of one drain, in one piece.
    copied: Vec<u8>,
}

impl Rings {
    /// Opens rings on the calling thread, of at most `ring_bytes` each (a power of two times the page size), smaller where the
    /// limit of locked memory says so. What the thread starts and execs from now on is recorded.
    ///
    /// # Errors
    /// EACCES or EPERM: `perf_event_paranoid`, or the limit of locked memory, forbids it. ENOSYS, ENOENT: no such kernel.
    pub fn open(ring_bytes: usize) -> io::Result<Rings> {
        let processors = online()?;
        let mut bytes = ring_bytes.clamp(page_bytes(), RING_BYTES_MAX).next_power_of_two();
        let least = RING_BYTES_MIN.min(bytes);
        let mut kernel_faults = true;
        loop {
            match Rings::try_open(&processors, bytes, kernel_faults) {
                Ok(rings) => return Ok(rings),
                // Unprivileged users may watch what happens in user mode only, at the stock setting.
                Err((Step::Open, error)) if kernel_faults && is_denied(&error) => kernel_faults = false,
                // Locked memory is used up.
                Err((Step::Map, error)) if bytes / 2 >= least && is_denied(&error) => bytes /= 2,
                Err((_, error)) => return Err(error),
            }
        }
    }

    fn try_open(processors: &[i32], ring_bytes: usize, kernel_faults: bool) -> Result<Rings, (Step, io::Error)> {
        let mut rings = Rings { rings: Vec::new(), major: Vec::new(), clock: Vec::new(), ring_bytes, kernel_faults };
        for &processor in processors {
            let minor = match open_event(CONFIG_FAULTS_MINOR, processor, ring_bytes, kernel_faults) {
                // It went offline this moment.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
                opened => opened.map_err(|error| (Step::Open, error))?,
            };
            let major = open_event(CONFIG_FAULTS_MAJOR, processor, ring_bytes, kernel_faults);
            let major = major.map_err(|error| (Step::Open, error))?;
            let map = Mapping::new(&minor, page_bytes() + ring_bytes).map_err(|error| (Step::Map, error))?;
            ioctl_set_output(&major, &minor).map_err(|error| (Step::Open, error))?;
            rings.major.push(ioctl_id(&major).map_err(|error| (Step::Open, error))?);
            let clock = open_event(CONFIG_TASK_CLOCK, processor, ring_bytes, false);
            let clock = clock.map_err(|error| (Step::Open, error))?;
            ioctl_set_output(&clock, &minor).map_err(|error| (Step::Open, error))?;
            rings.clock.push(ioctl_id(&clock).map_err(|error| (Step::Open, error))?);
            rings.rings.push(Ring { minor, _others: [major, clock], map, copied: Vec::new() });
        }
        Ok(rings)
    }

    /// Bytes of each ring.
    pub fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    /// Whether faults of system calls are seen too, such as that of a `write` from mapped memory.
    pub fn sees_kernel_faults(&self) -> bool {
        self.kernel_faults
    }

    /// What to wait for: readable when a ring is a quarter full.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(|ring| ring.minor.as_fd())
    }

    /// Waits until a ring is a quarter full, `also` is readable, or `milliseconds` have passed.
    ///
    /// # Errors
    /// Those of `poll(2)`.
    pub fn wait(&self, also: BorrowedFd<'_>, milliseconds: u16) -> io::Result<()> {
        let mut fds: Vec<PollFd<'_>> = self.descriptors().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        fds.push(PollFd::new(also, PollFlags::POLLIN));
        match nix::poll::poll(&mut fds, milliseconds) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes all records out of the rings, those of one processor after those of another. Records of one processor are in
    /// order; those of all are so only after sorting by time.
    pub fn drain(&mut self, mut take: impl FnMut(Record)) {
        for ring in &mut self.rings {
            ring.map.copy_new(&mut ring.copied);
            let mut rest = ring.copied.as_slice();
            while let Some((record, after)) = split_record(rest) {
                if let Some(record) = parse(record, &self.major, &self.clock) {
                    take(record);
                }
                rest = after;
            }
        }
    }
}

enum Step {
    Open,
    Map,
}

fn is_denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

fn open_event(config: u64, processor: i32, ring_bytes: usize, kernel_faults: bool) -> io::Result<OwnedFd> {
    let mut flags = FLAG_DISABLED | FLAG_INHERIT | FLAG_EXCLUDE_HYPERVISOR | FLAG_ENABLE_ON_EXEC;
    flags |= FLAG_WATERMARK | FLAG_SAMPLE_ID_ALL | FLAG_USE_CLOCKID;
    if config == CONFIG_FAULTS_MINOR {
        // One of the two tells about mappings and processes.
        flags |= FLAG_MMAP | FLAG_MMAP_DATA | FLAG_MMAP2 | FLAG_COMM | FLAG_COMM_EXEC | FLAG_TASK;
    }
    if !kernel_faults {
        flags |= FLAG_EXCLUDE_KERNEL;
    }
    let attributes = Attributes {
        kind: TYPE_SOFTWARE,
        config,
        sample_period: if config == CONFIG_TASK_CLOCK { CLOCK_PERIOD_NS } else { 1 },
        sample_type: SAMPLE_TYPE,
        flags,
        wakeup_watermark: (ring_bytes / 4) as u32,
        clockid: libc::CLOCK_MONOTONIC,
        ..Attributes::default()
    };
    open_attributes(attributes, None, 0, processor)
}

/// Opens an event. `path` is what some kinds of event look at; `thread` 0 is the calling one, -1 all of them.
pub(crate) fn open_attributes(
    attributes: Attributes,
    path: Option<&CStr>,
    thread: i32,
    processor: i32,
) -> io::Result<OwnedFd> {
    let config1 = path.map_or(0, |path| path.as_ptr() as u64);
    let attributes = Attributes { size: size_of::<Attributes>() as u32, config1, ..attributes };
    // SAFETY: the kernel reads `size` bytes of the attributes, and the path up to its NUL; both outlive the call.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &attributes, thread, processor, -1, OPEN_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call just returned this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Lets an event count, or not. Far cheaper than closing it.
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

/// Numbers of the processors that are on, from a list such as `0-3,8`.
pub(crate) fn online() -> io::Result<Vec<i32>> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online")?;
    Ok(processors(&text))
}

fn processors(text: &str) -> Vec<i32> {
    let ranges = text.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<i32>().ok()?..=last.parse::<i32>().ok()?)
    });
    ranges.flatten().take(PROCESSORS_MAX).collect()
}

/// A ring's memory: a page of positions, then the data.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is used through `&mut self` alone; only the kernel writes to it beside us.
unsafe impl Send for Mapping {}

impl Mapping {
    pub(crate) fn new(event: &OwnedFd, bytes: usize) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (null, fd) = (std::ptr::null_mut(), event.as_raw_fd());
        // SAFETY: a new mapping at an address the kernel chooses; nothing else refers to it.
        let base = unsafe { libc::mmap(null, bytes, protection, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Mapping { base, bytes })
    }

    fn position(&self, at: usize) -> &AtomicU64 {
        // SAFETY: both positions lie in the first page, eight bytes aligned; the kernel uses them as such.
        unsafe { &*self.base.as_ptr().add(at).cast::<AtomicU64>() }
    }

    /// Copies what is new into `out` and gives its room back to the kernel.
    pub(crate) fn copy_new(&mut self, out: &mut Vec<u8>) {
        let page = page_bytes();
        let size = self.bytes - page;
        // Acquire: the data must be read after the position that says that it is there.
        let head = self.position(DATA_HEAD_AT).load(Ordering::Acquire);
        let tail = self.position(DATA_TAIL_AT).load(Ordering::Relaxed);
        let new = (head.wrapping_sub(tail) as usize).min(size);
        let begin = tail as usize & (size - 1);
        let first = new.min(size - begin);
        out.clear();
        out.reserve(new);
        // SAFETY: `begin + first <= size` and `new - first <= begin`, so both pieces lie in the ring, which `out` (with room for
        // `new` bytes) does not overlap. The kernel does not write between tail and head.
        unsafe {
            let data = self.base.as_ptr().add(page);
            std::ptr::copy_nonoverlapping(data.add(begin), out.as_mut_ptr(), first);
            std::ptr::copy_nonoverlapping(data, out.as_mut_ptr().add(first), new - first);
            out.set_len(new);
        }
        // Release: only now may the kernel write there.
        self.position(DATA_TAIL_AT).store(head, Ordering::Release);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A record with its header, and what follows it.
pub(crate) fn split_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_, length) = misc_and_bytes(bytes)?;
    let length = usize::from(length);
    (length >= 8).then(|| bytes.split_at_checked(length))?
}

/// Records are in the machine's own byte order: they never leave it.
#[allow(clippy::host_endian_bytes)]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

#[allow(clippy::host_endian_bytes)]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// The second half of a header: flags, and the length with the header.
#[allow(clippy::host_endian_bytes)]
fn misc_and_bytes(record: &[u8]) -> Option<(u16, u16)> {
    let number = |at: usize| record.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes));
    Some((number(4)?, number(6)?))
}

/// Makes sense of a record; `None` for kinds that we do not need.
fn parse(record: &[u8], major: &[u64], clock: &[u64]) -> Option<Record> {
    let kind = u32_at(record, 0)?;
    let (misc, _) = misc_and_bytes(record)?;
    let body = &record[8..];
    if kind == RECORD_SAMPLE {
        let (event, instruction) = (u64_at(body, 0)?, u64_at(body, 8)?);
        let what = match clock.contains(&event) {
            true => What::Runs { instruction },
            false => What::Fault { instruction, address: u64_at(body, 32)?, major: major.contains(&event) },
        };
        return Some(Record { at: u64_at(body, 24)?, process: u32_at(body, 16)?, what });
    }
    let trailer = body.len().checked_sub(TRAILER_BYTES)?;
    let at = u64_at(body, trailer + 8)?;
    let (process, what) = match kind {
        RECORD_MMAP2 => (u32_at(body, 0)?, What::Map(parse_map(&body[..trailer])?)),
        RECORD_COMM if misc & MISC_COMM_EXEC != 0 => (u32_at(body, 0)?, What::Exec),
        RECORD_FORK => (u32_at(body, 0)?, What::Fork { parent: u32_at(body, 4)? }),
        RECORD_EXIT => (u32_at(body, 0)?, What::Exit),
        RECORD_LOST => (u32_at(body, trailer)?, What::Lost(u64_at(body, 8)?)),
        _ => return None,
    };
    Some(Record { at, process, what })
}

fn parse_map(body: &[u8]) -> Option<Map> {
    let path = body.get(64..)?;
    let length = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
    Some(Map {
        start: u64_at(body, 8)?,
        bytes: u64_at(body, 16)?,
        offset: u64_at(body, 24)?,
        device: (u32_at(body, 32)?, u32_at(body, 36)?),
        inode: u64_at(body, 40)?,
        protection: u32_at(body, 56)?,
        path: path[..length].to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(processors("0\n"), [0]);
        assert_eq!(processors("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(processors("0-99999999\n").len(), PROCESSORS_MAX);
        assert_eq!(processors("x"), [] as [i32; 0]);
    }
}
