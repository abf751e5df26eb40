//! Memory that outlives a daemon: the handshake, and the requests that it has read and not
//! answered.
//!
//! The kernel gives a request to one reader, once. If that reader dies, the program waits for ever,
//! although the descriptors of the connection live on in another process. So the serving threads of
//! a mount that is to survive its daemon read into a shared memory, and a request stays there until
//! it is answered. The next daemon maps the same memory and does again what it finds.
//!
//! A short answer is written beside its request before it is sent. The next daemon sends it again
//! instead of doing the request twice: the caller may have it already, and may have done something
//! since that a second time would undo. If it has it, the kernel refuses it, which does no harm.
//! Long answers have what was read, and reading again changes nothing.
//!
//! The memory is a file without a name. From its beginning on it has a header, [`SLOTS`] slots, and
//! [`AREAS`] areas. A thread reads into an area, and copies a short request to a slot. A long one
//! stays in its area until it is answered, and the thread takes another area. If none is left, only
//! the beginning is kept, and the next daemon answers EIO: a thread never waits for an area, since
//! what it would read then may be what others wait for.
//!
//! A FORGET is not kept. What was read of it is forgotten before it is done: one that is lost
//! leaves an inode in memory, but one that is done twice would take an inode away that is in use.
//!
//! All numbers are in the byte order of the machine. A slot is free if its number is 0. The number
//! is written last and cleared last: a process may be killed between any two stores, and the kernel
//! gives its memory to the next one as it was.

#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{EntryOut, InHeader, InitIn, InitOut, OpenOut};

/// Begins the memory; the last digit is the version of its layout.
const MAGIC: u64 = u64::from_be_bytes(*b"rnlfuse2");

/// Requests that can be kept: far more than threads can wait for one mount.
const SLOTS: usize = 16 << 10;

/// Bytes of a request that has a slot: READ has 80, LOOKUP of the longest name of most file systems
/// 296. A longer one is kept in its area.
pub(crate) const REQUEST_BYTES_MAX: usize = 304;

/// Bytes of an answer that is kept until it was sent: that of CREATE is the longest that tells what
/// was changed.
const ANSWER_BYTES_MAX: usize = size_of::<EntryOut>() + size_of::<OpenOut>();

/// Words of 8 bytes: the length and the error number, and the answer.
const ANSWER_WORDS: usize = 1 + ANSWER_BYTES_MAX / 8;

/// Words of what is known of an area: its state, and the answer of its request.
const AREA_WORDS: usize = 1 + ANSWER_WORDS;

/// Words of a slot: the number, the state, the answer, and the request.
const SLOT_WORDS: usize = 2 + ANSWER_WORDS + REQUEST_BYTES_MAX / 8;

/// Bits of a state. The upper half has also the index of the descriptor; the lower half of that of
/// a slot is the length of the request. A signal came for the thread that waits.
const INTERRUPTED: u64 = 1 << 63;

/// The answer is about to be sent, or was.
const ANSWERED: u64 = 1 << 62;

/// What stands in the area is kept elsewhere, or is not to be done again.
const SETTLED: u64 = 1 << 61;

const FLAGS: u64 = INTERRUPTED | ANSWERED | SETTLED;

/// Where the parts of the header are, in words.
mod word {
    pub const MAGIC: usize = 0;
    /// Number of the INIT request; 0 if none came.
    pub const INIT_UNIQUE: usize = 1;
    /// 1 once it was answered.
    pub const AGREED: usize = 2;
    /// Slots that were ever taken: the others take no memory, and are not looked at.
    pub const SLOTS_USED: usize = 3;
    /// The same of areas.
    pub const AREAS_USED: usize = 4;
    pub const INIT: usize = 8;
    pub const ANSWER: usize = 16;
    /// What the file system keeps for the next daemon.
    pub const NOTE: usize = 24;
    /// What is known of the areas.
    pub const AREAS: usize = 512;
    pub const SLOTS: usize = 3584;
}
const _: () = assert!(word::AREAS + AREAS * AREA_WORDS <= word::SLOTS);

/// Bytes that a file system may keep for the next daemon.
pub const NOTE_BYTES: usize = 32;

/// Where the areas begin, bytes; a multiple of the largest page.
const AREAS_AT: usize = (word::SLOTS + SLOTS * SLOT_WORDS) * 8;
const _: () = assert!(AREAS_AT.is_multiple_of(4096));

/// Serving threads at most whose requests are kept.
pub const THREADS_MAX: usize = 8;

/// Long requests that can be kept: twice the pages of mappings that a kernel writes at a time.
const SPARES: usize = 128;

/// One for the handshake, the first, one for each serving thread, and those of long requests.
const AREAS: usize = 1 + THREADS_MAX + SPARES;

/// Areas that keep their memory when they are free. Those with lower indices are taken first.
const AREAS_WARM: usize = 24;

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

/// Where a request is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Slot(usize),
    /// The area that it was read into, by the thread that has the area.
    Read(usize),
    /// An area that nobody else has until it is answered.
    Area(usize),
}

/// A request that a daemon has left without an answer.
pub(crate) struct Left {
    pub bytes: Vec<u8>,
    /// Index of the descriptor that it was read from.
    pub device: usize,
    pub interrupted: bool,
    pub place: Place,
    /// Error number and bytes of the answer, if it was about to be sent.
    pub answer: Option<(i32, Vec<u8>)>,
}

/// A place that one thread at a time reads requests into.
pub(crate) enum Area {
    /// It ends with this process.
    Own(Vec<u8>),
    /// In the memory for the next daemon, with its index.
    Shared(usize, &'static mut [u8]),
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
            Area::Shared(_, bytes) => bytes,
        }
    }

    pub fn index(&self) -> Option<usize> {
        match self {
            Area::Own(_) => None,
            Area::Shared(index, _) => Some(*index),
        }
    }

    /// The request in it is answered, or kept elsewhere.
    pub fn clear(&mut self) {
        self.bytes()[..size_of::<InHeader>()].fill(0);
    }
}

/// The request that stands in an area.
fn request(bytes: &[u8]) -> Option<&[u8]> {
    let (header, _) = InHeader::read_from_prefix(bytes).ok()?;
    let is_whole = header.unique != 0 && header.len as usize >= size_of::<InHeader>();
    bytes.get(..header.len as usize).filter(|_| is_whole)
}

/// The mapped memory.
pub(crate) struct Handover {
    words: &'static [AtomicU64],
    /// The first byte of the first area.
    areas: AtomicPtr<u8>,
    free: Mutex<Free>,
}

/// What holds no request.
#[derive(Default)]
struct Free {
    released: Vec<usize>,
    /// From here on no slot was ever taken.
    next: usize,
    areas: BTreeSet<usize>,
}

impl Handover {
    /// Maps a memory for as long as this process lives: it serves one mount. Also returns the area
    /// of the handshake.
    ///
    /// # Errors
    /// It is none of ours, or the kernel refuses.
    pub fn map(memory: &OwnedFd) -> io::Result<(Handover, Area)> {
        check(memory)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), MEMORY_BYTES, access, flags, memory, 0)? };
        // SAFETY: the mapping is never taken away, cannot become shorter (it is sealed), and begins
        // at a page; atomic numbers may be changed by others.
        let words = unsafe { std::slice::from_raw_parts(base.cast::<AtomicU64>(), AREAS_AT / 8) };
        // SAFETY: the areas are in the same mapping.
        let areas = AtomicPtr::new(unsafe { base.cast::<u8>().add(AREAS_AT) });
        let handover = Handover { words, areas, free: Mutex::default() };
        handover.words[word::MAGIC].store(MAGIC, Ordering::Release);
        let next = handover.slots_used();
        let released = (0..next).filter(|slot| handover.number(*slot) == 0).collect();
        *handover.lock() = Free { released, next, areas: (1..AREAS).collect() };
        let handshake = handover.area(0);
        Ok((handover, handshake))
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self, slot: usize) -> &[AtomicU64] {
        let at = word::SLOTS + slot * SLOT_WORDS;
        &self.words[at..at + SLOT_WORDS]
    }

    /// The state of a request and its answer.
    fn state(&self, place: Place) -> &[AtomicU64] {
        match place {
            Place::Slot(slot) => &self.slot(slot)[1..2 + ANSWER_WORDS],
            Place::Read(area) | Place::Area(area) => {
                let at = word::AREAS + area * AREA_WORDS;
                &self.words[at..at + AREA_WORDS]
            }
        }
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

    /// The area with an index, which only its taker may ask for.
    fn area(&self, index: usize) -> Area {
        let areas = self.areas.load(Ordering::Relaxed);
        // SAFETY: the areas do not overlap each other or the words. Each is given out once until it
        // comes back, and only one process serves at a time: the keeper starts it after the last
        // one has ended.
        Area::Shared(index, unsafe { std::slice::from_raw_parts_mut(areas.add(index * AREA_BYTES), AREA_BYTES) })
    }

    /// An area to read into.
    pub fn take_area(&self) -> Option<Area> {
        let index = self.lock().areas.pop_first()?;
        self.words[word::AREAS_USED].fetch_max(index as u64 + 1, Ordering::AcqRel);
        Some(self.area(index))
    }

    /// Has memory put where a request will be read to: the kernel fails a request that it is
    /// copying to a page that is not there when its reader is killed.
    pub fn warm(area: &mut Area, bytes: usize) {
        let bytes = &mut area.bytes()[..bytes];
        // SAFETY: it changes nothing but what pages are there. Some kernels cannot do it.
        let _ = unsafe { madvise(bytes.as_mut_ptr().cast(), bytes.len(), Advice::LinuxPopulateWrite) };
    }

    /// An area is free, and its request is not to be found any more.
    pub fn release_area(&self, mut area: Area) {
        area.clear();
        let Area::Shared(index, bytes) = area else { return };
        if index >= AREAS_WARM {
            // SAFETY: nobody else has the area, and zeros in it are as good. Where the kernel
            // cannot do it, the memory stays.
            let _ = unsafe { madvise(bytes.as_mut_ptr().cast(), bytes.len(), Advice::LinuxRemove) };
        }
        self.lock().areas.insert(index);
    }

    /// A request is about to be read into an area from a descriptor.
    pub fn begins(&self, area: &mut Area, device: usize) {
        // The next daemon must not find what was answered long ago.
        area.clear();
        if let Some(index) = area.index() {
            self.state(Place::Read(index))[0].store((device as u64) << 32, Ordering::Release);
        }
    }

    /// What was read into an area is not to be done again.
    pub fn settle(&self, area: usize) {
        self.state(Place::Read(area))[0].fetch_or(SETTLED, Ordering::Release);
    }

    fn number(&self, slot: usize) -> u64 {
        self.slot(slot)[0].load(Ordering::Acquire)
    }

    /// Keeps a request, or the beginning of one that is too long; `None` if all slots are taken.
    pub fn keep(&self, unique: u64, bytes: &[u8], device: usize) -> Option<Place> {
        let bytes = &bytes[..bytes.len().min(REQUEST_BYTES_MAX)];
        let slot = self.take()?;
        let words = self.slot(slot);
        write(&words[2 + ANSWER_WORDS..], bytes);
        words[1].store(((device as u64) << 32) | bytes.len() as u64, Ordering::Relaxed);
        words[0].store(unique, Ordering::Release);
        Some(Place::Slot(slot))
    }

    /// A signal came for the thread that waits; the kernel says so once.
    pub fn interrupt(&self, place: Place) {
        self.state(place)[0].fetch_or(INTERRUPTED, Ordering::Relaxed);
    }

    /// An answer is about to be sent.
    pub fn answer(&self, place: Place, error: i32, parts: &[&[u8]; 2]) {
        let length = parts[0].len() + parts[1].len();
        if length > ANSWER_BYTES_MAX {
            return;
        }
        let (state, words) = (&self.state(place)[0], &self.state(place)[1..]);
        words[0].store((u64::from(error.cast_unsigned()) << 32) | length as u64, Ordering::Relaxed);
        // The parts of all answers are whole words, or one of them is alone.
        let split = parts[0].len().div_ceil(8);
        write(&words[1..], parts[0]);
        write(&words[1 + split..], parts[1]);
        state.fetch_or(ANSWERED, Ordering::Release);
    }

    /// The request was answered.
    pub fn release(&self, place: Place) {
        match place {
            Place::Slot(slot) => {
                self.slot(slot)[0].store(0, Ordering::Release);
                self.lock().released.push(slot);
            }
            Place::Read(_) => {}
            Place::Area(area) => self.release_area(self.area(area)),
        }
    }

    /// What the last daemon has left. Areas with such a request are not free.
    pub fn left(&self) -> Vec<Left> {
        let kept = (0..self.slots_used()).filter(|slot| self.number(*slot) != 0).map(|slot| {
            let length = self.slot(slot)[1].load(Ordering::Relaxed) as u32 as usize;
            let bytes = read(&self.slot(slot)[2 + ANSWER_WORDS..], length.min(REQUEST_BYTES_MAX));
            self.found(Place::Slot(slot), bytes)
        });
        let mut left: Vec<Left> = kept.collect();
        let slots: Vec<u64> = left.iter().filter_map(Left::unique).collect();
        let used = self.words[word::AREAS_USED].load(Ordering::Acquire);
        for index in 1..usize::try_from(used).unwrap_or(AREAS).min(AREAS) {
            let mut area = self.area(index);
            let Some(bytes) = request(area.bytes()).map(<[u8]>::to_vec) else { continue };
            let found = self.found(Place::Area(index), bytes);
            let is_settled = self.state(found.place)[0].load(Ordering::Relaxed) & SETTLED != 0;
            // The last daemon was killed before it said that it had kept it.
            if is_settled || found.unique().is_some_and(|unique| slots.contains(&unique)) {
                area.clear();
                continue;
            }
            self.lock().areas.remove(&index);
            left.push(found);
        }
        left
    }

    fn found(&self, place: Place, bytes: Vec<u8>) -> Left {
        let words = self.state(place);
        let state = words[0].load(Ordering::Acquire);
        let device = ((state & !FLAGS) >> 32) as usize;
        let answer = (state & ANSWERED != 0).then(|| {
            let told = words[1].load(Ordering::Relaxed);
            let length = (told as u32 as usize).min(ANSWER_BYTES_MAX);
            (((told >> 32) as u32).cast_signed(), read(&words[2..], length))
        });
        Left { bytes, device, interrupted: state & INTERRUPTED != 0, place, answer }
    }

    /// What the kernel offered, and the number of that request.
    pub fn init(&self, handshake: &mut Area) -> Option<(u64, InitIn)> {
        let unique = self.words[word::INIT_UNIQUE].load(Ordering::Acquire);
        if unique != 0 {
            let init = read(&self.words[word::INIT..], size_of::<InitIn>());
            return Some((unique, InitIn::read_from_bytes(&init).ok()?));
        }
        // The last daemon was killed before it kept it.
        let (header, rest) = InHeader::read_from_prefix(request(handshake.bytes())?).ok()?;
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

impl Left {
    fn unique(&self) -> Option<u64> {
        InHeader::read_from_prefix(&self.bytes).ok().map(|(header, _)| header.unique)
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
mod tests;
