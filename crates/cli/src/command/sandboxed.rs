//! The sandbox of a command, and the option to do without.

use std::path::{Path, PathBuf};

use ::sandbox::{Entered, Sandbox};

/// Whether a command gives up what it does not need.
#[derive(clap::Args, Clone, Copy)]
pub struct SandboxArgs {
    /// Keep all rights of the user instead of only those that the work needs (Landlock, seccomp)
    #[arg(long)]
    pub no_sandbox: bool,
}

impl SandboxArgs {
    /// Enters, unless the user does not want it: then `None`. Call it before the first thread
    /// starts.
    ///
    /// # Errors
    /// The kernel refuses what it can do.
    pub fn enter(self, sandbox: &Sandbox) -> anyhow::Result<Option<Entered>> {
        if self.no_sandbox {
            return Ok(None);
        }
        let entered = sandbox.enter();
        Ok(Some(entered.map_err(|error| anyhow::anyhow!("{error}\nhint: --no-sandbox works without a sandbox"))?))
    }

    /// The same, and says what this kernel lacks: for commands that run for long.
    ///
    /// # Errors
    /// As [`SandboxArgs::enter`].
    pub fn enter_and_tell(self, sandbox: &Sandbox) -> anyhow::Result<()> {
        if let Some(missing) = self.enter(sandbox)?.and_then(Entered::missing) {
            tell!("note: this kernel or container has no {missing}; the sandbox holds without it");
        }
        Ok(())
    }
}

/// The folders in which files lie that somebody may replace, and those where they lie if they are
/// links.
pub fn folders_of<'a>(files: impl IntoIterator<Item = &'a Path>) -> Vec<PathBuf> {
    let folder = |path: &Path| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let both =
        files.into_iter().flat_map(|file| [Some(folder(file)), std::fs::canonicalize(file).ok().map(|at| folder(&at))]);
    both.flatten().collect()
}
