//! `librunnel_audit.so`, an auditor of the dynamic linker (`LD_AUDIT`, rtld-audit(7)): it tells `runnel launch` that a program, or
//! a child of it, loads one of a few libraries. The trigger of later prefetch groups where breakpoints cannot be had.
//!
//! It is a library of its own, not a part of `librunnel_trace.so`, because an auditor lies in a name space of its own with a
//! second C library: what that one has for programs (handlers, functions before those of the C library) must not be there.
//! Without `RUNNEL_AUDIT` in the environment the linker is told to unload it at once.
//!
//! What it may not do: change the program. It asks for no symbols, so calls are bound as without it; it has no descriptor of
//! its own between two reports, so a program may close and count them as it likes; its `errno` is that of its own C library;
//! it never waits and never allocates. A program that has put itself under a system call filter since its start is told
//! nothing of, because a filter may kill for a socket. glibc only: musl and static programs ignore `LD_AUDIT`, and so does
//! glibc where a file gives privileges.
//!
//! The parts: `linker` (the functions that the linker calls), `wanted` (what the variable says), `report` (one datagram).
//!
//! As it is shipped (panics abort) it does without Rust's standard library: that would bring a quarter of a MiB and another library,
//! which a cold disk would have to read for each program.
#![cfg_attr(panic = "abort", no_std)]

#[allow(unsafe_code)]
mod linker;
#[allow(unsafe_code)]
mod report;
mod wanted;
