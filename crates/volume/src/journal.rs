//! The journal: frames one after the other in a file of fixed length. A frame holds the
//! transactions of one group commit. One write and one sync store it, so at most the last frame can
//! be torn.
//!
//! The hashes of a frame begin with a random key. Every checkpoint draws a new key and keeps it in
//! the table. So frames from before the checkpoint are invalid, nothing has to be erased, and no
//! client can write file contents that look like a frame.

use crate::VolumeError;
use crate::disk::{Disk, DiskFile};
use crate::format::*;
use crate::record::{self, Record};

/// Name in the journal folder.
pub(crate) const JOURNAL: &[u8] = b"journal";

/// Zeros written at once, bytes.
const ZEROS_BYTES: usize = 1 << 20;

pub(crate) type Key = [u8; KEY_BYTES];

/// The journal of a volume open for writing.
pub(crate) struct Journal {
    file: Box<dyn DiskFile>,
    key: Key,
    /// Where the next frame begins.
    end: u64,
    /// Where the last one begins.
    last: u64,
    bytes_max: u64,
    /// Sequence of the last frame.
    pub sequence: u64,
}

/// The contents of a journal.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub records: Vec<Record>,
    pub frames: u64,
    /// Where they end in the file.
    pub bytes: u64,
    /// A frame that was never acknowledged was cut.
    pub torn: bool,
}

impl Journal {
    /// Opens the journal behind a checkpoint: whatever it holds is over.
    pub fn open(disk: &dyn Disk, bytes_max: u64, key: Key, sequence: u64) -> Result<Journal, VolumeError> {
        let failed = |error| VolumeError::io("opening", JOURNAL, error);
        let file = match disk.open(JOURNAL, true) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                disk.create(JOURNAL, 0o600).map_err(failed)?
            }
            other => other.map_err(failed)?,
        };
        // Room for every frame now, so that no commit fails for want of it; and zeros written into
        // it, since a sync after the first write to reserved room has to write the file system's
        // tables too.
        let size = file.stat().map_err(failed)?.stamp.size;
        if size < bytes_max {
            file.reserve(bytes_max).map_err(failed)?;
            let zeros = vec![0; ZEROS_BYTES];
            for at in (size..bytes_max).step_by(ZEROS_BYTES) {
                let count = (bytes_max - at).min(ZEROS_BYTES as u64) as usize;
                file.write_at(at, &zeros[..count]).map_err(failed)?;
            }
        }
        file.sync().map_err(failed)?;
        disk.sync_folder(b"").map_err(failed)?;
        Ok(Journal { file, key, end: 0, last: 0, bytes_max, sequence })
    }

    /// Whether there is room for a frame of this payload.
    pub fn fits(&self, payload_bytes: usize) -> bool {
        self.end + frame_bytes(payload_bytes) <= self.bytes_max
    }

    /// Whether a frame was written since the last checkpoint.
    pub fn is_empty(&self) -> bool {
        self.end == 0
    }

    /// Bytes in use.
    pub fn bytes(&self) -> u64 {
        self.end
    }

    /// Writes one frame and brings it to stable storage. After an error nobody knows whether it is
    /// there.
    pub fn append(&mut self, payload: &[u8], records: u32) -> std::io::Result<()> {
        let frame = frame(&self.key, self.sequence + 1, payload, records);
        self.file.write_at(self.end, &frame)?;
        self.file.sync()?;
        self.sequence += 1;
        (self.last, self.end) = (self.end, self.end + frame.len() as u64);
        Ok(())
    }

    /// Takes the last frame back, of which nobody was told yet, and writes this one in its place,
    /// or none if there are no records. After an error nobody knows which is there.
    pub fn replace(&mut self, payload: &[u8], records: u32) -> std::io::Result<()> {
        self.sequence -= 1;
        self.end = self.last;
        if records > 0 {
            return self.append(payload, records);
        }
        self.file.write_at(self.end, &[0; FRAME_HEADER_BYTES])?;
        self.file.sync()
    }

    /// Begins anew after a checkpoint whose table holds `key`.
    pub fn restart(&mut self, key: Key) {
        self.key = key;
        (self.last, self.end) = (0, 0);
    }
}

/// Brings the first `bytes` of the journal to stable storage, before anything is done by what they
/// say. The last frame may only be in the page cache, after a process died before its sync, or the
/// sync failed; and after a failed sync another one does nothing, so they are written again.
pub(crate) fn secure(disk: &dyn Disk, bytes: u64) -> std::io::Result<()> {
    let file = disk.open(JOURNAL, true)?;
    let mut frames = vec![0; bytes as usize];
    file.read_at(0, &mut frames)?;
    file.write_at(0, &frames)?;
    file.sync()
}

/// Length of a frame in the file.
pub(crate) fn frame_bytes(payload_bytes: usize) -> u64 {
    (FRAME_HEADER_BYTES + payload_bytes).next_multiple_of(FRAME_ALIGN_BYTES) as u64
}

fn hash(key: &Key, bytes: &[u8]) -> [u8; HASH_BYTES] {
    let hash = *blake3::Hasher::new().update(key).update(bytes).finalize().as_bytes();
    std::array::from_fn(|index| hash[index])
}

pub(crate) fn frame(key: &Key, sequence: u64, payload: &[u8], records: u32) -> Vec<u8> {
    let mut frame = Vec::with_capacity(frame_bytes(payload.len()) as usize);
    frame.extend(FRAME_MAGIC);
    frame.extend(sequence.to_le_bytes());
    frame.extend((payload.len() as u32).to_le_bytes());
    frame.extend(records.to_le_bytes());
    frame.extend(hash(key, payload));
    frame.extend(hash(key, &frame));
    frame.extend_from_slice(payload);
    frame.resize(frame_bytes(payload.len()) as usize, 0);
    frame
}

/// A header whose hash is right: sequence, payload bytes, records, hash of the payload.
fn header(key: &Key, bytes: &[u8]) -> Option<(u64, usize, u32, [u8; HASH_BYTES])> {
    let header = bytes.get(..FRAME_HEADER_BYTES)?;
    if header[..8] != FRAME_MAGIC || header[FRAME_HEADER_HASH_AT..] != hash(key, &header[..FRAME_HEADER_HASH_AT]) {
        return None;
    }
    let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| header[at + index]));
    let sequence = u64::from_le_bytes(std::array::from_fn(|index| header[8 + index]));
    let payload_hash = std::array::from_fn(|index| header[FRAME_PAYLOAD_HASH_AT + index]);
    (number(16) <= PAYLOAD_BYTES_MAX).then(|| (sequence, number(16) as usize, number(20), payload_hash))
}

/// Reads the frames of `key` after `sequence` from the bytes of a journal.
///
/// # Errors
/// [`VolumeError::Corrupt`] if a frame is damaged and another follows it: the damaged one was
/// acknowledged.
pub(crate) fn scan(bytes: &[u8], key: &Key, sequence: u64) -> Result<Scan, VolumeError> {
    let corrupt = |offset: usize, why: String| VolumeError::Corrupt { file: "journal", offset: offset as u64, why };
    let mut scan = Scan::default();
    let mut at = 0;
    let mut expected = sequence + 1;
    while let Some((found, payload_bytes, records, payload_hash)) = bytes.get(at..).and_then(|rest| header(key, rest)) {
        if found != expected {
            return Err(corrupt(at, format!("frame {expected} expected, {found} found")));
        }
        let start = at + FRAME_HEADER_BYTES;
        let Some(payload) = bytes.get(start..start + payload_bytes) else {
            break;
        };
        if hash(key, payload) != payload_hash {
            scan.torn = true;
            break;
        }
        let decoded = record::decode(payload, records).map_err(|(offset, why)| corrupt(start + offset, why.into()))?;
        scan.records.extend(decoded);
        scan.frames += 1;
        expected += 1;
        at += frame_bytes(payload_bytes) as usize;
        scan.bytes = at as u64;
    }
    // Whatever is here was never acknowledged, unless a later frame was written: that happens only
    // after a sync of this.
    let mut later = at + FRAME_ALIGN_BYTES;
    while later < bytes.len() {
        if let Some((found, ..)) = header(key, &bytes[later..]) {
            return Err(corrupt(at, format!("frame {expected} is damaged, but frame {found} follows it")));
        }
        later += FRAME_ALIGN_BYTES;
    }
    Ok(scan)
}
