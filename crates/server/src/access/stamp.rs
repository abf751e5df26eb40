//! Small files: reading them within bounds, and telling whether they changed.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::AccessError;

/// Longest access file, and longest file of tokens: some ten thousand lines.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// What changes when a file is written or replaced; `None` if it is not there.
///
/// The time of the last change counts in nanoseconds, so two changes within one tick of the clock
/// could look like one only if neither length nor inode differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(Option<[i64; 5]>);

impl Stamp {
    pub fn of(path: &Path) -> Stamp {
        let metadata = std::fs::metadata(path).ok();
        Stamp(metadata.map(|it| [it.ino() as i64, it.size() as i64, it.ctime(), it.ctime_nsec(), it.mtime_nsec()]))
    }
}

/// The text of a file; `None` if it is not there.
pub(super) fn read(path: &Path) -> Result<Option<String>, AccessError> {
    let failed = |error: std::io::Error| AccessError::whole(path, format!("cannot be read: {error}"));
    // A pipe, or what takes its place, must not keep the server waiting.
    let file = match host::file::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(AccessError::whole(path, format!("longer than {} MiB", FILE_BYTES_MAX >> 20)));
    }
    String::from_utf8(bytes).map(Some).map_err(|error| {
        let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
        AccessError::at(path, &text, error.utf8_error().valid_up_to(), "this is not UTF-8 text")
    })
}
