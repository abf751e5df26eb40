//! The report of an analysis.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Why;
use crate::{Arch, Profile, names};

/// What was found about an image.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Calls by number.
    pub calls: BTreeMap<u32, CallReport>,
    /// Places where the kernel is entered, in reachable code.
    pub sites: usize,
    /// Of these, those whose calls are known, by analysis alone.
    pub resolved: usize,
    /// Those for which a policy or a trace vouches.
    pub vouched: usize,
    /// Places whose calls are not known, and for which nobody vouches.
    pub unresolved: Vec<Site>,
    /// Each program by itself.
    pub programs: Vec<ProgramReport>,
    /// Each file that programs load.
    pub objects: Vec<ObjectReport>,
    /// What the analysis could not look at, and what it assumed.
    pub notes: Vec<String>,
    /// Whether some code was not followed to its end, or could not be looked at: any call may be
    /// made.
    pub is_partial: bool,
}

/// One call.
#[derive(Clone, Debug, Serialize)]
pub struct CallReport {
    /// Its name; `None` if the kernel has none of that number.
    pub name: Option<&'static str>,
    /// Constants of its six arguments, as far as they are known; `None` is any.
    pub arguments: [Option<BTreeSet<u64>>; 6],
    /// Where it is called from.
    pub sources: BTreeSet<Source>,
}

/// A function that chooses a call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Source {
    /// Path of the file.
    pub object: String,
    /// Name of the function, or its address.
    pub function: String,
}

/// A place where the kernel is entered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Site {
    /// Path of the file.
    pub object: String,
    /// Name of the function, or its address.
    pub function: String,
    /// Address of the instruction in the file.
    pub address: u64,
    /// Why its calls are not known.
    pub why: Why,
    /// The function where following the number ended: for a wrapper, one of those above it.
    pub from: Source,
}

/// One program.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramReport {
    /// Its path.
    pub path: String,
    /// Numbers of its calls.
    pub calls: BTreeSet<u32>,
    /// Places in code that it can come to.
    pub sites: usize,
    /// Those that are not resolved.
    pub unresolved: usize,
    /// Functions that it can come to.
    pub functions: usize,
}

/// One file that programs load.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectReport {
    /// Its path.
    pub path: String,
    /// Its build id, in hexadecimal.
    pub build_id: Option<String>,
    /// Places in reachable code.
    pub sites: usize,
    /// Those that are resolved.
    pub resolved: usize,
    /// Numbers of calls that its code makes.
    pub calls: BTreeSet<u32>,
}

impl Report {
    /// Whether all calls are known, or vouched for.
    pub fn is_complete(&self) -> bool {
        self.unresolved.is_empty() && !self.is_partial
    }

    /// The calls that may be made: those found, or all there are if some are unknown.
    pub fn names(&self) -> BTreeSet<&'static str> {
        match self.is_complete() {
            true => self.calls.values().filter_map(|call| call.name).collect(),
            false => names(Arch::X86_64).map(|(_, name)| name).collect(),
        }
    }

    /// A seccomp profile that allows these calls and answers all others with ENOSYS.
    pub fn profile(&self) -> Profile {
        Profile::allowing(Arch::X86_64, self.names())
    }
}
