//! What somebody vouches for: a file in TOML, or the calls seen in a trace.
//!
//! ```toml
//! # Calls that count as made, whatever the code says.
//! also = ["prctl"]
//!
//! # What a place that cannot be resolved calls.
//! [[site]]
//! object = "libc.so.6"       # file name or path; or build-id = "…", in hexadecimal
//! function = "do_setxid"     # or address = 0x1234; without both: all of the object
//! calls = ["setuid", "setgid"]
//! ```

use std::collections::BTreeSet;

use serde::Deserialize;

use super::object::Object;
use crate::{Arch, PolicyError, number};

/// What somebody vouches for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Calls that count as made.
    #[serde(default)]
    pub also: Vec<String>,
    /// What places call that cannot be resolved.
    #[serde(default)]
    pub site: Vec<SiteRule>,
    /// Calls seen in a trace: what every place that cannot be resolved, and that no rule is for, is
    /// taken to call.
    #[serde(skip)]
    pub traced: Option<BTreeSet<String>>,
}

/// What some places call.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SiteRule {
    /// Path, or name without directories.
    pub object: Option<String>,
    /// The linker's hash of the file, in hexadecimal.
    pub build_id: Option<String>,
    /// The function as reports name it.
    pub function: Option<String>,
    /// The instruction.
    pub address: Option<u64>,
    /// Names of calls; none: the place is never reached.
    pub calls: Vec<String>,
}

impl Policy {
    /// Reads a policy.
    ///
    /// # Errors
    /// Not a policy, or it names what is no call.
    pub fn parse(text: &str) -> Result<Policy, PolicyError> {
        let policy: Policy = toml::from_str(text).map_err(|error| PolicyError::Toml(error.message().to_string()))?;
        policy.check()?;
        Ok(policy)
    }

    /// Looks at what somebody put together.
    ///
    /// # Errors
    /// It names what is no call, or a rule is for no object.
    pub fn check(&self) -> Result<(), PolicyError> {
        for name in self.also.iter().chain(self.site.iter().flat_map(|rule| &rule.calls)) {
            if number(Arch::X86_64, name).is_none() {
                return Err(PolicyError::NoSuchCall { name: name.clone() });
            }
        }
        if self.site.iter().any(|rule| rule.object.is_none() && rule.build_id.is_none()) {
            return Err(PolicyError::NoObject);
        }
        let is_hash = |id: &&String| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        match self.site.iter().filter_map(|rule| rule.build_id.as_ref()).find(|id| !is_hash(id)) {
            Some(found) => Err(PolicyError::BuildId { found: found.clone() }),
            None => Ok(()),
        }
    }

    /// Takes names of calls out of a trace: lines that begin with a name, alone or before `(`,
    /// after numbers and times of processes, as strace writes them, or the last word of a line of
    /// its summary.
    ///
    /// # Errors
    /// It is no text, tells of no call, or of one that there is not: then it vouches for nothing.
    pub fn trace(&mut self, text: &str) -> Result<(), PolicyError> {
        let refused = |reason: String| Err(PolicyError::Trace { reason });
        if text.contains(['\0', char::REPLACEMENT_CHARACTER]) {
            return refused("it is no text".to_string());
        }
        let mut found = BTreeSet::new();
        for (line, text) in text.lines().enumerate() {
            let call = text.split_once('(').map(|(head, _)| head);
            let head = call.unwrap_or(text);
            let head = head.strip_prefix("<... ").map_or(head, |rest| rest.split(' ').next().unwrap_or_default());
            let mut words = head.split_whitespace();
            let Some(name) = words.next_back() else { continue };
            if number(Arch::X86_64, name).is_some() {
                found.insert(name.to_string());
                continue;
            }
            // What only looks like a call, or is a name alone, would be one that nobody vouches
            // for.
            let is_name = name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
            if is_name && (call.is_some() || words.next().is_none()) {
                return refused(format!("line {}: {name} is no system call of this architecture", line + 1));
            }
        }
        if found.is_empty() {
            return refused("it tells of no call".to_string());
        }
        self.traced.get_or_insert_default().append(&mut found);
        Ok(())
    }

    /// What the place at `address` in `function` calls, if somebody vouches for it.
    pub(super) fn vouched(&self, object: &Object<'_>, function: &str, address: u64) -> Option<BTreeSet<u32>> {
        let path = String::from_utf8_lossy(&object.path);
        let rule = self.site.iter().find(|rule| {
            let is_object =
                rule.object.as_ref().is_none_or(|name| *path == **name || path.rsplit('/').next() == Some(name));
            let is_build =
                rule.build_id.as_ref().is_none_or(|id| object.build_id.as_ref() == Some(&id.to_ascii_lowercase()));
            let is_function = rule.function.as_ref().is_none_or(|name| name == function);
            is_object && is_build && is_function && rule.address.is_none_or(|at| at == address)
        });
        let names: Vec<&String> = match (rule, &self.traced) {
            (Some(rule), _) => rule.calls.iter().collect(),
            (None, Some(traced)) => traced.iter().collect(),
            (None, None) => return None,
        };
        Some(names.into_iter().filter_map(|name| number(Arch::X86_64, name)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_understood_or_refused() {
        let strace = "123   12:00:01 openat(AT_FDCWD, \"/etc/passwd\", O_RDONLY) = 3\n<... read resumed>) = 1\n\
                      --- SIGCHLD {si_signo=SIGCHLD} ---\n+++ exited with 0 +++\n";
        let summary = "% time     seconds  usecs/call     calls    errors syscall\n------ ------\n\
                       100.00    0.000012          12         1           close\n100.00    0.000012                     1         3 total\n";
        let mut policy = Policy::default();
        for trace in [strace, summary, "getpid\n\nwrite\n"] {
            policy.trace(trace).unwrap();
        }
        let expected = ["close", "getpid", "openat", "read", "write"].map(String::from);
        assert_eq!(policy.traced, Some(expected.into()));
        for wrong in
            ["", "\n", "\0\u{1}getpid(", "getpidd\n", "getpid\nblarg(1) = 0\n", "some words\n", "\u{fffd}\ngetpid\n"]
        {
            assert!(matches!(Policy::default().trace(wrong), Err(PolicyError::Trace { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn hashes_of_files_are_hexadecimal() {
        let rule = |id: &str| format!("[[site]]\nbuild-id = \"{id}\"\ncalls = []\n");
        assert!(Policy::parse(&rule("0aF9")).is_ok());
        for wrong in ["zz", ""] {
            assert!(matches!(Policy::parse(&rule(wrong)), Err(PolicyError::BuildId { .. })), "{wrong}");
        }
    }
}
