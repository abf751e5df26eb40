//! Attributes of files that are changed, and whether it is the file that is meant.

use wire::ErrorCode;

use super::Engine;
use super::file::File;
use crate::call::{Done, SetAttributes};
use crate::{FileRef, StreamError};

impl Engine {
    /// Changes attributes: of a file with changes that no transaction carries together with these,
    /// of others on the server.
    pub(super) fn set_attributes(&mut self, of: FileRef, wanted: SetAttributes, done: Done<()>) {
        let (key, path) = match self.resolve(&of, false) {
            Ok(found) => found,
            Err(error) => return self.effects.finish(done, Err(error)),
        };
        if let Err(error) = self.check_is(&of, key) {
            return self.effects.finish(done, Err(error));
        }
        let (changes, now_ns) = (wanted.changes(&path, of.base()), self.time.wall_ns);
        if let Some(file) = self.gone_file(key) {
            changes.iter().for_each(|change| file.attributes.change(change, now_ns));
            let outcome = file.stale.clone().map_or(Ok(()), Err);
            return self.effects.finish(done, outcome);
        }
        if let Some(file) = key.and_then(|key| self.files.get_mut(&key))
            && let Some(dirty) = &mut file.dirty
        {
            for change in &changes {
                dirty.change(change);
                file.attributes.change(change, now_ns);
            }
            return self.effects.finish(done, Ok(()));
        }
        match (changes.is_empty(), key) {
            (true, _) => self.effects.finish(done, Ok(())),
            (false, Some(key)) => self.change_file(key, &path, changes, done),
            (false, None) => self.change(&path, changes, done),
        }
    }

    /// Whether what is known at a path is the file that is meant.
    pub(super) fn check_is(&self, of: &FileRef, key: Option<u64>) -> Result<(), StreamError> {
        let FileRef::File { path, id } = of else { return Ok(()) };
        let seen = key.and_then(|key| self.files.get(&key)).and_then(|file| file.seen);
        match seen.is_none_or(|seen| seen.file == *id) {
            true => Ok(()),
            false => Err(StreamError::refused(ErrorCode::Stale, path, "")),
        }
    }

    /// A file that is not at its path any more: the server is not asked to change it.
    fn gone_file(&mut self, key: Option<u64>) -> Option<&mut File> {
        self.files.get_mut(&key?).filter(|file| file.gone)
    }
}
