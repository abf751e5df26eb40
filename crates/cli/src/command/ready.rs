//! Ready files, which tell other programs that a command is ready. They get their content, or at
//! least their name, then.
//!
//! A command that is ready is in its sandbox, where it may not open foreign files. So the file is
//! opened before.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};

/// A file to come, or none.
pub struct ReadyFile(Option<(PathBuf, Kind)>);

enum Kind {
    /// It is there, with what somebody wrote.
    There(File),
    /// It has no name yet.
    Unnamed(File),
}

/// Of any new file: what the umask leaves of these.
const PERMISSIONS: Mode = Mode::from_raw_mode(0o666);

impl ReadyFile {
    /// Nobody waits to be told.
    pub fn none() -> ReadyFile {
        ReadyFile(None)
    }

    /// Opens the file, or an unnamed one in its folder.
    ///
    /// # Errors
    /// It cannot be written to.
    pub fn open(path: Option<&Path>) -> anyhow::Result<ReadyFile> {
        let Some(path) = path else { return Ok(ReadyFile(None)) };
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let kind = match File::options().write(true).open(path) {
            Ok(file) => Kind::There(file),
            Err(_) => match rustix::fs::open(folder(path), flags, PERMISSIONS) {
                Ok(file) => Kind::Unnamed(file.into()),
                // A file system that knows no unnamed files: it is empty until we are ready.
                Err(_) => Kind::There(File::create(path).with_context(|| path.display().to_string())?),
            },
        };
        Ok(ReadyFile(Some((path.to_path_buf(), kind))))
    }

    /// The folder in which the file gets its name.
    pub fn folder(&self) -> Option<PathBuf> {
        match &self.0 {
            Some((path, Kind::Unnamed(_))) => Some(folder(path)),
            _ => None,
        }
    }

    /// The command is ready: the file is there from now on, with this text alone.
    ///
    /// # Errors
    /// It cannot be written or named.
    pub fn announce(&self, text: &str) -> anyhow::Result<()> {
        let Some((path, kind)) = &self.0 else { return Ok(()) };
        let shown = || path.display().to_string();
        let (Kind::There(file) | Kind::Unnamed(file)) = kind;
        // Pipes and terminals have no length.
        let _ = file.set_len(0);
        let mut file = file;
        file.write_all(text.as_bytes()).with_context(shown)?;
        if let Kind::Unnamed(file) = kind {
            let from = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, from.as_str(), CWD, path, AtFlags::SYMLINK_FOLLOW).with_context(shown)?;
        }
        Ok(())
    }
}

fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_new_file_has_a_name_once_it_is_announced_and_an_old_one_new_text() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ready");
        let ready = ReadyFile::open(Some(&path)).expect("opens");
        assert!(!path.exists());
        assert_eq!(ready.folder().as_deref(), Some(folder.path()));
        ready.announce("first\n").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"first\n");
        let ready = ReadyFile::open(Some(&path)).expect("opens");
        assert_eq!(ready.folder(), None);
        ready.announce("2\n").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"2\n");
        ReadyFile::open(None).and_then(|none| none.announce("")).expect("nothing to do");
        let error = ReadyFile::open(Some(&folder.path().join("none/ready"))).err().expect("no folder");
        assert!(format!("{error:#}").contains("none/ready"), "{error:#}");
    }
}
