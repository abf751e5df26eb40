//! The mount table: what is mounted where, whether a directory may be mounted on, and how to detach
//! a mount.
//!
//! Everything here reads `/proc/self/mountinfo` and never looks *into* a mount: a path below a
//! mount whose daemon hangs would make the caller hang too.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::IFlags;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::MountError;

/// File-system type of our mounts in the mount table.
pub const FILE_SYSTEM_TYPE: &str = "fuse.runnel";

/// File-system type of mounts by EROFS.
pub(crate) const EROFS_TYPE: &str = "erofs";

/// The beginning of the source column of our mounts; the image's name follows.
pub const SOURCE_PREFIX: &str = "runnel#";

/// How long a daemon may take to answer one `statfs` before it counts as alive but slow.
const STATFS_WAIT: Duration = Duration::from_secs(2);

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Device number, `(major, minor)`; the minor one names a FUSE connection.
    pub device: (u32, u32),
    /// Where it is mounted.
    pub path: PathBuf,
    /// File-system type, `fuse.runnel` for ours.
    pub kind: String,
    /// The source column, `runnel#name` for ours.
    pub source: String,
    /// Options of the file system, comma separated.
    pub options: String,
}

impl Entry {
    /// The image's name if this is one of our mounts: of FUSE itself, an overlay over it, or EROFS.
    pub fn image(&self) -> Option<&str> {
        let ours =
            self.kind == FILE_SYSTEM_TYPE || self.kind == "fuse" || self.kind == "overlay" || self.kind == EROFS_TYPE;
        self.source.strip_prefix(SOURCE_PREFIX).filter(|_| ours)
    }
}

/// The mount table of the calling process, oldest mount first.
///
/// # Errors
/// The table cannot be read.
pub fn table() -> io::Result<Vec<Entry>> {
    Ok(parse_table(&fs::read("/proc/self/mountinfo")?))
}

/// The topmost mount at exactly `path`, which must be absolute and free of symlinks.
///
/// # Errors
/// The table cannot be read.
pub fn mounted_at(path: &Path) -> io::Result<Option<Entry>> {
    Ok(table()?.into_iter().rev().find(|entry| entry.path == path))
}

/// Parses the text of a mountinfo file; lines that do not fit the documented form are left out.
fn parse_table(text: &[u8]) -> Vec<Entry> {
    text.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /mnt/point options [tags...] - type source options`
fn parse_line(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let path = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = String::from_utf8_lossy(&unescape(rest.next()?)).into_owned();
    let source = String::from_utf8_lossy(&unescape(rest.next()?)).into_owned();
    let options = String::from_utf8_lossy(rest.next().unwrap_or_default()).into_owned();
    Some(Entry { device: (major.parse().ok()?, minor.parse().ok()?), path, kind, source, options })
}

/// Undoes the kernel's octal escapes of blanks, tabs, newlines and backslashes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let octal = field.get(at + 1..at + 4).filter(|_| field[at] == b'\\').and_then(|digits| {
            digits.iter().try_fold(0u32, |value, &digit| Some(value * 8 + char::from(digit).to_digit(8)?))
        });
        match octal.and_then(|value| u8::try_from(value).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(field[at]);
                at += 1;
            }
        }
    }
    out
}

/// Checks that an image may be mounted on `path` and returns the path made absolute and free of
/// symlinks.
///
/// # Errors
/// The path is missing, no directory, in use or a stale mount.
pub fn validate(path: &Path) -> Result<PathBuf, MountError> {
    let absolute = resolve(path)?;
    let found = mounted_at(&absolute).map_err(|error| MountError::step("read the mount table for", path, error))?;
    // The table is asked first: `stat` on one of our mounts would reach its daemon.
    if let Some(entry) = found {
        let stale = is_stale(&absolute);
        return Err(match entry.image() {
            _ if stale => MountError::Stale { path: absolute },
            Some(image) => MountError::AlreadyMounted { image: image.to_string(), path: absolute },
            None => MountError::InUse { kind: entry.kind, path: absolute },
        });
    }
    let metadata = fs::metadata(&absolute).map_err(|error| MountError::step("examine", path, error))?;
    if metadata.is_dir() { Ok(absolute) } else { Err(MountError::NotDirectory { path: path.to_path_buf() }) }
}

/// Absolute form of `path` without following its last component when that is a mount of a dead
/// daemon.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf, MountError> {
    match fs::canonicalize(path) {
        Ok(absolute) => Ok(absolute),
        Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            Err(MountError::Stale { path: path.to_path_buf() })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(MountError::Missing { path: path.to_path_buf() }),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Err(MountError::NotDirectory { path: path.to_path_buf() })
        }
        Err(error) => Err(MountError::step("examine", path, error)),
    }
}

/// Sets the immutable attribute of an empty directory on which something is going to be mounted. A
/// mount covers it; while there is none, writes there fail instead of making files that
/// the next mount hides. It stays when the mount ends.
///
/// # Errors
/// The directory holds something; no right to it, or a file system without such an attribute.
pub fn make_immutable(path: &Path) -> Result<(), MountError> {
    let step = |source: io::Error| MountError::Step {
        step: "make the mount point immutable:",
        path: path.to_path_buf(),
        source,
        hint: "it takes root, an empty directory, and a file system such as ext4, XFS or Btrfs; else leave out \
               --immutable",
    };
    let absolute = resolve(path)?;
    if fs::read_dir(&absolute).map_err(step)?.next().is_some() {
        return Err(step(Errno::NOTEMPTY.into()));
    }
    let folder = fs::File::open(&absolute).map_err(step)?;
    let flags = rustix::fs::ioctl_getflags(&folder).map_err(|error| step(error.into()))?;
    rustix::fs::ioctl_setflags(&folder, flags | IFlags::IMMUTABLE).map_err(|error| step(error.into()))
}

/// Whether the daemon behind the mount at `path` is gone.
pub fn is_stale(path: &Path) -> bool {
    // The FUSE driver answers `statfs` itself once the connection is dead; a live daemon answers
    // from memory. A stopped daemon answers not at all, so a thread asks, and is left behind if it
    // must be.
    let (sender, receiver) = mpsc::channel();
    let asked = path.to_path_buf();
    let thread = thread::Builder::new().name("runnel-statfs".into()).spawn(move || {
        let dead = matches!(rustix::fs::statfs(&asked), Err(Errno::NOTCONN));
        // The caller may have given up.
        let _ = sender.send(dead);
    });
    thread.is_ok() && receiver.recv_timeout(STATFS_WAIT).unwrap_or(false)
}

/// Detaches the mount at `path` with what the caller's rights allow: the system call, else
/// `fusermount3`.
///
/// # Errors
/// There is no mount, or this user may not detach it.
pub fn detach(path: &Path) -> Result<(), MountError> {
    match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => fusermount_detach(path),
        Err(error) => Err(MountError::step("unmount", path, error)),
    }
}

/// Detaches the mount at `path` if `is_there`. That somebody else does so meanwhile is no error.
///
/// # Errors
/// Those of [`detach`], if it is still there.
pub(crate) fn detach_if(path: &Path, is_there: impl Fn() -> bool) -> Result<(), MountError> {
    if !is_there() {
        return Ok(());
    }
    detach(path).or_else(|error| if is_there() { Err(error) } else { Ok(()) })
}

fn fusermount_detach(path: &Path) -> Result<(), MountError> {
    let mut last = String::from("fusermount3 is not installed");
    for program in ["fusermount3", "fusermount"] {
        let run = Command::new(program).args(["-u", "-z", "--"]).arg(path).stdin(Stdio::null()).output();
        match run {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => last = String::from_utf8_lossy(&output.stderr).trim().to_string(),
            Err(_) => continue,
        }
        break;
    }
    Err(MountError::Step {
        step: "unmount",
        path: path.to_path_buf(),
        source: io::Error::new(io::ErrorKind::PermissionDenied, last),
        hint: "run it as the user who mounted it, or with sudo",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_else_detached_meanwhile_is_no_error() {
        let folder = tempfile::tempdir().expect("tempdir");
        let looks = std::cell::Cell::new(0);
        let until_the_second_look = || looks.replace(looks.get() + 1) == 0;
        detach_if(folder.path(), until_the_second_look).expect("gone, as asked");
        assert!(detach_if(folder.path(), || true).is_err(), "it is there and cannot be detached");
        detach_if(Path::new("/"), || false).expect("nothing is there");
    }

    #[test]
    fn table_lines_are_parsed_with_tags_and_escapes() {
        let text =
            b"36 35 0:52 / /mnt/a\\040b\\134c rw,nosuid shared:1 master:2 - fuse.runnel runnel#py ro,user_id=0\n\
            37 35 8:1 / / rw - ext4 /dev/sda1 rw\nnonsense\n38 1 x:y / / rw - a b c\n";
        let entries = parse_table(text);
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].path, Path::new("/mnt/a b\\c"));
        assert_eq!(entries[0].device, (0, 52));
        assert_eq!(entries[0].image(), Some("py"));
        assert_eq!(entries[1].image(), None);
        assert_eq!(entries[1].kind, "ext4");
    }

    #[test]
    fn escapes_that_are_none_stay_as_they_are() {
        assert_eq!(unescape(b"a\\04"), b"a\\04");
        assert_eq!(unescape(b"\\999x\\"), b"\\999x\\");
        assert_eq!(unescape(b"\\777"), b"\\777");
    }

    #[test]
    fn bad_mount_points_are_named() {
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("file");
        fs::write(&file, b"x").expect("write");
        assert!(matches!(validate(&folder.path().join("none")), Err(MountError::Missing { .. })));
        assert!(matches!(validate(&file), Err(MountError::NotDirectory { .. })));
        assert!(matches!(validate(&file.join("below")), Err(MountError::NotDirectory { .. })));
        assert!(matches!(validate(Path::new("/proc")), Err(MountError::InUse { .. })));
        assert!(validate(folder.path()).is_ok());
    }
}
