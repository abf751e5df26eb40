//! One log: a header, records, and when nobody is writing it an index of them.

use std::io;
use std::os::unix::fs::FileExt;

use crate::disk;
use crate::format::{
    self, ENTRY_BYTES, HEAD_BYTES, Head, Header, LABEL_BYTES_MAX, PAYLOAD_BYTES_MAX, TRAILER_BYTES, Trailer,
};
use crate::sealed::{Form, LogFile, Part};

/// Records of one log: a bound on the memory for an index that is read. The smallest record takes
/// about 100 bytes, logs a few MiB.
const RECORDS_MAX: usize = 1 << 16;

/// A record of a log.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub head: Head,
    pub label: Box<[u8]>,
    /// Where the head lies.
    pub offset: u64,
}

/// The end of a log that this process writes, and what it takes to close it.
#[derive(Debug)]
pub(crate) struct End {
    /// Where the next record goes.
    pub at: u64,
    /// Bytes of the index that there will be.
    pub index_bytes: u64,
    /// Bytes that are reserved for this log.
    pub room: u64,
    form: Form,
}

impl Entry {
    fn bytes(&self, form: Form) -> u64 {
        form.record(self.label.len(), self.head.payload_bytes as usize)
    }

    /// Bytes of the index for this entry.
    fn index_bytes(&self) -> u64 {
        (ENTRY_BYTES + self.label.len()) as u64
    }

    /// The head and the label, as they lie in a log.
    fn stored(&self, file: &LogFile) -> Vec<u8> {
        let head = format::head(&self.head, &self.label);
        let mut out = Vec::with_capacity(file.form().before_payload(self.label.len()));
        file.add(&mut out, Part::Head, self.offset, &head);
        if !self.label.is_empty() {
            file.add(&mut out, Part::Label(&head), self.offset, &self.label);
        }
        out
    }

    /// Writes the head again, which says other things of the payload.
    pub fn write_head(&self, file: &LogFile) -> io::Result<()> {
        disk::write(file, &self.stored(file), self.offset)
    }

    /// The payload, if it is what was written.
    pub fn read(&self, file: &LogFile) -> Option<Vec<u8>> {
        let head = format::head(&self.head, &self.label);
        let at = self.offset + file.form().before_payload(self.label.len()) as u64;
        let payload = file.read(Part::Payload(&head), at, self.head.payload_bytes as usize)?;
        // What is sealed is bound to the hash that the head has.
        (file.is_sealed() || format::hash(&payload) == self.head.hash).then_some(payload)
    }
}

impl End {
    /// The end of a log without records.
    pub fn of_new(form: Form) -> End {
        End { at: form.header(), index_bytes: 0, room: 0, form }
    }

    /// The end of a log with these records and this size.
    pub fn behind(form: Form, entries: &[Entry], file_bytes: u64) -> End {
        let at = entries.last().map_or(form.header(), |last| last.offset + last.bytes(form));
        End { at, index_bytes: entries.iter().map(Entry::index_bytes).sum(), room: file_bytes, form }
    }

    /// Whether the log takes no more records.
    pub fn is_full(&self) -> bool {
        // The smallest ones take so much of the index.
        self.index_bytes / ENTRY_BYTES as u64 >= RECORDS_MAX as u64
    }

    /// Whether the log has no record yet.
    pub fn is_new(&self) -> bool {
        self.at == self.form.header()
    }

    /// Room that the log needs when a record with so much label and payload is added.
    pub fn needs(&self, label: usize, payload: usize) -> u64 {
        let index = self.index_bytes + (ENTRY_BYTES + label) as u64;
        self.at + self.form.record(label, payload) + self.form.end(index)
    }

    /// Writes a record. There must be room.
    pub fn append(&mut self, file: &LogFile, head: Head, label: &[u8], payload: &[u8]) -> io::Result<Entry> {
        let entry = Entry { head, label: label.into(), offset: self.at };
        let mut bytes = entry.stored(file);
        bytes.reserve_exact(self.form.stored(payload.len()));
        let at = self.at + bytes.len() as u64;
        file.add(&mut bytes, Part::Payload(&format::head(&head, label)), at, payload);
        disk::write(file, &bytes, self.at)?;
        self.at += entry.bytes(self.form);
        self.index_bytes += entry.index_bytes();
        Ok(entry)
    }

    /// Writes the index, and gives back the room that is not used. Returns the bytes written.
    pub fn close(&mut self, file: &LogFile, entries: &[Entry]) -> io::Result<u64> {
        let mut index = Vec::with_capacity(self.index_bytes as usize);
        for entry in entries {
            index.extend_from_slice(&entry.offset.to_le_bytes());
            index.extend_from_slice(&format::head(&entry.head, &entry.label));
            index.extend_from_slice(&entry.label);
        }
        let trailer = Trailer {
            index_offset: self.at,
            index_bytes: index.len() as u32,
            count: entries.len() as u32,
            hash: format::hash(&index),
        };
        let mut bytes = Vec::with_capacity(self.form.end(index.len() as u64) as usize);
        file.add(&mut bytes, Part::Index, self.at, &index);
        let at = self.at + bytes.len() as u64;
        file.add(&mut bytes, Part::Trailer, at, &format::trailer(&trailer));
        disk::write(file, &bytes, self.at)?;
        file.set_len(self.at + bytes.len() as u64)?;
        Ok(bytes.len() as u64)
    }
}

/// What a log holds.
pub(crate) struct Contents {
    pub header: Header,
    pub entries: Vec<Entry>,
    /// It has an index, so nobody was writing it.
    pub is_closed: bool,
}

/// Reads what a log holds; `None` if the file is none, or has another key.
pub(crate) fn read(file: &LogFile) -> io::Result<Option<Contents>> {
    let file_bytes = file.metadata()?.len();
    let Some(header) = file.header() else { return Ok(None) };
    let index = read_index(file, file_bytes);
    let is_closed = index.is_some();
    Ok(Some(Contents { header, entries: index.unwrap_or_else(|| scan(file, file_bytes)), is_closed }))
}

/// Number of records, as the trailer of a log says; 0 without one.
pub(crate) fn count(file: &LogFile, file_bytes: u64) -> u32 {
    read_trailer(file, file_bytes).map_or(0, |trailer| trailer.count)
}

fn read_trailer(file: &LogFile, file_bytes: u64) -> Option<Trailer> {
    let form = file.form();
    let at = file_bytes.checked_sub(form.stored(TRAILER_BYTES) as u64)?;
    let bytes = file.read(Part::Trailer, at, TRAILER_BYTES)?;
    let trailer = format::parse_trailer(bytes.first_chunk()?)?;
    let end = trailer.index_offset.checked_add(form.stored(trailer.index_bytes as usize) as u64)?;
    (end == at && trailer.count as usize <= RECORDS_MAX).then_some(trailer)
}

fn read_index(file: &LogFile, file_bytes: u64) -> Option<Vec<Entry>> {
    let (form, trailer) = (file.form(), read_trailer(file, file_bytes)?);
    let bytes = file.read(Part::Index, trailer.index_offset, trailer.index_bytes as usize)?;
    if format::hash(&bytes) != trailer.hash {
        return None;
    }
    let mut entries = Vec::with_capacity(trailer.count as usize);
    let (mut rest, mut end) = (&bytes[..], form.header());
    while let Some((offset, after)) = rest.split_first_chunk::<8>() {
        let (head_bytes, after) = after.split_first_chunk::<HEAD_BYTES>()?;
        let head = format::parse_head(head_bytes)?;
        let (label, after) = after.split_at_checked(head.label_bytes.into())?;
        let entry = Entry { head, label: label.into(), offset: u64::from_le_bytes(*offset) };
        // Records lie one behind the other, so a writer can go on behind the last one.
        if entry.offset != end || format::head(&head, label) != *head_bytes {
            return None;
        }
        end = entry.offset + entry.bytes(form);
        entries.push(entry);
        rest = after;
    }
    (rest.is_empty() && end == trailer.index_offset).then_some(entries)
}

/// Finds the records of a log that was not closed: all before the first one that is not whole.
fn scan(file: &LogFile, file_bytes: u64) -> Vec<Entry> {
    let form = file.form();
    let mut entries: Vec<Entry> = Vec::new();
    let mut at = form.header();
    let mut bytes = vec![0; form.before_payload(LABEL_BYTES_MAX)];
    while entries.len() < RECORDS_MAX && at < file_bytes {
        let most = (file_bytes - at).min(bytes.len() as u64) as usize;
        if file.read_exact_at(&mut bytes[..most], at).is_err() {
            break;
        }
        let Some(entry) = parse(file, at, &bytes[..most]) else { break };
        if at + entry.bytes(form) > file_bytes {
            break;
        }
        at += entry.bytes(form);
        entries.push(entry);
    }
    entries
}

/// A head and its label that lie at `offset`, if they are whole.
fn parse(file: &LogFile, offset: u64, bytes: &[u8]) -> Option<Entry> {
    let (head_stored, rest) = bytes.split_at_checked(file.form().stored(HEAD_BYTES))?;
    let head_plain = file.plain(Part::Head, offset, head_stored)?;
    let head_bytes: &[u8; HEAD_BYTES] = head_plain.first_chunk()?;
    let head = format::parse_head(head_bytes)?;
    let label_stored = rest.get(..file.form().label(head.label_bytes.into()))?;
    let label: Box<[u8]> = match label_stored {
        [] => Box::default(),
        stored => file.plain(Part::Label(head_bytes), offset, stored)?.as_ref().into(),
    };
    (format::head(&head, &label) == *head_bytes).then_some(Entry { head, label, offset })
}

/// Bytes that a record takes, with its entry of the index.
pub(crate) fn record_bytes(form: Form, label: usize, payload: usize) -> u64 {
    form.record(label, payload) + (ENTRY_BYTES + label) as u64
}

/// Whether a record of this size can be stored at all.
pub(crate) fn takes(label: &[u8], payload: &[u8]) -> bool {
    label.len() <= LABEL_BYTES_MAX && payload.len() <= PAYLOAD_BYTES_MAX
}
