//! What to start: a command line with its surroundings.

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::sys::signal::SigSet;

use crate::StartError;
use crate::seccomp::Filter;

/// A program to start. What is not set is inherited: environment, directory, standard streams.
///
/// Like `std::process::Command` it starts with no signal blocked, unless signals are named, and
/// with the default action of SIGPIPE.
#[derive(Debug, Default)]
pub struct Program {
    arguments: Vec<OsString>,
    changes: Vec<(OsString, Option<OsString>)>,
    /// Set only if the program runs traced, or only if it does not.
    conditional: Vec<(bool, OsString, OsString)>,
    directory: Option<PathBuf>,
    mask: Option<SigSet>,
    pub(crate) filter: Option<Filter>,
    pub(crate) streams: [Option<File>; 3],
}

/// All that a new process needs to execute a program, in the form of system calls.
pub(crate) struct Prepared {
    /// Files to try in this order.
    pub(crate) candidates: Vec<CString>,
    pub(crate) arguments: Vec<CString>,
    /// `NAME=value` each.
    pub(crate) environment: Vec<CString>,
    pub(crate) directory: Option<CString>,
    /// Signals that it blocks.
    pub(crate) mask: SigSet,
    /// What it is put under just before.
    pub(crate) filter: Option<Filter>,
}

impl Program {
    /// The first argument is the program: a path, or a name to be looked up in PATH.
    pub fn new<I: IntoIterator<Item: Into<OsString>>>(arguments: I) -> Program {
        Program { arguments: arguments.into_iter().map(Into::into).collect(), ..Program::default() }
    }

    /// Sets a variable of the environment.
    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Program {
        self.changes.push((name.into(), Some(value.into())));
        self
    }

    /// Sets a variable only if the program runs traced, or only if it was to be traced and cannot
    /// be; see [`crate::Observer::untraced`].
    pub fn variable_if(mut self, is_traced: bool, name: impl Into<OsString>, value: impl Into<OsString>) -> Program {
        self.conditional.push((is_traced, name.into(), value.into()));
        self
    }

    /// Takes a variable out of the environment.
    pub fn without_variable(mut self, name: impl Into<OsString>) -> Program {
        self.changes.push((name.into(), None));
        self
    }

    /// Starts in this directory.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Program {
        self.directory = Some(directory.into());
        self
    }

    /// Starts with these signals blocked.
    pub fn signal_mask(mut self, mask: SigSet) -> Program {
        self.mask = Some(mask);
        self
    }

    /// Puts the program under a filter. It must be traced then, to its end; see [`crate::child`].
    pub fn filter(mut self, filter: Filter) -> Program {
        self.filter = Some(filter);
        self
    }

    /// Standard input comes from this file.
    pub fn input(mut self, file: File) -> Program {
        self.streams[0] = Some(file);
        self
    }

    /// Standard output goes to this file.
    pub fn output(mut self, file: File) -> Program {
        self.streams[1] = Some(file);
        self
    }

    /// Standard error goes to this file.
    pub fn errors(mut self, file: File) -> Program {
        self.streams[2] = Some(file);
        self
    }

    /// Whether the program gets privileges from its file (set-user-id, set-group-id, capabilities)
    /// that a tracer without CAP_SYS_PTRACE would take from it. The dynamic linker ignores LD_AUDIT
    /// and most of LD_PRELOAD for such a program.
    pub fn would_lose_privileges(&self) -> bool {
        let Ok(prepared) = self.prepare(true) else { return false };
        if crate::process::may_trace_all() {
            return false;
        }
        let directory = self.directory.clone().unwrap_or_default();
        let paths = prepared.candidates.iter().map(|name| directory.join(OsStr::from_bytes(name.as_bytes())));
        let found = paths.into_iter().find(|path| path.is_file());
        found.is_some_and(|path| crate::process::has_privileges(&path))
    }

    /// The name it was asked for by, for messages.
    pub(crate) fn name(&self) -> String {
        self.arguments.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Variables that the program gets, traced or not.
    pub(crate) fn variables(&self, is_traced: bool) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        let always = self.changes.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let holds = self.conditional.iter().filter(move |(when, _, _)| *when == is_traced);
        always
            .chain(holds.map(|(_, name, value)| (name, value)))
            .map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    pub(crate) fn prepare(&self, is_traced: bool) -> Result<Prepared, StartError> {
        self.prepare_with(|when| when == is_traced)
    }

    pub(crate) fn prepare_with(&self, holds: impl Fn(bool) -> bool) -> Result<Prepared, StartError> {
        let Some(name) = self.arguments.first().filter(|name| !name.is_empty()) else {
            return Err(StartError::Argument { what: "an empty command line".to_string() });
        };
        let mut environment: Vec<(OsString, OsString)> = env::vars_os().collect();
        let holding = self.conditional.iter().filter(|(when, _, _)| holds(*when));
        let conditional = holding.map(|(_, name, value)| (name, Some(value)));
        for (name, value) in self.changes.iter().map(|(name, value)| (name, value.as_ref())).chain(conditional) {
            let known = environment.iter_mut().find(|(known, _)| known == name);
            match (known, value) {
                // Where it was: programs show their environment in its order.
                (Some(known), Some(value)) => known.1.clone_from(value),
                (None, Some(value)) => environment.push((name.clone(), value.clone())),
                (_, None) => environment.retain(|(known, _)| known != name),
            }
        }
        // As the shell does, the program is looked up in the PATH that it will have itself.
        let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
        Ok(Prepared {
            candidates: candidates(name, path.as_deref())?,
            arguments: self
                .arguments
                .iter()
                .map(|argument| terminated(argument, "an argument"))
                .collect::<Result<_, _>>()?,
            environment: environment.iter().map(variable).collect::<Result<_, _>>()?,
            directory: self
                .directory
                .as_deref()
                .map(|path| terminated(path.as_os_str(), "the directory"))
                .transpose()?,
            mask: self.mask.unwrap_or_else(SigSet::empty),
            filter: self.filter.clone(),
        })
    }
}

fn variable((name, value): &(OsString, OsString)) -> Result<CString, StartError> {
    let mut text = name.clone();
    text.push("=");
    text.push(value);
    terminated(&text, "a variable")
}

fn candidates(name: &OsStr, path: Option<&OsStr>) -> Result<Vec<CString>, StartError> {
    if name.as_bytes().contains(&b'/') {
        return Ok(vec![terminated(name, "the program")?]);
    }
    // What execvp uses without PATH.
    let path = path.unwrap_or(OsStr::new("/bin:/usr/bin"));
    env::split_paths(path)
        .map(|directory| terminated(in_directory(&directory, name).as_os_str(), "the program"))
        .collect()
}

fn in_directory(directory: &Path, name: &OsStr) -> PathBuf {
    // An empty part of PATH is the current directory.
    if directory.as_os_str().is_empty() { Path::new(".").join(name) } else { directory.join(name) }
}

fn terminated(text: &OsStr, what: &str) -> Result<CString, StartError> {
    CString::new(text.to_os_string().into_vec())
        .map_err(|_| StartError::Argument { what: format!("{what} with a NUL byte") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_up_and_paths_are_not() {
        let found = candidates(OsStr::new("ls"), Some(OsStr::new("/a::/b"))).expect("prepared");
        assert_eq!(found, [c"/a/ls".to_owned(), c"./ls".to_owned(), c"/b/ls".to_owned()]);
        assert_eq!(candidates(OsStr::new("./ls"), None).expect("prepared"), [c"./ls".to_owned()]);
    }

    #[test]
    fn variables_are_set_and_taken_out() {
        let program = Program::new(["x"]).variable("RUNNEL_A", "1").variable("RUNNEL_A", "2").without_variable("PATH");
        let program = program.variable_if(false, "RUNNEL_A", "3").variable_if(true, "RUNNEL_B", "4");
        let prepared = program.prepare(false).expect("prepared");
        assert!(prepared.environment.contains(&c"RUNNEL_A=3".to_owned()));
        assert!(!prepared.environment.contains(&c"RUNNEL_A=2".to_owned()));
        assert!(!prepared.environment.contains(&c"RUNNEL_B=4".to_owned()));
        let prepared = program.prepare(true).expect("prepared");
        assert!(prepared.environment.contains(&c"RUNNEL_A=2".to_owned()));
        assert!(prepared.environment.contains(&c"RUNNEL_B=4".to_owned()));
        assert!(!prepared.environment.iter().any(|text| text.as_bytes().starts_with(b"RUNNEL_A=1")));
        assert!(!prepared.environment.iter().any(|text| text.as_bytes().starts_with(b"PATH=")));
        assert!(Program::new(["a\0b"]).prepare(true).is_err());
        assert!(Program::default().prepare(true).is_err());
    }
}
