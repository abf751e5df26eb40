//! Making a FUSE mount: /dev/fuse and mount(2), or `fusermount3` where that is not allowed.
//! Failures are told apart.

use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::MountError;
use crate::mountpoint::{FILE_SYSTEM_TYPE, SOURCE_PREFIX};

/// Longest image name shown in the mount table.
const NAME_BYTES_MAX: usize = 200;

/// How long `fusermount3` may take; it makes one mount.
const HELPER_WAIT: Duration = Duration::from_secs(10);

/// The owner and the permissions of a FUSE mount.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Short name, shown in the mount table as `runnel#name`.
    pub(crate) name: String,
    /// Whether the kernel refuses all changes.
    pub(crate) is_read_only: bool,
    /// Whether users other than the one who mounts may use it.
    pub(crate) allow_other: bool,
    /// Whether set-user-id bits and file capabilities count.
    pub(crate) allow_suid: bool,
    /// Whether device nodes work as devices.
    pub(crate) allow_devices: bool,
    /// Whether `fusermount3` may be used when the system call is not allowed.
    pub(crate) helper: bool,
}

/// Why mounting by system call failed.
enum Refused {
    Open(Errno),
    /// Something else stands under the name of the device; mount(2) would only say "invalid
    /// argument".
    NoDevice,
    Mount(Errno),
}

/// Mounts FUSE on `path` and returns the device to serve it with.
///
/// # Errors
/// The device cannot be opened, or neither this user nor the helper may mount there.
pub(crate) fn mount(path: &Path, access: &Access) -> Result<OwnedFd, MountError> {
    match directly(path, access) {
        Ok(device) => Ok(device),
        Err(refused @ (Refused::Open(Errno::ACCESS) | Refused::Mount(Errno::PERM))) if access.helper => {
            by_helper(path, access, refused)
        }
        Err(refused) => Err(refused.into_error(path)),
    }
}

impl Refused {
    fn into_error(self, path: &Path) -> MountError {
        match self {
            Refused::NoDevice => MountError::Device {
                source: io::Error::new(io::ErrorKind::InvalidInput, "it is not a device"),
                hint: "make it anew as root: `rm /dev/fuse && mknod -m 666 /dev/fuse c 10 229`",
            },
            Refused::Open(error) => MountError::Device {
                source: error.into(),
                hint: match error {
                    Errno::NOENT | Errno::NODEV | Errno::NXIO => {
                        "it is missing: `modprobe fuse` as root; in a container, start that with `--device /dev/fuse`"
                    }
                    _ => {
                        "as root, give it the mode that distributions give it: `chmod 0666 /dev/fuse`; until then `mount` and \
                         `run` need root, or `mount` needs fusermount3 (package fuse3)"
                    }
                },
            },
            Refused::Mount(error) => MountError::Step {
                step: "mount FUSE on",
                path: path.to_path_buf(),
                source: error.into(),
                hint: if error == Errno::PERM { "this needs root, or use `runnel run`" } else { "" },
            },
        }
    }
}

fn open(path: &Path) -> Result<OwnedFd, Refused> {
    let device = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(Refused::Open)?;
    let found = rustix::fs::fstat(&device).map_err(Refused::Open)?;
    let is_device = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice;
    if is_device { Ok(device) } else { Err(Refused::NoDevice) }
}

fn directly(path: &Path, access: &Access) -> Result<OwnedFd, Refused> {
    let device = open(Path::new("/dev/fuse"))?;
    // `rootmode` is the type of the root inode in octal; the kernel checks permissions from the
    // modes it caches.
    let mut text = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw()
    );
    if access.allow_other {
        text.push_str(",allow_other");
    }
    let text = CString::new(text).map_err(|_| Refused::Mount(Errno::INVAL))?;
    let mut flags = MountFlags::NOATIME;
    if access.is_read_only {
        flags |= MountFlags::RDONLY;
    }
    if !access.allow_suid {
        flags |= MountFlags::NOSUID;
    }
    if !access.allow_devices {
        flags |= MountFlags::NODEV;
    }
    let source = format!("{SOURCE_PREFIX}{}", shown(&access.name));
    rustix::mount::mount(source.as_str(), path, FILE_SYSTEM_TYPE, flags, Some(text.as_c_str()))
        .map_err(Refused::Mount)?;
    Ok(device)
}

/// Lets the set-user-id helper mount; it sends the device back over a socket, which it is given as
/// standard input. `refused` is why this process could not.
fn by_helper(path: &Path, access: &Access, refused: Refused) -> Result<OwnedFd, MountError> {
    let fail = |source: io::Error| MountError::Step {
        step: "mount FUSE on",
        path: path.to_path_buf(),
        source,
        hint: "without root the directory has to be your own; `runnel run` needs none",
    };
    let (ours, theirs) = UnixStream::pair().map_err(fail)?;
    ours.set_read_timeout(Some(HELPER_WAIT)).map_err(fail)?;
    let mode = if access.is_read_only { "ro" } else { "rw" };
    let mut text = format!("{mode},default_permissions,subtype=runnel,fsname={SOURCE_PREFIX}{}", shown(&access.name));
    if access.allow_other {
        text.push_str(",allow_other");
    }
    let mut helper = Command::new("fusermount3")
        .args(["-o", &text, "--"])
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match refused {
            // Without the helper the device is what is in the way.
            Refused::Open(_) => refused.into_error(path),
            Refused::NoDevice | Refused::Mount(_) => no_helper(path, error),
        })?;
    // Ends with an error when the helper closes its end without having sent anything.
    let device = receive(&ours);
    if device.is_err() {
        // It takes too long; nobody may wait for it any more.
        let _ = helper.kill();
    }
    drop(ours);
    let output = helper.wait_with_output().map_err(fail)?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
    match device {
        Ok(Some(device)) if output.status.success() => Ok(device),
        _ if !said.is_empty() => Err(fail(io::Error::new(io::ErrorKind::PermissionDenied, said))),
        Err(error) => Err(fail(error)),
        Ok(_) => Err(fail(io::Error::from(io::ErrorKind::PermissionDenied))),
    }
}

/// The helper cannot be started.
fn no_helper(path: &Path, error: io::Error) -> MountError {
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    MountError::Step {
        step: "mount FUSE on",
        path: path.to_path_buf(),
        source: if is_missing { io::Error::new(error.kind(), "fusermount3 is not installed") } else { error },
        hint: "only root mounts without fusermount3: install the package fuse3, or use `runnel run`, which needs neither",
    }
}

/// The descriptor in the next message, if it holds one.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8];
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

/// The name as it may stand in the mount table: bounded, without the characters that separate
/// access.
pub(crate) fn shown(name: &str) -> String {
    let clean = |letter: char| if letter.is_control() || letter == ',' || letter == '\\' { '_' } else { letter };
    let mut shown = String::new();
    for letter in name.chars().map(clean) {
        if shown.len() + letter.len_utf8() > NAME_BYTES_MAX {
            break;
        }
        shown.push(letter);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_bounded_and_without_separators() {
        assert_eq!(shown("a,b\\c\nd"), "a_b_c_d");
        assert_eq!(shown(&"é".repeat(300)).len(), NAME_BYTES_MAX);
    }

    #[test]
    fn a_helper_that_sends_nothing_is_an_error() {
        let (ours, theirs) = UnixStream::pair().expect("pair");
        drop(theirs);
        assert!(matches!(receive(&ours), Ok(None)));
    }

    #[test]
    fn a_device_that_is_not_for_all_is_named_with_what_to_do() {
        let told = Refused::Open(Errno::ACCESS).into_error(Path::new("/mnt")).to_string();
        for part in ["cannot open /dev/fuse", "chmod 0666 /dev/fuse", "`mount` and `run` need root", "fusermount3"] {
            assert!(told.contains(part), "{told}");
        }
    }

    #[test]
    fn a_helper_that_is_missing_is_named_and_not_the_device() {
        let told = no_helper(Path::new("/mnt"), io::ErrorKind::NotFound.into()).to_string();
        assert!(told.contains("fusermount3 is not installed") && told.contains("package fuse3"), "{told}");
        assert!(!told.contains("/dev/fuse"), "{told}");
    }

    #[test]
    fn a_file_in_the_place_of_the_device_is_named() {
        let file = tempfile::NamedTempFile::new().expect("file");
        let Err(refused) = open(file.path()) else { panic!("a file is no device") };
        let told = refused.into_error(Path::new("/mnt")).to_string();
        assert!(told.contains("/dev/fuse: it is not a device\nhint: make it anew as root"), "{told}");
    }
}
