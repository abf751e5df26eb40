//! The programs that serve a mount: the keeper's own, of which it makes copies, and a newer one
//! that was installed under the same name.
//!
//! A newer one is executed with the arguments of this one, behind one that tells it what it
//! inherits: `--keeper=` and numbers with commas between. The first is the version of all that a
//! keeper and a daemon have in common: these numbers, their packets, and `fuse::handover`. A
//! program that knows them says so in its first packet. One that does not, or that ends before it
//! serves, is not tried again until its file has changed: the keeper goes on with copies of itself.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;

use fuse::handover;
use host::fork::{execute, inherited};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, openat, stat, statat};

use super::{Before, Keeper, MEMORIES_MAX};
use crate::{MountError, volume};

/// Version of what keepers and daemons have in common.
const VERSION: u32 = 1;

/// What the argument begins with.
const ARGUMENT: &str = "--keeper=";

/// The file that this program was started from.
pub(super) struct Program {
    /// Opened at the start: what is mounted over it later is not looked into.
    folder: OwnedFd,
    path: PathBuf,
    /// Device and inode number of the file that runs. It exists as long as it runs, so no other
    /// file has these numbers.
    own: (u64, u64),
    /// The file that could not serve, and why.
    refused: Option<(Version, String)>,
}

/// A state of a file: device and inode number, size, and the time of the last change.
type Version = (u64, u64, i64, i64, u64);

/// A file that is not the one that runs.
pub(super) struct Newer {
    file: OwnedFd,
    version: Version,
}

impl Program {
    /// `None` if it has no file any more.
    pub(super) fn this() -> Option<Program> {
        let path = std::env::current_exe().ok()?;
        let own = stat("/proc/self/exe").ok()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, path.parent()?, flags, Mode::empty()).ok()?;
        Some(Program { folder, path, own: (own.st_dev, own.st_ino), refused: None })
    }

    /// The file that has the name now, if it is another one and not known to be of no use.
    pub(super) fn newer(&self) -> Option<Newer> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.folder, self.path.file_name()?, flags, Mode::empty()).ok()?;
        let state = fstat(&file).ok()?;
        let (version, is_file) = (version(&state), FileType::from_raw_mode(state.st_mode).is_file());
        let is_refused = self.refused.as_ref().is_some_and(|(refused, _)| *refused == version);
        let is_new = (version.0, version.1) != self.own && !is_refused;
        (is_file && is_new).then_some(Newer { file, version })
    }

    /// A file cannot serve.
    pub(super) fn refuse(&mut self, newer: &Newer, why: String) {
        self.refused = Some((newer.version, why));
    }

    /// Why the file that has the name now is not what serves, if it is of no use.
    pub(super) fn problem(&self) -> Option<String> {
        let path = self.path.display();
        if let Some((_, why)) = &self.refused {
            return Some(format!("{path} cannot take over: {why}"));
        }
        let found = self.path.file_name().map(|name| statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW));
        matches!(found, Some(Err(_))).then(|| format!("{path} is not there"))
    }

    /// What could not serve may be tried again.
    pub(super) fn forgive(&mut self) {
        self.refused = None;
    }
}

// The types of these fields differ between machines.
#[allow(clippy::unnecessary_cast, clippy::useless_conversion)]
fn version(state: &Stat) -> Version {
    (state.st_dev as u64, state.st_ino as u64, state.st_size as i64, state.st_mtime as i64, state.st_mtime_nsec as u64)
}

impl Newer {
    /// Becomes a daemon of this program. Returns only if that failed.
    pub(super) fn execute(
        &self,
        arguments: &[OsString],
        [socket, lifeline]: [&OwnedFd; 2],
        memories: &[OwnedFd],
        before: Before,
    ) -> io::Error {
        let descriptors = || [socket, lifeline].into_iter().chain(memories);
        let told = encode(&descriptors().map(AsRawFd::as_raw_fd).collect::<Vec<_>>(), before);
        let (name, rest) = arguments.split_at(arguments.len().min(1));
        let arguments = [name, &[told.into()], rest].concat();
        execute(self.file.as_fd(), arguments, &descriptors().map(AsFd::as_fd).collect::<Vec<_>>())
    }
}

/// What a program got from the keeper that executed it.
pub struct Inherited {
    socket: OwnedFd,
    lifeline: OwnedFd,
    memories: Vec<OwnedFd>,
    before: Before,
}

impl Inherited {
    /// Takes what a keeper has told out of the arguments of this process. `None` if it was executed
    /// by anybody else.
    ///
    /// # Errors
    /// It was told what this program does not understand.
    pub fn take(arguments: &mut Vec<OsString>) -> Result<Option<Inherited>, MountError> {
        let Some(told) = arguments.get(1).and_then(|word| word.to_str()?.strip_prefix(ARGUMENT)) else {
            return Ok(None);
        };
        let unknown = |problem: String| MountError::Keeper { problem };
        let other = || unknown(format!("this version does not understand the keeper of this mount ({told})"));
        let (descriptors, before) = decode(told).ok_or_else(other)?;
        let taken = |taken: io::Result<OwnedFd>| taken.map_err(|error| unknown(format!("its keeper: {error}")));
        let mut all = descriptors.into_iter().map(|number| taken(inherited(number)));
        let (Some(socket), Some(lifeline)) = (all.next(), all.next()) else { return Err(other()) };
        let memories = all.collect::<Result<Vec<_>, _>>()?;
        let inherited = Inherited { socket: socket?, lifeline: lifeline?, memories, before };
        let Some(requests) = inherited.memories.first() else { return Err(other()) };
        handover::check(requests).map_err(|error| unknown(error.to_string()))?;
        arguments.remove(1);
        Ok(Some(inherited))
    }

    /// Tells the keeper that this program is the next daemon.
    ///
    /// # Errors
    /// The keeper has ended.
    pub fn accept(self) -> Result<Arc<Keeper>, MountError> {
        // It was executed by a descriptor, whose number the kernel has made its name.
        let _ = rustix::thread::set_name(c"runnel");
        let keeper = Keeper::new(self.socket, self.lifeline, self.memories, (self.before, None))?;
        keeper.accept()?;
        Ok(keeper)
    }
}

/// Versions of the records in the journals of a volume.
fn record_versions() -> [u32; MEMORIES_MAX - 1] {
    [stream::RECORDS_VERSION.into(), volume::RECORDS_VERSION]
}

/// The journals of a volume are the last ones, with the versions of their records behind them.
fn encode(descriptors: &[RawFd], before: Before) -> String {
    let Before { deaths, was_served, gives_up } = before;
    let flags = [was_served, gives_up].map(u32::from);
    let (first, journals) = descriptors.split_at(descriptors.len().min(3));
    let numbers = first.iter().map(|number| number.cast_unsigned()).chain([deaths]).chain(flags);
    let versions = record_versions().into_iter().filter(|_| !journals.is_empty());
    let numbers = numbers.chain(journals.iter().map(|number| number.cast_unsigned())).chain(versions);
    numbers.fold(format!("{ARGUMENT}{VERSION}"), |told, number| format!("{told},{number}"))
}

fn decode(told: &str) -> Option<(Vec<RawFd>, Before)> {
    let numbers: Vec<u32> = told.split(',').map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let [version, socket, lifeline, memory, deaths, was_served, gives_up, journals @ ..] = &numbers[..] else {
        return None;
    };
    let (journals, versions) = journals.split_at(journals.len().min(MEMORIES_MAX - 1));
    let is_known = journals.is_empty() || versions == record_versions();
    if *version != VERSION || !is_known {
        return None;
    }
    let before = Before { deaths: *deaths, was_served: *was_served != 0, gives_up: *gives_up != 0 };
    let descriptors = [socket, lifeline, memory].into_iter().chain(journals);
    Some((descriptors.map(|number| number.cast_signed()).collect(), before))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_a_daemon_inherits_is_told_by_an_argument() {
        let before = Before { deaths: 7, was_served: true, gives_up: false };
        let told = encode(&[5, 6, 70], before);
        assert_eq!(told, "--keeper=1,5,6,70,7,1,0");
        assert_eq!(decode(&told[ARGUMENT.len()..]), Some((vec![5, 6, 70], before)));
        let told = encode(&[5, 6, 70, 71, 72], before);
        let versions = record_versions().map(|version| version.to_string()).join(",");
        assert_eq!(told, format!("--keeper=1,5,6,70,7,1,0,71,72,{versions}"));
        assert_eq!(decode(&told[ARGUMENT.len()..]), Some((vec![5, 6, 70, 71, 72], before)));
        for other in [
            "",
            "1",
            "2,5,6,70,7,1,0",
            "1,5,6,70,7,1",
            "1,5,6,70,7,1,0,1",
            "1,5,6,70,-7,1,0",
            "1,5,6,70,7,1,0,71,72,0,0",
        ] {
            assert_eq!(decode(other), None, "{other}");
            let mut arguments = vec!["runnel".into(), format!("{ARGUMENT}{other}").into(), "mount".into()];
            let error = Inherited::take(&mut arguments).err().expect("not understood").to_string();
            assert!(error.contains("does not understand"), "{error}");
        }
    }

    #[test]
    fn other_arguments_are_left_alone() {
        for words in [&["runnel"][..], &["runnel", "mount", "--keeper=1"]] {
            let mut arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
            assert!(Inherited::take(&mut arguments).is_ok_and(|inherited| inherited.is_none()));
            assert_eq!(arguments, words);
        }
    }

    /// A program that the test makes, beside which newer ones appear.
    fn program(folder: &Path) -> Program {
        let path = folder.join("program");
        std::fs::write(&path, "old").expect("written");
        let own = stat(&path).expect("there");
        let folder = openat(CWD, folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("opens");
        Program { folder, path, own: (own.st_dev as _, own.st_ino as _), refused: None }
    }

    #[test]
    fn a_file_is_newer_if_it_is_another_one_and_has_not_been_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut program = program(folder.path());
        let hold = std::fs::File::open(&program.path).expect("opens");
        assert!(program.newer().is_none());
        let next = folder.path().join("next");
        std::fs::write(&next, "new").expect("written");
        std::fs::rename(&next, &program.path).expect("renamed");
        let newer = program.newer().expect("another file");
        program.refuse(&newer, "it is old".into());
        assert!(program.newer().is_none());
        assert!(program.problem().expect("told").ends_with("program cannot take over: it is old"));
        // Whoever copies it has not been ready.
        std::fs::write(&program.path, "whole").expect("written");
        let newer = program.newer().expect("a change");
        program.refuse(&newer, "it is old".into());
        program.forgive();
        assert!(program.newer().is_some() && program.problem().is_none());
        std::fs::remove_file(&program.path).expect("removed");
        assert!(program.newer().is_none());
        assert!(program.problem().expect("told").ends_with("program is not there"));
        std::fs::create_dir(&program.path).expect("made");
        assert!(program.newer().is_none());
        drop(hold);
    }
}
