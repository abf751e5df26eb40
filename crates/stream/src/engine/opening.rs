//! Handles: opening, closing, and which file a path stands for.

use connection::Unanswered;
use units::{InodeId, Token};
use wire::volume::{Change, FileInfo, FileKind, Owner, Seen, VolumeAsk, VolumeReply};
use wire::{BlockRange, ErrorCode, Notice, Reply};

use super::Engine;
use super::file::{Attributes, Block, File};
use super::files::Open;
use super::requests::AskFor;
use super::session::ANSWER_TIME;
use super::transaction::Transaction;
use super::wants::Want;
use crate::call::{Done, Handle, OpenHow, Opened};
use crate::names::{check_path, parent};
use crate::present::Present;
use crate::{ErrorKind, StreamError};

impl Engine {
    pub(super) fn open(&mut self, path: Vec<u8>, how: OpenHow, token: Token, done: Done<Opened>) {
        if let Err(error) = self.check_open(&path, how) {
            return self.session.finish(done, Err(error));
        }
        let here = self.files.at(&path);
        let here = here.filter(|key| self.files.get(key).is_some_and(|file| file.seen.is_none()));
        if let Some(key) = here {
            let outcome = match how.exclusive && how.create.is_some() {
                true => Err(StreamError::refused(ErrorCode::Exists, &path, "")),
                false => Ok(self.add_handle(key, how, token, true)),
            };
            return self.session.finish(done, outcome);
        }
        if let Some(mode) = how.create {
            if how.exclusive {
                let change = Change::Create { path: path.clone(), mode, exclusive: true, owner: how.owner };
                let txn = Transaction::new(&path, vec![change], self.session.wall_ns());
                let id = self.session.next_id();
                self.transactions.insert(id, txn);
                self.wait_for(Want::Create { path, how, token, txn: id, made_ns: self.session.wall_ns(), done });
                return;
            }
            let named = self.names.get(&path, self.session.now());
            if named == Some(None) || (named.is_none() && self.may_replace(&path, how)) {
                let opened = self.make_here(&path, how, token, named.is_none());
                return self.session.finish(done, Ok(opened));
            }
        }
        self.wait_for(Want::Open { path, how, token, done });
    }

    /// Whether a file can be opened without asking the server: it begins empty, whether it is there or not. Its folder must have files that
    /// the server told of, or it is the top one, so that a wrong path is told now and not by the next sync.
    fn may_replace(&self, path: &[u8], how: OpenHow) -> bool {
        let folder = parent(path);
        let begins_empty = how.truncate && !how.append && self.files.known_at(path).is_none();
        let there = |file: &File| file.seen.is_some() && !file.gone && parent(&file.path) == folder;
        begins_empty && (folder.is_empty() || self.files.values().any(there))
    }

    fn check_open(&self, path: &[u8], how: OpenHow) -> Result<(), StreamError> {
        check_path(path)?;
        if path.is_empty() {
            return Err(StreamError::refused(ErrorCode::NotFile, path, ""));
        }
        if (how.write || how.append || how.truncate) && !self.session.is_writable() {
            return Err(StreamError::refused(ErrorCode::ReadOnly, path, ""));
        }
        Ok(())
    }

    /// A file that the server has not got, or that replaces what it has: made here, sent with the
    /// first transaction. `unasked`: it was not asked whether it is there. Who wants it empty
    /// replaces also what another device makes meanwhile.
    fn make_here(&mut self, path: &[u8], how: OpenHow, token: Token, unasked: bool) -> Opened {
        let mut file = File::new(path, token);
        file.attributes = self.made(path, how, self.session.wall_ns());
        let (key, mode) = (self.session.next_id(), file.attributes.mode);
        self.files.insert(key, file);
        self.begin(key, how.append);
        if let Some(dirty) = self.files.get_mut(&key).and_then(|file| file.dirty.as_mut()) {
            dirty.create = Some((mode, how.owner));
            (dirty.replaces, dirty.unasked) = (how.truncate && !how.append, unasked);
        }
        self.names.forget_file(path);
        self.names.folder_changed(parent(path), self.session.wall_ns());
        self.add_handle(key, OpenHow { truncate: false, ..how }, token, true)
    }

    /// Attributes of a file that is made: the server gives it the same.
    fn made(&self, path: &[u8], how: OpenHow, made_ns: i64) -> Attributes {
        let group = self.names.group_in(parent(path));
        let owner = how.owner.map(|owner| Owner { gid: group.unwrap_or(owner.gid), ..owner });
        Attributes::new(how.create.unwrap_or(0o644), owner, made_ns)
    }

    /// A file that was made exclusively: nothing but our own writes can be in it.
    pub(super) fn created(&mut self, path: &[u8], how: OpenHow, token: Token, (seen, made_ns): (Seen, i64)) -> Opened {
        if let Some(old) = self.files.at(path) {
            self.taken_away(old);
        }
        let mut file = File::new(path, token);
        file.attributes = self.made(path, how, made_ns);
        (file.seen, file.kernel) = (Some(seen), Some(seen));
        let key = self.session.next_id();
        self.files.insert(key, file);
        self.names.name_changed(path, self.session.wall_ns());
        self.add_handle(key, OpenHow { truncate: false, ..how }, token, true)
    }

    fn add_handle(&mut self, key: u64, how: OpenHow, token: Token, unchanged: bool) -> Opened {
        let handle = Handle(self.session.next_id());
        if let Some(file) = self.files.get_mut(&key) {
            file.token = token;
        }
        self.files.open(handle, Open { file: key, how });
        if how.truncate && self.files.get(&key).is_some_and(|file| file.effective_size() > 0 || file.unsure) {
            self.resize(key, 0);
        }
        let info = self.files.get(&key).map(File::info).unwrap_or_default();
        Opened { handle, info, unchanged }
    }

    /// The server opened a file for [`Want::Open`].
    pub(super) fn opened(
        &mut self,
        path: &[u8],
        how: OpenHow,
        token: Token,
        reply: VolumeReply,
    ) -> Result<Opened, StreamError> {
        let VolumeReply::FileOpened { file: number, info, present, cut, .. } = reply else {
            return Err(StreamError::nonsense(path, "another kind of answer"));
        };
        if info.kind != FileKind::File {
            return Err(StreamError::refused(ErrorCode::NotFile, path, ""));
        }
        // Who looks the name up now, because it opened another file than it expected, must not find the old one.
        self.names.put(path, Some(info), self.session.now());
        self.files.note_linked(path, &info);
        let known = self.files.at(path);
        let same = known.filter(|key| {
            let seen = self.files.get(key).and_then(|file| file.seen);
            seen.is_none_or(|seen| seen.file == info.seen.file)
        });
        // It may be known here by another name.
        let same = same.or_else(|| (info.links > 1).then(|| self.files.with_id(info.seen.file)).flatten());
        let key = match (same, known) {
            (Some(key), _) => key,
            (None, replaced) => {
                if let Some(replaced) = replaced {
                    self.taken_away(replaced);
                }
                let mut file = File::new(path, token);
                (file.seen, file.size, file.unsure) = (Some(info.seen), info.size, true);
                let key = self.session.next_id();
                self.files.insert(key, file);
                key
            }
        };
        let kernel = self.files.get(&key).and_then(|file| file.kernel);
        self.refresh(key, number, &info, &present, cut);
        let unchanged = kernel == Some(info.seen);
        if let Some(file) = self.files.get_mut(&key)
            && file.seen == Some(info.seen)
        {
            file.kernel = Some(info.seen);
        }
        if how.exclusive && how.create.is_some() {
            return Err(StreamError::refused(ErrorCode::Exists, path, ""));
        }
        self.advance_reads(key);
        Ok(self.add_handle(key, how, token, unchanged))
    }

    /// What the server says of a file when it is opened on the present connection.
    fn refresh(&mut self, key: u64, number: InodeId, info: &FileInfo, present: &[BlockRange], cut: bool) {
        let version = info.seen.version;
        let is_ahead = self.transactions.has_attributes_of(key);
        let Some(file) = self.files.get_mut(&key) else { return };
        file.opening = false;
        let Some(seen) = file.seen else { return };
        let made_here = file.attributes.made_here && seen == info.seen;
        if version > seen.version {
            self.move_file(key, version, Some(info.size));
        }
        let Some(file) = self.files.get_mut(&key) else { return };
        if !file.may_be(info) {
            return self.is_of_others(key);
        }
        if file.seen == Some(info.seen) {
            (file.size, file.unsure) = (info.size, false);
            file.present = Present::new(present, cut);
            if !file.is_changed() && !is_ahead {
                let read_here = file.attributes.atime_ns;
                file.attributes = Attributes { made_here, ..Attributes::of(info) };
                file.attributes.atime_ns = info.atime_ns.max(read_here);
            }
        }
        // An older answer, overtaken by a commit of ours, tells nothing new.
        let old = file.number.replace(number);
        let share = file.share;
        if let Some(old) = old.filter(|old| *old != number) {
            self.forget_number(key, old);
        }
        // What is pushed is for the file that is not overtaken, though both have the number.
        if self.files.get(&key).is_some_and(|file| file.stale.is_none()) {
            self.files.set_number(number, key);
        }
        if let (Some(share), Some(volume)) = (share, self.session.link.volume()) {
            self.session.link.notify(Notice::FileShare { volume, file: number, share });
        }
    }

    /// Opens a file on the present connection again, or asks what it is now.
    pub(super) fn open_number(&mut self, key: u64) {
        if !self.session.link.is_open() {
            return;
        }
        let Some(file) = self.files.get_mut(&key).filter(|file| !file.opening) else { return };
        // One that was overtaken may still be there, in a later version, below what was changed here.
        if file.gone && file.stale.is_none() {
            let error = StreamError::refused(ErrorCode::Stale, &file.path, "");
            return self.reopen_failed(key, &error);
        }
        file.opening = true;
        let ask = VolumeAsk::FileOpen { token: file.token, path: file.path.clone() };
        self.session.ask(AskFor::File(key), ask, ANSWER_TIME);
    }

    /// The answer to [`Engine::open_number`].
    pub(super) fn file_opened(&mut self, key: u64, answer: Result<Reply, Unanswered>) {
        let Some(file) = self.files.get_mut(&key) else {
            if let Ok(Reply::Volume(VolumeReply::FileOpened { file, .. })) = answer {
                self.close_number(file);
            }
            return;
        };
        file.opening = false;
        let path = file.path.clone();
        match answer {
            Ok(Reply::Volume(VolumeReply::FileOpened { file: number, info, present, cut, .. })) => {
                if file.seen.is_some_and(|seen| seen.file == info.seen.file) && info.kind == FileKind::File {
                    self.refresh(key, number, &info, &present, cut);
                    match self.files.get(&key).is_some_and(|file| file.unsure) {
                        // The answer was overtaken by a commit of ours; but a server that never tells is not asked for ever.
                        true => self.count_try(key, &StreamError::nonsense(&path, "always an old version")),
                        false => {
                            self.looked_again(key);
                            self.advance_reads(key);
                        }
                    }
                } else {
                    self.close_number(number);
                    self.reopen_failed(key, &StreamError::refused(ErrorCode::Stale, &path, ""));
                }
            }
            Ok(Reply::Error { code: ErrorCode::Busy | ErrorCode::Cancelled | ErrorCode::Shutdown, .. })
            | Err(Unanswered::Expired) => {
                file.opening = true;
                self.session.ask_later(AskFor::File(key));
            }
            Ok(Reply::Error { code: ErrorCode::NotFound | ErrorCode::NotFile | ErrorCode::NotFolder, .. }) => {
                self.reopen_failed(key, &StreamError::refused(ErrorCode::Stale, &path, ""));
            }
            Ok(Reply::Error { code, text }) => self.reopen_failed(key, &StreamError::refused(code, &path, &text)),
            Ok(_) => self.reopen_failed(key, &StreamError::nonsense(&path, "another kind of answer")),
            Err(Unanswered::Refused) => {
                let text = "too many requests at once; try again";
                self.reopen_failed(key, &StreamError::new(ErrorKind::Failed, &path, text));
            }
        }
    }

    pub(super) fn reopen_failed(&mut self, key: u64, error: &StreamError) {
        let reads = self.files.get(&key).map(|file| file.reads.clone()).unwrap_or_default();
        reads.into_iter().for_each(|id| self.end_read(id, Err(error.clone())));
        let of_it = |want: &Want| matches!(want, Want::Fstat { file, .. } | Want::Look { file, .. } if *file == key);
        for id in self.calls.which(|waiting| of_it(&waiting.want)) {
            if let Some(waiting) = self.calls.remove(&id) {
                waiting.want.fail(error.clone(), self.session.effects());
            }
        }
    }

    /// The server need not know a number any more, unless a file here has it.
    pub(super) fn close_number(&mut self, number: InodeId) {
        if let Some(volume) = self.session.link.volume()
            && !self.files.numbered(number).is_some()
        {
            self.session.link.notify(Notice::FileClose { volume, file: number });
        }
    }

    pub(super) fn forget_number(&mut self, key: u64, number: InodeId) {
        if self.files.numbered(number) == Some(key) {
            self.files.remove_number(number);
            self.close_number(number);
        }
    }

    pub(super) fn close(&mut self, handle: Handle, done: Done<()>) {
        let Some(open) = self.files.close(handle) else {
            return self.session.finish(done, Err(StreamError::bad_handle()));
        };
        if open.how.changes() {
            return self.sync_file(open.file, Some(open.file), done);
        }
        self.release(open.file);
        self.session.finish(done, Ok(()));
    }

    /// A handle of a file is gone.
    pub(super) fn release(&mut self, key: u64) {
        let Some(file) = self.files.get_mut(&key) else { return };
        file.handles = file.handles.saturating_sub(1);
        if file.handles > 0 {
            return;
        }
        let number = file.number.take();
        self.unlock_all(key);
        let Some(file) = self.files.get_mut(&key) else { return };
        if let Some(number) = number {
            file.blocks.retain(|_, block| !matches!(block, Block::OnTheWay { .. }));
            self.send_touches();
            self.forget_number(key, number);
        }
        self.refuse_parked(key);
        self.drop_unused(key);
    }

    /// A path does not stand for this file any more.
    pub(super) fn detach(&mut self, key: u64) {
        self.files.mark_gone(key);
        self.drop_unused(key);
    }

    /// Forgets a file that nobody has open and that has nothing to send, if it is of no use.
    pub(super) fn drop_unused(&mut self, key: u64) {
        let Some(key) = self.files.unused(key) else { return };
        self.drop_blocks(key, |_| true);
        if let Some(number) = self.files.remove(key).and_then(|file| file.number) {
            self.forget_number(key, number);
        }
    }

    /// The answer to [`Want::Open`] was an error.
    pub(super) fn open_failed(
        &mut self,
        path: &[u8],
        how: OpenHow,
        token: Token,
        code: ErrorCode,
        text: &str,
    ) -> Result<Opened, StreamError> {
        if code == ErrorCode::NotFound && how.create.is_some() {
            if !self.session.is_writable() {
                return Err(StreamError::refused(ErrorCode::ReadOnly, path, ""));
            }
            // Meanwhile another call may have made it here.
            return Ok(match self.files.at(path) {
                Some(key) if self.files.get(&key).is_some_and(File::is_changed) => {
                    self.add_handle(key, how, token, true)
                }
                Some(key) => {
                    self.taken_away(key);
                    self.make_here(path, how, token, false)
                }
                None => self.make_here(path, how, token, false),
            });
        }
        if code == ErrorCode::NotFound {
            self.names.put(path, None, self.session.now());
        }
        Err(StreamError::refused(code, path, text))
    }
}
