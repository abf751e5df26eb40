//! A temporary file for the contents of archives that cannot be read twice: piped or compressed
//! ones.
//!
//! The file has no name (it is unlinked at once), so nothing stays behind however the program ends.
//! Stretches of zeros are not written. Disk space: the uncompressed size of the archive at most.
//! Memory: one buffer.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::PackError;
use crate::content::{Content, Stretch};

/// Bytes copied at a time; also the unit in which zeros are left out.
const COPY_BYTES: usize = 256 << 10;

/// The temporary file, made when first needed.
pub(crate) struct Spool {
    directory: PathBuf,
    file: Option<Arc<File>>,
    end: u64,
    buffer: Vec<u8>,
}

impl Spool {
    /// A spool that will lie in `directory`.
    pub(crate) fn new(directory: &Path) -> Spool {
        Spool { directory: directory.to_owned(), file: None, end: 0, buffer: Vec::new() }
    }

    /// Copies `bytes` bytes from `reader`, to be found at `start` of a content, appending to
    /// `stretches`. `reader` ending early is an error of kind `UnexpectedEof`.
    pub(crate) fn copy(
        &mut self,
        reader: &mut dyn Read,
        start: u64,
        bytes: u64,
        stretches: &mut Vec<Stretch>,
    ) -> Result<(), CopyError> {
        self.buffer.resize(COPY_BYTES, 0);
        let mut done = 0;
        while done < bytes {
            let count = (bytes - done).min(COPY_BYTES as u64) as usize;
            reader.read_exact(&mut self.buffer[..count]).map_err(CopyError::Reader)?;
            if self.buffer[..count].iter().any(|byte| *byte != 0) {
                self.write(count).map_err(CopyError::Spool)?;
                let at = self.end - count as u64;
                match stretches.last_mut() {
                    Some(last) if last.start + last.bytes == start + done && last.at + last.bytes == at => {
                        last.bytes += count as u64;
                    }
                    _ => stretches.push(Stretch { start: start + done, bytes: count as u64, at }),
                }
            }
            done += count as u64;
        }
        Ok(())
    }

    /// A content made of stretches of this file.
    pub(crate) fn content(&self, stretches: Vec<Stretch>) -> Content {
        match &self.file {
            Some(file) if !stretches.is_empty() => Content::Stored {
                file: file.clone(),
                name: "the temporary copy of the archive".into(),
                stretches: stretches.into(),
            },
            _ => Content::Hole,
        }
    }

    fn write(&mut self, count: usize) -> Result<(), PackError> {
        let failed = |source| PackError::Spool { directory: self.directory.clone(), source };
        let file = match &self.file {
            Some(file) => file,
            None => {
                let file = tempfile::tempfile_in(&self.directory).map_err(failed)?;
                self.file.insert(Arc::new(file))
            }
        };
        file.write_all_at(&self.buffer[..count], self.end).map_err(failed)?;
        self.end += count as u64;
        Ok(())
    }
}

/// Which side of a copy failed.
pub(crate) enum CopyError {
    Reader(io::Error),
    Spool(PackError),
}

/// Where temporary files go by default: `TMPDIR`, else `/var/tmp`, which holds large files better
/// than `/tmp`.
pub fn default_directory() -> PathBuf {
    match std::env::var_os("TMPDIR") {
        Some(directory) if !directory.is_empty() => directory.into(),
        _ if Path::new("/var/tmp").is_dir() => "/var/tmp".into(),
        _ => std::env::temp_dir(),
    }
}
