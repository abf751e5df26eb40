//! The output file of a trace or a coverage, and files that are replaced as a whole.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::failure;

/// An open file, or what the user named instead of one, such as `/dev/null` or a pipe.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    file: File,
    /// The old file; it is lost with the first bytes that are written.
    holds_old: bool,
}

impl Output {
    /// Makes the file, so that nothing runs in vain if that is impossible. One that is there is
    /// only overwritten with `force`.
    ///
    /// # Errors
    /// The file exists or cannot be made.
    pub fn create(path: &Path, force: bool) -> anyhow::Result<Output> {
        let created = File::options().write(true).create_new(true).open(path);
        let holds_old = matches!(&created, Err(error) if error.kind() == ErrorKind::AlreadyExists);
        let opened = if holds_old && force {
            File::options().write(true).create(true).truncate(false).open(path)
        } else {
            created
        };
        let file = opened.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => {
                failure::usage(format!("{}: exists; --force replaces it, --output names another file", path.display()))
            }
            _ => anyhow::Error::from(error).context(format!("cannot write {}", path.display())),
        })?;
        Ok(Output { path: path.to_path_buf(), file, holds_old })
    }

    /// Its path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// The disk is full, or the reader of a pipe gone.
    pub fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        if std::mem::take(&mut self.holds_old) && self.is_regular() {
            self.file.set_len(0).context("cannot write to it")?;
        }
        self.file.write_all(bytes).context("cannot write to it")
    }

    /// Writes all there is to write. An old file stays until the new one is whole.
    ///
    /// # Errors
    /// The disk is full, or the reader of a pipe gone.
    pub fn write_all(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        if self.holds_old && self.is_regular() {
            return replace(&self.path, bytes);
        }
        self.write(bytes)?;
        self.sync()
    }

    /// Some file systems tell only now that they are full.
    ///
    /// # Errors
    /// The data did not reach the disk.
    pub fn sync(&self) -> anyhow::Result<()> {
        if self.is_regular() {
            self.file.sync_all().context("cannot write to it")?;
        }
        Ok(())
    }

    /// Removes the file: nothing was recorded. A file that was there before stays, and so does
    /// /dev/null.
    pub fn discard(&self) {
        if self.is_regular() && !self.holds_old {
            // The reason why nothing was recorded is being told already.
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn is_regular(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.is_file())
    }
}

/// The message about a trace that could not be written to its end. An empty file is removed.
pub fn incomplete(output: &Output, error: anyhow::Error) -> anyhow::Error {
    let path = output.path().display();
    if output.holds_old {
        return error.context(format!("there is no new trace: {path} is as it was"));
    }
    if output.is_regular() && output.file.metadata().is_ok_and(|metadata| metadata.len() == 0) {
        output.discard();
        return error.context(format!("there is no trace: {path} could not be written"));
    }
    error.context(format!("the trace {path} is not complete; what it holds of the beginning can be used"))
}

/// Writes a file as a whole: readers see the old one or the new one. What is no regular file, such
/// as `/dev/stdout`, is written to as it is.
///
/// # Errors
/// It cannot be written; the old file is as it was.
pub fn replace(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    // Of any new file: what the umask leaves of these.
    replace_as(path, bytes, 0o666)
}

/// The same for what nobody else may read, unless the old file says so.
///
/// # Errors
/// As [`replace`].
#[cfg(feature = "full")]
pub fn replace_secret(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    replace_as(path, bytes, 0o600)
}

fn replace_as(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    // A link stays one: what it leads to is replaced.
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let old = std::fs::metadata(path).ok();
    if old.as_ref().is_some_and(|old| !old.is_file()) {
        return std::fs::File::options()
            .write(true)
            .open(path)
            .and_then(|mut file| file.write_all(bytes))
            .with_context(failed);
    }
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}.part", std::process::id()));
    let part = PathBuf::from(part);
    let mut file = std::fs::File::options().write(true).create_new(true).mode(mode).open(&part).with_context(failed)?;
    let written = match old {
        Some(old) => file.set_permissions(old.permissions()),
        None => Ok(()),
    };
    let written = written
        .and_then(|()| file.write_all(bytes))
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&part, path));
    if written.is_err() {
        // The failure that is told matters more.
        let _ = std::fs::remove_file(&part);
    }
    written.with_context(failed)
}
