//! Seccomp profiles of the OCI runtime specification (version 1.2, "Linux seccomp").
//!
//! A part of a profile that this program cannot apply is an error and is never left out: actions
//! that need a tracer or a listener, flags, fields that the specification does not have.

use serde::{Deserialize, Serialize};

use crate::{Arch, ProfileError};

/// ENOSYS on every architecture that there are profiles for.
pub(crate) const ENOSYS: u32 = 38;

/// EPERM, which the specification has for an ERRNO without a number.
const EPERM: u32 = 1;

/// The last argument of a call.
pub(crate) const ARGUMENT_MAX: u32 = 5;

/// What happens to calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Profile {
    /// Name of what happens to calls that no rule is for.
    pub default_action: String,
    /// The error of calls that the default action fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_errno_ret: Option<u32>,
    /// Names of architectures; none is the one of the machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub architectures: Vec<String>,
    /// Flags for the kernel; none is supported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
    /// Rules, in order.
    #[serde(default)]
    pub syscalls: Vec<Rule>,
}

/// What happens to some calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// Names of calls.
    pub names: Vec<String>,
    /// Name of what happens.
    pub action: String,
    /// The error of calls that are failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno_ret: Option<u32>,
    /// Conditions on arguments, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Argument>,
}

/// A condition on an argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Argument {
    /// Which one, from 0.
    pub index: u32,
    /// What it is compared with; the mask of a masked comparison.
    pub value: u64,
    /// What is left behind the mask of a masked comparison.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub value_two: u64,
    /// How it is compared.
    pub op: Operator,
}

/// How an argument is compared, as an unsigned number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// Not equal.
    #[serde(rename = "SCMP_CMP_NE")]
    Ne,
    /// Less.
    #[serde(rename = "SCMP_CMP_LT")]
    Lt,
    /// Less or equal.
    #[serde(rename = "SCMP_CMP_LE")]
    Le,
    /// Equal.
    #[serde(rename = "SCMP_CMP_EQ")]
    Eq,
    /// Greater or equal.
    #[serde(rename = "SCMP_CMP_GE")]
    Ge,
    /// Greater.
    #[serde(rename = "SCMP_CMP_GT")]
    Gt,
    /// Equal behind a mask.
    #[serde(rename = "SCMP_CMP_MASKED_EQ")]
    MaskedEq,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is made.
    Allow,
    /// It is made, and logged.
    Log,
    /// It fails with this error.
    Errno(u16),
    /// The thread gets SIGSYS.
    Trap,
    /// The thread ends.
    KillThread,
    /// The process ends.
    KillProcess,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Profile {
    /// A profile that allows these calls and answers all others with ENOSYS.
    pub fn allowing<'a>(arch: Arch, names: impl IntoIterator<Item = &'a str>) -> Profile {
        let mut names: Vec<String> = names.into_iter().map(str::to_string).collect();
        names.sort();
        let action = "SCMP_ACT_ALLOW".to_string();
        Profile {
            default_action: "SCMP_ACT_ERRNO".into(),
            default_errno_ret: Some(ENOSYS),
            architectures: vec![arch.profile_name().into()],
            flags: Vec::new(),
            syscalls: vec![Rule { names, action, errno_ret: None, args: Vec::new() }],
        }
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// Not a profile, or it asks for what is not supported.
    pub fn parse(text: &str) -> Result<Profile, ProfileError> {
        let profile: Profile = serde_json::from_str(text)?;
        action(&profile.default_action, profile.default_errno_ret)?;
        if let Some(flag) = profile.flags.first() {
            return Err(ProfileError::Unknown { field: "flags", found: flag.clone() });
        }
        for rule in &profile.syscalls {
            action(&rule.action, rule.errno_ret)?;
            if let Some(wrong) = rule.args.iter().find(|argument| argument.index > ARGUMENT_MAX) {
                let name = rule.names.first().cloned().unwrap_or_default();
                return Err(ProfileError::Index { name, index: wrong.index });
            }
        }
        Ok(profile)
    }
}

/// What an action is by its name.
pub(crate) fn action(name: &str, errno: Option<u32>) -> Result<Action, ProfileError> {
    match name {
        "SCMP_ACT_ALLOW" => Ok(Action::Allow),
        "SCMP_ACT_LOG" => Ok(Action::Log),
        "SCMP_ACT_TRAP" => Ok(Action::Trap),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Ok(Action::KillThread),
        "SCMP_ACT_KILL_PROCESS" => Ok(Action::KillProcess),
        "SCMP_ACT_ERRNO" => {
            let errno = errno.unwrap_or(EPERM);
            // The kernel takes numbers up to MAX_ERRNO.
            let small = u16::try_from(errno).ok().filter(|errno| *errno <= 4095);
            small.map(Action::Errno).ok_or(ProfileError::Unknown { field: "errnoRet", found: errno.to_string() })
        }
        _ => Err(ProfileError::Unknown { field: "action", found: name.to_string() }),
    }
}
