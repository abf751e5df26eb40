//! A writable layer over a mounted image: overlayfs with the image below and a directory of the
//! user's above.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::mount::MountFlags;

use crate::MountError;
use crate::mountpoint::SOURCE_PREFIX;

/// Longest option text the kernel reads: one page with its final zero.
const OPTIONS_BYTES_MAX: usize = 4095;

/// Mounts on `target` what `lower` shows, with all changes kept in `folder` (`upper` and `work`
/// below it).
pub(crate) fn mount(lower: &Path, folder: &Path, target: &Path, name: &str) -> Result<(), MountError> {
    let folder = fs::canonicalize(folder).map_err(|error| MountError::Step {
        step: "use as overlay directory",
        path: folder.to_path_buf(),
        source: error,
        hint: "create it first; it keeps the changes made in the mount",
    })?;
    let (upper, work) = (folder.join("upper"), folder.join("work"));
    for path in [&upper, &work] {
        fs::create_dir_all(path).map_err(|error| MountError::step("create", path, error))?;
    }
    // Without root the kernel may not use the trusted attributes, only those any user may set.
    let unprivileged = !rustix::process::geteuid().is_root();
    let options = options(lower, &upper, &work, unprivileged)
        .ok_or_else(|| MountError::step("mount an overlay on", target, io::Error::from(io::ErrorKind::InvalidInput)))?;
    let source = format!("{SOURCE_PREFIX}{name}");
    rustix::mount::mount(source.as_str(), target, "overlay", MountFlags::empty(), Some(options.as_c_str())).map_err(
        |error| MountError::Step {
            step: "mount an overlay on",
            path: target.to_path_buf(),
            source: error.into(),
            hint: "the overlay directory must lie on a writable local file system that is no overlay itself; \
                   without root this works only inside `runnel run`",
        },
    )
}

/// The option text; `None` if it gets too long or a path holds a zero byte.
fn options(lower: &Path, upper: &Path, work: &Path, unprivileged: bool) -> Option<CString> {
    let mut text = Vec::new();
    for (key, path) in [("lowerdir=", lower), (",upperdir=", upper), (",workdir=", work)] {
        text.extend_from_slice(key.as_bytes());
        for &byte in path.as_os_str().as_bytes() {
            if matches!(byte, b'\\' | b',' | b':') {
                text.push(b'\\');
            }
            text.push(byte);
        }
    }
    if unprivileged {
        text.extend_from_slice(b",userxattr");
    }
    if text.len() > OPTIONS_BYTES_MAX { None } else { CString::new(text).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_separators_are_escaped() {
        let made = options(Path::new("/a,b"), Path::new("/c:d"), Path::new("/e\\f"), true).expect("fits");
        assert_eq!(made.to_bytes(), b"lowerdir=/a\\,b,upperdir=/c\\:d,workdir=/e\\\\f,userxattr");
        let long = "x".repeat(OPTIONS_BYTES_MAX);
        assert_eq!(options(Path::new(&long), Path::new("/"), Path::new("/"), false), None);
    }
}
