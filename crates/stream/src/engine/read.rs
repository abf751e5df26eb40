//! One read of a program that waits for blocks.

use std::collections::HashMap;

use bytes::Bytes;
use units::{Moment, Token};
use wire::volume::Seen;

use super::file::File;
use crate::call::Done;

/// How often a read begins anew because the file changed meanwhile, or an answer made no sense.
pub(super) const TRIES_MAX: u32 = 16;

/// A read that waits.
///
/// Invariant: all its parts are of one version of the file. It is tried a bounded number of times.
pub(super) struct Read {
    pub file: u64,
    pub since: Moment,
    token: Token,
    offset: u64,
    bytes: u32,
    done: Done<Bytes>,
    /// The version that `parts` belong to.
    seen: Option<Seen>,
    parts: HashMap<u32, Bytes>,
    tries: u32,
    /// Its blocks were told to the server.
    touched: bool,
}

impl Read {
    pub fn new(file: u64, token: Token, (offset, bytes): (u64, u32), done: Done<Bytes>, since: Moment) -> Read {
        Read { file, since, token, offset, bytes, done, seen: None, parts: HashMap::new(), tries: 0, touched: false }
    }

    /// The action that reads.
    pub fn token(&self) -> Token {
        self.token
    }

    /// First byte, and the one behind the last, in a file of this size.
    pub fn range(&self, size: u64) -> (u64, u64) {
        (self.offset, self.offset.saturating_add(u64::from(self.bytes)).min(size))
    }

    /// One more try.
    pub fn count_try(&mut self) {
        self.tries += 1;
    }

    /// Whether it was tried often enough.
    pub fn is_hopeless(&self) -> bool {
        self.tries > TRIES_MAX
    }

    pub fn has(&self, index: u32) -> bool {
        self.parts.contains_key(&index)
    }

    /// A block of the version that it is of.
    pub fn put(&mut self, index: u32, bytes: Bytes) {
        self.parts.insert(index, bytes);
    }

    /// Whether the server is to be told of its blocks; true once.
    pub fn touch(&mut self) -> bool {
        !std::mem::replace(&mut self.touched, true)
    }

    /// Who waits for it.
    pub fn into_done(self) -> Done<Bytes> {
        self.done
    }

    /// Goes on with the version that a change of our own made, without the blocks that it touched.
    pub fn rebase(&mut self, from: Seen, to: Seen, touched: impl Fn(u32) -> bool) {
        if self.seen == Some(from) {
            self.seen = Some(to);
            self.parts.retain(|index, _| !touched(*index));
        }
    }

    /// Notes which version its parts are of. Those of another one are dropped.
    pub fn follow(&mut self, seen: Option<Seen>) {
        if self.seen != seen {
            self.tries += u32::from(self.seen.is_some());
            self.seen = seen;
            self.parts.clear();
        }
    }

    /// The bytes from all parts, and what was written over them. Blocks of `block` bytes.
    pub fn assemble(&self, file: &File, end: u64, block: u64) -> Bytes {
        let mut out = vec![0; (end - self.offset) as usize];
        for (index, part) in &self.parts {
            let start = u64::from(*index) * block;
            let until = (start + part.len() as u64).min(end).min(file.zero_from());
            let from = start.max(self.offset);
            if from < until {
                let source = &part[(from - start) as usize..(until - start) as usize];
                out[(from - self.offset) as usize..(until - self.offset) as usize].copy_from_slice(source);
            }
        }
        file.unsent.overlay().copy_into(self.offset, &mut out);
        out.into()
    }

    /// Whether bytes of this range are read.
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        start < self.offset.saturating_add(u64::from(self.bytes)) && end > self.offset
    }
}
