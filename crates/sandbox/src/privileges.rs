//! Core files, and the capabilities of root.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use crate::{Role, SandboxError};

/// Capabilities that a kernel may have: far more than the 41 of today.
const CAPABILITIES_MAX: u32 = 64;

impl Role {
    /// The capabilities that root keeps. Others have none, and get none.
    pub(crate) fn capabilities(self) -> CapabilitySet {
        // Files of other users, within the paths that Landlock leaves.
        let files = CapabilitySet::DAC_OVERRIDE;
        match self {
            // Files of volumes keep their owners while their modes and times change.
            Role::Server | Role::RemoteServer => files | CapabilitySet::FOWNER | CapabilitySet::FSETID,
            Role::Archive | Role::LocalMount | Role::RemoteMount => files,
            // Only SYS_ADMIN sees attributes of the name space `trusted`: without it they would be
            // lost without a word.
            Role::Tree => files | CapabilitySet::SYS_ADMIN,
            Role::Converter => {
                let restore = CapabilitySet::CHOWN | CapabilitySet::FOWNER | CapabilitySet::FSETID;
                let kinds = CapabilitySet::MKNOD | CapabilitySet::SETFCAP | CapabilitySet::SYS_ADMIN;
                files | restore | kinds
            }
        }
    }
}

/// Landlock and capabilities hold for threads, not for processes.
pub(crate) fn expect_one_thread() -> Result<(), SandboxError> {
    // Without /proc nobody can tell, and what is given up is given up by this thread at least.
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, |tasks| tasks.count());
    if threads == 1 { Ok(()) } else { Err(SandboxError::Threads(threads)) }
}

/// Memory may hold keys, and pages of files that not everybody may read.
pub(crate) fn no_core_files() -> Result<(), SandboxError> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).map_err(failed("core files"))
}

/// Gives up what a process does not need that mounts for another one, which is in a sandbox: it may
/// mount, also in folders of others. No layer but this one is possible: Landlock lets nobody mount,
/// and without new privileges `fusermount3` could not either.
///
/// # Errors
/// [`SandboxError`]: the process has threads already, or the kernel refuses.
pub fn keep_rights_to_mount() -> Result<(), SandboxError> {
    expect_one_thread()?;
    no_core_files()?;
    keep(CapabilitySet::SYS_ADMIN | CapabilitySet::DAC_OVERRIDE)
}

/// Gives up all capabilities but these, also for programs that are executed.
pub(crate) fn keep(kept: CapabilitySet) -> Result<(), SandboxError> {
    let now = capabilities(None).map_err(failed("capabilities"))?;
    let kept = kept & now.permitted;
    if now.effective.contains(CapabilitySet::SETPCAP) {
        for number in 0..CAPABILITIES_MAX {
            let capability = CapabilitySet::from_bits_retain(1 << number);
            match capability_is_in_bounding_set(capability) {
                Ok(true) if !kept.contains(capability) => {
                    remove_capability_from_bounding_set(capability).map_err(failed("capabilities"))?;
                }
                Ok(_) => {}
                // The kernel has no more of them.
                Err(_) => break,
            }
        }
    }
    match clear_ambient_capability_set() {
        // Before Linux 4.3 there were none.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(failed("ambient capabilities")(error)),
    }
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(failed("capabilities"))
}

fn failed(what: &'static str) -> impl Fn(Errno) -> SandboxError {
    move |error| SandboxError::Privileges { what, source: io::Error::from(error) }
}
