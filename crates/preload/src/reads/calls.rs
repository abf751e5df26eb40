//! From where `strlen`, `memcpy`, `memmove`, `memcmp`, `strcpy` and `malloc` are called:
//! Spidermine's candidates for breakpoints, kept to be compared with page faults. Behind the
//! feature `calls`, and `RUNNEL_TRACE_CALLS=1`.
//!
//! Each function is a few instructions of assembler that pass the return address to [`note`] and
//! jump on to the real function, so that arguments and results are untouched. The functions are
//! called before anything is ready, by the dynamic linker too: until [`start`] has found the real
//! ones, plain loops replace them. A return address is noted the first and the second time.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::writer::put;
use crate::ring;

/// Return addresses remembered; a program has a few thousand.
const CALLS_MAX: usize = 1 << 16;

/// Places tried for an address; then it is passed over.
const TRIES: usize = 8;

/// Set in an entry when its address was seen again.
const AGAIN: u64 = 1 << 63;

static CALLS: [AtomicU64; CALLS_MAX] = [const { AtomicU64::new(0) }; CALLS_MAX];
static IS_ON: AtomicBool = AtomicBool::new(false);

/// The function that each goes on to; loops of our own at first.
static STRLEN: AtomicUsize = AtomicUsize::new(0);
static MEMCPY: AtomicUsize = AtomicUsize::new(0);
static MEMMOVE: AtomicUsize = AtomicUsize::new(0);
static MEMCMP: AtomicUsize = AtomicUsize::new(0);
static STRCPY: AtomicUsize = AtomicUsize::new(0);

/// Finds the real functions and begins to note, if the environment asks for it.
pub(super) fn start() {
    // SAFETY: the name ends with NUL; nothing changes the environment while libraries are being
    // loaded.
    if unsafe { libc::getenv(c"RUNNEL_TRACE_CALLS".as_ptr()) }.is_null() {
        return;
    }
    let functions = [
        (&STRLEN, c"strlen"),
        (&MEMCPY, c"memcpy"),
        (&MEMMOVE, c"memmove"),
        (&MEMCMP, c"memcmp"),
        (&STRCPY, c"strcpy"),
    ];
    for (function, name) in functions {
        // SAFETY: the name ends with NUL.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
        function.store(address, Ordering::Relaxed);
    }
    IS_ON.store(true, Ordering::Release);
}

/// A function that returns to `address` was called.
extern "C" fn note(address: u64) {
    if !IS_ON.load(Ordering::Acquire) {
        return;
    }
    let begin = (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize;
    for number in 0..TRIES {
        let entry = &CALLS[(begin + number) % CALLS_MAX];
        let mut seen = entry.load(Ordering::Relaxed);
        if seen == 0 {
            match entry.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return write_note(ring::KIND_CALL, address),
                Err(other) => seen = other,
            }
        }
        if seen == address | AGAIN {
            return;
        }
        if seen == address {
            if entry.swap(address | AGAIN, Ordering::Relaxed) == address {
                write_note(ring::KIND_CALL_AGAIN, address);
            }
            return;
        }
    }
}

#[allow(clippy::host_endian_bytes)]
fn write_note(kind: u8, address: u64) {
    put(kind, &[&address.to_ne_bytes()]);
}

/// A function that notes where it returns to, then becomes the one whose address lies in a static,
/// or the loop if that is zero.
macro_rules! watched {
    ($($name:ident, $real:ident, $plain:ident;)*) => {$(
        // SAFETY: all argument registers are as they were when the next function begins; it returns
        // to our caller itself.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                // Three pushes also align the stack as a call needs it.
                "push rdi", "push rsi", "push rdx",
                "mov rdi, [rsp + 24]",
                "call {note}",
                "pop rdx", "pop rsi", "pop rdi",
                "mov rax, [rip + {real}]",
                "test rax, rax",
                "jz {plain}",
                "jmp rax",
                note = sym note, real = sym $real, plain = sym $plain,
            )
        }

        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "stp x0, x1, [sp, #-32]!",
                "stp x2, x30, [sp, #16]",
                "mov x0, x30",
                "bl {note}",
                "ldp x2, x30, [sp, #16]",
                "ldp x0, x1, [sp], #32",
                "adrp x16, {real}",
                "ldr x16, [x16, #:lo12:{real}]",
                "cbz x16, 1f",
                "br x16",
                "1: b {plain}",
                note = sym note, real = sym $real, plain = sym $plain,
            )
        }
    )*};
}

/// The C library's own name for it, needed from the first call on.
static MALLOC: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn __libc_malloc(bytes: usize) -> *mut u8;
}

watched! {
    strlen, STRLEN, plain_strlen;
    memcpy, MEMCPY, plain_memmove;
    memmove, MEMMOVE, plain_memmove;
    memcmp, MEMCMP, plain_memcmp;
    strcpy, STRCPY, plain_strcpy;
    malloc, MALLOC, __libc_malloc;
}

/// Volatile, or the compiler would make calls of the very functions out of these loops.
extern "C" fn plain_strlen(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: as callers of strlen promise, there is a NUL.
    while unsafe { text.add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}

extern "C" fn plain_memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    let copy = |index: usize| {
        // SAFETY: as callers of memmove promise, both have so many bytes.
        unsafe { to.add(index).write_volatile(from.add(index).read_volatile()) }
    };
    if (to as usize) < from as usize {
        (0..bytes).for_each(copy)
    } else {
        (0..bytes).rev().for_each(copy)
    }
    to
}

extern "C" fn plain_memcmp(left: *const u8, right: *const u8, bytes: usize) -> c_int {
    for index in 0..bytes {
        // SAFETY: as callers of memcmp promise, both have so many bytes.
        let (left, right) = unsafe { (left.add(index).read_volatile(), right.add(index).read_volatile()) };
        if left != right {
            return c_int::from(left) - c_int::from(right);
        }
    }
    0
}

extern "C" fn plain_strcpy(to: *mut u8, from: *const u8) -> *mut u8 {
    plain_memmove(to, from, plain_strlen(from) + 1)
}
