//! What people add to the analysis: a policy in TOML, and lists of system calls.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use syscalls::analysis::{self, SiteRule};

use crate::KernelError;
use crate::build::read;

/// A policy. A file of `runnel syscalls --policy` is one too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Symbols of the kernel that stay with all they need.
    pub roots: Vec<String>,
    /// Names of system calls that are used besides those that are listed or found.
    #[serde(alias = "also")]
    pub syscalls: Vec<String>,
    /// What places of programs call that the analysis cannot resolve.
    pub site: Vec<SiteRule>,
}

impl Policy {
    /// Reads the policy in `path`.
    ///
    /// # Errors
    /// It cannot be read or understood.
    pub fn read(path: &Path) -> Result<Self, KernelError> {
        let wrong = |error: toml::de::Error| KernelError::Input { path: path.to_path_buf(), reason: error.to_string() };
        let policy: Self = toml::from_str(&read(path)?).map_err(wrong)?;
        let wrong =
            |error: syscalls::PolicyError| KernelError::Input { path: path.to_path_buf(), reason: error.to_string() };
        policy.of_programs().check().map_err(wrong)?;
        Ok(policy)
    }

    /// What is vouched for in programs. Calls of [`Policy::syscalls`] are not made by programs, so
    /// they are not in it.
    pub fn of_programs(&self) -> analysis::Policy {
        analysis::Policy { site: self.site.clone(), ..analysis::Policy::default() }
    }
}

/// A list of system calls as JSON.
#[derive(Deserialize)]
struct Listed {
    names: Vec<String>,
}

/// Names of system calls in `path`: JSON with a list `names`, or text with a name a line and
/// comments after `#`.
///
/// # Errors
/// It cannot be read or understood, or is empty: a kernel without system calls starts no program.
pub fn read_syscalls(path: &Path) -> Result<BTreeSet<String>, KernelError> {
    let text = read(path)?;
    let wrong = |reason: String| KernelError::Input { path: path.to_path_buf(), reason };
    let names: BTreeSet<String> = if text.trim_start().starts_with('{') {
        let listed: Listed = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        listed.names.into_iter().collect()
    } else {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        lines.filter(|line| !line.is_empty()).map(str::to_string).collect()
    };
    if names.is_empty() { Err(wrong("it names no system call".to_string())) } else { Ok(names) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn lists_are_json_or_lines() {
        let expected: BTreeSet<String> = ["read", "write"].map(String::from).into();
        for text in ["{\"names\": [\"write\", \"read\"], \"other\": 1}", "read # why\n\nwrite\n# none\n"] {
            assert_eq!(read_syscalls(file(text).path()).unwrap(), expected, "{text}");
        }
        for wrong in ["", "# nothing", "{\"names\": []}", "{\"list\": [\"read\"]}", "{"] {
            assert!(matches!(read_syscalls(file(wrong).path()), Err(KernelError::Input { .. })), "{wrong}");
        }
    }

    #[test]
    fn a_policy_has_no_unknown_fields() {
        let policy = Policy::read(file("roots = [\"panic\"]\n").path()).unwrap();
        assert_eq!(policy, Policy { roots: vec!["panic".to_string()], ..Policy::default() });
        let rule = "also = [\"sync\"]\n[[site]]\nobject = \"libc.so.6\"\ncalls = [\"futex\"]\n";
        let policy = Policy::read(file(rule).path()).unwrap();
        assert_eq!((policy.syscalls.as_slice(), policy.of_programs().site.len()), (&["sync".to_string()][..], 1));
        for wrong in ["root = []\n", "[[site]]\ncalls = []\n", "[[site]]\nobject = \"a\"\ncalls = [\"nothing\"]\n"] {
            assert!(matches!(Policy::read(file(wrong).path()), Err(KernelError::Input { .. })), "{wrong}");
        }
    }
}
