//! Which pages of a file are in memory, by `mincore(2)`.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Bytes looked at in one go.
const STEP_BYTES: u64 = 256 << 20;

/// Bytes that one entry of `mincore` covers.
fn page_bytes() -> u64 {
    // SAFETY: asks for a constant.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

/// The ranges of a file that are in memory, in order: first byte and the byte after the last. The
/// kernel gives the truth only about files that the caller owns or may write; it reports all others
/// as whole.
///
/// # Errors
/// The file cannot be mapped.
pub fn resident(file: &File) -> io::Result<Vec<(u64, u64)>> {
    let (size, page) = (file.metadata()?.len(), page_bytes());
    let mut found: Vec<(u64, u64)> = Vec::new();
    for offset in (0..size).step_by(STEP_BYTES as usize) {
        let bytes = STEP_BYTES.min(size - offset) as usize;
        for (index, state) in states(file, offset, bytes, page)?.into_iter().enumerate() {
            let first = offset + index as u64 * page;
            let end = (first + page).min(size);
            match found.last_mut() {
                _ if state & 1 == 0 => {}
                Some(last) if last.1 == first => last.1 = end,
                _ => found.push((first, end)),
            }
        }
    }
    Ok(found)
}

fn states(file: &File, offset: u64, bytes: usize, page: u64) -> io::Result<Vec<u8>> {
    let mut states = vec![0_u8; bytes.div_ceil(page as usize)];
    let (null, protection) = (std::ptr::null_mut(), libc::PROT_READ);
    // SAFETY: a new mapping at an address the kernel chooses, which is never read and goes away
    // below.
    let base =
        unsafe { libc::mmap(null, bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), offset as libc::off_t) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the range is the mapping just made, and `states` has a byte for each page of it.
    let done = unsafe { libc::mincore(base, bytes, states.as_mut_ptr()) };
    let error = io::Error::last_os_error();
    // SAFETY: the mapping is ours, and nothing refers to it.
    unsafe { libc::munmap(base, bytes) };
    if done == 0 { Ok(states) } else { Err(error) }
}
