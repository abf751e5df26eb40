//! The files of one volume that one connection has open: their numbers, and where they are.

use std::collections::{BTreeMap, HashMap};

use units::InodeId;
use volume::{FileId, VolumePath};
use wire::ErrorCode;
use wire::format::FILE_NUMBER_MIN;

use crate::error::Failure;

/// Files that one connection has open of a volume, at most; about 200 bytes each and a path.
pub const FILES_OPEN_MAX: usize = 16_384;

/// Files by the numbers that a connection has for them. A number is given once.
#[derive(Debug, Default)]
pub struct OpenFiles {
    by_number: BTreeMap<u32, (VolumePath, FileId)>,
    by_id: HashMap<FileId, u32>,
    last: Option<u32>,
}

impl OpenFiles {
    /// The number of a file: the same as before if it is open, wherever it was.
    pub(crate) fn open(&mut self, path: &VolumePath, id: FileId) -> Result<InodeId, Failure> {
        if let Some(number) = self.by_id.get(&id) {
            self.by_number.insert(*number, (path.clone(), id));
            return Ok(InodeId(*number));
        }
        let full = || {
            // Not Busy, which is asked again until files are closed, perhaps by nobody.
            let text = "too many files are open on this connection; close some";
            Failure::new(ErrorCode::TooManyFiles, text)
        };
        if self.by_number.len() >= FILES_OPEN_MAX {
            return Err(full());
        }
        let number = match self.last {
            None => FILE_NUMBER_MIN,
            Some(last) => last.checked_add(1).ok_or_else(full)?,
        };
        self.last = Some(number);
        self.by_number.insert(number, (path.clone(), id));
        self.by_id.insert(id, number);
        Ok(InodeId(number))
    }

    /// Where a file is, and which it is.
    pub fn get(&self, file: InodeId) -> Option<(VolumePath, FileId)> {
        self.by_number.get(&file.0).cloned()
    }

    /// The number of a file, if it is open.
    pub fn number(&self, id: FileId) -> Option<InodeId> {
        self.by_id.get(&id).copied().map(InodeId)
    }

    /// Forgets a number; unknown ones are fine.
    pub fn close(&mut self, file: InodeId) {
        if let Some((_, id)) = self.by_number.remove(&file.0) {
            self.by_id.remove(&id);
        }
    }

    /// What was at `from`, or below it, is at `to` now.
    pub(crate) fn renamed(&mut self, from: &[u8], to: &[u8]) {
        for (path, _) in self.by_number.values_mut() {
            let rest = path.as_bytes().strip_prefix(from);
            let Some(rest) = rest.filter(|rest| rest.is_empty() || rest.starts_with(b"/")) else { continue };
            if let Ok(moved) = VolumePath::new(&[to, rest].concat()) {
                *path = moved;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_too_many_is_refused_for_good() {
        let mut files = OpenFiles::default();
        let mut open = |id: usize| files.open(&VolumePath::new(b"f").unwrap(), FileId(id as u64));
        for id in 0..FILES_OPEN_MAX {
            open(id).unwrap();
        }
        assert_eq!(open(FILES_OPEN_MAX).unwrap_err().code, ErrorCode::TooManyFiles);
        let first = open(0).unwrap();
        files.close(first);
        files.open(&VolumePath::new(b"g").unwrap(), FileId(FILES_OPEN_MAX as u64)).unwrap();
    }
}
