//! One log: a header, records, and when nobody is writing it an index of them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::disk;
use crate::format::{
    self, ENTRY_BYTES, HEAD_BYTES, HEADER_BYTES, Head, Header, LABEL_BYTES_MAX, PAYLOAD_BYTES_MAX, TRAILER_BYTES,
    Trailer,
};

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
}

impl Entry {
    fn bytes(&self) -> u64 {
        (HEAD_BYTES + self.label.len()) as u64 + u64::from(self.head.payload_bytes)
    }

    /// Bytes of the index for this entry.
    fn index_bytes(&self) -> u64 {
        (ENTRY_BYTES + self.label.len()) as u64
    }

    /// The payload, if it is what was written.
    pub fn read(&self, file: &File) -> Option<Vec<u8>> {
        let mut payload = vec![0; self.head.payload_bytes as usize];
        let at = self.offset + (HEAD_BYTES + self.label.len()) as u64;
        file.read_exact_at(&mut payload, at).ok()?;
        (format::hash(&payload) == self.head.hash).then_some(payload)
    }
}

impl End {
    /// The end of a log without records.
    pub fn of_new() -> End {
        End { at: HEADER_BYTES as u64, index_bytes: 0, room: 0 }
    }

    /// The end of a log with these records and this size.
    pub fn behind(entries: &[Entry], file_bytes: u64) -> End {
        let at = entries.last().map_or(HEADER_BYTES as u64, |last| last.offset + last.bytes());
        End { at, index_bytes: entries.iter().map(Entry::index_bytes).sum(), room: file_bytes }
    }

    /// Whether the log takes no more records.
    pub fn is_full(&self) -> bool {
        // The smallest ones take so much of the index.
        self.index_bytes / ENTRY_BYTES as u64 >= RECORDS_MAX as u64
    }

    /// Room that the log needs when a record with so much label and payload is added.
    pub fn needs(&self, label: usize, payload: usize) -> u64 {
        let record = HEAD_BYTES + label + payload;
        self.at + self.index_bytes + (record + ENTRY_BYTES + label + TRAILER_BYTES) as u64
    }

    /// Writes a record. There must be room.
    pub fn append(&mut self, file: &File, head: Head, label: &[u8], payload: &[u8]) -> io::Result<Entry> {
        let mut bytes = format::head(&head, label).to_vec();
        bytes.extend_from_slice(label);
        bytes.extend_from_slice(payload);
        disk::write(file, &bytes, self.at)?;
        let entry = Entry { head, label: label.into(), offset: self.at };
        self.at += entry.bytes();
        self.index_bytes += entry.index_bytes();
        Ok(entry)
    }

    /// Writes the index, and gives back the room that is not used. Returns the bytes written.
    pub fn close(&mut self, file: &File, entries: &[Entry]) -> io::Result<u64> {
        let mut bytes = Vec::with_capacity(self.index_bytes as usize + TRAILER_BYTES);
        for entry in entries {
            bytes.extend_from_slice(&entry.offset.to_le_bytes());
            bytes.extend_from_slice(&format::head(&entry.head, &entry.label));
            bytes.extend_from_slice(&entry.label);
        }
        let trailer = Trailer {
            index_offset: self.at,
            index_bytes: bytes.len() as u32,
            count: entries.len() as u32,
            hash: format::hash(&bytes),
        };
        bytes.extend_from_slice(&format::trailer(&trailer));
        disk::write(file, &bytes, self.at)?;
        file.set_len(self.at + bytes.len() as u64)?;
        Ok(bytes.len() as u64)
    }
}

/// Writes the header of a log.
pub(crate) fn begin(file: &File, header: &Header) -> io::Result<()> {
    disk::write(file, &format::header(header), 0)
}

/// What a log is for, if the file is one.
pub(crate) fn header(file: &File) -> Option<Header> {
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0).ok()?;
    format::parse_header(&bytes)
}

/// What a log holds.
pub(crate) struct Contents {
    pub header: Header,
    pub entries: Vec<Entry>,
    /// It has an index, so nobody was writing it.
    pub is_closed: bool,
}

/// Reads what a log holds; `None` if the file is none.
pub(crate) fn read(file: &File) -> io::Result<Option<Contents>> {
    let file_bytes = file.metadata()?.len();
    let Some(header) = header(file) else { return Ok(None) };
    let index = read_index(file, file_bytes);
    let is_closed = index.is_some();
    Ok(Some(Contents { header, entries: index.unwrap_or_else(|| scan(file, file_bytes)), is_closed }))
}

/// Number of records, as the trailer of a log says; 0 without one.
pub(crate) fn count(file: &File, file_bytes: u64) -> u32 {
    read_trailer(file, file_bytes).map_or(0, |trailer| trailer.count)
}

fn read_trailer(file: &File, file_bytes: u64) -> Option<Trailer> {
    let at = file_bytes.checked_sub(TRAILER_BYTES as u64)?;
    let mut bytes = [0; TRAILER_BYTES];
    file.read_exact_at(&mut bytes, at).ok()?;
    let trailer = format::parse_trailer(&bytes)?;
    let end = trailer.index_offset.checked_add(trailer.index_bytes.into())?;
    (end == at && trailer.count as usize <= RECORDS_MAX).then_some(trailer)
}

fn read_index(file: &File, file_bytes: u64) -> Option<Vec<Entry>> {
    let trailer = read_trailer(file, file_bytes)?;
    let mut bytes = vec![0; trailer.index_bytes as usize];
    file.read_exact_at(&mut bytes, trailer.index_offset).ok()?;
    if format::hash(&bytes) != trailer.hash {
        return None;
    }
    let mut entries = Vec::with_capacity(trailer.count as usize);
    let (mut rest, mut end) = (&bytes[..], HEADER_BYTES as u64);
    while let Some((offset, after)) = rest.split_first_chunk::<8>() {
        let (head_bytes, after) = after.split_first_chunk::<HEAD_BYTES>()?;
        let head = format::parse_head(head_bytes)?;
        let (label, after) = after.split_at_checked(head.label_bytes.into())?;
        let entry = Entry { head, label: label.into(), offset: u64::from_le_bytes(*offset) };
        // Records lie one behind the other, so a writer can go on behind the last one.
        if entry.offset != end || format::head(&head, label) != *head_bytes {
            return None;
        }
        end = entry.offset + entry.bytes();
        entries.push(entry);
        rest = after;
    }
    (rest.is_empty() && end == trailer.index_offset).then_some(entries)
}

/// Finds the records of a log that was not closed: all before the first one that is not whole.
fn scan(file: &File, file_bytes: u64) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut at = HEADER_BYTES as u64;
    let mut bytes = [0; HEAD_BYTES + LABEL_BYTES_MAX];
    while entries.len() < RECORDS_MAX && at < file_bytes {
        let most = (file_bytes - at).min(bytes.len() as u64) as usize;
        if file.read_exact_at(&mut bytes[..most], at).is_err() {
            break;
        }
        let Some((head_bytes, rest)) = bytes[..most].split_first_chunk::<HEAD_BYTES>() else { break };
        let Some(head) = format::parse_head(head_bytes) else { break };
        let Some(label) = rest.get(..usize::from(head.label_bytes)) else { break };
        let entry = Entry { head, label: label.into(), offset: at };
        if format::head(&head, label) != *head_bytes || at + entry.bytes() > file_bytes {
            break;
        }
        at += entry.bytes();
        entries.push(entry);
    }
    entries
}

/// Bytes that a record takes, with its entry of the index.
pub(crate) fn record_bytes(label: usize, payload: usize) -> u64 {
    (HEAD_BYTES + ENTRY_BYTES + 2 * label + payload) as u64
}

/// Whether a record of this size can be stored at all.
pub(crate) fn takes(label: &[u8], payload: &[u8]) -> bool {
    label.len() <= LABEL_BYTES_MAX && payload.len() <= PAYLOAD_BYTES_MAX
}
