//! Opening files, and the server's answers to that.

use std::collections::BTreeMap;

use connection::Unanswered;
use units::{InodeId, Token};
use wire::volume::{Change, FileInfo, FileKind, VolumeReply};
use wire::{BlockRange, ErrorCode, Notice, Reply};

use super::attributes::Attributes;
use super::blocks::Blocks;
use super::committer::Committer;
use super::file::File;
use super::files::Files;
use super::locks::Locks;
use super::read::Read;
use super::reader::Reader;
use super::requests::AskFor;
use super::session::Session;
use super::touches::Touches;
use super::transaction::Transaction;
use super::transactions::Transactions;
use super::wants::{WaitingCalls, Want};
use super::writer::Writer;
use crate::call::{Done, OpenHow, Opened};
use crate::names::Names;
use crate::present::Present;
use crate::{ErrorKind, StreamError};

/// The parts that change when the server tells what a path or a file is.
///
/// Invariant: what the server says is taken only if nothing that was changed here is newer.
pub(super) struct Opener<'a> {
    pub session: &'a mut Session,
    pub files: &'a mut Files,
    pub reads: &'a mut BTreeMap<u64, Read>,
    pub calls: &'a mut WaitingCalls,
    pub blocks: &'a mut Blocks,
    pub touches: &'a mut Touches,
    pub names: &'a mut Names,
    pub transactions: &'a mut Transactions,
    pub locks: &'a mut Locks,
}

impl Opener<'_> {
    pub fn reader(&mut self) -> Reader<'_> {
        let Opener { session, files, reads, calls, blocks, touches, names, .. } = self;
        Reader { session, files, reads, calls, blocks, touches, names }
    }

    pub fn writer(&mut self) -> Writer<'_> {
        let Opener { session, files, calls, names, transactions, .. } = self;
        Writer { session, files, calls, names, transactions }
    }

    pub fn committer(&mut self) -> Committer<'_> {
        let Opener { session, files, reads, calls, blocks, touches, names, transactions, locks, .. } = self;
        Committer { session, files, reads, calls, blocks, touches, names, transactions, locks }
    }

    pub fn open(&mut self, path: Vec<u8>, how: OpenHow, token: Token, done: Done<Opened>) {
        if let Err(error) = self.session.check_open(&path, how) {
            return self.session.finish(done, Err(error));
        }
        let request = self.session.request();
        if let Some((handle, file)) = self.files.opened_for(request).and_then(|handle| {
            let (_, file) = self.files.opened(handle)?;
            Some((handle, file))
        }) {
            let opened = Opened { handle, info: file.info(), unchanged: false };
            return self.session.finish(done, Ok(opened));
        }
        if let Some(outcome) = self.transactions.outcome(request).cloned() {
            let made = match outcome.error {
                Some(error) => Err(error),
                None => Ok(self.committer().created(&path, how, token, (outcome.seen, outcome.mtime_ns))),
            };
            return self.session.finish(done, made);
        }
        if let Some(txn) = self.transactions.of_request(request) {
            let made_ns = self.transactions.get(&txn).map_or(0, |txn| txn.mtime_ns);
            self.calls.wait(Want::Create { path, how, token, txn, made_ns, done }, self.session);
            return;
        }
        let here = self.files.at(&path);
        let here = here.filter(|key| self.files.get(key).is_some_and(|file| file.seen.is_none()));
        if let Some(key) = here {
            let outcome = match how.exclusive && how.create.is_some() {
                true => Err(StreamError::refused(ErrorCode::Exists, &path, "")),
                false => Ok(self.writer().add_handle(key, how, token, true)),
            };
            return self.session.finish(done, outcome);
        }
        if let Some(mode) = how.create {
            if how.exclusive {
                let change = Change::Create { path: path.clone(), mode, exclusive: true, owner: how.owner };
                let mut txn = Transaction::new(&path, vec![change], self.session.wall_ns());
                txn.request = request;
                let id = self.session.next_id();
                self.transactions.insert(id, txn);
                self.calls.wait(
                    Want::Create { path, how, token, txn: id, made_ns: self.session.wall_ns(), done },
                    self.session,
                );
                return;
            }
            let named = self.names.get(&path, self.session.now());
            if named == Some(None) || (named.is_none() && self.files.may_replace(&path, how)) {
                let opened = self.writer().make_here(&path, how, token, named.is_none());
                return self.session.finish(done, Ok(opened));
            }
        }
        self.calls.wait(Want::Open { path, how, token, done }, self.session);
    }

    /// The answer to [`Want::Open`] was an error.
    pub fn open_failed(
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
                    self.writer().add_handle(key, how, token, true)
                }
                Some(key) => {
                    self.committer().taken_away(key);
                    self.writer().make_here(path, how, token, false)
                }
                None => self.writer().make_here(path, how, token, false),
            });
        }
        if code == ErrorCode::NotFound {
            self.names.put(path, None, self.session.now());
        }
        Err(StreamError::refused(code, path, text))
    }

    /// The server opened a file for [`Want::Open`].
    pub fn opened(
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
        // Who looks the name up now, because it opened another file than it expected, must not find
        // the old one.
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
                    self.committer().taken_away(replaced);
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
        self.reader().advance_reads(key);
        Ok(self.writer().add_handle(key, how, token, unchanged))
    }

    /// Takes the server's answer when a file is opened on the present connection.
    fn refresh(&mut self, key: u64, number: InodeId, info: &FileInfo, present: &[BlockRange], cut: bool) {
        let version = info.seen.version;
        let is_ahead = self.transactions.has_attributes_of(key);
        let Some(file) = self.files.get_mut(&key) else { return };
        let Some(seen) = file.seen else { return };
        let made_here = file.attributes.made_here && seen == info.seen;
        if version > seen.version {
            self.reader().move_file(key, version, Some(info.size));
        }
        let Some(file) = self.files.get_mut(&key) else { return };
        if !file.may_be(info) {
            return self.committer().is_of_others(key);
        }
        if file.seen == Some(info.seen) {
            (file.size, file.unsure) = (info.size, false);
            *file.table.present_mut() = Present::new(present, cut);
            if !file.is_changed() && !is_ahead {
                let read_here = file.attributes.atime_ns;
                file.attributes = Attributes { made_here, ..Attributes::of(info) };
                file.attributes.atime_ns = info.atime_ns.max(read_here);
            }
        }
        // An older answer, overtaken by a commit of ours, tells nothing new.
        let old = file.numbering.replace(number);
        let share = file.numbering.share();
        if let Some(old) = old.filter(|old| *old != number) {
            self.reader().forget_number(key, old);
        }
        // Pushed blocks are for the file that is not overtaken, though both have the number.
        if self.files.get(&key).is_some_and(|file| file.stale.is_none()) {
            self.files.set_number(number, key);
        }
        if let (Some(share), Some(volume)) = (share, self.session.link.volume()) {
            self.session.link.notify(Notice::FileShare { volume, file: number, share });
        }
    }

    /// What the server told of a file was overtaken by a change of ours: it is asked again.
    fn overtaken_answer(&mut self, key: u64, error: &StreamError) {
        for waiting in self.calls.ask_again_of(key) {
            waiting.want.fail(error.clone(), self.session.effects());
        }
        self.reader().count_try(key, error);
    }

    /// The answer to `Reader::open_number`.
    pub fn file_opened(&mut self, key: u64, answer: Result<Reply, Unanswered>) {
        let Some(file) = self.files.get_mut(&key) else {
            if let Ok(Reply::Volume(VolumeReply::FileOpened { file, .. })) = answer {
                self.reader().close_number(file);
            }
            return self.reader().reopen_failed(key, &StreamError::bad_handle());
        };
        file.numbering.set_opening(false);
        let path = file.path.clone();
        match answer {
            Ok(Reply::Volume(VolumeReply::FileOpened { file: number, info, present, cut, .. })) => {
                if file.seen.is_some_and(|seen| seen.file == info.seen.file) && info.kind == FileKind::File {
                    self.refresh(key, number, &info, &present, cut);
                    match self.files.get(&key).is_some_and(|file| file.unsure) {
                        // The answer was overtaken by a commit of ours; but a server that never
                        // tells is not asked for ever.
                        true => self.overtaken_answer(key, &StreamError::nonsense(&path, "always an old version")),
                        false => {
                            self.looked_again(key);
                            self.reader().advance_reads(key);
                        }
                    }
                } else {
                    self.reader().close_number(number);
                    self.reader().reopen_failed(key, &StreamError::refused(ErrorCode::Stale, &path, ""));
                }
            }
            Ok(Reply::Error { code: ErrorCode::Busy | ErrorCode::Cancelled | ErrorCode::Shutdown, .. })
            | Err(Unanswered::Expired) => {
                file.numbering.set_opening(true);
                self.session.ask_later(AskFor::File(key));
            }
            Ok(Reply::Error { code: ErrorCode::NotFound | ErrorCode::NotFile | ErrorCode::NotFolder, .. }) => {
                self.reader().reopen_failed(key, &StreamError::refused(ErrorCode::Stale, &path, ""));
            }
            Ok(Reply::Error { code, text }) => {
                self.reader().reopen_failed(key, &StreamError::refused(code, &path, &text))
            }
            Ok(_) => self.reader().reopen_failed(key, &StreamError::nonsense(&path, "another kind of answer")),
            Err(Unanswered::Refused) => {
                let text = "too many requests at once; try again";
                self.reader().reopen_failed(key, &StreamError::new(ErrorKind::Failed, &path, text));
            }
        }
    }
}
