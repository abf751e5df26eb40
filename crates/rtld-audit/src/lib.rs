//! `librunnel_audit.so`, an auditor of the dynamic linker (`LD_AUDIT`, rtld-audit(7)). It reports
//! to `runnel launch` that a program, or a child of it, loads one of a few libraries. The reports
//! start later prefetch groups where breakpoints are impossible.
//!
//! It is a library of its own and not a part of `librunnel_trace.so`, because an auditor lies in a
//! name space of its own with a second C library. What `librunnel_trace.so` has for programs
//! (handlers, functions that replace those of the C library) must not be there. Without
//! `RUNNEL_AUDIT` in the environment the linker unloads it at once.
//!
//! It must not change the program. It asks for no symbols, so calls are bound as without it. It has
//! no open descriptor between two reports, so a program may close and count its own. Its `errno` is
//! that of its own C library. It never waits and never allocates. If a program has installed a
//! system call filter since its start, nothing is reported, because a filter may kill for a socket.
//! glibc only: musl and static programs ignore `LD_AUDIT`, and so does glibc where a file gives
//! privileges.
//!
//! The parts: `linker` (the functions that the linker calls), `wanted` (the value of the variable),
//! `report` (one datagram).
//!
//! The shipped library (panics abort) has no Rust standard library: that would add a quarter of a
//! MiB and another library, which a cold disk would have to read for each program.
#![cfg_attr(panic = "abort", no_std)]

#[allow(unsafe_code)]
mod linker;
#[allow(unsafe_code)]
mod report;
mod wanted;
