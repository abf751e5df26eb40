//! The state of a waiting thread in /proc: which signals are pending, and whether it is about to
//! end.

use std::fs;

/// Bits of `SigPnd` and the like: signal 1 is the lowest.
const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

/// SIGKILL. The kernel gives it to each thread of a process that a signal ends, unless the signal
/// makes a core file.
const KILL: u64 = bit(9);

/// Signals that do not end a process by themselves: SIGCHLD, SIGCONT, SIGURG and SIGWINCH, and
/// SIGSTOP, SIGTSTP, SIGTTIN and SIGTTOU, which stop it. The numbers are those of all architectures
/// but MIPS, PA-RISC, SPARC and Alpha.
const HARMLESS: u64 = bit(17) | bit(18) | bit(23) | bit(28) | bit(19) | bit(20) | bit(21) | bit(22);

/// Signals that are pending for a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// One that ends the process.
    pub fatal: bool,
    /// One that the process has a handler for.
    pub caught: bool,
}

/// The pending signals of a thread. `None` if there is no such thread here, or /proc cannot be
/// read.
pub(crate) fn pending(thread: u32) -> Option<Pending> {
    parse_pending(&status(thread)?)
}

/// Whether a thread is about to end: it closes its files, and no signal wakes it. It has no table
/// of descriptors any more then.
///
/// Its flags in `stat` would say so, too. But a program that executes another one holds up whoever
/// reads that, and may wait itself meanwhile, since it closes files.
pub(crate) fn is_exiting(thread: u32) -> bool {
    status(thread).is_some_and(|status| field(&status, "FDSize:") == Some("0"))
}

fn status(thread: u32) -> Option<String> {
    let status = fs::read((thread != 0).then(|| format!("/proc/{thread}/status"))?).ok()?;
    // The name of a program may hold anything.
    Some(String::from_utf8_lossy(&status).into_owned())
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn parse_pending(status: &str) -> Option<Pending> {
    let field = |name: &str| field(status, name);
    let mask = |name: &str| field(name).and_then(|value| u64::from_str_radix(value, 16).ok());
    let pending = mask("SigPnd:")? | mask("ShdPnd:")?;
    let deliverable = pending & !mask("SigBlk:")?;
    let (ignored, caught) = (mask("SigIgn:")?, mask("SigCgt:")?);
    // A debugger may keep a signal from the process, but not SIGKILL.
    let is_traced = field("TracerPid:").is_some_and(|tracer| tracer != "0");
    let by_default = deliverable & !ignored & !caught & !HARMLESS;
    let fatal = pending & KILL != 0 || (by_default != 0 && !is_traced);
    Some(Pending { fatal, caught: deliverable & caught != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(pending: &str, shared: &str, blocked: &str, ignored: &str, caught: &str, tracer: &str) -> Pending {
        let text = format!(
            "Name:\tx\nTracerPid:\t{tracer}\nSigQ:\t1/1\nSigPnd:\t{pending}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\n\
             SigIgn:\t{ignored}\nSigCgt:\t{caught}\nCapInh:\t0\n"
        );
        parse_pending(&text).expect("it is complete")
    }

    #[test]
    fn fatal_signals_are_told_from_caught_and_harmless_ones() {
        let (nothing, fatal) = (Pending::default(), Pending { fatal: true, caught: false });
        let caught = Pending { fatal: false, caught: true };
        assert_eq!(seen("0", "0", "0", "0", "0", "0"), nothing);
        // SIGKILL, for the thread or the process, whoever traces it.
        assert_eq!(seen("0000000000000100", "0", "0", "0", "0", "77"), fatal);
        assert_eq!(seen("0", "0000000000000100", "0", "0", "0", "0"), fatal);
        // SIGQUIT makes a core file; the kernel does not turn it into SIGKILL.
        assert_eq!(seen("0", "4", "0", "0", "0", "0"), fatal);
        assert_eq!(seen("0", "4", "0", "0", "0", "77"), nothing);
        assert_eq!(seen("0", "4", "4", "0", "0", "0"), nothing);
        assert_eq!(seen("0", "4", "0", "4", "0", "0"), nothing);
        assert_eq!(seen("0", "4", "0", "0", "4", "0"), caught);
        assert_eq!(seen("0", "4", "4", "0", "4", "0"), nothing);
        // SIGTSTP, SIGCHLD, SIGWINCH.
        assert_eq!(seen("0", "8090000", "0", "0", "0", "0"), nothing);
        assert_eq!(parse_pending("Name:\tx\n"), None);
    }

    #[test]
    fn this_thread_runs_on() {
        let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert_eq!(pending(own).map(|pending| pending.fatal), Some(false));
        assert!(!is_exiting(own));
        assert_eq!(pending(0), None);
    }
}
