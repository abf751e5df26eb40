//! The memory of a ring, which the kernel fills and we empty.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::event::page_bytes;

/// Where the ring's positions are in its first page.
const DATA_HEAD_AT: usize = 1024;
const DATA_TAIL_AT: usize = 1032;

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
        // SAFETY: both positions lie in the first page, eight bytes aligned; the kernel uses them
        // as such.
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
        // SAFETY: `begin + first <= size` and `new - first <= begin`, so both pieces lie in the
        // ring, which `out` (with room for `new` bytes) does not overlap. The kernel does not write
        // between tail and head.
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
