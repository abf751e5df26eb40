//! The outcome of a launch.

use std::time::Duration;

use units::Moment;

pub use host::Exit;

/// Why the tracing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Every site was hit, or there was none.
    AllHit,
    /// The program ended; child processes of its that still run were detached.
    Exited,
    /// The time limit was reached.
    TimeLimit,
    /// [`crate::Stop::request`] was called.
    Stopped,
    /// The memory of the program could not be written, for example because the kernel forbids it to
    /// debuggers.
    Unwritable,
}

/// Why a program ran without being traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Untraced {
    /// The engine does not know this processor architecture.
    Architecture,
    /// The program gets privileges from its file (set-user-id, set-group-id, capabilities), which
    /// it would lose.
    Privileged,
    /// The kernel refused: Yama's ptrace_scope, a container's system call filter, or a tracer that
    /// is there already. The number of the error.
    Denied(i32),
}

impl std::fmt::Display for Untraced {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Untraced::Architecture => formatter.write_str("breakpoints are not known for this processor"),
            Untraced::Privileged => formatter.write_str("the program gets privileges from its file"),
            Untraced::Denied(number) => {
                write!(formatter, "the kernel denies ptrace: {}", std::io::Error::from_raw_os_error(*number))
            }
        }
    }
}

/// How often a thread stood still, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    /// A program was executed.
    pub exec: u64,
    /// A thread or process was made: the maker.
    pub make: u64,
    /// The first stop of a new thread or process.
    pub born: u64,
    /// The dynamic linker reported a library.
    pub linker: u64,
    /// A site was hit for the first time.
    pub site: u64,
    /// A thread came to a breakpoint that another thread had just taken out.
    pub late: u64,
    /// A signal was delivered.
    pub signal: u64,
    /// Stopped or continued by job control.
    pub group: u64,
    /// Stopped to be detached.
    pub release: u64,
}

impl Stops {
    /// All of them.
    pub fn total(&self) -> u64 {
        let Stops { exec, make, born, linker, site, late, signal, group, release } = self;
        exec + make + born + linker + site + late + signal + group + release
    }
}

/// What tracing came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// Why it ended.
    pub end: End,
    /// When nothing was traced any more, since the start of the launch.
    pub released: Moment,
    /// Stops of all threads.
    pub stops: Stops,
    /// Sites hit.
    pub hits: u32,
    /// Breakpoints put into processes, those in the dynamic linker included.
    pub planted: u32,
    /// CPU time of the tracing thread.
    pub cpu: Duration,
}

/// What a launch came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How the program ended.
    pub exit: Exit,
    /// What tracing came to, or why there was none.
    pub traced: Result<Traced, Untraced>,
}
