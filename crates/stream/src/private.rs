//! Folders and files that other users of this device must not read: unsent changes are parts of
//! files that may be private on the server, and the file `device` holds the secret of this device.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Permission bits of other users.
const OTHERS: u32 = 0o077;

/// Makes a folder that only its owner can enter, or makes one so that holds nothing but what is
/// ours.
///
/// # Errors
/// What the system says; a folder of another user; one that others can enter and that holds
/// something else, since it may be meant for them.
pub(crate) fn folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    // By descriptor: what is looked at is what is changed.
    let opened = File::open(path)?;
    let about = opened.metadata()?;
    let user = rustix::process::geteuid();
    if about.uid() != user.as_raw() && !user.is_root() {
        return Err(io::Error::other("it belongs to another user; give a folder of your own"));
    }
    if about.mode() & OTHERS == 0 {
        return Ok(());
    }
    let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    if let Some(other) = names.iter().find(|name| !is_ours(name)) {
        return Err(io::Error::other(format!(
            "other users can enter it (mode {:o}), and it holds {:?}, which is not ours; give a folder of its own, or chmod 700 it",
            about.mode() & 0o7777,
            other
        )));
    }
    opened.set_permissions(Permissions::from_mode(0o700))?;
    // Nobody else can put anything there any more. What an older version left is narrowed, too: it
    // may have been linked elsewhere.
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let mode = match entry.file_type()? {
            kind if kind.is_file() => 0o600,
            kind if kind.is_dir() => 0o700,
            _ => return Err(io::Error::other(format!("{:?} in it is no file; remove it", entry.file_name()))),
        };
        fs::set_permissions(entry.path(), Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// How to open a file that only its owner can read; a symbolic link is not followed.
pub(crate) fn file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    options
}

/// Whether an outbox or a disk cache has a file of this name.
pub(crate) fn is_ours(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let name = name.strip_suffix(".new").unwrap_or(name);
    let number = name.strip_suffix(".txn").or_else(|| name.strip_suffix(".txt"));
    let mut numbers = number.into_iter().flat_map(|numbers| numbers.splitn(2, '-')).peekable();
    numbers.peek().is_some() && numbers.all(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        || ["device", "lock", "lost", "blocks.cache"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn what_is_made_is_private_from_the_start() {
        let top = tempfile::tempdir().unwrap();
        let at = top.path().join("a/b");
        folder(&at).unwrap();
        assert_eq!((mode(&at), mode(&top.path().join("a"))), (0o700, 0o700));
        file().create(true).write(true).truncate(false).open(at.join("device")).unwrap();
        assert_eq!(mode(&at.join("device")), 0o600);
        std::os::unix::fs::symlink("device", at.join("link")).unwrap();
        assert!(file().create(true).write(true).truncate(false).open(at.join("link")).is_err());
    }

    #[test]
    fn regress_folders_of_older_versions_are_narrowed_and_shared_ones_refused() {
        let top = tempfile::tempdir().unwrap();
        let old = top.path().join("old");
        fs::create_dir_all(old.join("lost")).unwrap();
        for name in ["device", "lock", "00000000000000000007.txn", "09-07.txn", "blocks.cache"] {
            fs::write(old.join(name), b"x").unwrap();
            fs::set_permissions(old.join(name), Permissions::from_mode(0o644)).unwrap();
        }
        fs::set_permissions(&old, Permissions::from_mode(0o755)).unwrap();
        folder(&old).unwrap();
        assert_eq!((mode(&old), mode(&old.join("lost"))), (0o700, 0o700));
        for name in ["device", "lock", "00000000000000000007.txn", "09-07.txn", "blocks.cache"] {
            assert_eq!(mode(&old.join(name)), 0o600, "{name}");
        }

        let shared = top.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::write(shared.join("letter"), b"dear").unwrap();
        fs::set_permissions(&shared, Permissions::from_mode(0o777)).unwrap();
        let error = folder(&shared).unwrap_err().to_string();
        assert!(error.contains("letter") && error.contains("chmod 700"), "{error}");
        assert_eq!(mode(&shared), 0o777, "it may be meant for others");
        fs::set_permissions(&shared, Permissions::from_mode(0o700)).unwrap();
        folder(&shared).unwrap();

        let planted = top.path().join("planted");
        fs::create_dir(&planted).unwrap();
        fs::set_permissions(&planted, Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink(shared.join("letter"), planted.join("device.new")).unwrap();
        assert!(folder(&planted).is_err());
        assert_eq!(mode(&shared.join("letter")) & 0o200, 0o200);
    }
}
