//! Sends a recorder what a program does: the parts of files that it reads, the files and
//! directories that it opens, and the paths that it looks for in vain.
//!
//! With `RUNNEL_TRACE_RING=PATH` in the environment, functions of the C library are followed by a
//! note in the ring at that path ([`crate::ring`]): reads with their position in the file, the
//! first opening of each file, each vain path once. A note costs a `fstat` and an `lseek`, and no
//! stop. Without the variable each function is only called.
//!
//! Not seen are reads that the C library makes inside itself (only `fopen`, `fread` and `fclose`
//! are noted), raw system calls (Go, static programs) and io_uring.
//!
//! `exports` has the functions, `notes` what is noted of them, `writer` the ring. `calls`, behind
//! the feature of that name, notes from where a few functions are called.

#[cfg(all(feature = "calls", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod calls;
mod exports;
mod notes;
mod writer;

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    if writer::open() {
        exports::find_all();
        notes::hello();
        #[cfg(all(feature = "calls", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
        calls::start();
    }
}
