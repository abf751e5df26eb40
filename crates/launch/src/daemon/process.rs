//! What /proc says of a program that was started a moment ago.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use probe::FileId;

use super::rights::Rights;

/// Bytes of a command line that are looked at: the words that name a script come first.
const COMMAND_BYTES_MAX: u64 = 64 << 10;

/// Generations looked through for an ancestor.
const GENERATIONS_MAX: usize = 64;

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) id: u32,
    pub(crate) parent: u32,
    /// Its tracer; 0 for none.
    pub(crate) tracer: u32,
    /// The rights of the user who started it, without those that the program file gives
    /// (set-user-id).
    pub(crate) rights: Rights,
}

impl Process {
    /// Looks at a process; `None` if there is none any more.
    pub(crate) fn read(id: u32) -> Option<Process> {
        parse(id, &fs::read_to_string(format!("/proc/{id}/status")).ok()?)
    }

    /// The file that it executes.
    pub(crate) fn executable(id: u32) -> Option<FileId> {
        FileId::of(Path::new(&format!("/proc/{id}/exe"))).ok()
    }

    /// Its command line, each word ended by a NUL.
    pub(crate) fn command_line(id: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A process that has ended has none.
        let _ = File::open(format!("/proc/{id}/cmdline"))
            .and_then(|file| file.take(COMMAND_BYTES_MAX).read_to_end(&mut bytes));
        bytes
    }

    /// The folder it works in.
    pub(crate) fn folder(id: u32) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{id}/cwd")).ok()
    }

    /// Whether a path means for it what it means for us: it is not in a container, nor below
    /// another root. Mount name spaces may differ, since service managers give daemons, this one
    /// too, spaces of their own with the paths of the machine.
    pub(crate) fn shares_our_files(id: u32) -> bool {
        let root = |path: &str| FileId::of(Path::new(path)).ok();
        root(&format!("/proc/{id}/root/.")).is_some_and(|its| Some(its) == root("/"))
    }

    /// Whether a process is `root` or was started below it.
    pub(crate) fn is_below(root: u32, mut id: u32) -> bool {
        for _ in 0..GENERATIONS_MAX {
            if id == root {
                return true;
            }
            match Process::read(id) {
                Some(process) if process.parent != 0 => id = process.parent,
                _ => return false,
            }
        }
        false
    }
}

/// The words of a command line behind the first.
pub(crate) fn arguments(line: &[u8]) -> Vec<OsString> {
    let line = line.strip_suffix(b"\0").unwrap_or(line);
    line.split(|byte| *byte == 0).skip(1).map(|word| OsString::from_vec(word.to_vec())).collect()
}

/// Parses /proc/PID/status (proc_pid_status(5)).
fn parse(id: u32, text: &str) -> Option<Process> {
    let numbers = |name: &str| -> Option<Vec<u32>> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().map(|word| word.parse().ok()).collect()
    };
    // The first of four is the real one.
    let first = |name: &str| Some(*numbers(name)?.first()?);
    let rights = Rights { uid: first("Uid:")?, gid: first("Gid:")?, groups: numbers("Groups:")? };
    Some(Process { id, parent: first("PPid:")?, tracer: first("TracerPid:")?, rights })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_that_count_are_read() {
        let text = "Name:\ta b\nPPid:\t7\nTracerPid:\t5\nUid:\t4\t0\t0\t0\nGid:\t8\t0\t0\t0\nGroups:\t20 24 \n";
        let rights = Rights { uid: 4, gid: 8, groups: vec![20, 24] };
        assert_eq!(parse(9, text), Some(Process { id: 9, parent: 7, tracer: 5, rights }));
        assert!(parse(9, &text.replace("20 24 ", "")).unwrap().rights.groups.is_empty());
        for bad in ["", "PPid:\t7\n", &text.replace("Gid:", "G:"), &text.replace("\t4", "\tx")] {
            assert_eq!(parse(9, bad), None, "{bad}");
        }
    }

    #[test]
    fn arguments_are_the_words_behind_the_name() {
        for (line, expected) in
            [(&b"python3\0-m\0\0x\0"[..], &["-m", "", "x"][..]), (b"sh\0", &[]), (b"", &[]), (b"sh\0cut", &["cut"])]
        {
            assert_eq!(arguments(line), expected, "{line:?}");
        }
    }

    #[test]
    fn our_own_process_is_where_we_are() {
        let own = std::process::id();
        let process = Process::read(own).unwrap();
        assert!(Process::is_below(process.parent, own) && !Process::is_below(own, process.parent));
        assert_eq!(Process::executable(own), FileId::of(&std::env::current_exe().unwrap()).ok());
        assert!(Process::shares_our_files(own));
        assert_eq!(arguments(&Process::command_line(own)), std::env::args_os().skip(1).collect::<Vec<_>>());
    }
}
