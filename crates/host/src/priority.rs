//! The priority of work that nobody waits for.

#![allow(unsafe_code)]

/// `IOPRIO_WHO_PROCESS` of linux/ioprio.h; id 0 is the calling thread.
const WHO_PROCESS: i64 = 1;
/// The idle class (3): this thread's disk requests wait for those of all others.
const IDLE: i64 = 3 << 13;

/// Makes the calling thread, and those that it starts from now on, run when nothing else wants to:
/// idle processor time and an idle disk. Kernels and schedulers that know none go on without.
pub fn idle() {
    // The kernel's structure has nothing else. The function of musl does nothing.
    let priority = 0i32;
    // SAFETY: the pointer leads to a number that outlives the call, which changes only when this
    // thread runs.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0i64, libc::SCHED_IDLE, &raw const priority) };
    // SAFETY: ioprio_set takes three numbers and no pointer; it changes only how this thread's disk
    // requests are queued.
    unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0i64, IDLE) };
}
