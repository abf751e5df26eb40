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
    /// Calls seen in a trace: what every place that cannot be resolved, and that no rule is for, is taken to call.
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
        Ok(())
    }

    /// Takes names of calls out of a trace: lines that begin with a name, alone or before `(`, after numbers and times of processes, as
    /// strace writes them, or the last word of a line of its summary.
    pub fn trace(&mut self, text: &str) {
        let names = self.traced.get_or_insert_default();
        for line in text.lines() {
            let head = line.split_once('(').map_or(line, |(head, _)| head);
            let head = head.strip_prefix("<... ").map_or(head, |rest| rest.split(' ').next().unwrap_or_default());
            if let Some(name) = head.split_whitespace().next_back().filter(|name| number(Arch::X86_64, name).is_some())
            {
                names.insert(name.to_string());
            }
        }
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
