//! `runnel umount`.

use std::fs;
use std::path::Path;

use crate::mountpoint::{detach_if, mounted_at};
use crate::report::UnmountReport;
use crate::{MountError, control};

/// Unmounts the mount at `path`.
///
/// A live daemon is asked over its control socket, so that an overlay and the image below it go
/// together. A mount whose daemon is dead or does not answer is detached here. Programs that still
/// use the mount keep it until they end. Where only root can unmount (`fusermount3` wants an
/// /etc/mtab), at least the daemon is ended. The report is empty if there is no daemon.
///
/// # Errors
/// There is no mount of ours, or it cannot be unmounted.
pub fn umount(path: &Path) -> Result<UnmountReport, MountError> {
    // No canonicalize here: it would fail on a stale mount. The parent is resolved, the last
    // component kept.
    let absolute = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            fs::canonicalize(parent).map_err(|error| MountError::step("examine", parent, error))?.join(name)
        }
        _ => fs::canonicalize(path).map_err(|error| MountError::step("examine", path, error))?,
    };
    let mut entry = mounted_at(&absolute).map_err(|error| MountError::step("read the mount table for", path, error))?;
    let mut target = absolute;
    if entry.is_none()
        && let Ok(followed) = fs::canonicalize(&target)
    {
        entry = mounted_at(&followed).map_err(|error| MountError::step("read the mount table for", path, error))?;
        target = followed;
    }
    if entry.and_then(|entry| entry.image().map(str::to_string)).is_none() {
        return Err(MountError::NotMounted { path: path.to_path_buf() });
    }
    let is_there = || mounted_at(&target).map_or(true, |entry| entry.is_some());
    if let Some(report) = control::ask_to_unmount(&target)
        && !is_there()
    {
        return Ok(report);
    }
    match detach_if(&target, is_there) {
        Err(error) if control::end_daemon(&target) => {
            if is_there() {
                return Err(MountError::DeadEntry { path: target, reason: error.to_string() });
            }
            Ok(UnmountReport::default())
        }
        done => done.map(|()| UnmountReport::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_a_mount_is_an_error() {
        let folder = tempfile::tempdir().expect("tempdir");
        assert!(matches!(umount(folder.path()), Err(MountError::NotMounted { .. })));
    }
}
