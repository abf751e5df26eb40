//! Calls that ask what is on the server: attributes, listings, links, extended attributes, room.
//!
//! Answers are completed with changes that were made here and are not on the server.

use std::sync::Arc;
use std::time::Duration;

use connection::Unanswered;
use wire::volume::{FileInfo, FileKind, FolderEntry, VolumeAsk, VolumeReply};
use wire::{ErrorCode, Reply};

use super::attributes::Attributes;
use super::file::File;
use super::opener::Opener;
use super::requests::AskFor;
use super::session::ANSWER_TIME;
use super::wants::{LISTING_TRIES, Waiting, Want};
use crate::call::{Done, Handle, Opened, Xattrs};
use crate::names::{check_path, join, last, parent};
use crate::{ErrorKind, FileRef, StreamError};

/// Entries of one page of a listing: such an answer is below 350 KiB even with the longest names.
const PAGE_ENTRIES: u16 = 1024;

impl Opener<'_> {
    pub fn stat(&mut self, of: FileRef, done: Done<FileInfo>) {
        match of {
            FileRef::Handle(handle) => {
                let Some(open) = self.files.handle(handle) else {
                    return self.session.finish(done, Err(StreamError::bad_handle()));
                };
                let key = open.file;
                let Some(file) = self.files.get(&key) else {
                    return self.session.finish(done, Err(StreamError::bad_handle()));
                };
                if file.unsure && !file.gone && !file.is_changed() {
                    self.calls.wait(Want::Fstat { of, file: key, done }, self.session);
                    return self.reader().open_number(key);
                }
                let info = file.info();
                self.session.finish(done, Ok(info));
            }
            FileRef::Path(path) | FileRef::File { path, .. } => {
                if let Err(error) = check_path(&path) {
                    return self.session.finish(done, Err(error));
                }
                let here = self.files.known_at(&path).and_then(|key| self.files.get(&key));
                if let Some(info) = here.filter(|file| file.is_changed()).map(File::info) {
                    return self.session.finish(done, Ok(info));
                }
                match self.names.get(&path, self.session.now()) {
                    Some(Some(info)) => {
                        let info = self.shown(&path, info);
                        self.session.finish(done, Ok(info));
                    }
                    // That there was nothing is not believed again: somebody may wait for another
                    // device to make the file.
                    Some(None) | None => {
                        self.calls.wait(Want::Stat { path, done }, self.session);
                    }
                }
            }
        }
    }

    /// Asks the server for the present version of an open file. Who has locked it wants to know
    /// what others did before.
    pub fn look_again(&mut self, handle: Handle, done: Done<Opened>) {
        let Some(key) = self.files.handle(handle).map(|open| open.file) else {
            return self.session.finish(done, Err(StreamError::bad_handle()));
        };
        let Some(file) = self.files.get(&key) else { return self.session.finish(done, Err(StreamError::bad_handle())) };
        if file.gone || file.seen.is_none() || file.is_changed() {
            // With changes that were made after who locks it had it synced, the kernel's pages may
            // be of an older version.
            let opened = Opened { handle, info: file.info(), unchanged: file.gone || file.seen.is_none() };
            return self.session.finish(done, Ok(opened));
        }
        self.calls.wait(Want::Look { handle, file: key, done }, self.session);
    }

    pub fn list(&mut self, path: Vec<u8>, done: Done<Vec<FolderEntry>>) {
        if let Err(error) = check_path(&path) {
            return self.session.finish(done, Err(error));
        }
        if let Some(entries) = self.names.listing(&path, self.session.now()) {
            let entries = self.with_changes(&path, entries.to_vec());
            return self.session.finish(done, Ok(entries));
        }
        self.calls.wait(Want::List { path, folder: None, entries: Vec::new(), again: 0, done }, self.session);
    }

    /// The attributes that the server tells of a path, with changes that it does not know.
    fn shown(&self, path: &[u8], info: FileInfo) -> FileInfo {
        let key = match info.links > 1 && info.kind == FileKind::File {
            true => self.files.with_id(info.seen.file),
            false => self.files.at(path),
        };
        match key.and_then(|key| self.files.get(&key)).filter(|file| !file.gone) {
            Some(file) if file.is_changed() => file.info(),
            // As this device told it when it made the change: no time may change because a file was
            // sent.
            Some(File { seen, unsure: false, attributes, .. }) if *seen == Some(info.seen) => {
                let Attributes { mtime_ns, ctime_ns, atime_ns, mode, .. } = *attributes;
                FileInfo { mtime_ns, ctime_ns, mode, atime_ns: info.atime_ns.max(atime_ns), ..info }
            }
            Some(_) => info,
            None => self.names.shown(path, info),
        }
    }

    /// A listing of the server with what was changed here and it does not know.
    fn with_changes(&self, folder: &[u8], mut entries: Vec<FolderEntry>) -> Vec<FolderEntry> {
        for entry in entries.iter_mut().filter(|entry| entry.info.links > 1 && entry.info.kind == FileKind::File) {
            entry.info = self.shown(&join(folder, &entry.name), entry.info);
        }
        if self.names.has_folder_times() {
            for entry in entries.iter_mut().filter(|entry| entry.info.kind == FileKind::Folder) {
                entry.info = self.names.shown(&join(folder, &entry.name), entry.info);
            }
        }
        let changed = self.files.paths().filter(|(path, _)| parent(path) == folder && !path.is_empty());
        let changed = changed.filter_map(|(path, key)| Some((path, key, self.files.get(key)?)));
        let is_ahead =
            |key: &u64, file: &File| (file.is_changed() || self.transactions.has_attributes_of(*key)) && !file.gone;
        for (path, _, file) in changed.filter(|(_, key, file)| is_ahead(key, file)) {
            let name = last(path);
            match entries.binary_search_by(|entry| entry.name.as_slice().cmp(name)) {
                Ok(index) => entries[index].info = file.info(),
                Err(index) => entries.insert(index, FolderEntry { name: name.to_vec(), info: file.info() }),
            }
        }
        entries
    }

    pub fn read_link(&mut self, path: Vec<u8>, done: Done<bytes::Bytes>) {
        match check_path(&path) {
            Err(error) => self.session.finish(done, Err(error)),
            Ok(()) => {
                self.calls.wait(Want::ReadLink { path, done }, self.session);
            }
        }
    }

    pub fn xattrs(&mut self, of: &FileRef, done: Done<Xattrs>) {
        let (key, path) = match self.files.meant(of) {
            Ok(meant) => meant,
            Err(error) => return self.session.finish(done, Err(error)),
        };
        let file = key.and_then(|key| self.files.get(&key));
        if file.is_some_and(|file| file.gone) {
            // Nobody can be asked, and none can be set.
            return self.session.finish(done, Ok(Xattrs::default()));
        }
        if let Some((key, file)) = key.zip(file).filter(|(_, file)| file.seen.is_none()) {
            let is_new = file.unsent.sealed().is_empty() && file.unsent.dirty().is_some_and(|dirty| !dirty.unasked);
            if is_new {
                return self.session.finish(done, Ok(Xattrs::default()));
            }
            // There may be one on the server that this one only emptied.
            self.writer().seal(key);
        } else if let Some(xattrs) = self.names.xattrs(&path, self.session.now()) {
            return self.session.finish(done, Ok(xattrs));
        }
        self.calls.wait(Want::Xattrs { path, done }, self.session);
    }

    /// Those of a folder in which something is about to be made: access control lists may go on to
    /// it. A folder that had none when it was last looked at is not asked again for every file.
    pub fn folder_xattrs(&mut self, path: Vec<u8>, done: Done<Xattrs>) {
        match self.names.is_plain_folder(&path) {
            true => self.session.finish(done, Ok(Xattrs::default())),
            false => self.xattrs(&FileRef::Path(path), done),
        }
    }

    /// Asks for what waits to be asked for.
    pub fn pump_wants(&mut self) {
        if !self.session.link.is_open() {
            // Programs ask for room before they do something else, and would rather not wait.
            let ids = self.calls.which(|waiting| matches!(waiting.want, Want::Space { .. }));
            for waiting in ids.iter().filter_map(|id| self.calls.remove(id)).collect::<Vec<_>>() {
                let error =
                    StreamError::volume(ErrorKind::Timeout, self.session.name(), "no server to ask for its room");
                waiting.want.fail(error, self.session.effects());
            }
            return;
        }
        for id in self.calls.which(|waiting| !waiting.asked) {
            let Some(waiting) = self.calls.get(&id) else { continue };
            let held = |path: &[u8]| self.transactions.values().any(|txn| txn.replayed.is_some() && txn.concerns(path));
            let ask = match &waiting.want {
                Want::Lease { file: Some(_), .. } if !self.session.is_proven() => continue,
                // Transactions from an outbox come first.
                Want::Stat { path, .. } | Want::Open { path, .. } if held(path) => continue,
                Want::Stat { path, .. } | Want::Lease { path, file: None, .. } => {
                    VolumeAsk::FileStat { path: path.clone() }
                }
                Want::List { path, entries, .. } => {
                    let after = entries.last().map(|entry| entry.name.clone()).unwrap_or_default();
                    VolumeAsk::FolderList { path: path.clone(), after, limit: PAGE_ENTRIES }
                }
                Want::ReadLink { path, .. } => VolumeAsk::LinkRead { path: path.clone() },
                Want::Xattrs { path, .. } if held(path) || self.files.is_being_made(path) => continue,
                Want::Xattrs { path, .. } => VolumeAsk::XattrsRead { path: path.clone() },
                Want::Space { .. } => VolumeAsk::SpaceStat,
                Want::Open { path, token, .. } => VolumeAsk::FileOpen { token: *token, path: path.clone() },
                Want::Lease { file: Some(file), kind, duration, .. } => VolumeAsk::Lease {
                    file: *file,
                    kind: *kind,
                    duration_ms: u32::try_from(duration.as_millis()).unwrap_or(u32::MAX),
                },
                Want::Fstat { file, .. } => {
                    self.pump_fstat(id, *file);
                    continue;
                }
                Want::Look { file, .. } => {
                    self.pump_look(id, *file);
                    continue;
                }
                Want::Create { .. } | Want::Write { .. } | Want::Change { .. } | Want::Sync { .. } => continue,
            };
            if let Some(waiting) = self.calls.get_mut(&id) {
                waiting.asked = true;
            }
            self.session.ask(AskFor::Want(id), ask, ANSWER_TIME);
        }
    }

    fn pump_fstat(&mut self, id: u64, key: u64) {
        let Some(file) = self.files.get(&key) else {
            return self.reader().reopen_failed(key, &StreamError::bad_handle());
        };
        if file.unsure && !file.gone {
            return self.reader().open_number(key);
        }
        let info = file.info();
        if let Some(Waiting { want: Want::Fstat { done, .. }, .. }) = self.calls.remove(&id) {
            self.session.finish(done, Ok(info));
        }
    }

    /// Asks for [`Want::Look`], by a request of its own: one that is under way may have been
    /// answered before the lock was given.
    fn pump_look(&mut self, id: u64, key: u64) {
        let Some(file) = self.files.get_mut(&key) else {
            return self.reader().reopen_failed(key, &StreamError::bad_handle());
        };
        if file.numbering.is_opening() {
            return;
        }
        let is_gone = file.gone;
        file.unsure |= !is_gone;
        if let Some(waiting) = self.calls.get_mut(&id) {
            waiting.asked = true;
        }
        match is_gone {
            true => self.looked_again(key),
            false => self.reader().open_number(key),
        }
    }

    /// The server told what a file is now.
    pub fn looked_again(&mut self, key: u64) {
        let Some(file) = self.files.get_mut(&key) else { return };
        let (info, unchanged) = (file.info(), file.kernel.is_some() && file.kernel == file.seen);
        file.kernel = file.seen;
        if !unchanged {
            // Whoever changed it may have made and removed files that belong to it, such as the
            // journal of a database.
            self.names.forget_all();
        }
        let of_it = |waiting: &Waiting| matches!(waiting.want, Want::Look { file, .. } if file == key && waiting.asked);
        for id in self.calls.which(of_it) {
            if let Some(Waiting { want: Want::Look { handle, done, .. }, .. }) = self.calls.remove(&id) {
                self.session.finish(done, Ok(Opened { handle, info, unchanged }));
            }
        }
    }

    /// The answer to a call's request.
    pub fn want_answered(&mut self, id: u64, answer: Result<Reply, Unanswered>) {
        let Some(waiting) = self.calls.remove(&id) else {
            // Nobody waits any more, but the server has opened a file.
            if let Ok(Reply::Volume(VolumeReply::FileOpened { file, .. })) = answer {
                self.reader().close_number(file);
            }
            return;
        };
        let path = waiting.want.path().to_vec();
        self.session.set_request(waiting.request);
        match answer {
            Ok(Reply::Volume(reply)) => self.want_replied(id, waiting, reply),
            Ok(Reply::Error { code: ErrorCode::Busy | ErrorCode::Cancelled | ErrorCode::Shutdown, .. })
            | Err(Unanswered::Expired) => {
                self.calls.insert(id, Waiting { asked: true, ..waiting });
                self.session.ask_later(AskFor::Want(id));
            }
            Ok(Reply::Error { code, text }) => match waiting.want {
                Want::Open { path, how, token, done } => {
                    let outcome = self.open_failed(&path, how, token, code, &text);
                    self.session.finish(done, outcome);
                }
                other => {
                    if code == ErrorCode::NotFound && matches!(other, Want::Stat { .. }) {
                        self.names.put(&path, None, self.session.now());
                    }
                    other.fail(StreamError::refused(code, &path, &text), self.session.effects());
                }
            },
            Ok(_) => waiting.want.fail(StreamError::nonsense(&path, "another kind of answer"), self.session.effects()),
            Err(Unanswered::Refused) => {
                let error = StreamError::new(ErrorKind::Failed, &path, "too many requests at once; try again");
                waiting.want.fail(error, self.session.effects());
            }
        }
    }

    fn want_replied(&mut self, id: u64, waiting: Waiting, reply: VolumeReply) {
        let now = self.session.now();
        let Waiting { want, since, tries, request, .. } = waiting;
        match (want, reply) {
            (Want::Stat { path, done }, VolumeReply::Attributes(info)) => {
                self.names.put(&path, Some(info), now);
                self.files.note_linked(&path, &info);
                let info = self.shown(&path, info);
                self.session.finish(done, Ok(info));
            }
            (Want::ReadLink { done, .. }, VolumeReply::LinkTarget(target)) => self.session.finish(done, Ok(target)),
            (Want::Xattrs { path, done }, VolumeReply::Xattrs { info, xattrs }) => {
                let xattrs = self.reader().keep_xattrs(&path, info, xattrs);
                self.session.finish(done, Ok(xattrs));
            }
            (Want::Space { done }, VolumeReply::Space(space)) => self.session.finish(done, Ok(space)),
            (Want::Open { path, how, token, done }, reply @ VolumeReply::FileOpened { .. }) => {
                let outcome = self.opened(&path, how, token, reply);
                self.session.finish(done, outcome);
            }
            (Want::Lease { path, kind, duration, done, .. }, VolumeReply::Attributes(info)) => {
                if info.kind != FileKind::File {
                    let error = StreamError::refused(ErrorCode::NotFile, &path, "");
                    return self.session.finish(done, Err(error));
                }
                let want = Want::Lease { path, file: Some(info.seen.file), kind, duration, done };
                self.calls.insert(id, Waiting { want, since, asked: false, tries, request });
            }
            (Want::Lease { done, .. }, VolumeReply::Leased { duration_ms }) => {
                self.session.finish(done, Ok(Duration::from_millis(u64::from(duration_ms))));
            }
            (
                Want::List { path, folder, mut entries, again, done },
                VolumeReply::Entries { folder: seen, more, entries: page },
            ) => {
                let changed = folder.is_some_and(|folder| folder != seen) && again < LISTING_TRIES;
                let before = entries.last().map(|entry| entry.name.clone()).unwrap_or_default();
                let names = std::iter::once(&before).chain(page.iter().map(|entry| &entry.name));
                let ordered = names.clone().zip(names.skip(1)).all(|(a, b)| a < b);
                if !ordered || (more && page.is_empty()) {
                    let error = StreamError::nonsense(&path, "a listing out of order");
                    return self.session.finish(done, Err(error));
                }
                if changed {
                    let want = Want::List { path, folder: None, entries: Vec::new(), again: again + 1, done };
                    self.calls.insert(id, Waiting { want, since, asked: false, tries, request });
                    return;
                }
                entries.extend(page);
                if more {
                    let want = Want::List { path, folder: Some(seen), entries, again, done };
                    self.calls.insert(id, Waiting { want, since, asked: false, tries, request });
                    return;
                }
                for entry in entries.iter().filter(|entry| entry.info.links > 1) {
                    self.files.note_linked(&join(&path, &entry.name), &entry.info);
                }
                let entries = Arc::new(entries);
                self.names.put_listing(&path, &entries, now);
                let entries = self.with_changes(&path, Arc::unwrap_or_clone(entries));
                self.session.finish(done, Ok(entries));
            }
            (want, _) => {
                let error = StreamError::nonsense(want.path(), "another kind of answer");
                want.fail(error, self.session.effects());
            }
        }
    }
}
