//! Uprobes: the kernel reports that code at an offset of a file is run, in any process, without
//! ptrace and without a stop.
//!
//! Each probe is a perf event per processor (`perf_event_open(2)`, the `uprobe` PMU) that watches
//! all processes. An event for one process would watch its first thread only: with `inherit` the
//! kernel opens the event anew in each fork, with the rights and the memory of the forking program,
//! and so makes its forks fail with EACCES (seen on Linux 6.18; `perf_uprobe_event_init` in
//! kernel/events/core.c). A caller that waits for one program therefore looks at [`Hit::process`],
//! and disables a probe that other processes hit again and again. All probes of a processor write
//! to one ring, which belongs to an event that never counts.
//!
//! A probe costs some 20 us to set for each processor; a hit costs the program some us. Needs
//! CAP_PERFMON or CAP_SYS_ADMIN, and Linux 4.17.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::perf::{self, Attributes, Mapping};

/// The file with the number of this kind of event.
const TYPE_FILE: &str = "/sys/bus/event_source/devices/uprobe/type";

/// `PERF_COUNT_SW_DUMMY`: holds a ring and counts nothing.
const CONFIG_DUMMY: u64 = 9;

/// Bytes of a ring: a hundred hits that nobody has read yet. Later ones are lost.
const RING_BYTES: usize = 4096;

/// Events at most: with more, a machine of many processors would run out of descriptors for a few
/// groups of a plan.
const EVENTS_MAX: usize = 512;

/// Code that was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// As given to [`Uprobes::add`].
    pub id: u32,
    /// The process that ran it.
    pub process: u32,
}

/// Probes and where they write to. Dropping it closes all, which takes the kernel up to a tenth of
/// a second each.
#[derive(Debug)]
pub struct Uprobes {
    kind: u32,
    rings: Vec<Ring>,
    events: Vec<Event>,
}

#[derive(Debug)]
struct Ring {
    processor: i32,
    holder: OwnedFd,
    map: Mapping,
    copied: Vec<u8>,
}

#[derive(Debug)]
struct Event {
    fd: OwnedFd,
    /// What the kernel calls it in samples.
    number: u64,
    id: u32,
}

/// Events that report nothing any more, but whose code still traps until they are dropped. The drop
/// waits for all processors, so it is for a thread with nothing else to do.
#[derive(Debug)]
pub struct Disabled(#[allow(dead_code)] Vec<OwnedFd>);

impl Uprobes {
    /// Opens the rings; there is no probe yet.
    ///
    /// # Errors
    /// NotFound: the kernel has no uprobes. EACCES or EPERM: this process may not use them.
    pub fn open() -> io::Result<Uprobes> {
        let kind = fs::read_to_string(TYPE_FILE)?;
        let kind = kind.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, TYPE_FILE))?;
        let attributes = Attributes {
            kind: perf::TYPE_SOFTWARE,
            config: CONFIG_DUMMY,
            flags: perf::FLAG_DISABLED,
            ..Attributes::default()
        };
        let mut rings = Vec::new();
        for processor in perf::online()? {
            let holder = match perf::open_attributes(attributes, None, -1, processor) {
                // It went offline this moment.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
                opened => opened?,
            };
            let map = Mapping::new(&holder, perf::page_bytes() + RING_BYTES.max(perf::page_bytes()))?;
            rings.push(Ring { processor, holder, map, copied: Vec::new() });
        }
        Ok(Uprobes { kind, rings, events: Vec::new() })
    }

    /// Reports from now on that the instruction at `offset` of the file is run, whoever runs it.
    ///
    /// # Errors
    /// There are too many already, or the kernel refuses: a file system without a page cache, no
    /// more descriptors.
    pub fn add(&mut self, file: &File, offset: u64, id: u32) -> io::Result<()> {
        if self.events.len() + self.rings.len() > EVENTS_MAX {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "too many probes"));
        }
        // By its descriptor, so that the very file that was looked at is meant.
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let attributes = Attributes {
            kind: self.kind,
            config2: offset,
            sample_period: 1,
            sample_type: perf::SAMPLE_TYPE,
            flags: perf::FLAG_DISABLED,
            // A reader is woken by each.
            wakeup_watermark: 1,
            ..Attributes::default()
        };
        let begun = self.events.len();
        for ring in &self.rings {
            let added = perf::open_attributes(attributes, Some(&path), -1, ring.processor).and_then(|fd| {
                perf::ioctl_set_output(&fd, &ring.holder)?;
                let number = perf::ioctl_id(&fd)?;
                perf::ioctl_switch(&fd, true)?;
                Ok(Event { fd, number, id })
            });
            match added {
                Ok(event) => self.events.push(event),
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                Err(error) => {
                    self.events.truncate(begun);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Whether there is no probe (any more).
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// What to wait for: readable after a hit.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(|ring| ring.holder.as_fd())
    }

    /// Takes all hits out of the rings.
    pub fn drain(&mut self) -> Vec<Hit> {
        let mut hits = Vec::new();
        for ring in &mut self.rings {
            ring.map.copy_new(&mut ring.copied);
            let mut rest = ring.copied.as_slice();
            while let Some((record, after)) = perf::split_record(rest) {
                rest = after;
                let Some((number, process)) = sample(record) else { continue };
                if let Some(event) = self.events.iter().find(|event| event.number == number) {
                    hits.push(Hit { id: event.id, process });
                }
            }
        }
        hits
    }

    /// Ends a probe: it reports nothing more.
    pub fn disable(&mut self, id: u32) -> Disabled {
        let disabled: Vec<Event> = self.events.extract_if(.., |event| event.id == id).collect();
        for event in &disabled {
            // It is closed soon, whatever this says.
            let _ = perf::ioctl_switch(&event.fd, false);
        }
        Disabled(disabled.into_iter().map(|event| event.fd).collect())
    }
}

/// Event and process of a sample; see [`perf::SAMPLE_TYPE`] for its fields.
fn sample(record: &[u8]) -> Option<(u64, u32)> {
    let is_sample = perf::u32_at(record, 0)? == perf::RECORD_SAMPLE;
    is_sample.then_some((perf::u64_at(record, 8)?, perf::u32_at(record, 24)?))
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout};
    use nix::unistd::Pid;

    use super::*;

    #[inline(never)]
    extern "C" fn probed(value: u64) -> u64 {
        std::hint::black_box(value.wrapping_mul(3).rotate_left(7))
    }

    fn wait(probes: &Uprobes) {
        let mut fds: Vec<PollFd<'_>> = probes.descriptors().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        assert!(nix::poll::poll(&mut fds, PollTimeout::from(60_000_u16)).unwrap() > 0, "nobody is woken by a hit");
    }

    #[test]
    fn a_hit_is_told_of_every_thread_until_the_probe_is_disabled() {
        let exe = File::open("/proc/self/exe").unwrap();
        let address = probed as *const () as u64;
        let mappings = crate::maps::read(Pid::this()).unwrap();
        let mapping = mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&address));
        let mapping = mapping.expect("our own code is mapped");
        let offset = address - mapping.start + mapping.offset;
        let mut probes = match Uprobes::open() {
            Err(error) => return eprintln!("skipped: no uprobes here: {error}"),
            Ok(probes) => probes,
        };
        match probes.add(&exe, offset, 7) {
            Err(error) => return eprintln!("skipped: no uprobes here: {error}"),
            Ok(()) => assert!(!probes.is_empty()),
        }
        let own = Hit { id: 7, process: std::process::id() };
        assert_ne!(probed(5), 0);
        wait(&probes);
        assert_eq!(probes.drain(), [own]);
        std::thread::spawn(|| probed(6)).join().unwrap();
        wait(&probes);
        assert_eq!(probes.drain(), [own]);
        let disabled = probes.disable(7);
        probed(7);
        assert_eq!((probes.drain(), probes.is_empty()), (vec![], true));
        drop(disabled);
        let missing = probes.add(&File::open("/proc/self/stat").unwrap(), 0, 8);
        assert!(missing.is_err() && probes.is_empty(), "a file without a page cache");
    }
}
