//! Memory that outlives a daemon: the handshake, and the requests that it has read and not
//! answered.
//!
//! The kernel gives a request to one reader, once. If that reader dies, the program waits for ever,
//! although the descriptors of the connection live on in another process. So the serving threads of
//! a mount that is to survive its daemon read into a shared memory, and a request stays there until
//! it is answered. The next daemon maps the same memory and does again what it finds. An answer
//! that had been given already is refused by the kernel, which does no harm.
//!
//! The memory is a file without a name. From its beginning on it has a header, [`SLOTS`] slots, and
//! an area for each serving thread. All numbers are in the byte order of the machine. A slot is
//! free if its number is 0. The number is written last and cleared last: a process may be killed
//! between any two stores, and the kernel gives its memory to the next one as it was.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{InHeader, InitIn, InitOut};

/// Begins the memory; the last digit is the version of its layout.
const MAGIC: u64 = u64::from_be_bytes(*b"rnlfuse1");

/// Requests that can be kept: far more than threads can wait for one mount.
const SLOTS: usize = 16 << 10;

/// Bytes of a request that has a slot: READ has 80, LOOKUP of the longest name of most file systems
/// 296. A longer one is kept in its area while it is dispatched.
const REQUEST_BYTES_MAX: usize = 304;

/// Words of 8 bytes: the number, the length and the descriptor, and the request.
const SLOT_WORDS: usize = 2 + REQUEST_BYTES_MAX / 8;

/// Bit of the word with the length: a signal came for the thread that waits.
const INTERRUPTED: u64 = 1 << 63;

/// Where the parts of the header are, in words.
mod word {
    pub const MAGIC: usize = 0;
    /// Number of the INIT request; 0 if none came.
    pub const INIT_UNIQUE: usize = 1;
    /// 1 once it was answered.
    pub const AGREED: usize = 2;
    /// Slots that were ever taken: the others take no memory, and are not looked at.
    pub const SLOTS_USED: usize = 3;
    pub const INIT: usize = 8;
    pub const ANSWER: usize = 16;
    /// What the file system keeps for the next daemon.
    pub const NOTE: usize = 24;
    pub const SLOTS: usize = 512;
}

/// Bytes that a file system may keep for the next daemon.
pub const NOTE_BYTES: usize = 32;

/// Where the areas begin, bytes; a multiple of the largest page.
const AREAS_AT: usize = (word::SLOTS + SLOTS * SLOT_WORDS) * 8;
const _: () = assert!(AREAS_AT.is_multiple_of(4096));

/// Areas: one for each serving thread, and one for the handshake, the first.
const AREAS: usize = 9;

/// Serving threads at most whose requests are kept.
pub const THREADS_MAX: usize = AREAS - 1;

/// Bytes of an area: the largest request, 1 MiB of data and its header.
const AREA_BYTES: usize = (1 << 20) + (64 << 10);

const MEMORY_BYTES: usize = AREAS_AT + AREAS * AREA_BYTES;

/// Makes a memory for a mount that does not exist yet. It takes room only where it is used.
///
/// # Errors
/// The kernel has no memory or descriptor left.
pub fn create() -> io::Result<OwnedFd> {
    let memory = memfd_create("runnel-mount", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, MEMORY_BYTES as u64)?;
    // Nobody can make it shorter: that would end who uses it.
    rustix::fs::fcntl_add_seals(&memory, rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW)?;
    Ok(memory)
}

/// Whether this version understands a memory.
///
/// # Errors
/// It is of another version, or cannot be read.
pub fn check(memory: impl AsFd) -> io::Result<()> {
    let mut magic = 0u64;
    let length = rustix::fs::fstat(&memory)?.st_size;
    rustix::io::pread(memory, magic.as_mut_bytes(), (word::MAGIC * 8) as u64)?;
    if length == MEMORY_BYTES as i64 && [0, MAGIC].contains(&magic) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the last daemon was of another version"))
}

/// Reads the note in a memory; all zeros if none was written.
///
/// # Errors
/// It cannot be read.
pub fn note(memory: impl AsFd) -> io::Result<[u8; NOTE_BYTES]> {
    let mut note = [0; NOTE_BYTES];
    rustix::io::pread(memory, &mut note, (word::NOTE * 8) as u64)?;
    Ok(note)
}

/// Writes the note.
///
/// # Errors
/// It cannot be written.
pub fn set_note(memory: impl AsFd, note: &[u8; NOTE_BYTES]) -> io::Result<()> {
    rustix::io::pwrite(memory, note, (word::NOTE * 8) as u64)?;
    Ok(())
}

/// A request that a daemon has left without an answer.
pub(crate) struct Left {
    pub bytes: Vec<u8>,
    /// Index of the descriptor that it was read from.
    pub device: usize,
    pub interrupted: bool,
    /// Where it is kept, unless in an area.
    pub slot: Option<usize>,
}

/// A place that one thread at a time reads requests into.
pub(crate) enum Area {
    /// It ends with this process.
    Own(Vec<u8>),
    /// In the memory for the next daemon.
    Shared(&'static mut [u8]),
}

impl Area {
    /// An area of this process alone.
    pub fn own(bytes: usize) -> Area {
        Area::Own(vec![0; bytes.max(size_of::<InHeader>())])
    }

    /// The bytes to read into.
    pub fn bytes(&mut self) -> &mut [u8] {
        match self {
            Area::Own(bytes) => bytes,
            Area::Shared(bytes) => bytes,
        }
    }

    /// The request in it is answered, or kept elsewhere.
    pub fn clear(&mut self) {
        self.bytes()[..size_of::<InHeader>()].fill(0);
    }

    /// The request that the last daemon has left in it.
    fn left(&self) -> Option<Vec<u8>> {
        let Area::Shared(bytes) = self else { return None };
        let (header, _) = InHeader::read_from_prefix(bytes).ok()?;
        let is_whole = header.unique != 0 && header.len as usize >= size_of::<InHeader>();
        bytes.get(..header.len as usize).filter(|_| is_whole).map(<[u8]>::to_vec)
    }
}

/// The mapped memory, without its areas.
pub(crate) struct Handover {
    words: &'static [AtomicU64],
    free: Mutex<Free>,
}

/// Slots without a request.
#[derive(Default)]
struct Free {
    released: Vec<usize>,
    /// From here on none was ever taken.
    next: usize,
}

impl Handover {
    /// Maps a memory for as long as this process lives: it serves one mount. Also returns its
    /// areas: first that of the handshake, then one for each serving thread.
    ///
    /// # Errors
    /// It is none of ours, or the kernel refuses.
    pub fn map(memory: &OwnedFd) -> io::Result<(Handover, Vec<Area>)> {
        check(memory)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), MEMORY_BYTES, access, flags, memory, 0)? };
        // SAFETY: the mapping is never taken away, cannot become shorter (it is sealed), and begins
        // at a page; atomic numbers may be changed by others.
        let words = unsafe { std::slice::from_raw_parts(base.cast::<AtomicU64>(), AREAS_AT / 8) };
        let areas = (0..AREAS).map(|index| {
            // SAFETY: the areas do not overlap each other or the words, and only one process serves
            // at a time: the keeper starts it after the last one has ended.
            let memory = unsafe {
                std::slice::from_raw_parts_mut(base.cast::<u8>().add(AREAS_AT + index * AREA_BYTES), AREA_BYTES)
            };
            Area::Shared(memory)
        });
        let handover = Handover { words, free: Mutex::default() };
        handover.words[word::MAGIC].store(MAGIC, Ordering::Release);
        let next = handover.slots_used();
        let released = (0..next).filter(|slot| handover.number(*slot) == 0).collect();
        *handover.lock() = Free { released, next };
        Ok((handover, areas.collect()))
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self, slot: usize) -> &[AtomicU64] {
        let at = word::SLOTS + slot * SLOT_WORDS;
        &self.words[at..at + SLOT_WORDS]
    }

    fn slots_used(&self) -> usize {
        usize::try_from(self.words[word::SLOTS_USED].load(Ordering::Acquire)).unwrap_or(SLOTS).min(SLOTS)
    }

    /// A slot for a request.
    fn take(&self) -> Option<usize> {
        let mut free = self.lock();
        free.released.pop().or_else(|| {
            let slot = Some(free.next).filter(|slot| *slot < SLOTS)?;
            free.next += 1;
            self.words[word::SLOTS_USED].store(free.next as u64, Ordering::Release);
            Some(slot)
        })
    }

    fn number(&self, slot: usize) -> u64 {
        self.slot(slot)[0].load(Ordering::Acquire)
    }

    /// Keeps a request; `None` if it is too long, or if all slots are taken.
    pub fn keep(&self, unique: u64, bytes: &[u8], device: usize) -> Option<usize> {
        if bytes.len() > REQUEST_BYTES_MAX {
            return None;
        }
        let slot = self.take()?;
        let words = self.slot(slot);
        write(&words[2..], bytes);
        words[1].store(((device as u64) << 32) | bytes.len() as u64, Ordering::Relaxed);
        words[0].store(unique, Ordering::Release);
        Some(slot)
    }

    /// A signal came for the thread that waits; the kernel says so once.
    pub fn interrupt(&self, slot: usize) {
        self.slot(slot)[1].fetch_or(INTERRUPTED, Ordering::Relaxed);
    }

    /// The request was answered.
    pub fn release(&self, slot: usize) {
        self.slot(slot)[0].store(0, Ordering::Release);
        self.lock().released.push(slot);
    }

    /// What the last daemon has left. The requests in the area of serving thread `n` came from
    /// descriptor `device_of(n)`.
    pub fn left(&self, serving: &[Area], device_of: impl Fn(usize) -> usize) -> Vec<Left> {
        let kept = (0..self.slots_used()).filter(|slot| self.number(*slot) != 0).map(|slot| {
            let words = self.slot(slot);
            let state = words[1].load(Ordering::Relaxed);
            let length = (state as u32 as usize).min(REQUEST_BYTES_MAX);
            let device = ((state & !INTERRUPTED) >> 32) as usize;
            Left { bytes: read(&words[2..], length), device, interrupted: state & INTERRUPTED != 0, slot: Some(slot) }
        });
        let read = serving.iter().enumerate().filter_map(|(thread, area)| {
            Some(Left { bytes: area.left()?, device: device_of(thread), interrupted: false, slot: None })
        });
        kept.chain(read).collect()
    }

    /// What the kernel offered, and the number of that request.
    pub fn init(&self, handshake: &Area) -> Option<(u64, InitIn)> {
        let unique = self.words[word::INIT_UNIQUE].load(Ordering::Acquire);
        if unique != 0 {
            let init = read(&self.words[word::INIT..], size_of::<InitIn>());
            return Some((unique, InitIn::read_from_bytes(&init).ok()?));
        }
        // The last daemon was killed before it kept it.
        let left = handshake.left()?;
        let (header, rest) = InHeader::read_from_prefix(&left).ok()?;
        let (init, _) = InitIn::read_from_prefix(rest).ok()?;
        Some((header.unique, init))
    }

    /// Keeps what the kernel offered.
    pub fn keep_init(&self, unique: u64, init: &InitIn) {
        write(&self.words[word::INIT..], init.as_bytes());
        self.words[word::INIT_UNIQUE].store(unique, Ordering::Release);
    }

    /// What was agreed on, once the kernel has been told.
    pub fn agreed(&self) -> Option<InitOut> {
        let is_agreed = self.words[word::AGREED].load(Ordering::Acquire) != 0;
        let answer = read(&self.words[word::ANSWER..], size_of::<InitOut>());
        InitOut::read_from_bytes(&answer).ok().filter(|_| is_agreed)
    }

    /// The kernel was told this.
    pub fn agree(&self, answer: &InitOut) {
        write(&self.words[word::ANSWER..], answer.as_bytes());
        self.words[word::AGREED].store(1, Ordering::Release);
    }
}

/// Writes bytes into words, the last one filled up with zeros. In the machine's own byte order: the
/// memory never leaves it.
#[allow(clippy::host_endian_bytes)]
fn write(words: &[AtomicU64], bytes: &[u8]) {
    for (word, part) in words.iter().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..part.len()].copy_from_slice(part);
        word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
    }
}

#[allow(clippy::host_endian_bytes)]
fn read(words: &[AtomicU64], length: usize) -> Vec<u8> {
    let parts = words.iter().take(length.div_ceil(8));
    let mut bytes: Vec<u8> = parts.flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
    bytes.truncate(length);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::opcode;
    use crate::request::tests::message;

    #[test]
    fn the_next_daemon_finds_what_was_not_answered() {
        let memory = create().expect("a memory");
        set_note(&memory, &[7; NOTE_BYTES]).expect("written");
        let (first, mut areas) = Handover::map(&memory).expect("mapped");
        assert!(
            first.left(&areas[1..], |_| 0).is_empty() && first.init(&areas[0]).is_none() && first.agreed().is_none()
        );
        let requests: Vec<Vec<u8>> = (0..4).map(|node| message(opcode::READ, node, &[&[1; 40]])).collect();
        let slots: Vec<usize> = (10..).zip(&requests).filter_map(|(n, bytes)| first.keep(n, bytes, 3)).collect();
        assert_eq!(slots, [0, 1, 2, 3]);
        first.release(1);
        first.interrupt(2);
        assert_eq!(first.keep(9, &[1; REQUEST_BYTES_MAX + 1], 0), None);
        let request = message(opcode::LOOKUP, 9, &[b"name\0"]);
        areas[2].bytes()[..request.len()].copy_from_slice(&request);
        let init = InitIn { major: 7, minor: 40, max_readahead: 1, flags: 2, flags2: 3, unused: [0; 11] };
        first.keep_init(2, &init);

        let (next, mut areas) = Handover::map(&memory).expect("mapped");
        let left = next.left(&areas[1..], |thread| thread + 100);
        let found: Vec<_> = left.iter().map(|left| (left.slot, left.device, left.interrupted)).collect();
        assert_eq!(found, [(Some(0), 3, false), (Some(2), 3, true), (Some(3), 3, false), (None, 101, false)]);
        assert_eq!((&left[1].bytes, &left[3].bytes), (&requests[2], &request));
        assert_eq!(next.init(&areas[0]), Some((2, init)));
        assert_eq!(note(&memory).expect("read"), [7; NOTE_BYTES]);
        // A free slot is taken, and none of those that are not.
        assert_eq!(next.keep(50, &requests[0], 0), Some(1));
        assert_eq!(next.keep(52, &requests[0], 0), Some(4));
        assert!(next.left(&areas[1..], |_| 0).iter().any(|left| left.slot == Some(4)));
        areas[2].clear();
        assert!(next.left(&areas[1..], |_| 0).iter().all(|left| left.slot.is_some()));
    }

    #[test]
    fn what_is_no_memory_of_a_daemon_is_refused() {
        let short = memfd_create("short", MemfdFlags::CLOEXEC).expect("a memory");
        assert!(Handover::map(&short).is_err());
        let other = create().expect("a memory");
        rustix::io::pwrite(&other, &[9; 8], 0).expect("written");
        assert!(Handover::map(&other).is_err());
    }
}
