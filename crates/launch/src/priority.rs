//! Lower disk priority for the thread that prefetches: the program's own reads come first.

#![allow(unsafe_code)]

/// `IOPRIO_WHO_PROCESS` of linux/ioprio.h; id 0 is the calling thread.
const WHO_PROCESS: i64 = 1;
/// Class best effort (2), level 7, the lowest: it gets its turn, unlike the idle class, which a
/// busy disk never serves.
const BEST_EFFORT_LOWEST: i64 = 2 << 13 | 7;

/// Gives the calling thread the lowest best-effort disk priority. Kernels and schedulers that know
/// none go on without.
pub(crate) fn lower() {
    // SAFETY: ioprio_set takes three numbers and no pointer; it changes only how this thread's disk
    // requests are queued.
    unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0i64, BEST_EFFORT_LOWEST) };
}
