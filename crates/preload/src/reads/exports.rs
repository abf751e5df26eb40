//! The functions that replace those of the C library.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{DIR, FILE, iovec, off_t, size_t, ssize_t};

use super::notes::{self, errno, set_errno};
use super::writer;

/// A function of the next library, found when it is needed.
struct Real {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Real {
    const fn new(name: &'static CStr) -> Real {
        Real { name, address: AtomicUsize::new(0) }
    }

    fn address(&self) -> usize {
        let address = self.address.load(Ordering::Relaxed);
        if address != 0 {
            return address;
        }
        // SAFETY: the name ends with NUL.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// `name(arguments) -> result, failed: value if there is no such function; before: what to keep
/// from before the call; after: what to note`.
macro_rules! exports {
    ($($name:ident($($argument:ident: $type:ty),*) -> $out:ty, $failed:expr, $before:expr, |$kept:pat_param, $result:ident| $after:expr;)*) => {
        /// The functions found ahead: a child of a program with threads must not take the linker's
        /// lock.
        pub(super) fn find_all() {
            $($name::REAL.address();)*
        }
        $(
            mod $name {
                use super::*;

                pub(super) static REAL: Real = Real::new(
                    match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name without NUL"),
                    }
                );

                #[unsafe(no_mangle)]
                unsafe extern "C" fn $name($($argument: $type),*) -> $out {
                    type Function = unsafe extern "C" fn($($type),*) -> $out;
                    let address = REAL.address();
                    if address == 0 {
                        set_errno(libc::ENOSYS);
                        return $failed;
                    }
                    // SAFETY: the C library's function of this name has this type.
                    let function = unsafe { mem::transmute::<usize, Function>(address) };
                    if !writer::is_on() {
                        // SAFETY: the arguments are passed on as they came.
                        return unsafe { function($($argument),*) };
                    }
                    // SAFETY: what is kept is read from arguments, which are as the C library wants
                    // them.
                    #[allow(unused_unsafe)]
                    let $kept = unsafe { $before };
                    // SAFETY: the arguments are passed on as they came.
                    let $result = unsafe { function($($argument),*) };
                    let number = errno();
                    // SAFETY: paths and streams are as the C library wants them: strings with a
                    // NUL, open streams.
                    #[allow(unused_unsafe)]
                    unsafe { $after };
                    set_errno(number);
                    $result
                }
            }
        )*
    };
}

const CWD: c_int = libc::AT_FDCWD;

/// Where the stream's descriptor stands, if the buffer does not hold what is asked for.
// SAFETY: what callers promise: the stream is open.
unsafe fn stream_place(stream: *mut FILE, wanted: usize) -> Option<u64> {
    // SAFETY: as the caller promises.
    let is_buffered = unsafe { buffered(stream) } >= wanted;
    // SAFETY: likewise.
    (!is_buffered).then(|| notes::place(unsafe { libc::fileno(stream) }))
}

/// Bytes in the buffer of a stream. The first fields of glibc's `FILE` (flags, read pointer, read
/// end) are part of its ABI: `getc` was a macro over them.
// SAFETY: what callers promise: the stream is open.
#[cfg(target_env = "gnu")]
unsafe fn buffered(stream: *mut FILE) -> usize {
    // SAFETY: an open stream is at least so long, and its pointers are aligned.
    let (from, to) = unsafe { (*stream.cast::<usize>().add(1), *stream.cast::<usize>().add(2)) };
    to.saturating_sub(from)
}

/// Unknown.
// SAFETY: what callers promise: none needed.
#[cfg(not(target_env = "gnu"))]
unsafe fn buffered(_stream: *mut FILE) -> usize {
    0
}

/// A stream was opened or not.
// SAFETY: what callers promise: the path is a string with a NUL, the stream null or open.
unsafe fn stream_opened(path: *const c_char, stream: *mut FILE) {
    // SAFETY: as the caller promises.
    let fd = if stream.is_null() { -1 } else { unsafe { libc::fileno(stream) } };
    notes::set_stream_noted(fd, false);
    // SAFETY: likewise.
    unsafe { notes::opened(CWD, path, libc::O_RDONLY, fd) };
}

/// A directory was opened or not.
// SAFETY: what callers promise: the path is a string with a NUL, the directory null or open.
unsafe fn directory_opened(path: *const c_char, directory: *mut DIR) {
    // SAFETY: as the caller promises.
    let fd = if directory.is_null() { -1 } else { unsafe { libc::dirfd(directory) } };
    // SAFETY: likewise.
    unsafe { notes::opened(CWD, path, libc::O_RDONLY, fd) };
}

/// `sendfile` and its variants moved bytes out of a file.
// SAFETY: what callers promise: the offset is null or can be read.
unsafe fn moved(fd: c_int, offset: *const i64, result: ssize_t) {
    // SAFETY: as the caller promises. The call has moved it on.
    let from = (!offset.is_null()).then(|| unsafe { *offset } - result as i64);
    notes::read(fd, from, result);
}

exports! {
    read(fd: c_int, to: *mut c_void, bytes: size_t) -> ssize_t, -1, (), |(), n| notes::read(fd, None, n);
    __read_chk(fd: c_int, to: *mut c_void, bytes: size_t, room: size_t) -> ssize_t, -1, (), |(), n| notes::read(fd, None, n);
    readv(fd: c_int, to: *const iovec, count: c_int) -> ssize_t, -1, (), |(), n| notes::read(fd, None, n);
    pread(fd: c_int, to: *mut c_void, bytes: size_t, at: off_t) -> ssize_t, -1, (), |(), n| notes::read(fd, Some(at), n);
    pread64(fd: c_int, to: *mut c_void, bytes: size_t, at: off_t) -> ssize_t, -1, (), |(), n| notes::read(fd, Some(at), n);
    __pread_chk(fd: c_int, to: *mut c_void, bytes: size_t, at: off_t, room: size_t) -> ssize_t, -1, (), |(), n| notes::read(fd, Some(at), n);
    __pread64_chk(fd: c_int, to: *mut c_void, bytes: size_t, at: off_t, room: size_t) -> ssize_t, -1, (), |(), n| notes::read(fd, Some(at), n);
    preadv(fd: c_int, to: *const iovec, count: c_int, at: off_t) -> ssize_t, -1, (), |(), n| notes::read(fd, Some(at), n);
    preadv64(fd: c_int, to: *const iovec, count: c_int, at: off_t) -> ssize_t, -1, (), |(), n| notes::read(fd, Some(at), n);
    sendfile(to: c_int, fd: c_int, at: *mut off_t, bytes: size_t) -> ssize_t, -1, (), |(), n| moved(fd, at, n);
    sendfile64(to: c_int, fd: c_int, at: *mut off_t, bytes: size_t) -> ssize_t, -1, (), |(), n| moved(fd, at, n);
    copy_file_range(fd: c_int, at: *mut off_t, to: c_int, to_at: *mut off_t, bytes: size_t, flags: c_uint) -> ssize_t, -1, (), |(), n| moved(fd, at, n);
    fread(to: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t, 0, stream_place(stream, size.saturating_mul(count)), |before, _n| stream_read(stream, before);
    fread_unlocked(to: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t, 0, stream_place(stream, size.saturating_mul(count)), |before, _n| stream_read(stream, before);
    __fread_chk(to: *mut c_void, room: size_t, size: size_t, count: size_t, stream: *mut FILE) -> size_t, 0, stream_place(stream, size.saturating_mul(count)), |before, _n| stream_read(stream, before);
    fseek(stream: *mut FILE, to: i64, whence: c_int) -> c_int, -1, (), |(), _n| notes::set_stream_noted(libc::fileno(stream), true);
    fseeko(stream: *mut FILE, to: i64, whence: c_int) -> c_int, -1, (), |(), _n| notes::set_stream_noted(libc::fileno(stream), true);
    fseeko64(stream: *mut FILE, to: i64, whence: c_int) -> c_int, -1, (), |(), _n| notes::set_stream_noted(libc::fileno(stream), true);
    fclose(stream: *mut FILE) -> c_int, libc::EOF, notes::stream_close(libc::fileno(stream)), |(), _n| ();
    open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int, -1, (), |(), fd| notes::opened(CWD, path, flags, fd);
    open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int, -1, (), |(), fd| notes::opened(CWD, path, flags, fd);
    openat(at: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int, -1, (), |(), fd| notes::opened(at, path, flags, fd);
    openat64(at: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int, -1, (), |(), fd| notes::opened(at, path, flags, fd);
    __open_2(path: *const c_char, flags: c_int) -> c_int, -1, (), |(), fd| notes::opened(CWD, path, flags, fd);
    __open64_2(path: *const c_char, flags: c_int) -> c_int, -1, (), |(), fd| notes::opened(CWD, path, flags, fd);
    __openat_2(at: c_int, path: *const c_char, flags: c_int) -> c_int, -1, (), |(), fd| notes::opened(at, path, flags, fd);
    __openat64_2(at: c_int, path: *const c_char, flags: c_int) -> c_int, -1, (), |(), fd| notes::opened(at, path, flags, fd);
    fopen(path: *const c_char, mode: *const c_char) -> *mut FILE, std::ptr::null_mut(), (), |(), stream| stream_opened(path, stream);
    fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE, std::ptr::null_mut(), (), |(), stream| stream_opened(path, stream);
    opendir(path: *const c_char) -> *mut DIR, std::ptr::null_mut(), (), |(), directory| directory_opened(path, directory);
    stat(path: *const c_char, out: *mut c_void) -> c_int, -1, (), |(), n| failed(CWD, path, n);
    stat64(path: *const c_char, out: *mut c_void) -> c_int, -1, (), |(), n| failed(CWD, path, n);
    lstat(path: *const c_char, out: *mut c_void) -> c_int, -1, (), |(), n| failed(CWD, path, n);
    lstat64(path: *const c_char, out: *mut c_void) -> c_int, -1, (), |(), n| failed(CWD, path, n);
    fstatat(at: c_int, path: *const c_char, out: *mut c_void, flags: c_int) -> c_int, -1, (), |(), n| failed(at, path, n);
    fstatat64(at: c_int, path: *const c_char, out: *mut c_void, flags: c_int) -> c_int, -1, (), |(), n| failed(at, path, n);
    statx(at: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut c_void) -> c_int, -1, (), |(), n| failed(at, path, n);
    __xstat(version: c_int, path: *const c_char, out: *mut c_void) -> c_int, -1, (), |(), n| failed(CWD, path, n);
    __xstat64(version: c_int, path: *const c_char, out: *mut c_void) -> c_int, -1, (), |(), n| failed(CWD, path, n);
    __lxstat(version: c_int, path: *const c_char, out: *mut c_void) -> c_int, -1, (), |(), n| failed(CWD, path, n);
    __lxstat64(version: c_int, path: *const c_char, out: *mut c_void) -> c_int, -1, (), |(), n| failed(CWD, path, n);
    access(path: *const c_char, mode: c_int) -> c_int, -1, (), |(), n| failed(CWD, path, n);
    faccessat(at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int, -1, (), |(), n| failed(at, path, n);
}

/// A stream was read, from this place if its buffer was not enough.
// SAFETY: what callers promise: the stream is open.
unsafe fn stream_read(stream: *mut FILE, before: Option<u64>) {
    if let Some(before) = before {
        // SAFETY: as the caller promises.
        notes::stream_read(unsafe { libc::fileno(stream) }, before);
    }
}

/// A call that gives zero if there is something at the path.
// SAFETY: what callers promise: the path is null or a string with a NUL.
unsafe fn failed(at: c_int, path: *const c_char, result: c_int) {
    if result != 0 {
        // SAFETY: as the caller promises.
        unsafe { notes::missed(at, path) };
    }
}
