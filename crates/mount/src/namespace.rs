//! Namespaces of this process: a private mount table, and without root a user namespace that allows
//! one.
//!
//! The kernel lets only a process with a single thread enter a user namespace. So callers do this
//! before anything else.

use std::fs;
use std::io;
use std::path::Path;

use nix::sched::CloneFlags;
use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;

use crate::{MountError, mountpoint};

/// Gives this process its own mount table; mounts made outside later still show up inside, never
/// the other way.
///
/// Without root, or if `own_users` is set, a user namespace comes with it, in which this user is
/// the same user but may mount.
pub(crate) fn unshare(own_users: bool) -> Result<(), MountError> {
    let uid = rustix::process::geteuid();
    let gid = rustix::process::getegid();
    let with_users = own_users || !uid.is_root();
    let mut flags = CloneFlags::CLONE_NEWNS;
    if with_users {
        flags |= CloneFlags::CLONE_NEWUSER;
    }
    nix::sched::unshare(flags).map_err(|error| refused(error.into(), with_users))?;
    if with_users {
        // Groups must be given up before a group map may be written without privileges.
        let maps = [
            ("/proc/self/setgroups", "deny".to_string()),
            ("/proc/self/uid_map", format!("{0} {0} 1", uid.as_raw())),
            ("/proc/self/gid_map", format!("{0} {0} 1", gid.as_raw())),
        ];
        for (path, text) in maps {
            fs::write(path, text).map_err(|source| MountError::Namespace {
                step: "map this user into a user namespace",
                source,
                hint: forbidden_hint(),
            })?;
        }
    }
    // No mount made from now on shows up outside.
    host::mounts::propagate(MountPropagationFlags::DOWNSTREAM).map_err(|source| MountError::Namespace {
        step: "make the mount table private",
        source: source.into(),
        hint: "is /proc mounted? `mount -t proc proc /proc`",
    })
}

fn refused(source: io::Error, with_users: bool) -> MountError {
    if !with_users {
        return MountError::Namespace {
            step: "make a private mount table",
            source,
            hint: "this container lacks CAP_SYS_ADMIN",
        };
    }
    if source.raw_os_error() == Some(Errno::PERM.raw_os_error()) && is_chroot() {
        let hint = "this is a chroot, in which the kernel allows no user namespaces: run this as root";
        return MountError::Namespace { step: "make a user namespace", source, hint };
    }
    // EINVAL is also what a process with several threads gets.
    let threads = fs::read_dir("/proc/self/task").map_or(1, |tasks| tasks.count());
    let hint = if threads > 1 {
        "this process already runs several threads, which is a bug in runnel"
    } else {
        forbidden_hint()
    };
    MountError::Namespace { step: "make a user namespace", source, hint }
}

/// Whether the root directory is no mount point, as it is in most chroots.
fn is_chroot() -> bool {
    mountpoint::mounted_at(Path::new("/")).is_ok_and(|entry| entry.is_none())
}

/// Which of the known switches forbids user namespaces here.
fn forbidden_hint() -> &'static str {
    let value = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_string()).unwrap_or_default();
    if value("/proc/sys/kernel/unprivileged_userns_clone") == "0" {
        return "user namespaces are disabled: as root, `sysctl kernel.unprivileged_userns_clone=1`";
    }
    if value("/proc/sys/user/max_user_namespaces") == "0" {
        return "user namespaces are disabled: as root, `sysctl user.max_user_namespaces=15000`";
    }
    if value("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1" {
        return "AppArmor restricts user namespaces: as root, \
                `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or run this as root";
    }
    "user namespaces are not allowed here (a container's seccomp filter may forbid them); run this as root"
}
