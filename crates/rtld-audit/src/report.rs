//! One report: a datagram of 16 bytes, device and inode of the library, to the launcher's socket.
//!
//! The socket is made for the report and closed after it, by raw system calls: closing must not be
//! a cancellation point of the program's threads. Errors are ignored; a full queue loses the
//! report.

use core::ffi::{c_int, c_void};
use core::mem::{self, MaybeUninit};

use crate::wanted::Wanted;

/// Line of /proc/self/status (Linux 5.9) that says how many filters a thread is under.
const FILTERS: &[u8] = b"\nSeccomp_filters:\t";

/// The device and inode of the file at a path.
///
/// # Safety
/// `path` leads to a string that ends with NUL.
// SAFETY: the contract is the caller's.
pub(crate) unsafe fn identity(path: *const libc::c_char) -> Option<(u64, u64)> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a string by the contract, and a struct of the right type.
    let done = unsafe { libc::stat(path, status.as_mut_ptr()) };
    // SAFETY: all fields are integers, for which zero is a value.
    let status = unsafe { status.assume_init() };
    #[allow(clippy::unnecessary_cast)]
    (done == 0).then_some((status.st_dev as u64, status.st_ino as u64))
}

/// Reports to the launcher; whether that worked.
pub(crate) fn send(wanted: &Wanted, device: u64, inode: u64) -> bool {
    // A filter that came since may kill the program for what follows. Reading a file is what the
    // linker has just done too.
    if filters() != Some(wanted.filters) {
        return false;
    }
    // SAFETY: all fields are integers, for which zero is a value.
    let mut address = unsafe { mem::zeroed::<libc::sockaddr_un>() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // The zero byte that makes a name abstract stands first.
    for (place, byte) in address.sun_path.iter_mut().skip(1).zip(wanted.name()) {
        *place = *byte as libc::c_char;
    }
    let length = mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + wanted.name().len();
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes numbers only.
    let socket = unsafe { libc::syscall(libc::SYS_socket, libc::AF_UNIX, kind, 0) } as c_int;
    if socket < 0 {
        return false;
    }
    let message = [device, inode];
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: message and address are as long as said and live until the call returns; the
    // descriptor is ours.
    unsafe {
        let address: *const c_void = (&raw const address).cast();
        let sent = libc::syscall(libc::SYS_sendto, socket, message.as_ptr(), 16usize, flags, address, length);
        libc::syscall(libc::SYS_close, socket);
        sent == 16
    }
}

/// How many system call filters this thread is under; `None` if the kernel does not say.
fn filters() -> Option<u64> {
    let path = c"/proc/self/status";
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a string that ends with NUL.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) } as c_int;
    if file < 0 {
        return None;
    }
    let mut search = Search::default();
    // Small: the program's thread may have a small stack.
    let mut buffer = [0u8; 512];
    let found = loop {
        // SAFETY: the buffer is as long as said.
        let count = unsafe { libc::syscall(libc::SYS_read, file, buffer.as_mut_ptr(), buffer.len()) };
        let Some(read) = usize::try_from(count).ok().and_then(|count| buffer.get(..count)) else { break None };
        if read.is_empty() {
            break None;
        }
        if let Some(found) = read.iter().find_map(|byte| search.step(*byte)) {
            break Some(found);
        }
    };
    // SAFETY: opened above and closed once.
    unsafe { libc::syscall(libc::SYS_close, file) };
    found
}

/// Looks for the number after [`FILTERS`], byte by byte.
#[derive(Default)]
struct Search {
    matched: usize,
    value: u64,
}

impl Search {
    /// The number, at the byte that ends it.
    fn step(&mut self, byte: u8) -> Option<u64> {
        match FILTERS.get(self.matched) {
            Some(expected) if *expected == byte => self.matched += 1,
            // The pattern holds a line's end at its start only.
            Some(_) => self.matched = usize::from(byte == b'\n'),
            None => match (byte as char).to_digit(10) {
                Some(digit) => self.value = self.value.wrapping_mul(10).wrapping_add(digit.into()),
                None => return Some(self.value),
            },
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_filters_is_found_wherever_it_stands() {
        let look = |text: &str| {
            let mut search = Search::default();
            text.bytes().find_map(|byte| search.step(byte))
        };
        assert_eq!(look("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t12\nMore:\t3\n"), Some(12));
        assert_eq!(look("A\n\nSeccomp_filters:\t0\n"), Some(0));
        assert_eq!(look("Name:\tSeccomp_filters:\t7\nSeccomp:\t2\n"), None);
        let status = std::fs::read_to_string("/proc/self/status").expect("readable");
        assert_eq!(filters().is_some(), status.contains("Seccomp_filters"));
    }
}
