//! Probes of running programs: breakpoints by ptrace, uprobes, perf events, and stops at system
//! calls by seccomp. No other crate has `unsafe` for these.
//!
//! [`Breakpoints::launch`] starts a program, stops it once at each of a set of sites in its files,
//! and detaches after the last one: the trigger of prefetching in Spidermine (SAC 2023, doi
//! 10.1145/3555776.3577754), on a stock kernel and without root. One breakpoint in the dynamic
//! linker reports the loads of libraries. No seccomp filter is used for this: a filter outlives its
//! tracer, and then every system call that it would stop fails.
//!
//! ```no_run
//! use probe::{Breakpoints, FileId, Hit, Observer, Program, Site};
//!
//! struct Print;
//! impl Observer for Print {
//!     fn hit(&mut self, hit: Hit) {
//!         eprintln!("{} after {} us", hit.id, hit.moment.0);
//!     }
//! }
//!
//! let file = FileId::of("/usr/lib/x86_64-linux-gnu/libz.so.1".as_ref())?;
//! let breakpoints = Breakpoints::new([Site { file, offset: 0x3000, executable: None, id: 7 }]);
//! let outcome = breakpoints.launch(&Program::new(["file", "--uncompress", "x.gz"]), &mut Print)?;
//! std::process::exit(outcome.exit.code());
//! # #[allow(unreachable_code)]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The behaviour of the program does not change. If it cannot be traced it runs untraced, and the
//! [`Outcome`] says why. The exceptions:
//!
//! - While it is traced, a set-user-id program that it starts runs without the privileges of its
//!   file, unless the launcher has CAP_SYS_PTRACE. A launched program that is itself set-user-id is
//!   therefore not traced.
//! - A program that traces itself or its children (a debugger, some copy protections) finds that
//!   somebody does already.
//! - A thread that hits a breakpoint while it blocks or ignores SIGTRAP unblocks it, and its action
//!   becomes the default: the kernel does this to every forced signal.
//! - On AArch64 some waiting system calls (epoll_wait among them, see signal(7)) fail with EINTR
//!   when the tracer detaches, as they do after SIGSTOP and SIGCONT. On x86-64 they are started
//!   again, with their full timeout.
//! - If the tracing process (the launcher, or the [helper] of a launcher that became the program)
//!   is killed by SIGKILL, breakpoints remain. `librunnel_trace.so` (the crate `preload`) makes
//!   dynamic programs go on past them once it is loaded; static ones die at the next.
//!
//! Processor architectures: x86-64 and AArch64; elsewhere programs run untraced.

// Elsewhere only the plain start is used.
#![cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]

pub mod child;
pub mod exact;
pub mod follow;
pub mod helper;
pub mod perf;
pub mod residency;
pub mod seccomp;
pub mod uprobe;

mod breakpoint;
mod error;
mod file_id;
mod program;
mod spawn;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod arch;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod libraries;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod linker;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod maps;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod memory;
mod process;
mod ptrace;
mod wake;

pub use breakpoint::{Breakpoints, End, Exit, Hit, Observer, Outcome, Site, Stop, Stops, TIME_LIMIT, Traced, Untraced};
pub use error::StartError;
pub use file_id::FileId;
pub use program::Program;
