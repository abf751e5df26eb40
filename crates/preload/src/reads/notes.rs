//! The notes after a call. A small table keeps most of them from being written twice.
//!
//! This code runs after the program's own call, with its errno saved, in whatever thread or handler
//! that was: it locks nothing, allocates nothing, and makes raw system calls only.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::writer::put;
use crate::ring;

/// Entries of the table of what was noted: 128 KiB, used as needed. A collision only notes again.
const SEEN_ENTRIES: usize = 1 << 14;

static SEEN: [AtomicU64; SEEN_ENTRIES] = [const { AtomicU64::new(0) }; SEEN_ENTRIES];

/// Descriptors whose stream is watched; those above are rare.
const STREAMS_MAX: usize = 1024;

/// Streams whose reads were noted one by one, or that moved about, so that `fclose` need not note
/// them.
static STREAM_IS_NOTED: [AtomicBool; STREAMS_MAX] = [const { AtomicBool::new(false) }; STREAMS_MAX];

/// Bytes of a path at most, with its NUL.
const PATH_BYTES: usize = 4096;

/// A regular file or directory behind a descriptor.
struct Open {
    device: u64,
    inode: u64,
    directory: bool,
}

/// The library started.
pub(super) fn hello() {
    let mut path = [0; PATH_BYTES];
    put(ring::KIND_HELLO, &[link(c"/proc/self/exe", &mut path)]);
}

/// `read` or a variant of it returned: from `offset`, or from the descriptor's position.
pub(super) fn read(fd: c_int, offset: Option<i64>, result: isize) {
    if result <= 0 {
        return;
    }
    let Some(open) = look(fd).filter(|open| !open.directory) else { return };
    let bytes = result as u64;
    let end = match offset {
        Some(offset) => offset as u64 + bytes,
        None => place(fd),
    };
    note_range(fd, &open, end.saturating_sub(bytes), bytes);
}

/// A stream was read from; its descriptor stood at `before`.
pub(super) fn stream_read(fd: c_int, before: u64) {
    set_stream_noted(fd, true);
    let after = place(fd);
    if after <= before {
        return;
    }
    if let Some(open) = look(fd).filter(|open| !open.directory) {
        note_range(fd, &open, before, after - before);
    }
}

/// A stream is about to be closed: what it read line by line or byte by byte is noted now.
pub(super) fn stream_close(fd: c_int) {
    let is_noted = usize::try_from(fd).ok().and_then(|fd| STREAM_IS_NOTED.get(fd));
    if is_noted.is_none_or(|noted| noted.load(Ordering::Relaxed)) {
        return;
    }
    stream_read(fd, 0);
}

/// Whether `fclose` may leave a stream out.
pub(super) fn set_stream_noted(fd: c_int, is_noted: bool) {
    if let Some(noted) = usize::try_from(fd).ok().and_then(|fd| STREAM_IS_NOTED.get(fd)) {
        noted.store(is_noted, Ordering::Relaxed);
    }
}

/// `open` or a variant of it returned.
// SAFETY: what callers promise: `path` is null or a string with a NUL.
pub(super) unsafe fn opened(directory: c_int, path: *const c_char, flags: c_int, fd: c_int) {
    if fd < 0 {
        // SAFETY: as the caller promises.
        return unsafe { missed(directory, path) };
    }
    if flags & libc::O_PATH != 0 || flags & libc::O_ACCMODE == libc::O_WRONLY {
        return;
    }
    if let Some(open) = look(fd) {
        note_open(fd, &open);
    }
}

/// A call with this path failed; noted if there is nothing.
// SAFETY: what callers promise: `path` is null or a string with a NUL.
pub(super) unsafe fn missed(directory: c_int, path: *const c_char) {
    // Not ENOTDIR: `opendir` says so of files, and of a path below a file nothing is read from a
    // disk.
    if path.is_null() || errno() != libc::ENOENT {
        return;
    }
    // SAFETY: not null, so a string with a NUL, as the caller promises.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if path.is_empty() {
        return;
    }
    let mut folder = [0; PATH_BYTES];
    let folder: &[u8] = match (path[0], directory) {
        (b'/', _) => b"",
        (_, libc::AT_FDCWD) => current(&mut folder),
        (_, fd) => link_of(fd, &mut folder),
    };
    if path[0] != b'/' && !folder.starts_with(b"/") {
        return;
    }
    if is_new(hash(hash(4, folder), path)) {
        put(ring::KIND_MISSED, &[folder, if folder.is_empty() { b"" } else { b"/" }, path]);
    }
}

fn note_open(fd: c_int, open: &Open) {
    let (device, inode) = (words(open.device), words(open.inode));
    if is_new(hash(hash(2, &device), &inode)) {
        let mut path = [0; PATH_BYTES];
        let kind = if open.directory { ring::KIND_DIRECTORY } else { ring::KIND_FILE };
        put(kind, &[&device, &inode, link_of(fd, &mut path)]);
    }
}

fn note_range(fd: c_int, open: &Open, offset: u64, bytes: u64) {
    note_open(fd, open);
    let (device, inode) = (words(open.device), words(open.inode));
    // Reads byte by byte are noted once a page.
    let pages = [words(offset / 4096), words((offset + bytes - 1) / 4096)].concat_in_place();
    if is_new(hash(hash(hash(5, &device), &inode), &pages)) {
        put(ring::KIND_READ, &[&device, &inode, &words(offset), &words(bytes)]);
    }
}

/// `concat` of a vector would allocate.
trait ConcatInPlace {
    fn concat_in_place(self) -> [u8; 16];
}

impl ConcatInPlace for [[u8; 8]; 2] {
    fn concat_in_place(self) -> [u8; 16] {
        let mut both = [0; 16];
        both[..8].copy_from_slice(&self[0]);
        both[8..].copy_from_slice(&self[1]);
        both
    }
}

#[allow(clippy::host_endian_bytes)]
fn words(number: u64) -> [u8; 8] {
    number.to_ne_bytes()
}

/// FNV-1a, 64 bits.
fn hash(seed: u64, bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

fn is_new(hash: u64) -> bool {
    let hash = hash | 1;
    SEEN[(hash >> 40) as usize % SEEN_ENTRIES].swap(hash, Ordering::Relaxed) != hash
}

/// What is behind a descriptor, if it can be in a trace.
fn look(fd: c_int) -> Option<Open> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel fills the structure, which outlives the call.
    let done = unsafe { libc::syscall(libc::SYS_fstat, fd, status.as_mut_ptr()) };
    if done != 0 {
        return None;
    }
    // SAFETY: all fields are integers, and the kernel has set them.
    let status = unsafe { status.assume_init() };
    let directory = match status.st_mode & libc::S_IFMT {
        libc::S_IFREG => false,
        libc::S_IFDIR => true,
        _ => return None,
    };
    Some(Open { device: status.st_dev, inode: status.st_ino, directory })
}

/// The position of a descriptor in its file; 0 if it has none.
pub(super) fn place(fd: c_int) -> u64 {
    // SAFETY: takes numbers only.
    let place: c_long = unsafe { libc::syscall(libc::SYS_lseek, fd, 0, libc::SEEK_CUR) };
    u64::try_from(place).unwrap_or(0)
}

fn link_of(fd: c_int, out: &mut [u8; PATH_BYTES]) -> &[u8] {
    let mut name = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    let mut digits = [0_u8; 10];
    let mut number = fd.max(0);
    let mut count = 0;
    while count == 0 || number > 0 {
        digits[count] = b'0' + (number % 10) as u8;
        number /= 10;
        count += 1;
    }
    for (to, digit) in name[14..].iter_mut().zip(digits[..count].iter().rev()) {
        *to = *digit;
    }
    CStr::from_bytes_until_nul(&name).map(|name| link(name, out)).unwrap_or_default()
}

fn link<'a>(name: &CStr, out: &'a mut [u8; PATH_BYTES]) -> &'a [u8] {
    let room: *mut c_void = out.as_mut_ptr().cast();
    // SAFETY: the name ends with NUL, and the kernel writes at most as many bytes as `out` has.
    let bytes = unsafe { libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, name.as_ptr(), room, PATH_BYTES) };
    &out[..usize::try_from(bytes).unwrap_or(0)]
}

/// The working directory; empty if it cannot be had.
fn current(out: &mut [u8; PATH_BYTES]) -> &[u8] {
    // SAFETY: the kernel writes at most as many bytes as `out` has.
    let bytes = unsafe { libc::syscall(libc::SYS_getcwd, out.as_mut_ptr(), PATH_BYTES) };
    // The kernel counts the NUL.
    &out[..usize::try_from(bytes).unwrap_or(0).saturating_sub(1)]
}

/// The calling thread's errno.
pub(super) fn errno() -> c_int {
    // SAFETY: the C library gives the address of this thread's own number.
    unsafe { *libc::__errno_location() }
}

/// Puts back what the program's call left there.
pub(super) fn set_errno(number: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = number };
}
