//! Names and attributes: asking for them, changing them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use connection::Unanswered;
use wire::format::LINK_BYTES_MAX;
use wire::volume::{Change, FileInfo, FileKind, FolderEntry, Seen, VolumeAsk, VolumeReply};
use wire::{ErrorCode, Reply};

use super::Engine;
use super::file::{Attributes, Base, Block, File};
use super::requests::AskFor;
use super::session::ANSWER_TIME;
use super::transaction::{Transaction, path_of, paths_of, unnamed_path};
use super::wants::{Waiting, Want};
use crate::call::Done;
use crate::names::{check_path, is_below, join, last, parent};
use crate::{ErrorKind, FileRef, StreamError};

/// Entries of one page of a listing: such an answer is below 350 KiB even with the longest names.
const PAGE_ENTRIES: u16 = 1024;

/// How often a listing begins anew because the folder changed; then it is taken as it comes.
const LISTING_TRIES: u32 = 3;

impl Engine {
    pub(super) fn stat(&mut self, of: FileRef, done: Done<FileInfo>) {
        match of {
            FileRef::Handle(handle) => {
                let Some(open) = self.files.handle(handle) else {
                    return self.session.finish(done, Err(StreamError::bad_handle()));
                };
                let key = open.file;
                let Some(file) = self.files.get(&key) else { return };
                if file.unsure && !file.gone && !file.is_changed() {
                    self.wait_for(Want::Fstat { of, file: key, done });
                    return self.open_number(key);
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
                    // That there was nothing is not believed again: somebody may wait for another device to make the file.
                    Some(None) | None => {
                        self.wait_for(Want::Stat { path, done });
                    }
                }
            }
        }
    }

    /// What the server says of a path, with what was done here and it does not know.
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

    pub(super) fn list(&mut self, path: Vec<u8>, done: Done<Vec<FolderEntry>>) {
        if let Err(error) = check_path(&path) {
            return self.session.finish(done, Err(error));
        }
        if let Some(entries) = self.names.listing(&path, self.session.now()) {
            let entries = self.with_changes(&path, entries.to_vec());
            return self.session.finish(done, Ok(entries));
        }
        self.wait_for(Want::List { path, folder: None, entries: Vec::new(), again: 0, done });
    }

    pub(super) fn read_link(&mut self, path: Vec<u8>, done: Done<bytes::Bytes>) {
        match check_path(&path) {
            Err(error) => self.session.finish(done, Err(error)),
            Ok(()) => {
                self.wait_for(Want::ReadLink { path, done });
            }
        }
    }

    /// Makes something whose name must be free, also of files that the server does not know.
    pub(super) fn make(&mut self, path: &[u8], changes: Vec<Change>, done: Done<()>) {
        if let Some(Change::MakeLink { target, .. }) = changes.first()
            && (target.is_empty() || target.len() > LINK_BYTES_MAX)
        {
            let text = format!("a symbolic link points to 1 to {LINK_BYTES_MAX} bytes");
            return self.session.finish(done, Err(StreamError::new(ErrorKind::NameTooLong, path, text)));
        }
        if self.files.is_only_here_at(path) {
            return self.session.finish(done, Err(StreamError::refused(ErrorCode::Exists, path, "")));
        }
        self.change(path, changes, done);
    }

    pub(super) fn remove(&mut self, path: Vec<u8>, done: Done<()>) {
        if let Some(key) = self.files.at(&path)
            && let Some(file) = self.files.get(&key)
            && file.is_only_here()
            // What it was to replace, if anything, goes with it.
            && !file.dirty.as_ref().is_some_and(|dirty| dirty.unasked)
        {
            self.unname(key);
            self.names.forget(&path);
            self.names.folder_changed(parent(&path), self.session.wall_ns());
            return self.session.finish(done, Ok(()));
        }
        self.seal_linked(&path);
        self.change(&path.clone(), vec![Change::Unlink { path, base: None }], done);
    }

    pub(super) fn remove_folder(&mut self, path: Vec<u8>, done: Done<()>) {
        if self.files.has_only_here_below(&path) {
            return self.session.finish(done, Err(StreamError::refused(ErrorCode::NotEmpty, &path, "")));
        }
        self.change(&path.clone(), vec![Change::RemoveFolder { path }], done);
    }

    pub(super) fn rename(&mut self, from: Vec<u8>, to: Vec<u8>, replace: bool, done: Done<()>) {
        if let Err(error) = check_path(&to) {
            return self.session.finish(done, Err(error));
        }
        if replace && from != to && self.files.has_only_here_below(&to) {
            let code = if self.files.at(&from).is_some() { ErrorCode::NotFile } else { ErrorCode::NotEmpty };
            return self.session.finish(done, Err(StreamError::refused(code, &to, "")));
        }
        if let Some(key) = self.files.at(&to).filter(|_| !replace) {
            // The server sees what is in the way.
            self.seal(key);
        }
        self.seal_linked(&to);
        let moved = self.files.iter().filter(|(_, file)| {
            file.dirty.is_some() && !file.gone && (file.path == from || is_below(&file.path, &from))
        });
        let moved: Vec<u64> = moved.map(|(key, _)| *key).collect();
        let attributes = self.take_attributes_at(&from);
        moved.into_iter().for_each(|key| self.seal(key));
        let rename = Change::Rename { from: from.clone(), base: None, to, replace };
        match attributes {
            Some((key, mut changes)) => {
                changes.push(rename);
                self.change_file(key, &from, changes, done);
            }
            None => self.change(&from, vec![rename], done),
        }
    }

    /// Makes a transaction of changes of names, behind all that is on its way for the same paths.
    ///
    /// Two kinds wait behind it instead. What was not sent yet of a file that loses its name is
    /// dropped when the name is gone: so a file can be removed whose changes the server refuses.
    /// And what is parked holds up only changes of the name of its own file, not of the folders
    /// above.
    pub(super) fn change(&mut self, path: &[u8], changes: Vec<Change>, done: Done<()>) {
        self.change_of(None, path, changes, done);
    }

    /// The same of one file, whatever its path is by then.
    pub(super) fn change_file(&mut self, key: u64, path: &[u8], changes: Vec<Change>, done: Done<()>) {
        self.change_of(Some(key), path, changes, done);
    }

    fn change_of(&mut self, file: Option<u64>, path: &[u8], changes: Vec<Change>, done: Done<()>) {
        let checked = check_path(path).and_then(|()| match (path.is_empty(), self.session.info()) {
            (true, _) => Err(StreamError::new(ErrorKind::Invalid, path, "the top folder stays as it is")),
            (_, Some(info)) if info.writable => Ok(()),
            _ => Err(StreamError::refused(ErrorCode::ReadOnly, path, "")),
        });
        if checked.is_err() {
            return self.session.finish(done, checked);
        }
        let txn = self.queue_change(file, path, changes);
        self.wait_for(Want::Change { path: path.to_vec(), txn, done });
    }

    /// Makes the transaction, for which nobody waits yet.
    pub(super) fn queue_change(&mut self, file: Option<u64>, path: &[u8], mut changes: Vec<Change>) -> u64 {
        let unnamed = unnamed_path(&changes).map(<[u8]>::to_vec);
        let unnames = unnamed.as_ref().and_then(|path| self.files.at(path));
        let unnames = unnames.filter(|key| !self.files.has_other_names(*key));
        if let Some(path) = unnamed.filter(|_| unnames.is_some()) {
            // Another device may have given it more names meanwhile.
            changes.insert(0, Change::OnlyName { path });
        }
        let mut txn = Transaction::new(path, changes, self.session.wall_ns());
        let paths: BTreeSet<&[u8]> = txn.changes.iter().flat_map(paths_of).collect();
        let related = |other: &Transaction| {
            let theirs = other.file.and_then(|key| self.files.get(&key)).map_or(&other.path, |file| &file.path);
            let near = |path: &[u8]| path == theirs || is_below(theirs, path) || is_below(path, theirs);
            paths.iter().any(|path| near(path))
                || other.changes.iter().flat_map(paths_of).any(|theirs| {
                    paths.iter().any(|path| *path == theirs || is_below(theirs, path) || is_below(path, theirs))
                })
        };
        let stuck = self.transactions.stuck();
        let (mut after, mut behind, mut again) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
        for (id, other) in self.transactions.iter().filter(|(_, other)| related(other)) {
            let own = other.file.is_some() && other.file == unnames;
            let file = other.file.and_then(|key| self.files.get(&key));
            if own && !other.sent && !self.transactions.has_names_after(*id) {
                behind.push(*id);
            } else if !stuck.contains(id) {
                after.insert(*id);
            } else if file.is_none_or(|file| paths.contains(file.path.as_slice())) {
                after.insert(*id);
                again.insert(*id);
            } else {
                behind.push(*id);
            }
        }
        (txn.after, txn.unnames, txn.changes_file) = (after, unnames, file);
        let id = self.session.next_id();
        self.transactions.insert(id, txn);
        self.transactions.wait_for(&behind, id);
        // It fails with them if they are refused again.
        self.transactions.unpark(&again);
        id
    }

    /// The server has changes of names: what is known here follows.
    pub(super) fn names_changed(&mut self, txn: &Transaction, versions: &[Seen]) {
        // What was at the name that went, where this was asked.
        let was_there = match txn.changes.first() {
            Some(Change::OnlyName { .. }) => versions.first().map(|seen| seen.file),
            _ => None,
        };
        for (index, change) in txn.changes.iter().enumerate() {
            if let Change::SetTime { path, .. } | Change::RemoveFolder { path } = change {
                self.names.forget_folder_time(path);
            }
            if let Change::SetXattr { path, .. } | Change::RemoveXattr { path, .. } = change {
                self.xattr_changed(path, versions.get(index));
            }
            if let Change::MakeFolder { path, .. } | Change::MakeLink { path, .. } | Change::MakeNode { path, .. } =
                change
                && let Some(old) = self.files.at(path)
            {
                // Another device had removed it.
                self.taken_away(old);
            }
            match change {
                Change::Allocate { path, .. } | Change::Copy { path, .. }
                    if versions.get(index).is_some_and(|to| self.range_changed(path, change, *to)) =>
                {
                    self.names.forget_file(path);
                }
                Change::SetMode { path, .. }
                | Change::SetOwner { path, .. }
                | Change::SetTime { path, .. }
                | Change::SetAccessTime { path, .. }
                | Change::SetXattr { path, .. }
                | Change::RemoveXattr { path, .. }
                    if versions.get(index).is_some_and(|to| self.attributes_changed(path, change, *to)) =>
                {
                    self.names.forget_file(path);
                }
                Change::Rename { from, to, .. } => self.renamed(from, to, was_there),
                Change::Link { from, to, .. } => {
                    self.names.forget(from);
                    self.names.forget(to);
                    versions.get(index).into_iter().for_each(|seen| self.linked(from, to, *seen));
                }
                Change::Unlink { path, .. } => {
                    let removed = versions.get(index).map(|seen| seen.file);
                    let key = self.files.known_at(path);
                    // Another one may have been made here meanwhile.
                    let is_it = |key: &u64| {
                        let seen = self.files.get(key).and_then(|file| file.seen);
                        txn.unnames == Some(*key) || seen.is_some_and(|seen| Some(seen.file) == removed)
                    };
                    match key.filter(is_it) {
                        Some(key) if self.files.has_other_names(key) => self.unlinked(key, path),
                        Some(key) if self.files.is_another(key, was_there) => self.taken_away(key),
                        Some(key) => self.unname(key),
                        None => {}
                    }
                    if let Some(removed) = removed {
                        self.forget_names(removed);
                        self.files.linked_mut().remove(removed, path);
                    }
                    self.names.name_changed(path, self.session.wall_ns());
                }
                Change::Truncate { path, size, .. }
                    if versions.get(index).is_some_and(|to| self.truncated(path, *size, *to)) =>
                {
                    self.names.forget_file(path);
                }
                Change::Truncate { path, .. }
                | Change::Allocate { path, .. }
                | Change::Copy { path, .. }
                | Change::SetMode { path, .. }
                | Change::SetOwner { path, .. }
                | Change::SetTime { path, .. }
                | Change::SetAccessTime { path, .. }
                | Change::SetXattr { path, .. }
                | Change::RemoveXattr { path, .. } => {
                    if let Some(file) = self.files.known_at(path).and_then(|key| self.files.get_mut(&key)) {
                        file.unsure = file.seen.is_some();
                        file.kernel = None;
                    }
                    self.names.forget(path);
                }
                Change::RemoveFolder { path } => {
                    self.names.forget_all();
                    self.names.forget_folders(path);
                    self.files.below(path).into_iter().for_each(|key| self.taken_away(key));
                }
                Change::Create { path, .. } | Change::MakeLink { path, .. } | Change::MakeNode { path, .. } => {
                    self.names.name_changed(path, self.session.wall_ns());
                }
                other => self.names.forget(path_of(other)),
            }
        }
    }

    /// Attributes of a file that is known here became another version of it, with the same content, if it is the next one: then
    /// what is written to the open file goes on from there. False if somebody else came between.
    fn attributes_changed(&mut self, path: &[u8], change: &Change, to: Seen) -> bool {
        self.forget_names(to.file);
        let Some(key) = self.files.known_at(path) else { return false };
        let wall_ns = self.session.wall_ns();
        let Some(file) = self.files.get_mut(&key) else { return false };
        if file.seen == Some(to) && file.dirty.is_none() {
            // Not the first change of the transaction.
            file.attributes.change(change, wall_ns);
            return true;
        }
        let Some(from) = self.follow(key, to) else { return false };
        if let Some(file) = self.files.get_mut(&key)
            && file.dirty.is_none()
        {
            file.attributes.change(change, wall_ns);
        }
        self.rebase_reads(key, from, to, |_| false);
        true
    }

    /// Goes on from the version that a change of our own made of a file, if it is the next one,
    /// with what was written to the file meanwhile. Returns the version before.
    pub(super) fn follow(&mut self, key: u64, to: Seen) -> Option<Seen> {
        let from = Seen { file: to.file, version: to.version.checked_sub(1)? };
        let file = self.files.get_mut(&key)?;
        let waiting = self.transactions.values_mut().filter(|txn| txn.file == Some(key) && !txn.sent);
        let bases = waiting.map(|txn| &mut txn.base).chain(file.dirty.as_mut().map(|dirty| &mut dirty.base));
        bases.filter(|base| **base == Base::Known(from)).for_each(|base| *base = Base::Known(to));
        // An answer of that version, or a push, may have come before.
        if file.seen == Some(to) {
            return Some(from);
        }
        file.seen = file.seen.filter(|seen| *seen == from).and(Some(to)).or(file.seen);
        if file.seen != Some(to) {
            return None;
        }
        file.kernel = file.kernel.filter(|kernel| *kernel == from).map(|_| to);
        // What the cache brings now is of the version before.
        file.blocks.retain(|_, entry| !matches!(entry, Block::Reading { .. }));
        Some(from)
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

    /// Asks for what waits to be asked for.
    pub(super) fn pump_wants(&mut self) {
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
                // What an outbox brings comes first.
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
        let Some(file) = self.files.get(&key) else { return };
        if file.unsure && !file.gone {
            return self.open_number(key);
        }
        let info = file.info();
        if let Some(Waiting { want: Want::Fstat { done, .. }, .. }) = self.calls.remove(&id) {
            self.session.finish(done, Ok(info));
        }
    }

    /// The answer to a call's request.
    pub(super) fn want_answered(&mut self, id: u64, answer: Result<Reply, Unanswered>) {
        let Some(waiting) = self.calls.remove(&id) else {
            // Nobody waits any more, but the server has opened a file.
            if let Ok(Reply::Volume(VolumeReply::FileOpened { file, .. })) = answer {
                self.close_number(file);
            }
            return;
        };
        let path = waiting.want.path().to_vec();
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
        match (waiting.want, reply) {
            (Want::Stat { path, done }, VolumeReply::Attributes(info)) => {
                self.names.put(&path, Some(info), now);
                self.files.note_linked(&path, &info);
                let info = self.shown(&path, info);
                self.session.finish(done, Ok(info));
            }
            (Want::ReadLink { done, .. }, VolumeReply::LinkTarget(target)) => self.session.finish(done, Ok(target)),
            (Want::Xattrs { path, done }, VolumeReply::Xattrs { info, xattrs }) => {
                let xattrs = self.keep_xattrs(&path, info, xattrs);
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
                self.calls.insert(id, Waiting { want, since: waiting.since, asked: false });
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
                    self.calls.insert(id, Waiting { want, since: waiting.since, asked: false });
                    return;
                }
                entries.extend(page);
                if more {
                    let want = Want::List { path, folder: Some(seen), entries, again, done };
                    self.calls.insert(id, Waiting { want, since: waiting.since, asked: false });
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
