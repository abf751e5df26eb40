//! Reading a trace: strict about every byte, lenient only about where it ends.

use std::collections::HashSet;
use std::fmt;

use units::{ImageId, InodeId, Moment, PageId, Token};
use zerocopy::FromBytes;

use crate::format::{self, FileHeader};
use crate::varint::{self, VarintError};
use crate::{Event, Found, Header, How, Source, TraceError, path_fault};

/// What a reader accepts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Events in a file. An event takes at least 2 bytes in the file and 48 in memory.
    pub events_max: usize,
    /// File records among them. Each takes its path and about 64 bytes more in memory.
    pub files_max: usize,
}

impl Default for Limits {
    /// 16 million events, 800 MB in memory: a day of a busy device. A million files: ten root file
    /// systems.
    fn default() -> Limits {
        Limits { events_max: 16 << 20, files_max: 1 << 20 }
    }
}

/// How a trace ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// With its final seal: every byte is verified.
    Whole,
    /// Without it: the recorder died, or the file was cut.
    Cut {
        /// Where the last whole record ends.
        offset: usize,
        /// Bytes after that offset, of a record that is not whole; they are ignored.
        ignored: usize,
        /// Events at the end that no hash covers. They are well-formed but not verified.
        unverified: usize,
    },
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tail::Whole => f.write_str("whole"),
            Tail::Cut { offset, ignored, unverified } => write!(
                f,
                "cut at offset {offset}: the final seal is missing, {ignored} bytes of an unfinished record are ignored, \
                 the last {unverified} events are not covered by a hash"
            ),
        }
    }
}

/// A trace in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// What all events have in common.
    pub header: Header,
    /// The events, in the order in which they were recorded.
    pub events: Vec<Event>,
    /// How the file ended; tell the user unless it is [`Tail::Whole`].
    pub tail: Tail,
}

/// Reads a whole trace. A file that merely ends early is no error: see [`Tail`].
///
/// # Errors
/// Not a trace, another version, a record that makes no sense, a hash that does not match, bytes
/// after the final seal, or more than `limits` allow.
pub fn read(bytes: &[u8], limits: &Limits) -> Result<Trace, TraceError> {
    let (version, header) = read_header(bytes)?;
    let mut reader = Reader::new(bytes, version, limits.files_max);
    let mut events = Vec::new();
    loop {
        let offset = reader.at;
        match reader.record() {
            Ok(Record::Event(event)) => {
                if events.len() == limits.events_max {
                    return Err(TraceError::Limit { what: "events", offset, limit: limits.events_max });
                }
                events.push(event);
            }
            Ok(Record::Seal { last: false }) => {}
            Ok(Record::Seal { last: true }) => {
                if reader.at != bytes.len() {
                    return Err(TraceError::Trailing { offset: reader.at, bytes: bytes.len() - reader.at });
                }
                return Ok(Trace { header, events, tail: Tail::Whole });
            }
            Err(Stop::Short) => {
                let tail = Tail::Cut { offset, ignored: bytes.len() - offset, unverified: reader.section_records };
                return Ok(Trace { header, events, tail });
            }
            Err(Stop::Bad(error)) => return Err(error),
        }
    }
}

fn read_header(bytes: &[u8]) -> Result<(u16, Header), TraceError> {
    let (header, _) = FileHeader::read_from_prefix(bytes)
        .map_err(|_| TraceError::Short { bytes: bytes.len(), expected: size_of::<FileHeader>() })?;
    if header.magic != format::MAGIC {
        return Err(TraceError::Magic { found: header.magic, expected: format::MAGIC });
    }
    let version = header.version.get();
    if !(format::VERSION_MIN..=format::VERSION).contains(&version) {
        return Err(TraceError::Version { found: version, expected: format::VERSION });
    }
    for (field, found) in [("reserved", u64::from(header.reserved)), ("reserved_too", header.reserved_too.get().into())]
    {
        if found != 0 {
            return Err(TraceError::HeaderField { field, found });
        }
    }
    let source = Source::from_u8(header.source)
        .ok_or(TraceError::HeaderField { field: "source", found: header.source.into() })?;
    Ok((version, Header { image: ImageId(header.image), source }))
}

enum Record {
    Event(Event),
    Seal { last: bool },
}

/// Why a record could not be read.
enum Stop {
    /// The bytes end inside it.
    Short,
    Bad(TraceError),
}

/// A token's state by slot number. Slots are numbered in the order of the starts and never reused.
struct Slot {
    token: Token,
    last_page: PageId,
    open: bool,
}

struct Reader<'a> {
    bytes: &'a [u8],
    /// Start of the next record.
    at: usize,
    /// Bytes before this offset are in the hash.
    hashed: usize,
    hasher: blake3::Hasher,
    slots: Vec<Slot>,
    open: HashSet<Token>,
    /// Files named or touched so far.
    files: HashSet<InodeId>,
    version: u16,
    /// File records that may still come, and how many there may be in all.
    files_left: usize,
    files_max: usize,
    last_at: Moment,
    last_slot: Option<usize>,
    section_records: usize,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8], version: u16, files_max: usize) -> Reader<'a> {
        Reader {
            bytes,
            at: size_of::<FileHeader>(),
            hashed: 0,
            hasher: blake3::Hasher::new(),
            slots: Vec::new(),
            open: HashSet::new(),
            files: HashSet::new(),
            version,
            files_left: files_max,
            files_max,
            last_at: Moment(0),
            last_slot: None,
            section_records: 0,
        }
    }

    /// Reads one record and moves behind it. On `Short` nothing has changed.
    fn record(&mut self) -> Result<Record, Stop> {
        let mut cursor = Cursor { bytes: self.bytes, start: self.at, at: self.at };
        let first = cursor.byte()?;
        let record = match first & format::KIND_MASK {
            format::KIND_SEAL => self.read_seal(&mut cursor, first)?,
            format::KIND_START => match first & format::START_MASK {
                format::FLAG_FILE => self.read_file(&mut cursor, first)?,
                format::FLAG_LOOKUP => self.read_lookup(&mut cursor, first)?,
                format::FLAG_CODE => self.read_code(&mut cursor, first)?,
                _ => self.read_start(&mut cursor, first)?,
            },
            format::KIND_TOUCH => self.read_touch(&mut cursor, first)?,
            _ => self.read_end(&mut cursor, first)?,
        };
        self.at = cursor.at;
        match record {
            Record::Event(_) => self.section_records += 1,
            Record::Seal { .. } => self.section_records = 0,
        }
        Ok(record)
    }

    fn read_seal(&mut self, cursor: &mut Cursor, first: u8) -> Result<Record, Stop> {
        if first & !(format::KIND_MASK | format::FLAG_FINAL) != 0 {
            return Err(cursor.bad("a seal with unknown flags"));
        }
        let records = cursor.number()?;
        let hashed_to = cursor.at;
        let found: [u8; format::SEAL_HASH_BYTES] = cursor.array()?;
        self.hasher.update(&self.bytes[self.hashed..hashed_to]);
        self.hashed = hashed_to;
        let hash = self.hasher.finalize();
        let expected: [u8; format::SEAL_HASH_BYTES] =
            hash.as_bytes()[..format::SEAL_HASH_BYTES].try_into().expect("a hash is longer than its seal");
        if found != expected {
            return Err(Stop::Bad(TraceError::Seal { offset: cursor.start, found, expected }));
        }
        let last = first & format::FLAG_FINAL != 0;
        if records != self.section_records as u64 || (records == 0 && !last) {
            return Err(cursor.bad("a seal that counts other than the records before it"));
        }
        Ok(Record::Seal { last })
    }

    fn read_start(&mut self, cursor: &mut Cursor, first: u8) -> Result<Record, Stop> {
        if first != format::KIND_START {
            return Err(cursor.bad("a start with unknown flags"));
        }
        let at = self.time(cursor)?;
        let token = Token(u128::from_le_bytes(cursor.array()?));
        let name_bytes = cursor.number()?;
        if name_bytes > format::NAME_BYTES_MAX as u64 {
            return Err(cursor.bad("a name over 4096 bytes"));
        }
        let name = cursor.slice(name_bytes as usize)?.to_vec();
        if self.open.len() >= format::TOKENS_OPEN_MAX {
            let limit = format::TOKENS_OPEN_MAX;
            return Err(Stop::Bad(TraceError::Limit { what: "running tokens", offset: cursor.start, limit }));
        }
        if !self.open.insert(token) {
            return Err(cursor.bad("a start of a token that is running"));
        }
        self.last_at = at;
        self.last_slot = Some(self.slots.len());
        self.slots.push(Slot { token, last_page: PageId::default(), open: true });
        Ok(Record::Event(Event::Start { token, at, name }))
    }

    fn read_file(&mut self, cursor: &mut Cursor, first: u8) -> Result<Record, Stop> {
        if first != format::KIND_START | format::FLAG_FILE {
            return Err(cursor.bad("a file with unknown flags"));
        }
        if self.version < format::VERSION_WITH_FILES {
            return Err(cursor.bad("a file in a trace of version 1"));
        }
        let inode = u32::try_from(cursor.number()?).map_err(|_| cursor.bad("an inode over 32 bits"))?;
        let size = cursor.number()?;
        let path = cursor.path()?;
        let Some(left) = self.files_left.checked_sub(1) else {
            return Err(Stop::Bad(TraceError::Limit { what: "files", offset: cursor.start, limit: self.files_max }));
        };
        if !self.files.insert(InodeId(inode)) {
            return Err(cursor.bad("a file that has been named or touched before"));
        }
        self.files_left = left;
        Ok(Record::Event(Event::File { inode: InodeId(inode), size, path }))
    }

    fn read_lookup(&mut self, cursor: &mut Cursor, first: u8) -> Result<Record, Stop> {
        let (slot, at) = self.running(cursor, first)?;
        let found = Found::from_u8(cursor.byte()?).ok_or_else(|| cursor.bad("a look-up that found no known thing"))?;
        let path = cursor.path()?;
        let token = self.went_on(slot, at);
        Ok(Record::Event(Event::Lookup { token, at, found, path }))
    }

    fn read_code(&mut self, cursor: &mut Cursor, first: u8) -> Result<Record, Stop> {
        let (slot, at) = self.running(cursor, first)?;
        let inode = u32::try_from(cursor.number()?).map_err(|_| cursor.bad("an inode over 32 bits"))?;
        let inode = InodeId(inode);
        let offset = cursor.number()?;
        self.files.insert(inode);
        let token = self.went_on(slot, at);
        Ok(Record::Event(Event::Code { token, at, inode, offset }))
    }

    /// Time and slot of a look-up or of code.
    fn running(&mut self, cursor: &mut Cursor, first: u8) -> Result<(usize, Moment), Stop> {
        if first & !(format::KIND_MASK | format::START_MASK | format::FLAG_SAME_TOKEN) != 0 {
            return Err(cursor.bad("a look-up or code with unknown flags"));
        }
        if self.version < format::VERSION_WITH_CODE {
            return Err(cursor.bad("a look-up or code in a trace before version 3"));
        }
        let at = self.time(cursor)?;
        Ok((self.slot(cursor, first)?, at))
    }

    /// Remembers a whole record of a token that runs on; its token.
    fn went_on(&mut self, slot: usize, at: Moment) -> Token {
        self.last_at = at;
        self.last_slot = Some(slot);
        self.slots[slot].token
    }

    fn read_touch(&mut self, cursor: &mut Cursor, first: u8) -> Result<Record, Stop> {
        let how = How::from_u8((first & format::HOW_MASK) >> format::HOW_SHIFT)
            .ok_or_else(|| cursor.bad("a touch got in no known way"))?;
        if first & 0x80 != 0 {
            return Err(cursor.bad("a touch with unknown flags"));
        }
        let at = self.time(cursor)?;
        let slot = self.slot(cursor, first)?;
        let last = self.slots[slot].last_page;
        let inode = match first & format::FLAG_SAME_INODE {
            0 => cursor.moved(last.inode.0)?,
            _ => last.inode.0,
        };
        let index = match first & format::FLAG_NEXT_INDEX {
            0 => cursor.moved(last.index)?,
            _ => last.index.wrapping_add(1),
        };
        if first & format::FLAG_SAME_INODE == 0 && inode == last.inode.0
            || first & format::FLAG_NEXT_INDEX == 0 && index == last.index.wrapping_add(1)
        {
            return Err(cursor.bad("a touch that is not in its shortest form"));
        }
        let page = PageId::new(InodeId(inode), index);
        if page.inode != last.inode || inode == 0 {
            self.files.insert(page.inode);
        }
        let token = self.went_on(slot, at);
        self.slots[slot].last_page = page;
        Ok(Record::Event(Event::Touch { token, at, page, how }))
    }

    fn read_end(&mut self, cursor: &mut Cursor, first: u8) -> Result<Record, Stop> {
        if first & !(format::KIND_MASK | format::FLAG_SAME_TOKEN) != 0 {
            return Err(cursor.bad("an end with unknown flags"));
        }
        let at = self.time(cursor)?;
        let slot = self.slot(cursor, first)?;
        let token = self.went_on(slot, at);
        self.slots[slot].open = false;
        self.open.remove(&token);
        Ok(Record::Event(Event::End { token, at }))
    }

    fn time(&self, cursor: &mut Cursor) -> Result<Moment, Stop> {
        let difference = varint::unzigzag(cursor.number()?);
        Ok(Moment(self.last_at.0.wrapping_add(difference as u64)))
    }

    fn slot(&self, cursor: &mut Cursor, first: u8) -> Result<usize, Stop> {
        let slot = if first & format::FLAG_SAME_TOKEN != 0 {
            self.last_slot.ok_or_else(|| cursor.bad("the same token as before, but there is none before"))?
        } else {
            let number = cursor.number()?;
            let slot = usize::try_from(number).unwrap_or(usize::MAX);
            if self.last_slot == Some(slot) {
                return Err(cursor.bad("a token that is not in its shortest form"));
            }
            slot
        };
        match self.slots.get(slot) {
            Some(found) if found.open => Ok(slot),
            _ => Err(cursor.bad("a token that is not running")),
        }
    }
}

/// A place inside one record.
struct Cursor<'a> {
    bytes: &'a [u8],
    start: usize,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn byte(&mut self) -> Result<u8, Stop> {
        let byte = *self.bytes.get(self.at).ok_or(Stop::Short)?;
        self.at += 1;
        Ok(byte)
    }

    fn number(&mut self) -> Result<u64, Stop> {
        varint::get(self.bytes, &mut self.at).map_err(|error| match error {
            VarintError::Short => Stop::Short,
            VarintError::Malformed => self.bad("a number that is not in its shortest form or has over 64 bits"),
        })
    }

    fn slice(&mut self, bytes: usize) -> Result<&'a [u8], Stop> {
        let end = self.at.checked_add(bytes).ok_or(Stop::Short)?;
        let slice = self.bytes.get(self.at..end).ok_or(Stop::Short)?;
        self.at = end;
        Ok(slice)
    }

    fn path(&mut self) -> Result<Vec<u8>, Stop> {
        let path_bytes = self.number()?;
        if path_bytes > format::PATH_BYTES_MAX as u64 {
            return Err(self.bad("a path over 4096 bytes"));
        }
        let path = self.slice(path_bytes as usize)?.to_vec();
        match path_fault(&path) {
            Some(what) => Err(self.bad(what)),
            None => Ok(path),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        Ok(self.slice(N)?.try_into().expect("the slice has N bytes"))
    }

    /// `from` moved by the signed difference that follows.
    fn moved(&mut self, from: u32) -> Result<u32, Stop> {
        let difference = varint::unzigzag(self.number()?);
        i64::from(from)
            .checked_add(difference)
            .and_then(|value| u32::try_from(value).ok())
            .ok_or_else(|| self.bad("a page number outside 32 bits"))
    }

    fn bad(&self, what: &'static str) -> Stop {
        Stop::Bad(TraceError::Record { offset: self.start, what })
    }
}
