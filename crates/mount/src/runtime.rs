//! The runtime directory of this user, with sockets of live mounts and private mount points.
//!
//! It is `$XDG_RUNTIME_DIR/runnel`, or `/run/runnel` for root, or `/tmp/runnel-<uid>`. It must
//! belong to this user and be closed to all others: a process that can write here can pose as one
//! of our daemons.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::MountError;
use crate::mountpoint;

/// The purpose of a private mount point; the first part of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The image below an overlay.
    Lower,
    /// The image of `runnel run`.
    Run,
    /// An image whose files are bound over local ones.
    Redirect,
    /// The control file system of FUSE, for a moment.
    Control,
    /// The files below EROFS, until it has opened them.
    Kernel,
    /// A volume beside the image of `runnel run`.
    Data,
}

impl Purpose {
    const ALL: [Purpose; 6] =
        [Purpose::Lower, Purpose::Run, Purpose::Redirect, Purpose::Control, Purpose::Kernel, Purpose::Data];

    fn name(self) -> &'static str {
        match self {
            Purpose::Lower => "lower",
            Purpose::Run => "run",
            Purpose::Redirect => "redirect",
            Purpose::Control => "control",
            Purpose::Kernel => "kernel",
            Purpose::Data => "data",
        }
    }
}

/// The runtime directory, made if missing.
pub(crate) fn directory() -> Result<PathBuf, MountError> {
    let uid = rustix::process::geteuid();
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let mut places: Vec<PathBuf> = given.into_iter().map(|path| path.join("runnel")).collect();
    if uid.is_root() {
        places.push(PathBuf::from("/run/runnel"));
    }
    places.push(PathBuf::from(format!("/tmp/runnel-{}", uid.as_raw())));
    let mut last = None;
    for place in places {
        match own(&place, uid.as_raw()) {
            Ok(()) => return Ok(place),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or(MountError::RuntimeDirectory { path: PathBuf::from("/run/runnel") }))
}

/// Makes `path` if it is missing, and checks that it is a directory of `uid` that nobody else may
/// enter.
fn own(path: &Path, uid: u32) -> Result<(), MountError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(MountError::step("create", path, error));
        }
        _ => {}
    }
    // Not through a symlink: in /tmp anyone could have made one.
    let metadata = fs::symlink_metadata(path).map_err(|error| MountError::step("examine", path, error))?;
    if metadata.is_dir() && metadata.uid() == uid && metadata.mode() & 0o077 == 0 {
        Ok(())
    } else {
        Err(MountError::RuntimeDirectory { path: path.to_path_buf() })
    }
}

/// A new empty directory to mount on, named after this process; removed when dropped (not what is
/// mounted on it).
#[derive(Debug)]
pub(crate) struct PrivateDirectory {
    path: PathBuf,
}

impl PrivateDirectory {
    /// Makes one, and clears away those of processes that are gone.
    pub(crate) fn new(purpose: Purpose) -> Result<PrivateDirectory, MountError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let parent = directory()?;
        remove_abandoned(&parent);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("{}-{}-{number}", purpose.name(), std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(PrivateDirectory { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(MountError::step("create", path, error)),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        // If it cannot be removed now, the next mount of this user clears it away.
        let _ = fs::remove_dir(&self.path);
    }
}

/// Clears away what processes of this user that are gone left mounted.
pub(crate) fn sweep() {
    if let Ok(parent) = directory() {
        remove_abandoned(&parent);
    }
}

/// Removes private directories of processes that ended without doing so, and dead mounts on them.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(process) = name.to_str().and_then(owner_of) else { continue };
        if Path::new(&format!("/proc/{process}")).exists() {
            continue;
        }
        let path = entry.path();
        if mountpoint::mounted_at(&path).is_ok_and(|found| found.is_some()) && mountpoint::detach(&path).is_err() {
            continue;
        }
        // Only ever an empty directory; what is not empty is not ours.
        let _ = fs::remove_dir(&path);
    }
}

/// The process id in the name of a private directory.
fn owner_of(name: &str) -> Option<u32> {
    let (purpose, rest) = name.split_once('-')?;
    let (process, _number) = rest.split_once('-')?;
    Purpose::ALL.iter().any(|known| known.name() == purpose).then(|| process.parse().ok())?
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn directories_of_others_or_open_to_others_are_refused() {
        let folder = tempfile::tempdir().expect("tempdir");
        let uid = rustix::process::geteuid().as_raw();
        let fresh = folder.path().join("fresh");
        own(&fresh, uid).expect("made");
        own(&fresh, uid).expect("found");
        assert!(own(&fresh, uid + 1).is_err());
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)).expect("chmod");
        assert!(matches!(own(&fresh, uid), Err(MountError::RuntimeDirectory { .. })));
        let link = folder.path().join("link");
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o700)).expect("chmod");
        symlink(&fresh, &link).expect("symlink");
        assert!(own(&link, uid).is_err());
    }

    #[test]
    fn abandoned_directories_are_removed_and_others_kept() {
        let folder = tempfile::tempdir().expect("tempdir");
        // Above the largest process id Linux gives out.
        let dead = folder.path().join("run-4294967295-0");
        let live = folder.path().join(format!("run-{}-0", std::process::id()));
        let foreign = folder.path().join("something-4294967295-0");
        let full = folder.path().join("lower-4294967295-1");
        for path in [&dead, &live, &foreign, &full] {
            fs::create_dir(path).expect("mkdir");
        }
        fs::write(full.join("file"), b"x").expect("write");
        remove_abandoned(folder.path());
        assert!(!dead.exists());
        assert!(live.exists() && foreign.exists() && full.exists());
    }

    #[test]
    fn a_private_directory_goes_with_its_owner() {
        let made = PrivateDirectory::new(Purpose::Redirect).expect("made");
        let path = made.path().to_path_buf();
        assert!(path.is_dir());
        drop(made);
        assert!(!path.exists());
    }
}
