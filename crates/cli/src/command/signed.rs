//! Whose signatures the names of servers must have: an option, and the configuration of the device.

use std::ffi::OsString;
use std::path::PathBuf;

use client::SignedNames;

use crate::command::caching::is_of_another;
use crate::config::DeviceConfig;

/// The default folder of root for what was seen of signed names.
const SYSTEM: &str = "/var/lib/runnel/trust";

/// Variable that names the folder.
const VARIABLE: &str = "RUNNEL_TRUST_STATE";

/// Whom to trust for the names of images.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Signed names")]
pub struct NameArgs {
    /// Take a name only if it is signed by those whom this root file names (see `runnel trust`);
    /// /etc/runnel/config.toml says the same for a server: [servers."HOST"] trust = "FILE"
    #[arg(long, value_name = "FILE")]
    trust: Option<PathBuf>,
}

impl NameArgs {
    /// As a session takes them.
    ///
    /// # Errors
    /// The configuration of the device is wrong.
    pub fn signed(&self) -> anyhow::Result<SignedNames> {
        let config = DeviceConfig::load()?;
        let is_root = rustix::process::geteuid().is_root();
        let variable = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()).map(PathBuf::from);
        let chosen = variable.or(config.trust_state.filter(|folder| !is_of_another(folder)));
        let folder = chosen.or_else(|| default_folder(is_root, |name| std::env::var_os(name)));
        let given = self.trust.as_ref().map(std::path::absolute).transpose()?;
        Ok(SignedNames { given, servers: config.trusted, folder })
    }
}

/// The folder that nobody chose, as the XDG Base Directory Specification has it.
fn default_folder(is_root: bool, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if is_root {
        return Some(SYSTEM.into());
    }
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let states = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(states.join("runnel/trust"))
}
