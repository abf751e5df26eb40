//! Page faults and mappings of a process tree as perf events: no stop, no root, no kernel module.
//!
//! Each processor has a ring of records that three software events share: minor and major page
//! faults with period 1, and a clock of processor time ([`CLOCK_PERIOD_NS`]). There is a ring per
//! processor because an inherited event can only be mapped per processor. The events are opened on
//! the calling thread, disabled, and inherited by its children. `enable_on_exec` turns them on in a
//! child at its first exec, and nowhere else. The rings also hold what gives an address its
//! meaning: every mapping with its file (`mmap2`, `mmap_data`), fork, exit and exec. Each record
//! carries its time, by the monotonic clock in nanoseconds.
//!
//! Layouts are those of `perf_event_open(2)` and `include/uapi/linux/perf_event.h`. Without
//! privileges, the kernel refuses all this if `/proc/sys/kernel/perf_event_paranoid` is above 2.

mod event;
mod record;
mod ring;

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::poll::{PollFd, PollFlags};

use record::parse;

pub(crate) use event::{
    Attributes, FLAG_DISABLED, TYPE_SOFTWARE, ioctl_id, ioctl_set_output, ioctl_switch, open_attributes, page_bytes,
};
pub use record::{Map, Record, What};
pub(crate) use record::{RECORD_SAMPLE, SAMPLE_TYPE, split_record, u32_at, u64_at};
pub(crate) use ring::Mapping;

/// Bytes of a ring at most: 43,000 faults. A processor takes at least 20 ms for so many, and the
/// reader wakes at a quarter.
pub const RING_BYTES_MAX: usize = 2 << 20;

/// Bytes of a ring at least: below this, lists of libraries alone would overflow it.
pub const RING_BYTES_MIN: usize = 64 << 10;

/// Processors we open rings for at most: the largest number a kernel is built for.
const PROCESSORS_MAX: usize = 8192;

/// Processor time between two looks at what a thread runs. A thousand a second cost under a
/// percent, and an idle period of half a second in which the program computes still shows its inner
/// loops.
pub const CLOCK_PERIOD_NS: u64 = 1_000_000;

const CONFIG_TASK_CLOCK: u64 = 1;
const CONFIG_FAULTS_MINOR: u64 = 5;
const CONFIG_FAULTS_MAJOR: u64 = 6;

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
    /// Opens rings on the calling thread, of at most `ring_bytes` each (a power of two times the
    /// page size), smaller where the limit of locked memory says so. What the thread starts and
    /// execs from now on is recorded.
    ///
    /// # Errors
    /// EACCES or EPERM: `perf_event_paranoid`, or the limit of locked memory, forbids it. ENOSYS,
    /// ENOENT: no such kernel.
    pub fn open(ring_bytes: usize) -> io::Result<Rings> {
        let processors = online()?;
        let mut bytes = ring_bytes.clamp(page_bytes(), RING_BYTES_MAX).next_power_of_two();
        let least = RING_BYTES_MIN.min(bytes);
        let mut kernel_faults = true;
        loop {
            match Rings::try_open(&processors, bytes, kernel_faults) {
                Ok(rings) => return Ok(rings),
                // Unprivileged users may watch what happens in user mode only, at the stock
                // setting.
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

    /// Takes all records out of the rings, those of one processor after those of another. Records
    /// of one processor are in order; those of all are so only after sorting by time.
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
        // One of the two reports mappings and processes.
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
