//! `runnel enter`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::ExitCode;

use ::mount::enter::{EnterPlan, enter, enter_by};

use crate::command::seccomp::SeccompArgs;
use crate::failure;

/// Start a program with a mounted image, or any other directory, as its root
#[derive(clap::Args)]
pub struct Args {
    /// The root directory
    root: PathBuf,

    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,

    #[command(flatten)]
    plan: PlanArgs,

    #[command(flatten)]
    seccomp: SeccompArgs,
}

/// What a program gets besides the image.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Program")]
pub struct PlanArgs {
    /// Bring along a file or directory of the caller
    #[arg(long, value_name = "SOURCE:TARGET")]
    pub bind: Vec<OsString>,

    /// Directory to start in (default: the current one)
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<PathBuf>,

    /// Set a variable
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<OsString>,

    /// Use a user namespace although root needs none
    #[arg(long)]
    pub user_namespace: bool,

    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    pub end_with_parent: bool,
}

impl PlanArgs {
    /// The plan for a command in a root directory.
    pub fn plan(&self, root: PathBuf, command: Vec<OsString>) -> anyhow::Result<EnterPlan> {
        let mut plan = EnterPlan::new(root, command);
        for bind in &self.bind {
            let at = bind.as_bytes().iter().rposition(|byte| *byte == b':');
            let (source, target) = split(bind, at).ok_or_else(|| failure::usage("--bind needs SOURCE:TARGET"))?;
            plan.binds.push((source.into(), target.into()));
        }
        for variable in &self.env {
            let at = variable.as_bytes().iter().position(|byte| *byte == b'=');
            plan.env.push(split(variable, at).ok_or_else(|| failure::usage("--env needs NAME=VALUE"))?);
        }
        plan.cwd.clone_from(&self.cwd);
        plan.own_users = self.user_namespace;
        plan.ends_with_parent = self.end_with_parent;
        Ok(plan)
    }
}

fn split(text: &OsString, at: Option<usize>) -> Option<(OsString, OsString)> {
    let (head, tail) = text.as_bytes().split_at(at?);
    Some((OsString::from_vec(head.to_vec()), OsString::from_vec(tail[1..].to_vec())))
}

/// Becomes the program; returns only if that fails.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let plan = args.plan.plan(args.root, args.command)?;
    // Names mean something else once the root is another.
    let filter = args.seccomp.filter()?;
    match filter {
        Some(filter) => match enter_by(&plan, |command| filter.execute(command))? {},
        None => match enter(&plan)? {},
    }
}
