//! The system calls of a device: listed by people, or found in the programs of its images.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;
use syscalls::analysis::Report;

use crate::{KernelError, Processor, Source};

/// Functions that the report names for each call.
const FUNCTIONS_MAX: usize = 8;

/// Arguments of a call.
const ARGUMENTS: usize = 6;

/// Constants of the arguments of a call, by the number of the argument; what is absent may be
/// anything.
pub type Constants = BTreeMap<usize, BTreeSet<u64>>;

/// A system call that stays, and who keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallUse {
    /// Programs of images that make it.
    pub programs: BTreeSet<String>,
    /// Functions that choose it, as `file:function`; some of them.
    pub functions: BTreeSet<String>,
    /// It stands in a list or a policy, or is one that the kernel makes for every program.
    pub listed: bool,
    /// Constants of its arguments over all programs.
    pub arguments: Constants,
}

/// All calls that a device makes, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Calls {
    calls: BTreeMap<String, CallUse>,
}

impl Calls {
    /// Adds names that people gave. Their arguments may be anything.
    pub fn list<'a>(&mut self, names: impl IntoIterator<Item = &'a String>) {
        for name in names {
            let call = self.calls.entry(name.clone()).or_default();
            call.listed = true;
            call.arguments.clear();
        }
    }

    /// Adds what the programs of `image` make, by the report of their analysis.
    ///
    /// # Errors
    /// Some of their calls are unknown, so that any may be made.
    pub fn add(&mut self, image: &Path, report: &Report) -> Result<(), KernelError> {
        if !report.is_complete() {
            let site = |site: &syscalls::analysis::Site| {
                format!("{} {} at {:#x}: {}", site.object, site.function, site.address, site.why)
            };
            let sites = report.unresolved.iter().map(site).collect();
            let notes = if report.is_partial { report.notes.clone() } else { Vec::new() };
            return Err(KernelError::UnknownCalls { image: image.to_path_buf(), sites, notes });
        }
        for (number, found) in &report.calls {
            let Some(name) = found.name else { continue };
            let known = self.calls.contains_key(name);
            let call = self.calls.entry(name.to_string()).or_default();
            let makers = report.programs.iter().filter(|program| program.calls.contains(number));
            call.programs.extend(makers.map(|program| program.path.clone()));
            for source in &found.sources {
                if source.object == "kernel" {
                    call.listed = true;
                } else if call.functions.len() < FUNCTIONS_MAX {
                    let file = source.object.rsplit('/').next().unwrap_or_default();
                    call.functions.insert(format!("{file}:{}", source.function));
                }
            }
            if known {
                join(&mut call.arguments, &found.arguments);
            } else {
                let constants = found.arguments.iter().enumerate();
                call.arguments =
                    constants.filter_map(|(index, values)| values.clone().map(|values| (index, values))).collect();
            }
        }
        Ok(())
    }

    /// The calls by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &CallUse)> {
        self.calls.iter().map(|(name, call)| (name.as_str(), call))
    }

    /// Whether there is none: a kernel without system calls starts no program.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Whether the call `name` is made.
    pub fn contains(&self, name: &str) -> bool {
        self.calls.contains_key(name)
    }

    /// The kernel's entry points (`sys_…`) of the calls, with the constants of their arguments.
    /// One entry point may serve several calls. Programs also make calls that the kernel has no
    /// entry point for, any more or yet: it answers ENOSYS by itself.
    ///
    /// # Errors
    /// The kernel has no call of a name that people gave.
    pub fn entry_points(
        &self,
        source: &Source,
        processor: Processor,
    ) -> Result<BTreeMap<String, Constants>, KernelError> {
        self.entry_points_in(&source.entry_points(processor)?, source.release())
    }

    fn entry_points_in(
        &self,
        table: &BTreeMap<String, String>,
        release: &str,
    ) -> Result<BTreeMap<String, Constants>, KernelError> {
        let unknown = self.calls.iter().filter(|(name, call)| call.listed && !table.contains_key(*name));
        let unknown: Vec<&str> = unknown.map(|(name, _)| name.as_str()).collect();
        if !unknown.is_empty() {
            let reason = format!("kernel {release} has no system calls named {}", unknown.join(", "));
            return Err(KernelError::Calls { reason });
        }
        let mut found: BTreeMap<String, Constants> = BTreeMap::new();
        for (name, call) in &self.calls {
            let Some(entry) = table.get(name) else { continue };
            match found.get_mut(entry) {
                Some(known) => {
                    let other: [Option<BTreeSet<u64>>; ARGUMENTS] =
                        std::array::from_fn(|index| call.arguments.get(&index).cloned());
                    join(known, &other);
                }
                None => {
                    found.insert(entry.clone(), call.arguments.clone());
                }
            }
        }
        Ok(found)
    }
}

/// What holds for one user of a call and for another.
fn join(known: &mut Constants, other: &[Option<BTreeSet<u64>>; ARGUMENTS]) {
    known.retain(|index, values| match other.get(*index).and_then(Option::as_ref) {
        Some(more) => {
            values.extend(more);
            true
        }
        None => false,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use syscalls::analysis::{CallReport, ProgramReport, Site, Source as From, Why};

    fn report(first_argument: Option<u64>) -> Report {
        let source = From { object: "/lib/libc.so.6".into(), function: "fcntl".into() };
        let mut arguments: [Option<BTreeSet<u64>>; 6] = Default::default();
        arguments[1] = first_argument.map(|value| [value].into());
        let mut report = Report::default();
        let call = CallReport { name: Some("fcntl"), arguments, sources: [source].into() };
        report.calls.insert(72, call);
        let program =
            ProgramReport { path: "/bin/a".into(), calls: [72].into(), sites: 1, unresolved: 0, functions: 1 };
        report.programs.push(program);
        report
    }

    #[test]
    fn constants_hold_for_all_programs() {
        let mut calls = Calls::default();
        calls.add(Path::new("a"), &report(Some(1))).unwrap();
        calls.add(Path::new("b"), &report(Some(2))).unwrap();
        let (name, call) = calls.iter().next().unwrap();
        assert_eq!((name, call.listed), ("fcntl", false));
        assert_eq!(call.arguments, [(1, [1, 2].into())].into());
        assert_eq!(call.functions, ["libc.so.6:fcntl".to_string()].into());
        assert_eq!(call.programs, ["/bin/a".to_string()].into());
        calls.add(Path::new("c"), &report(None)).unwrap();
        calls.add(Path::new("d"), &report(Some(3))).unwrap();
        assert_eq!(calls.iter().next().unwrap().1.arguments, Constants::new());
        let mut listed = Calls::default();
        listed.add(Path::new("a"), &report(Some(1))).unwrap();
        listed.list([&"fcntl".to_string()]);
        assert_eq!(listed.iter().next().unwrap().1.arguments, Constants::new(), "who lists a call knows no arguments");
    }

    #[test]
    fn entry_points_are_those_of_the_kernel() {
        let table = [("umount".to_string(), "sys_umount".to_string())].into();
        let mut calls = Calls::default();
        calls.add(Path::new("a"), &report(None)).unwrap();
        calls.list([&"umount".to_string()]);
        let found = calls.entry_points_in(&table, "6.12.1").unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["sys_umount"], "what only programs know is not there");
        calls.list([&"nothing".to_string()]);
        assert!(matches!(calls.entry_points_in(&table, "6.12.1"), Err(KernelError::Calls { .. })));
    }

    #[test]
    fn unknown_calls_are_refused_with_their_places() {
        let mut unknown = report(None);
        let from = From { object: "/bin/a".into(), function: "run".into() };
        let site = Site { object: "/bin/a".into(), function: "run".into(), address: 0x10, why: Why::Memory, from };
        unknown.unresolved.push(site);
        let error = Calls::default().add(Path::new("app.rnl"), &unknown).unwrap_err().to_string();
        for part in ["app.rnl", "/bin/a run at 0x10: memory"] {
            assert!(error.contains(part), "{error}");
        }
        let partial = Report { is_partial: true, notes: vec!["some file".into()], ..report(None) };
        let error = Calls::default().add(Path::new("app.rnl"), &partial).unwrap_err().to_string();
        assert!(error.contains("some file"), "{error}");
    }
}
