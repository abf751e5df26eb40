//! Private mounts, which other processes do not see.

use nix::sched::CloneFlags;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;

/// Gives all mounts of the calling thread's mount name space a propagation type
/// ([`mount_namespaces`(7)]), also in a chroot whose root is no mount point. The thread must have
/// left the name space it was born in: then it shares its root and current directory with no other.
///
/// # Errors
/// As of open(2), setns(2), mount(2) and chroot(2). After an error the root directory may be that
/// of the name space.
///
/// [`mount_namespaces`(7)]: https://man7.org/linux/man-pages/man7/mount_namespaces.7.html
pub fn propagate(kind: MountPropagationFlags) -> Result<(), Errno> {
    let flags = kind | MountPropagationFlags::REC;
    match rustix::mount::mount_change("/", flags) {
        // In a chroot "/" need not be a mount point; the mount that it lies on has no name here.
        Err(Errno::INVAL) => {}
        done => return done,
    }
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open("/", directory, Mode::empty())?;
    let current = rustix::fs::open(".", directory, Mode::empty())?;
    let own = rustix::fs::open("/proc/thread-self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    // A process that enters a mount name space, even its own, is at the root of that name space.
    nix::sched::setns(own, CloneFlags::CLONE_NEWNS).map_err(|error| Errno::from_raw_os_error(error as i32))?;
    rustix::mount::mount_change("/", flags)?;
    rustix::process::fchdir(root)?;
    rustix::process::chroot(".")?;
    rustix::process::fchdir(current)
}

/// Gives the calling thread, and the threads and processes that it starts from now on, mounts of
/// its own: what is mounted then is gone with the last of them, and shows up nowhere else.
///
/// # Errors
/// As of unshare(2) (EPERM without CAP_SYS_ADMIN) and of [`propagate`].
pub fn own() -> Result<(), Errno> {
    nix::sched::unshare(CloneFlags::CLONE_NEWNS).map_err(|error| Errno::from_raw_os_error(error as i32))?;
    propagate(MountPropagationFlags::PRIVATE)
}
