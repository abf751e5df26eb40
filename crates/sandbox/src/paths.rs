//! Paths, ports and signals, by Landlock.

use std::io;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, NetPort, PathBeneath, PathFd,
    RestrictionStatus, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope, make_bitflags,
};

use crate::{Role, Sandbox, SandboxError};

/// The version of Landlock that is used here (Linux 6.15); older kernels restrict what they know of
/// it.
const KNOWN: ABI = ABI::V7;

/// Files that the standard library and C libraries read: how many processors a container has, and
/// this process's own state.
const READ_BY_ALL: [&str; 4] = ["/proc/self", "/sys/fs/cgroup", "/sys/devices/system/cpu", "/dev/urandom"];

/// A device that swallows what nobody wants.
const NULL: &str = "/dev/null";

/// Files that C libraries read to resolve names.
const NAMES: [&str; 7] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    // Where /etc/resolv.conf is a link to.
    "/run/systemd/resolve",
];

/// Libraries, which the dynamic linker of an executed program and name resolution load.
const LIBRARIES: [&str; 8] = [
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.preload",
];

const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
const WRITE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
    ReadFile | ReadDir | WriteFile | Truncate | MakeReg | MakeDir | MakeSym | RemoveFile | RemoveDir | Refer
});
const EXECUTE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | Execute});
const CREATE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{MakeReg});
/// The rights that apply to one file.
const OF_FILES: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | WriteFile | Truncate | Execute | IoctlDev});

/// False if this kernel, or the container, has no Landlock that we can use.
pub(crate) fn restrict(sandbox: &Sandbox) -> Result<bool, SandboxError> {
    // Before Linux 5.19 no file could be moved from one folder to another, which stores and volumes
    // do: better without it.
    let Ok(rules) = Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(AccessFs::Refer)
    else {
        return Ok(false);
    };
    let mut rules = rules
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    for path in READ_BY_ALL {
        rules = allow_if_there(rules, Path::new(path), READ)?;
    }
    rules = allow_if_there(rules, Path::new(NULL), make_bitflags!(AccessFs::{ReadFile | WriteFile}))?;
    let write = match sandbox.role {
        Role::Converter => WRITE | make_bitflags!(AccessFs::{MakeChar | MakeBlock | MakeFifo | MakeSock}),
        _ => WRITE,
    };
    let loads = matches!(sandbox.role, Role::Converter | Role::RemoteMount | Role::RemoteServer);
    let resolves = matches!(sandbox.role, Role::RemoteMount | Role::RemoteServer);
    for path in LIBRARIES.iter().filter(|_| loads) {
        rules = allow_if_there(rules, Path::new(path), READ)?;
    }
    for path in NAMES.iter().filter(|_| resolves) {
        rules = allow_if_there(rules, Path::new(path), READ)?;
    }
    for path in &sandbox.readable {
        rules = allow_if_there(rules, path, READ)?;
    }
    for path in &sandbox.executable {
        rules = allow_if_there(rules, path, EXECUTE)?;
    }
    for (paths, access) in [(&sandbox.writable, write), (&sandbox.creatable, CREATE)] {
        for path in paths {
            rules = allow(rules, path, access)?;
        }
    }
    for port in &sandbox.ports {
        rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
    }
    judge(&rules.restrict_self()?)
}

fn judge(status: &RestrictionStatus) -> Result<bool, SandboxError> {
    match (&status.landlock, &status.ruleset) {
        (LandlockStatus::Available { .. }, RulesetStatus::NotEnforced) => Err(SandboxError::NotEnforced),
        (LandlockStatus::Available { .. }, _) => Ok(true),
        _ => Ok(false),
    }
}

fn allow(rules: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated, SandboxError> {
    let is_folder =
        std::fs::metadata(path).map_err(|source| SandboxError::Path { path: path.to_owned(), source })?.is_dir();
    let access = if is_folder { access } else { access & OF_FILES };
    let opened = PathFd::new(path)
        .map_err(|error| SandboxError::Path { path: path.to_owned(), source: io::Error::other(error) })?;
    Ok(rules.add_rule(PathBeneath::new(opened, access))?)
}

fn allow_if_there(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, SandboxError> {
    if std::fs::metadata(path).is_ok() { allow(rules, path, access) } else { Ok(rules) }
}
