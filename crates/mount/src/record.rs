//! Recording: observers of the pages that programs read on a mount, in order.
//!
//! The daemon sees first touches only while nothing else fills the page cache. So a recorded mount
//! turns the kernel's readahead off, serves from one thread, which keeps the order, and its session
//! is opened without pushes and without stores of evicted blocks ([`exact`]).

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use client::{Config, Done};
use image::Metadata;
use units::{InodeId, PAGE_BYTES, Token};

use crate::source::Source;

/// Receives what is touched. Calls come in the order of the touches, from the serving thread and
/// the one that watches for exits; none may panic or wait long, since the program that reads waits
/// as well.
pub trait Recorder: fmt::Debug + Send + Sync {
    /// The image, once, before anything is touched.
    fn begin(&self, metadata: &Arc<Metadata>);
    /// A process reads for the first time. `name` is the path of its executable, empty if unknown.
    fn start(&self, token: Token, name: Vec<u8>);
    /// A process that has started reads pages of a file. Pages may come again: after the kernel
    /// dropped them, or where a program reads around the page cache.
    fn touch(&self, token: Token, inode: InodeId, pages: Range<u32>, how: Answer);
    /// A process ended. If it reads once more, it starts once more.
    fn end(&self, token: Token);
}

/// How a READ was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// At once: the daemon had the bytes.
    AtOnce,
    /// Later: they had to be fetched from the server or the image file.
    Later,
}

/// `config`, changed so that every first touch of a page reaches the mount: nothing comes into the
/// page cache unasked.
pub fn exact(config: Config) -> Config {
    let connection = connection::Config { push: false, ..config.connection };
    Config { connection, store_evicted: false, ..config }
}

/// The recorder of a file system, and the tokens that it was told of.
pub(crate) struct Tap {
    recorder: Arc<dyn Recorder>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    started: HashSet<Token>,
    /// The process whose READ is being answered; there is one serving thread.
    reading: Option<Token>,
    /// It has its answer and ended before that was told.
    ended: bool,
}

impl Tap {
    pub(crate) fn new(recorder: Arc<dyn Recorder>, metadata: &Arc<Metadata>) -> Tap {
        recorder.begin(metadata);
        Tap { recorder, state: Mutex::default() }
    }

    /// Reads through `source` and tells the recorder. The range is not empty and lies within the
    /// file.
    pub(crate) fn read(&self, source: &dyn Source, metadata: &Metadata, read: Read, done: Done) {
        {
            let mut state = self.lock();
            if state.started.insert(read.token) {
                self.recorder.start(read.token, executable(metadata, &read));
            }
            state.reading = Some(read.token);
        }
        let at_once = source.read(read.token, read.inode, read.offset, read.bytes, done);
        let how = if at_once { Answer::AtOnce } else { Answer::Later };
        let end = read.offset + u64::from(read.bytes);
        let pages = (read.offset / PAGE) as u32..end.div_ceil(PAGE) as u32;
        let mut state = self.lock();
        self.recorder.touch(read.token, read.inode, pages, how);
        state.reading = None;
        if std::mem::take(&mut state.ended) {
            self.forget(&mut state, read.token);
        }
    }

    /// A process has ended.
    pub(crate) fn end(&self, token: Token) {
        let mut state = self.lock();
        if state.reading == Some(token) {
            state.ended = true;
        } else {
            self.forget(&mut state, token);
        }
    }

    fn forget(&self, state: &mut State, token: Token) {
        if state.started.remove(&token) {
            self.recorder.end(token);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const PAGE: u64 = PAGE_BYTES as u64;

/// One READ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) token: Token,
    /// As the kernel names it; 0 if there is none that we can see.
    pub(crate) thread: u32,
    pub(crate) inode: InodeId,
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
}

/// The executable of a process by its first READ. A process that is about to become another program
/// still has the name of the old one, and what it reads is the start of the new one.
fn executable(metadata: &Metadata, read: &Read) -> Vec<u8> {
    let runs = |mode: u32| mode & 0o111 != 0;
    let begins_one = read.offset == 0 && metadata.inode(read.inode).is_some_and(|inode| runs(inode.mode()));
    if begins_one && let Some(path) = metadata.path(read.inode) {
        return path;
    }
    // A process that is gone, or belongs to another user, stays without a name.
    let link = fs::read_link(format!("/proc/{}/exe", read.thread));
    link.map_or_else(|_| Vec::new(), |path| path.into_os_string().into_vec())
}
