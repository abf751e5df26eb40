//! `librunnel_trace.so`, a library that the dynamic linker loads before a program (`LD_PRELOAD`).
//! Without its variables in the environment it does nothing.
//!
//! - [`trap`] (`RUNNEL_TRAP=1`, or `once` for one program without its children): a program whose
//!   launcher was killed goes on past the breakpoints that were left in it.
//! - [`reads`] (`RUNNEL_TRACE_RING=PATH`): sends a recorder what the program reads and looks up.
//!
//! Code here runs inside foreign programs, some of it in signal handlers: it never allocates, never
//! panics, and calls nothing but the C library and the kernel.

#[allow(unsafe_code)]
mod reads;
// Both sides compile the same file, and each uses a part of it.
#[allow(dead_code)]
mod ring;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[allow(unsafe_code)]
mod trap;
