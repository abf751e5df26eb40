//! Writing a trace, record by record, into bytes that the caller puts where it likes.

use std::collections::{HashMap, HashSet};

use units::{InodeId, Moment, PageId, Token};
use zerocopy::IntoBytes;

use crate::format::{self, FileHeader};
use crate::{Event, Found, Header, TraceError, path_fault, varint};

/// A streaming writer. Bytes gather inside until [`Writer::take`] moves them out; each is valid to
/// append to a file at once, because a trace cut anywhere is readable up to its last whole record.
/// Memory: the bytes not yet taken, 48 bytes a token that is running, and about 8 bytes a file.
#[derive(Debug)]
pub struct Writer {
    out: Vec<u8>,
    /// Where in `out` the bytes begin that the hash has not seen.
    unhashed: usize,
    hasher: blake3::Hasher,
    open: HashMap<Token, Slot>,
    /// Files named or touched so far.
    files: HashSet<InodeId>,
    slots_used: u64,
    last_at: Moment,
    last_token: Option<Token>,
    section_records: u32,
    finished: bool,
}

#[derive(Debug)]
struct Slot {
    number: u64,
    last_page: PageId,
}

impl Writer {
    /// A writer whose first bytes are the header.
    pub fn new(header: &Header) -> Writer {
        let bytes = FileHeader {
            magic: format::MAGIC,
            version: format::VERSION.into(),
            source: header.source.to_u8(),
            reserved: 0,
            reserved_too: 0.into(),
            image: header.image.0,
        };
        Writer {
            out: bytes.as_bytes().to_vec(),
            unhashed: 0,
            hasher: blake3::Hasher::new(),
            open: HashMap::new(),
            files: HashSet::new(),
            slots_used: 0,
            last_at: Moment(0),
            last_token: None,
            section_records: 0,
            finished: false,
        }
    }

    /// Appends an event. Nothing is written if it is refused.
    ///
    /// # Errors
    /// A name too long, too many running tokens, a touch or end of a token that is not running, a
    /// start of one that is, a path that is no plain relative one, a file that has been named or
    /// touched before, or a finished trace.
    pub fn push(&mut self, event: &Event) -> Result<(), TraceError> {
        self.admit(event)?;
        match event {
            Event::Start { token, at, name } => self.put_start(*token, *at, name),
            Event::Touch { token, at, page, how } => self.put_touch(*token, *at, *page, how.to_u8()),
            Event::End { token, at } => self.put_end(*token, *at),
            Event::File { inode, size, path } => self.put_file(*inode, *size, path),
            Event::Lookup { token, at, found, path } => self.put_lookup(*token, *at, *found, path),
            Event::Code { token, at, inode, offset } => self.put_code(*token, *at, *inode, *offset),
        }
        // A file leaves "the record before" as it was.
        self.last_token = event.token().or(self.last_token);
        self.section_records += 1;
        if self.section_records == format::SECTION_RECORDS {
            self.put_seal(0);
        }
        Ok(())
    }

    /// Closes the current section with a hash, so that all records so far can be verified even if
    /// nothing follows.
    ///
    /// # Errors
    /// The trace is finished.
    pub fn seal(&mut self) -> Result<(), TraceError> {
        if self.finished {
            return Err(TraceError::Finished);
        }
        if self.section_records > 0 {
            self.put_seal(0);
        }
        Ok(())
    }

    /// Writes the final seal. Tokens may still be running: a recording can stop before the program
    /// does.
    ///
    /// # Errors
    /// The trace is finished already.
    pub fn finish(&mut self) -> Result<(), TraceError> {
        if self.finished {
            return Err(TraceError::Finished);
        }
        self.put_seal(format::FLAG_FINAL);
        self.finished = true;
        Ok(())
    }

    /// Moves out the bytes written since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        self.hash_new_bytes();
        self.unhashed = 0;
        std::mem::take(&mut self.out)
    }

    /// Whether the file has been named or touched: then it cannot be named any more.
    pub fn knows(&self, inode: InodeId) -> bool {
        self.files.contains(&inode)
    }

    /// Whether the token is running.
    pub fn is_running(&self, token: Token) -> bool {
        self.open.contains_key(&token)
    }

    /// The tokens that are running, in the order of their starts.
    pub fn running(&self) -> Vec<Token> {
        let mut tokens: Vec<(u64, Token)> = self.open.iter().map(|(token, slot)| (slot.number, *token)).collect();
        tokens.sort_unstable();
        tokens.into_iter().map(|(_, token)| token).collect()
    }

    /// Tokens that are running.
    pub fn open_tokens(&self) -> usize {
        self.open.len()
    }

    fn admit(&self, event: &Event) -> Result<(), TraceError> {
        if self.finished {
            return Err(TraceError::Finished);
        }
        let open = event.token().is_some_and(|token| self.open.contains_key(&token));
        match event {
            Event::File { inode, path, .. } => match path_fault(path) {
                Some(what) => Err(TraceError::Path { inode: *inode, what }),
                None if self.files.contains(inode) => Err(TraceError::Named(*inode)),
                None => Ok(()),
            },
            Event::Start { token, .. } if open => Err(TraceError::Started(*token)),
            Event::Start { name, .. } if name.len() > format::NAME_BYTES_MAX => {
                Err(TraceError::Name { bytes: name.len(), limit: format::NAME_BYTES_MAX })
            }
            Event::Start { .. } if self.open.len() >= format::TOKENS_OPEN_MAX => Err(TraceError::Limit {
                what: "running tokens",
                offset: self.out.len(),
                limit: format::TOKENS_OPEN_MAX,
            }),
            Event::Start { .. } => Ok(()),
            Event::Touch { token, .. }
            | Event::End { token, .. }
            | Event::Lookup { token, .. }
            | Event::Code { token, .. }
                if !open =>
            {
                Err(TraceError::NotStarted(*token))
            }
            Event::Lookup { path, .. } => path_fault(path).map_or(Ok(()), |what| Err(TraceError::Lookup(what))),
            Event::Touch { .. } | Event::End { .. } | Event::Code { .. } => Ok(()),
        }
    }

    fn put_start(&mut self, token: Token, at: Moment, name: &[u8]) {
        self.out.push(format::KIND_START);
        self.put_time(at);
        self.out.extend_from_slice(&token.0.to_le_bytes());
        varint::put(&mut self.out, name.len() as u64);
        self.out.extend_from_slice(name);
        self.open.insert(token, Slot { number: self.slots_used, last_page: PageId::default() });
        self.slots_used += 1;
    }

    fn put_touch(&mut self, token: Token, at: Moment, page: PageId, how: u8) {
        let same_token = self.last_token == Some(token);
        let slot = self.open.get_mut(&token).expect("admitted touches have a slot");
        let last = std::mem::replace(&mut slot.last_page, page);
        let number = slot.number;
        let same_inode = last.inode == page.inode;
        if !same_inode || page.inode == InodeId(0) {
            self.files.insert(page.inode);
        }
        let next_index = page.index == last.index.wrapping_add(1);
        let mut first = format::KIND_TOUCH | how << format::HOW_SHIFT;
        first |= if same_token { format::FLAG_SAME_TOKEN } else { 0 };
        first |= if same_inode { format::FLAG_SAME_INODE } else { 0 };
        first |= if next_index { format::FLAG_NEXT_INDEX } else { 0 };
        self.out.push(first);
        self.put_time(at);
        if !same_token {
            varint::put(&mut self.out, number);
        }
        if !same_inode {
            let difference = i64::from(page.inode.0) - i64::from(last.inode.0);
            varint::put(&mut self.out, varint::zigzag(difference));
        }
        if !next_index {
            let difference = i64::from(page.index) - i64::from(last.index);
            varint::put(&mut self.out, varint::zigzag(difference));
        }
    }

    fn put_file(&mut self, inode: InodeId, size: u64, path: &[u8]) {
        self.out.push(format::KIND_START | format::FLAG_FILE);
        varint::put(&mut self.out, u64::from(inode.0));
        varint::put(&mut self.out, size);
        varint::put(&mut self.out, path.len() as u64);
        self.out.extend_from_slice(path);
        self.files.insert(inode);
    }

    fn put_lookup(&mut self, token: Token, at: Moment, found: Found, path: &[u8]) {
        self.put_slot(format::KIND_START | format::FLAG_LOOKUP, token, at);
        self.out.push(found.to_u8());
        varint::put(&mut self.out, path.len() as u64);
        self.out.extend_from_slice(path);
    }

    fn put_code(&mut self, token: Token, at: Moment, inode: InodeId, offset: u64) {
        self.put_slot(format::KIND_START | format::FLAG_CODE, token, at);
        varint::put(&mut self.out, u64::from(inode.0));
        varint::put(&mut self.out, offset);
        self.files.insert(inode);
    }

    /// The first byte, the time and the slot of a record whose token runs on.
    fn put_slot(&mut self, first: u8, token: Token, at: Moment) {
        let same_token = self.last_token == Some(token);
        let number = self.open[&token].number;
        self.out.push(first | if same_token { format::FLAG_SAME_TOKEN } else { 0 });
        self.put_time(at);
        if !same_token {
            varint::put(&mut self.out, number);
        }
    }

    fn put_end(&mut self, token: Token, at: Moment) {
        self.put_slot(format::KIND_END, token, at);
        self.open.remove(&token);
    }

    fn put_time(&mut self, at: Moment) {
        let difference = at.0.wrapping_sub(self.last_at.0) as i64;
        varint::put(&mut self.out, varint::zigzag(difference));
        self.last_at = at;
    }

    fn put_seal(&mut self, flag: u8) {
        self.out.push(format::KIND_SEAL | flag);
        varint::put(&mut self.out, u64::from(self.section_records));
        self.hash_new_bytes();
        let hash = self.hasher.finalize();
        self.out.extend_from_slice(&hash.as_bytes()[..format::SEAL_HASH_BYTES]);
        self.section_records = 0;
    }

    fn hash_new_bytes(&mut self) {
        self.hasher.update(&self.out[self.unhashed..]);
        self.unhashed = self.out.len();
    }
}
