//! How the bytes of a cache lie on the disk: as they are, or sealed with a key.
//!
//! With a key nothing of a log can be read but when it was made and how long it is: not even where
//! its records begin, since their sizes tell images apart as well as hashes do. What is sealed is
//! bound to its log and its place there, and so is nothing anywhere else.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::Path;

use encryption::{OVERHEAD_BYTES, PurposeKey, StorageKey};

use crate::folder::{RATE_PERIOD, Unreadable, busy};
use crate::format::{
    self, HEAD_BYTES, HEADER_BYTES, Header, Key, OWNER_BYTES, Owner, PinnedName, SEALED_HEADER_BYTES,
    SEALED_NAME_BYTES, SLOT_BYTES, SealedHeader, SealedSlot, TRAILER_BYTES,
};
use crate::store::Cache;
use crate::{disk, names};

/// What the key of a device is derived for.
const PURPOSE: &str = "device cache";

/// The sizes of what a log consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As in memory.
    Plain,
    /// Each part is longer by what sealing adds.
    Sealed,
}

/// A part of a log that is sealed on its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    Owner { is_pinned: bool },
    Head,
    Label(&'a [u8; HEAD_BYTES]),
    Payload(&'a [u8; HEAD_BYTES]),
    Index,
    Trailer,
}

/// A log, and what its bytes are sealed with.
#[derive(Debug)]
pub(crate) struct LogFile {
    file: File,
    number: u64,
    key: Option<PurposeKey>,
}

/// What a log is for whoever has this key, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It can be read.
    Readable(Header),
    /// It has no key, and there is one: nothing is to lie there like this.
    Plain { is_pinned: bool },
    /// It has another key.
    Foreign { is_pinned: bool },
    /// It is damaged, or no log.
    Nothing,
}

impl Form {
    /// The form of logs with this key.
    pub fn of(key: Option<&PurposeKey>) -> Form {
        if key.is_some() { Form::Sealed } else { Form::Plain }
    }

    /// What a part takes.
    pub fn stored(self, plain: usize) -> usize {
        match self {
            Form::Plain => plain,
            Form::Sealed => plain + OVERHEAD_BYTES,
        }
    }

    /// The header.
    pub fn header(self) -> u64 {
        match self {
            Form::Plain => HEADER_BYTES as u64,
            Form::Sealed => SEALED_HEADER_BYTES as u64,
        }
    }

    /// A label: of most records it is empty, and takes nothing.
    pub fn label(self, label: usize) -> usize {
        if label == 0 { 0 } else { self.stored(label) }
    }

    /// What is in front of a payload.
    pub fn before_payload(self, label: usize) -> usize {
        self.stored(HEAD_BYTES) + self.label(label)
    }

    /// A record.
    pub fn record(self, label: usize, payload: usize) -> u64 {
        (self.before_payload(label) + self.stored(payload)) as u64
    }

    /// An index of so many bytes, and the trailer.
    pub fn end(self, index: u64) -> u64 {
        index + self.stored(0) as u64 + self.stored(TRAILER_BYTES) as u64
    }
}

impl Part<'_> {
    /// What is sealed here is this part, of this log, at this place, of this record.
    fn identity(self, number: u64, offset: u64) -> Vec<u8> {
        let (part, record): (u8, &[u8]) = match self {
            Part::Owner { is_pinned: false } => (1, &[]),
            Part::Owner { is_pinned: true } => (2, &[]),
            Part::Head => (3, &[]),
            Part::Label(head) => (4, head),
            Part::Payload(head) => (5, head),
            Part::Index => (6, &[]),
            Part::Trailer => (7, &[]),
        };
        [&[part][..], &number.to_le_bytes(), &offset.to_le_bytes(), record].concat()
    }
}

impl Cache {
    /// [`Cache::open`], encrypted with a key. What has another one, or none, is not found, and goes
    /// when its room is needed, or by [`Cache::discard_unreadable`].
    ///
    /// # Errors
    /// As [`Cache::open`].
    pub fn open_sealed(folder: &Path, bytes_max: Option<u64>, key: Option<&StorageKey>) -> io::Result<Cache> {
        Cache::open_with(folder, bytes_max, key, RATE_PERIOD)
    }

    /// What there was when this cache was opened that its key does not open.
    pub fn unreadable(&self) -> Unreadable {
        self.unreadable
    }

    /// Removes that, unless somebody is writing it, but for what is pinned with another key. What
    /// has no key goes even if it is pinned, so that nobody reads it.
    ///
    /// # Errors
    /// What the disk says; another process keeps the lock of the folder.
    pub fn discard_unreadable(&self) -> io::Result<()> {
        names::remove_plain(&self.folder)?;
        if self.unreadable.bytes > 0 {
            let lock = self.folder.lock()?.ok_or_else(busy)?;
            self.folder.remove_unreadable(&lock)?;
        }
        Ok(())
    }
}

/// The key of a cache.
pub(crate) fn purpose(key: &StorageKey) -> PurposeKey {
    key.purpose(PURPOSE)
}

impl Deref for LogFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl LogFile {
    /// The log with this number.
    pub fn new(file: File, number: u64, key: Option<PurposeKey>) -> LogFile {
        LogFile { file, number, key }
    }

    /// The sizes of its parts.
    pub fn form(&self) -> Form {
        Form::of(self.key.as_ref())
    }

    /// Adds a part to bytes that are to be written; it will lie at `offset`.
    pub fn add(&self, out: &mut Vec<u8>, part: Part<'_>, offset: u64, plain: &[u8]) {
        match &self.key {
            Some(key) => key.seal_to(out, &part.identity(self.number, offset), plain),
            None => out.extend_from_slice(plain),
        }
    }

    /// The plain bytes of a part that lies at `offset`. Without a key they are not checked yet.
    pub fn plain<'a>(&self, part: Part<'_>, offset: u64, stored: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        match &self.key {
            Some(key) => key.open(&part.identity(self.number, offset), stored).map(Cow::Owned),
            None => Some(Cow::Borrowed(stored)),
        }
    }

    /// Reads a part of this size.
    pub fn read(&self, part: Part<'_>, offset: u64, bytes: usize) -> Option<Vec<u8>> {
        let mut stored = vec![0; self.form().stored(bytes)];
        self.file.read_exact_at(&mut stored, offset).ok()?;
        match &self.key {
            Some(key) => key.open_owned(&part.identity(self.number, offset), stored),
            None => Some(stored),
        }
    }

    /// Whether sealing has said already that bytes are what was written.
    pub fn is_sealed(&self) -> bool {
        self.key.is_some()
    }

    /// Writes the header.
    pub fn begin(&self, header: &Header) -> io::Result<()> {
        let Some(key) = &self.key else { return disk::write(&self.file, &format::header(header), 0) };
        let part = Part::Owner { is_pinned: header.is_pinned };
        let mut owner = [0; OWNER_BYTES];
        owner.copy_from_slice(&key.seal(&part.identity(self.number, 0), &header.owner.0));
        let sealed = SealedHeader { is_pinned: header.is_pinned, key: key.id(), owner };
        disk::write(&self.file, &format::sealed_header(&sealed), 0)
    }

    /// What its header says.
    pub fn standing(&self) -> Standing {
        let mut bytes = [0; SEALED_HEADER_BYTES];
        let Ok(()) = self.file.read_exact_at(&mut bytes[..HEADER_BYTES], 0) else { return Standing::Nothing };
        let plain = bytes.first_chunk().and_then(format::parse_header);
        if let Some(header) = plain {
            return if self.key.is_some() {
                Standing::Plain { is_pinned: header.is_pinned }
            } else {
                Standing::Readable(header)
            };
        }
        let rest = self.file.read_exact_at(&mut bytes[HEADER_BYTES..], HEADER_BYTES as u64);
        let Some(SealedHeader { is_pinned, key: id, owner }) =
            rest.ok().and_then(|()| format::parse_sealed_header(&bytes))
        else {
            return Standing::Nothing;
        };
        let Some(key) = self.key.as_ref().filter(|key| key.id() == id) else { return Standing::Foreign { is_pinned } };
        // One that was copied from another log does not open.
        let owner = key.open(&Part::Owner { is_pinned }.identity(self.number, 0), &owner);
        match owner.and_then(|owner| owner.try_into().ok()) {
            Some(owner) => Standing::Readable(Header { owner: Owner(owner), is_pinned }),
            None => Standing::Nothing,
        }
    }

    /// What it is for, if it can be read.
    pub fn header(&self) -> Option<Header> {
        match self.standing() {
            Standing::Readable(header) => Some(header),
            _ => None,
        }
    }
}

/// What the file of a name is called: its key, or with a key of the device something that says as
/// little as the rest.
pub(crate) fn name_id(sealing: Option<&PurposeKey>, key: &Key) -> [u8; 32] {
    sealing.map_or(key.0, |sealing| sealing.hash(&key.0))
}

/// The bytes of a slot in the file with this id.
pub(crate) fn slot(sealing: Option<&PurposeKey>, key: &Key, generation: u64, name: &PinnedName) -> [u8; SLOT_BYTES] {
    let plain = format::slot(generation, name);
    let Some(sealing) = sealing else { return plain };
    let sealed = sealing.seal(&slot_identity(&sealing.hash(&key.0)), &format::name_bytes(key, &plain));
    let mut bytes = [0; SEALED_NAME_BYTES];
    bytes.copy_from_slice(&sealed);
    format::sealed_slot(&SealedSlot { key: sealing.id(), bytes })
}

/// The key, the generation and the contents of a slot in the file with this id, if it is whole and
/// has this key.
pub(crate) fn parse_slot(
    sealing: Option<&PurposeKey>,
    id: &[u8; 32],
    bytes: &[u8; SLOT_BYTES],
) -> Option<(Key, u64, PinnedName)> {
    let Some(sealing) = sealing else {
        return format::parse_slot(bytes).map(|(generation, name)| (Key(*id), generation, name));
    };
    let sealed = format::parse_sealed_slot(bytes).filter(|slot| slot.key == sealing.id())?;
    let (key, plain) = format::parse_name_bytes(&sealing.open(&slot_identity(id), &sealed.bytes)?)?;
    format::parse_slot(&plain).map(|(generation, name)| (key, generation, name))
}

fn slot_identity(id: &[u8; 32]) -> Vec<u8> {
    [&[8][..], id].concat()
}
