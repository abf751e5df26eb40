//! Extended attributes: asked for, believed as long as names are, set and removed.
//!
//! What the server says of a file tells whether it has any, so those that have none are not asked
//! for. A change goes to the server at once, behind all that is unsent of its file, and is answered
//! when the server has it.

use wire::ErrorCode;
use wire::format::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use wire::volume::{Change, FileInfo, Seen, Xattr};

use super::Engine;
use super::wants::Want;
use crate::call::{Done, XattrChange, Xattrs};
use crate::names::check_path;
use crate::{ErrorKind, FileRef, StreamError};

impl Engine {
    pub(super) fn xattrs(&mut self, of: &FileRef, done: Done<Xattrs>) {
        let (key, path) = match self.meant(of) {
            Ok(meant) => meant,
            Err(error) => return self.session.finish(done, Err(error)),
        };
        let file = key.and_then(|key| self.files.get(&key));
        if file.is_some_and(|file| file.gone) {
            // Nobody can be asked, and none can be set.
            return self.session.finish(done, Ok(Xattrs::default()));
        }
        if let Some((key, file)) = key.zip(file).filter(|(_, file)| file.seen.is_none()) {
            let is_new = file.sealed.is_empty() && file.dirty.as_ref().is_some_and(|dirty| !dirty.unasked);
            if is_new {
                return self.session.finish(done, Ok(Xattrs::default()));
            }
            // There may be one on the server that this one only emptied.
            self.seal(key);
        } else if let Some(xattrs) = self.names.xattrs(&path, self.session.now()) {
            return self.session.finish(done, Ok(xattrs));
        }
        self.wait_for(Want::Xattrs { path, done });
    }

    /// Those of a folder in which something is about to be made: access control lists may go on to
    /// it. A folder that had none when it was last looked at is not asked again for every file.
    pub(super) fn folder_xattrs(&mut self, path: Vec<u8>, done: Done<Xattrs>) {
        match self.names.is_plain_folder(&path) {
            true => self.session.finish(done, Ok(Xattrs::default())),
            false => self.xattrs(&FileRef::Path(path), done),
        }
    }

    pub(super) fn change_xattr(&mut self, of: &FileRef, name: Vec<u8>, change: XattrChange, done: Done<()>) {
        let outcome = self.meant(of).and_then(|(key, path)| {
            self.files.check_is(of, key)?;
            check_name(&path, &name)?;
            if matches!(&change, XattrChange::Set(value, _) if value.len() > XATTR_VALUE_BYTES_MAX) {
                let text = format!("the value of an extended attribute has {XATTR_VALUE_BYTES_MAX} bytes at most");
                return Err(StreamError::new(ErrorKind::ValueTooLarge, &path, text));
            }
            let Some((key, file)) = key.and_then(|key| Some((key, self.files.get(&key)?))) else {
                return Ok((None, path));
            };
            if let Some(stale) = &file.stale {
                return Err(stale.clone());
            }
            if file.gone {
                let text = "it was removed while it is open, and gets no extended attributes any more";
                return Err(StreamError::new(ErrorKind::Unsupported, &path, text));
            }
            self.check_locks(key)?;
            // What is unsent of it is sent under this name.
            Ok((Some(key), file.path.clone()))
        });
        let (key, path) = match outcome {
            Ok(meant) => meant,
            Err(error) => return self.session.finish(done, Err(error)),
        };
        key.into_iter().for_each(|key| self.seal(key));
        let (at, base) = (path.clone(), of.base());
        let change = match change {
            XattrChange::Set(value, how) => Change::SetXattr { path: at, base, name, value, how },
            XattrChange::Remove => Change::RemoveXattr { path: at, base, name },
        };
        match key {
            Some(key) => self.change_file(key, &path, vec![change], done),
            None => self.change(&path, vec![change], done),
        }
    }

    /// The file that is meant, if it is known here, and its path.
    fn meant(&self, of: &FileRef) -> Result<(Option<u64>, Vec<u8>), StreamError> {
        match of {
            FileRef::Path(path) | FileRef::File { path, .. } => {
                check_path(path).map(|()| (self.files.known_at(path), path.clone()))
            }
            FileRef::Handle(handle) => {
                let key = self.files.handle(*handle).map(|open| open.file);
                let file = key.and_then(|key| self.files.get(&key)).ok_or_else(StreamError::bad_handle)?;
                Ok((key, file.path.clone()))
            }
        }
    }

    /// Remembers what the server said of a path, for as long as names are believed.
    pub(super) fn keep_xattrs(&mut self, path: &[u8], info: FileInfo, xattrs: Vec<Xattr>) -> Xattrs {
        let xattrs = Xattrs::new(xattrs);
        self.names.put(path, Some(info), self.session.now());
        self.files.note_linked(path, &info);
        self.names.put_xattrs(path, &xattrs, self.session.now());
        xattrs
    }

    /// The server changed an extended attribute for this device: answers from before are old.
    pub(super) fn xattr_changed(&mut self, path: &[u8], seen: Option<&Seen>) {
        let now = self.session.now();
        self.names.xattrs_changed(path, now);
        let others: Vec<Vec<u8>> =
            seen.map_or(Vec::new(), |seen| self.files.linked().names(seen.file).cloned().collect());
        others.iter().for_each(|path| self.names.xattrs_changed(path, now));
    }
}

fn check_name(path: &[u8], name: &[u8]) -> Result<(), StreamError> {
    if (1..=XATTR_NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(StreamError::refused(ErrorCode::BadRequest, path, "the name of an extended attribute has 1 to 255 bytes"))
}
