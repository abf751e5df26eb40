//! Calls on open files, and the part to which each goes.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use wire::ErrorCode;
use wire::format::{COPY_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use wire::volume::{Allocation, Change, HeldLock, LeaseKind};

use super::Engine;
use super::effects::Time;
use super::file::File;
use super::files::Open;
use super::transaction::copied_by;
use super::transactions::Outcome;
use super::wants::Want;
use crate::call::{Call, Done, Handle, LockWish, XattrChange};
use crate::names::{check_path, parent};
use crate::{ErrorKind, FileRef, StreamError};

fn check_name(path: &[u8], name: &[u8]) -> Result<(), StreamError> {
    if (1..=XATTR_NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(StreamError::refused(ErrorCode::BadRequest, path, "the name of an extended attribute has 1 to 255 bytes"))
}

impl Engine {
    /// Takes a call, made for a request with this number; 0: for none. One that comes again with
    /// its number, since the process that had it died, is done once.
    pub fn call(&mut self, time: Time, request: u64, call: Call) {
        self.session.set_time(time);
        self.session.set_request(request);
        if self.session.is_closed() {
            let error =
                StreamError::volume(ErrorKind::Shutdown, self.session.name(), "it was shut down on this device");
            return self.session.effects().finished.extend(call.fail(error));
        }
        match call {
            Call::Stat { of, done } => self.opener().stat(of, done),
            Call::List { path, done } => self.opener().list(path, done),
            Call::ReadLink { path, done } => self.opener().read_link(path, done),
            Call::Lock { handle, wish, done } => self.lock(handle, wish, done),
            Call::Look { handle, done } => self.opener().look_again(handle, done),
            Call::Space { done } => drop(self.calls.wait(Want::Space { done }, &mut self.session)),
            Call::Open { path, how, token, done } => self.opener().open(path, how, token, done),
            Call::Read { handle, token, offset, bytes, done } => self.reader().read(handle, token, offset, bytes, done),
            Call::Write { handle, offset, bytes, done } => self.write(handle, offset, bytes, false, done),
            Call::WritePage { handle, offset, bytes, done } => self.write(handle, offset, bytes, true, done),
            Call::Allocate { handle, range, allocation, done } => self.allocate(handle, range, allocation, done),
            Call::Copy { from, to, length, done } => self.copy(from, to, length, done),
            Call::Seek { handle, offset, hole, done } => self.seek(handle, offset, hole, done),
            Call::SetSize { of, size, done } => self.set_size(of, size, done),
            Call::SetAttributes { of, wanted, done } => self.writer().set_attributes(of, wanted, done),
            Call::Xattrs { of, done } => self.opener().xattrs(&of, done),
            Call::ChangeXattr { of, name, change, done } => self.change_xattr(&of, name, change, done),
            Call::Sync { handle, done } => self.sync(handle, done),
            Call::Close { handle, done } => self.close(handle, done),
            Call::FolderXattrs { path, done } => self.opener().folder_xattrs(path, done),
            Call::MakeWith { path, changes, done } => self.writer().make(&path, changes, done),
            Call::Make { path, change, done } => self.writer().make(&path, vec![change], done),
            Call::Remove { path, done } => self.remove(path, done),
            Call::RemoveFolder { path, done } => self.writer().remove_folder(path, done),
            Call::Link { from, to, done } => self.writer().link(from, to, done),
            Call::Rename { from, to, replace, done } => self.writer().rename(from, to, replace, done),
            Call::Lease { of, kind, duration, done } => self.lease(of, kind, duration, done),
            Call::SyncAll { done } => self.writer().sync_all(done),
            Call::Hint { handle, ranges } => self.reader().hint(handle, &ranges),
            Call::Share { handle, share } => self.reader().share(handle, share),
            Call::RateLimit { bytes_per_second } => self.session.limit_rate(bytes_per_second),
        }
        self.pump();
    }

    /// Writes at an offset, or where the handle appends; a page of a mapping always at its offset.
    pub(super) fn write(&mut self, handle: Handle, offset: u64, bytes: Bytes, is_page: bool, done: Done<()>) {
        let open = self.files.handle(handle).map(|open| open.file);
        let locked = open.map_or(Ok(()), |file| self.locks.check(file, &self.files));
        let checked = locked.and_then(|()| self.writer().check_write(handle, offset, bytes.len(), is_page));
        if checked.is_err() || bytes.is_empty() {
            return self.session.finish(done, checked);
        }
        if self.transactions.outcome(self.session.request()).is_some() {
            return self.session.finish(done, Ok(()));
        }
        if self.files.is_nameless(handle) {
            let outcome = self.writer().write_nameless(handle, offset, bytes, is_page);
            return self.session.finish(done, outcome);
        }
        if self.calls.has_writes()
            || !self.transactions.has_room(&self.files, bytes.len() as u64, self.session.unsent_bytes_max())
        {
            self.calls.wait_for_room(Want::Write { handle, offset, bytes, is_page, done }, &mut self.session);
            return self.writer().send_some();
        }
        self.writer().apply_write(handle, offset, bytes, is_page);
        self.session.finish(done, Ok(()));
    }

    pub(super) fn allocate(
        &mut self,
        handle: Handle,
        (offset, length): (u64, u64),
        allocation: Allocation,
        done: Done<()>,
    ) {
        let (key, path) = match self.for_changing(handle, offset.saturating_add(length)) {
            Ok(found) => found,
            Err(error) => return self.session.finish(done, Err(error)),
        };
        if self.files.get(&key).is_some_and(File::is_nameless) {
            let outcome = self.writer().allocate_nameless(key, (offset, length), allocation);
            return self.session.finish(done, outcome);
        }
        self.writer().seal(key);
        let change = Change::Allocate { path: path.clone(), base: None, offset, length, allocation };
        self.writer().change_file(key, &path, vec![change], done);
    }

    pub(super) fn copy(
        &mut self,
        (source, from_offset): (Handle, u64),
        (handle, offset): (Handle, u64),
        length: u64,
        done: Done<u64>,
    ) {
        let path = self.files.path_of(handle).to_vec();
        let to = path.clone();
        let told = move |copied: u64| -> Done<()> {
            Box::new(move |outcome| match outcome {
                Ok(()) => done(Ok(copied)),
                Err(error) if error.kind() == ErrorKind::Stale => {
                    let text = "what is to be copied was changed meanwhile; read and write it";
                    done(Err(StreamError::new(ErrorKind::Unsupported, &to, text)));
                }
                Err(error) => done(Err(error)),
            })
        };
        if let Some(copied) = self.transactions.copied_for(self.session.request()) {
            // The end of the file may be another one by now.
            return drop(self.writer().done_before(&path, told(copied)));
        }
        match self.copy_change((source, from_offset), (handle, offset), length) {
            Ok(Some((key, change))) => {
                let copied = told(copied_by(&change));
                self.writer().seal(key);
                self.writer().change_file(key, &path, vec![change], copied);
            }
            Ok(None) => self.session.finish(told(0), Ok(())),
            Err(error) => self.session.finish(told(0), Err(error)),
        }
    }

    /// What is to be asked of the server, and the file that it changes; `None` if there is nothing
    /// to copy.
    fn copy_change(
        &self,
        (source, from_offset): (Handle, u64),
        (handle, offset): (Handle, u64),
        length: u64,
    ) -> Result<Option<(u64, Change)>, StreamError> {
        let Open { file: source, how, .. } = self.files.handle(source).ok_or_else(StreamError::bad_handle)?;
        let source = self.files.get(&source).filter(|_| how.read).ok_or_else(StreamError::bad_handle)?;
        let left = source.effective_size().saturating_sub(from_offset);
        let length = length.min(left).min(COPY_BYTES_MAX.into());
        let (key, path) = self.for_changing(handle, offset.saturating_add(length))?;
        if length == 0 {
            return Ok(None);
        }
        let nameless = source.gone || self.files.get(&key).is_some_and(|file| file.gone);
        let Some(seen) = source.seen.filter(|_| !nameless && !source.is_changed() && !source.unsure) else {
            return Err(StreamError::new(
                ErrorKind::Unsupported,
                &source.path,
                "it is not on the server as it is here",
            ));
        };
        let (base, from, from_base, length) = (None, source.path.clone(), Some(seen), length as u32);
        Ok(Some((key, Change::Copy { path, base, offset, from, from_base, from_offset, length })))
    }

    /// The file of a handle, and its path, if it may be changed up to `end`.
    fn for_changing(&self, handle: Handle, end: u64) -> Result<(u64, Vec<u8>), StreamError> {
        let (key, file) = self.files.opened_to_write(handle).ok_or_else(StreamError::bad_handle)?;
        self.locks.check(key, &self.files)?;
        if let Some(stale) = &file.stale {
            return Err(stale.clone());
        }
        self.session.check_size(&file.path, end)?;
        Ok((key, file.path.clone()))
    }

    pub(super) fn set_size(&mut self, of: FileRef, size: u64, done: Done<()>) {
        let (key, path) = match self.files.resolve(&of, true) {
            Ok(found) => found,
            Err(error) => return self.session.finish(done, Err(error)),
        };
        let stale = key.and_then(|key| self.files.get(&key)).and_then(|file| file.stale.clone());
        let checked = stale.map_or(Ok(()), Err).and_then(|()| self.session.check_size(&path, size));
        let checked = checked.and_then(|()| self.files.check_is(&of, key));
        if checked.is_err() {
            return self.session.finish(done, checked);
        }
        match key {
            Some(key) => {
                self.writer().resize(key, size);
                match of {
                    FileRef::Handle(_) => self.session.finish(done, Ok(())),
                    FileRef::Path(_) | FileRef::File { .. } => self.sync_file(key, None, done),
                }
            }
            None => self.writer().change(&path.clone(), vec![Change::Truncate { path, base: of.base(), size }], done),
        }
    }

    pub(super) fn sync(&mut self, handle: Handle, done: Done<()>) {
        match self.files.handle(handle).map(|open| open.file) {
            Some(file) => match self.locks.check(file, &self.files) {
                Ok(()) => self.sync_file(file, None, done),
                Err(error) => self.session.finish(done, Err(error)),
            },
            None => self.session.finish(done, Err(StreamError::bad_handle())),
        }
    }

    /// Brings a file to the server; then one of its handles goes away if `closing`.
    pub(super) fn sync_file(&mut self, key: u64, closing: Option<u64>, done: Done<()>) {
        self.writer().seal(key);
        let Some(file) = self.files.get(&key) else {
            return self.session.finish(done, Err(StreamError::bad_handle()));
        };
        let (path, mut txns) = (file.path.clone(), file.unsent.sealed().iter().copied().collect::<BTreeSet<u64>>());
        let stale = file.stale.clone();
        txns.extend(self.transactions.attributes_told(key));
        if txns.is_empty() {
            let outcome = stale.map_or(Ok(()), Err);
            if let Some(key) = closing {
                self.committer().release(key);
            }
            return self.session.finish(done, outcome);
        }
        self.transactions.unpark(&txns);
        self.calls.wait(Want::Sync { path, txns, error: None, closing, done }, &mut self.session);
    }

    pub(super) fn close(&mut self, handle: Handle, done: Done<()>) {
        let Some(open) = self.files.close(handle) else {
            if self.session.request() != 0 {
                // It comes again, and which file it was nobody knows any more: all that is on its
                // way is waited for.
                return self.writer().sync_all(done);
            }
            return self.session.finish(done, Err(StreamError::bad_handle()));
        };
        if open.how.changes() {
            return self.sync_file(open.file, Some(open.file), done);
        }
        self.committer().release(open.file);
        self.session.finish(done, Ok(()));
    }

    pub(super) fn remove(&mut self, path: Vec<u8>, done: Done<()>) {
        let Some(done) = self.writer().done_before(&path, done) else { return };
        if let Some(key) = self.files.at(&path)
            && let Some(file) = self.files.get(&key)
            && file.is_only_here()
            // A file that it was to replace goes with it.
            && !file.unsent.dirty().is_some_and(|dirty| dirty.unasked)
        {
            self.committer().unname(key);
            self.names.forget(&path);
            self.names.folder_changed(parent(&path), self.session.wall_ns());
            self.transactions.note_outcome(self.session.request(), Outcome::default());
            return self.session.finish(done, Ok(()));
        }
        self.writer().seal_linked(&path);
        self.writer().change(&path.clone(), vec![Change::Unlink { path, base: None }], done);
    }

    pub(super) fn change_xattr(&mut self, of: &FileRef, name: Vec<u8>, change: XattrChange, done: Done<()>) {
        let outcome = self.files.meant(of).and_then(|(key, path)| {
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
            self.locks.check(key, &self.files)?;
            // Its unsent changes are sent under this name.
            Ok((Some(key), file.path.clone()))
        });
        let (key, path) = match outcome {
            Ok(meant) => meant,
            Err(error) => return self.session.finish(done, Err(error)),
        };
        key.into_iter().for_each(|key| self.writer().seal(key));
        let (at, base) = (path.clone(), of.base());
        let change = match change {
            XattrChange::Set(value, how) => Change::SetXattr { path: at, base, name, value, how },
            XattrChange::Remove => Change::RemoveXattr { path: at, base, name },
        };
        match key {
            Some(key) => self.writer().change_file(key, &path, vec![change], done),
            None => self.writer().change(&path, vec![change], done),
        }
    }

    pub(super) fn lock(&mut self, handle: Handle, wish: LockWish, done: Done<Option<HeldLock>>) {
        let file = self.files.handle(handle).map(|open| open.file);
        let Some((key, file)) = file.and_then(|key| Some((key, self.files.get(&key)?))) else {
            return self.session.finish(done, Err(StreamError::bad_handle()));
        };
        let (holder, range) = ((key, wish.owner), (wish.start, wish.end));
        let (id, now) = (file.seen.map(|seen| seen.file), self.session.now());
        let Some(kind) = wish.kind else {
            self.locks.unlock(holder, id, range, now);
            self.session.finish(done, Ok(None));
            return self.locks.pump(&mut self.session);
        };
        if let Err(error) = self.locks.check(key, &self.files) {
            return self.session.finish(done, Err(error));
        }
        let Some(id) = id else {
            let held = self.locks.lock_here(holder, &wish, kind);
            return self.session.finish(done, Ok(held));
        };
        self.locks.lock(holder, id, &wish, done, now);
        self.locks.pump(&mut self.session);
    }

    /// Takes a lease, or gives it back.
    pub(super) fn lease(&mut self, of: FileRef, kind: Option<LeaseKind>, duration: Duration, done: Done<Duration>) {
        let (path, file) = match of {
            FileRef::Path(path) | FileRef::File { path, .. } => (path, None),
            FileRef::Handle(handle) => {
                let file = self.files.opened(handle).map(|(_, file)| file);
                let Some(file) = file else {
                    return self.session.finish(done, Err(StreamError::bad_handle()));
                };
                (file.path.clone(), file.seen.map(|seen| seen.file))
            }
        };
        match check_path(&path) {
            Err(error) => self.session.finish(done, Err(error)),
            Ok(()) => {
                self.calls.wait(Want::Lease { path, file, kind, duration, done }, &mut self.session);
            }
        }
    }

    pub(super) fn seek(&mut self, handle: Handle, offset: u64, hole: bool, done: Done<Option<u64>>) {
        let block = u64::from(self.session.block_bytes());
        let file = self.files.opened(handle).map(|(_, file)| file);
        let outcome = file.ok_or_else(StreamError::bad_handle).map(|file| match hole {
            false => file.data_after(offset, block).map(|(from, _)| from),
            true => file.hole_after(offset, block),
        });
        self.session.finish(done, outcome);
    }
}
