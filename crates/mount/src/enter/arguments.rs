//! `runnel enter` as a command line: `run` writes it for the process that it starts, and that
//! process reads it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::EnterPlan;

/// Why arguments are not a valid plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// No root directory was given.
    #[error("the root directory is missing\nhint: runnel enter ROOT [options] -- COMMAND [arguments]")]
    NoRoot,
    /// No command was given.
    #[error("the command is missing\nhint: runnel enter ROOT [options] -- COMMAND [arguments]")]
    NoCommand,
    /// An option of another name.
    #[error("unknown option {0}")]
    Unknown(String),
    /// An option without its value, or with one of the wrong form.
    #[error("{option} needs {form}")]
    Value {
        /// The option.
        option: &'static str,
        /// The form of its value.
        form: &'static str,
    },
}

const BIND: &str = "--bind";
const CWD: &str = "--cwd";
const ENV: &str = "--env";
const SECCOMP: &str = "--seccomp";
const OWN_USERS: &str = "--user-namespace";
const WITH_PARENT: &str = "--end-with-parent";

impl EnterPlan {
    /// The arguments after `enter` that [`EnterPlan::parse`] turns back into this plan.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments = vec![self.root.clone().into_os_string()];
        for (source, target) in &self.binds {
            arguments.push(BIND.into());
            arguments.push(join(source.as_os_str(), b':', target.as_os_str()));
        }
        if let Some(cwd) = &self.cwd {
            arguments.extend([OsString::from(CWD), cwd.clone().into_os_string()]);
        }
        for (name, value) in &self.env {
            arguments.push(ENV.into());
            arguments.push(join(name, b'=', value));
        }
        if let Some(profile) = &self.seccomp {
            arguments.extend([OsString::from(SECCOMP), profile.clone().into_os_string()]);
        }
        if self.own_users {
            arguments.push(OWN_USERS.into());
        }
        if self.ends_with_parent {
            arguments.push(WITH_PARENT.into());
        }
        arguments.push("--".into());
        arguments.extend(self.command.iter().cloned());
        arguments
    }

    /// Reads
    /// `ROOT [--bind SOURCE:TARGET]... [--cwd DIR] [--env NAME=VALUE]... [--seccomp FILE]
    /// [--user-namespace] [--end-with-parent] -- COMMAND [arguments]`.
    /// A bind is split at its last colon, a variable at its first equals sign.
    ///
    /// # Errors
    /// [`ArgumentError`], naming what is missing or unknown.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<EnterPlan, ArgumentError> {
        let mut arguments = arguments.into_iter();
        let root = arguments.next().filter(|root| !root.as_bytes().starts_with(b"--")).ok_or(ArgumentError::NoRoot)?;
        let mut plan = EnterPlan::new(root, Vec::<OsString>::new());
        while let Some(argument) = arguments.next() {
            match argument.to_str() {
                Some("--") => {
                    plan.command = arguments.by_ref().collect();
                }
                Some(BIND) => {
                    let error = ArgumentError::Value { option: BIND, form: "SOURCE:TARGET" };
                    let value = arguments.next().ok_or(error.clone())?;
                    let at = value.as_bytes().iter().rposition(|&byte| byte == b':').ok_or(error)?;
                    let (source, target) = split(&value, at);
                    plan.binds.push((source.into(), target.into()));
                }
                Some(CWD) => {
                    let value = arguments.next().ok_or(ArgumentError::Value { option: CWD, form: "a directory" })?;
                    plan.cwd = Some(PathBuf::from(value));
                }
                Some(ENV) => {
                    let error = ArgumentError::Value { option: ENV, form: "NAME=VALUE" };
                    let value = arguments.next().ok_or(error.clone())?;
                    let at = value.as_bytes().iter().position(|&byte| byte == b'=').filter(|&at| at > 0);
                    plan.env.push(split(&value, at.ok_or(error)?));
                }
                Some(SECCOMP) => {
                    let value = arguments.next().ok_or(ArgumentError::Value { option: SECCOMP, form: "a file" })?;
                    plan.seccomp = Some(PathBuf::from(value));
                }
                Some(OWN_USERS) => plan.own_users = true,
                Some(WITH_PARENT) => plan.ends_with_parent = true,
                _ => return Err(ArgumentError::Unknown(argument.to_string_lossy().into_owned())),
            }
        }
        if plan.command.is_empty() { Err(ArgumentError::NoCommand) } else { Ok(plan) }
    }
}

fn join(left: &OsStr, separator: u8, right: &OsStr) -> OsString {
    let mut bytes = left.as_bytes().to_vec();
    bytes.push(separator);
    bytes.extend_from_slice(right.as_bytes());
    OsString::from_vec(bytes)
}

fn split(value: &OsStr, at: usize) -> (OsString, OsString) {
    let bytes = value.as_bytes();
    (OsStr::from_bytes(&bytes[..at]).into(), OsStr::from_bytes(&bytes[at + 1..]).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<EnterPlan, ArgumentError> {
        EnterPlan::parse(text.split_whitespace().map(OsString::from))
    }

    #[test]
    fn a_plan_survives_its_arguments() {
        let mut plan = EnterPlan::new("/root of it", ["sh", "-c", "echo -- $A"]);
        assert_eq!(EnterPlan::parse(plan.arguments()), Ok(plan.clone()));
        plan.binds = vec![("/a:b".into(), "/c".into()), ("d".into(), "/e".into())];
        plan.cwd = Some(OsString::from_vec(b"/not utf\xff".to_vec()).into());
        plan.env = vec![("A".into(), "b=c".into()), ("EMPTY".into(), "".into())];
        plan.seccomp = Some("/profile of it.json".into());
        (plan.own_users, plan.ends_with_parent) = (true, true);
        assert_eq!(EnterPlan::parse(plan.arguments()), Ok(plan));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(parse(""), Err(ArgumentError::NoRoot));
        assert_eq!(parse("--cwd / -- sh"), Err(ArgumentError::NoRoot));
        assert_eq!(parse("/r"), Err(ArgumentError::NoCommand));
        assert_eq!(parse("/r --"), Err(ArgumentError::NoCommand));
        assert_eq!(parse("/r --dance -- sh"), Err(ArgumentError::Unknown("--dance".into())));
        assert_eq!(parse("/r sh"), Err(ArgumentError::Unknown("sh".into())));
        assert!(matches!(parse("/r --bind /a -- sh"), Err(ArgumentError::Value { option: "--bind", .. })));
        assert!(matches!(parse("/r --env =x -- sh"), Err(ArgumentError::Value { option: "--env", .. })));
        assert!(matches!(parse("/r --cwd"), Err(ArgumentError::Value { option: "--cwd", .. })));
    }
}
