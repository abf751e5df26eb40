//! The writing side of the ring.

use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::ring;

/// The mapped ring; null where nothing is recorded.
static RING: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// Maps the ring that the environment names; says whether there is one.
pub(super) fn open() -> bool {
    // SAFETY: the name ends with NUL; nothing changes the environment while libraries are being
    // loaded.
    let path = unsafe { libc::getenv(c"RUNNEL_TRACE_RING".as_ptr()) };
    if path.is_null() {
        return false;
    }
    // SAFETY: getenv gave a string that ends with NUL and stays where it is.
    let fd = open_raw(unsafe { CStr::from_ptr(path) });
    if fd < 0 {
        return false;
    }
    let (bytes, protection) = (ring::WORDS * 8, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new mapping at an address the kernel chooses; nothing else refers to it.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0) };
    // SAFETY: takes a descriptor that nobody else knows.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    if base == libc::MAP_FAILED {
        return false;
    }
    RING.store(base.cast(), Ordering::Release);
    if words().is_none_or(|words| words[ring::MAGIC_AT].load(Ordering::Relaxed) != ring::MAGIC) {
        RING.store(std::ptr::null_mut(), Ordering::Release);
        return false;
    }
    true
}

/// Opens the ring if it is as long as it must be: touching the end of a shorter one would end the
/// program.
fn open_raw(path: &CStr) -> c_int {
    let flags = libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: the path ends with NUL.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) } as c_int;
    if fd < 0 {
        return fd;
    }
    // SAFETY: takes numbers only.
    let bytes = unsafe { libc::syscall(libc::SYS_lseek, fd, 0, libc::SEEK_END) };
    if bytes as usize == ring::WORDS * 8 {
        return fd;
    }
    // SAFETY: takes a descriptor that nobody else knows.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    -1
}

/// Whether anything is recorded.
pub(super) fn is_on() -> bool {
    !RING.load(Ordering::Relaxed).is_null()
}

fn words() -> Option<&'static [AtomicU64]> {
    let base = RING.load(Ordering::Acquire);
    // SAFETY: a mapping of this length, aligned to a page, that is never taken away; others change
    // it by atomics only.
    (!base.is_null()).then(|| unsafe { std::slice::from_raw_parts(base, ring::WORDS) })
}

/// Appends an entry whose payload is `parts` one after the other, if there is room.
pub(super) fn put(kind: u8, parts: &[&[u8]]) {
    let Some(words) = words() else { return };
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    if bytes > ring::PAYLOAD_BYTES_MAX {
        return;
    }
    let slots = ring::slots_of(bytes);
    let Some(position) = reserve(words, slots as u64) else {
        words[ring::LOST_AT].fetch_add(1, Ordering::Relaxed);
        return;
    };
    let mut payload = parts.iter().flat_map(|part| part.iter().copied());
    for number in 0..slots as u64 {
        let at = ring::HEADER_BYTES / 8 + ((position + number) as usize % ring::SLOTS) * ring::SLOT_WORDS;
        let slot = &words[at..at + ring::SLOT_WORDS];
        let first = if number == 0 {
            slot[1].store(ring::describe(kind, bytes, std::process::id()), Ordering::Relaxed);
            slot[2].store(now(), Ordering::Relaxed);
            3
        } else {
            1
        };
        for word in &slot[first..] {
            word.store(next_word(&mut payload), Ordering::Relaxed);
        }
        // Release: a reader that sees the commit sees the slot.
        slot[0].store(position + number + 1, Ordering::Release);
    }
}

#[allow(clippy::host_endian_bytes)]
fn next_word(payload: &mut impl Iterator<Item = u8>) -> u64 {
    let mut bytes = [0; 8];
    for byte in &mut bytes {
        *byte = payload.next().unwrap_or(0);
    }
    u64::from_ne_bytes(bytes)
}

/// Positions for so many slots; `None` if the reader is too far behind.
fn reserve(words: &[AtomicU64], slots: u64) -> Option<u64> {
    let mut head = words[ring::HEAD_AT].load(Ordering::Relaxed);
    loop {
        // Acquire: what the reader has freed it has read.
        let tail = words[ring::TAIL_AT].load(Ordering::Acquire);
        if head + slots > tail + ring::SLOTS as u64 {
            return None;
        }
        let moved =
            words[ring::HEAD_AT].compare_exchange_weak(head, head + slots, Ordering::Relaxed, Ordering::Relaxed);
        match moved {
            Ok(_) => return Some(head),
            Err(now) => head = now,
        }
    }
}

/// Nanoseconds of the monotonic clock, without a system call.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time`, which outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
