//! Small files: read with a limit, replaced as a whole.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::LaunchError;

/// The bytes of a file of at most `bytes_max`.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    host::file::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("over {bytes_max} bytes"))),
        false => Ok(bytes),
    }
}

/// Replaces a file as a whole; others cannot read it, since it shows what its owner runs.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), LaunchError> {
    use std::os::unix::fs::OpenOptionsExt;
    static WRITTEN: AtomicU32 = AtomicU32::new(0);
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(LaunchError::io("make", folder))?;
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}.{}.part", std::process::id(), WRITTEN.fetch_add(1, Ordering::Relaxed)));
    let part = PathBuf::from(part);
    let written = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&part)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_data()))
        .and_then(|()| fs::rename(&part, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&part);
        LaunchError::io("write", path)(error)
    })
}
