//! Records of a ring, by their layout in `perf_event_open(2)`.

const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;
pub(crate) const RECORD_SAMPLE: u32 = 9;
const RECORD_MMAP2: u32 = 10;
/// In `misc` of a comm record: an exec, not a thread that names itself.
const MISC_COMM_EXEC: u16 = 1 << 13;

/// IP, TID, TIME, ADDR, IDENTIFIER.
pub(crate) const SAMPLE_TYPE: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 16;

/// Bytes that end every record but a sample: thread, time, identifier.
const TRAILER_BYTES: usize = 24;

/// What happened, and when: nanoseconds of the monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Nanoseconds of the monotonic clock.
    pub at: u64,
    /// The process.
    pub process: u32,
    /// What it did.
    pub what: What,
}

/// What a process did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A page fault at `address`, by the instruction at `instruction`; `major` if the disk had to
    /// be read for it.
    Fault {
        /// The address that was not mapped.
        address: u64,
        /// The instruction that used it; the same if it was itself to be fetched.
        instruction: u64,
        /// Whether the page was read from a disk.
        major: bool,
    },
    /// It was running this instruction when the clock asked.
    Runs {
        /// Its address.
        instruction: u64,
    },
    /// A mapping was made, or its protection changed.
    Map(Map),
    /// A new program in the old process.
    Exec,
    /// A process or thread started: a thread if `parent` is the process itself.
    Fork {
        /// The process that called.
        parent: u32,
    },
    /// A thread ended.
    Exit,
    /// Number of records for which the ring had no room.
    Lost(u64),
}

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// Where in the file it starts, bytes.
    pub offset: u64,
    /// Major and minor number of the file system's device; both zero without a file.
    pub device: (u32, u32),
    /// The file's inode number.
    pub inode: u64,
    /// `PROT_` bits.
    pub protection: u32,
    /// Path of the file as the process sees it, or a name such as `//anon` or `[heap]`.
    pub path: Vec<u8>,
}

/// A record with its header, and what follows it.
pub(crate) fn split_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_, length) = misc_and_bytes(bytes)?;
    let length = usize::from(length);
    (length >= 8).then(|| bytes.split_at_checked(length))?
}

/// Records are in the machine's own byte order: they never leave it.
#[allow(clippy::host_endian_bytes)]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

#[allow(clippy::host_endian_bytes)]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// The second half of a header: flags, and the length with the header.
#[allow(clippy::host_endian_bytes)]
fn misc_and_bytes(record: &[u8]) -> Option<(u16, u16)> {
    let number = |at: usize| record.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes));
    Some((number(4)?, number(6)?))
}

/// Makes sense of a record; `None` for kinds that we do not need.
pub(super) fn parse(record: &[u8], major: &[u64], clock: &[u64]) -> Option<Record> {
    let kind = u32_at(record, 0)?;
    let (misc, _) = misc_and_bytes(record)?;
    let body = &record[8..];
    if kind == RECORD_SAMPLE {
        let (event, instruction) = (u64_at(body, 0)?, u64_at(body, 8)?);
        let what = match clock.contains(&event) {
            true => What::Runs { instruction },
            false => What::Fault { instruction, address: u64_at(body, 32)?, major: major.contains(&event) },
        };
        return Some(Record { at: u64_at(body, 24)?, process: u32_at(body, 16)?, what });
    }
    let trailer = body.len().checked_sub(TRAILER_BYTES)?;
    let at = u64_at(body, trailer + 8)?;
    let (process, what) = match kind {
        RECORD_MMAP2 => (u32_at(body, 0)?, What::Map(parse_map(&body[..trailer])?)),
        RECORD_COMM if misc & MISC_COMM_EXEC != 0 => (u32_at(body, 0)?, What::Exec),
        RECORD_FORK => (u32_at(body, 0)?, What::Fork { parent: u32_at(body, 4)? }),
        RECORD_EXIT => (u32_at(body, 0)?, What::Exit),
        RECORD_LOST => (u32_at(body, trailer)?, What::Lost(u64_at(body, 8)?)),
        _ => return None,
    };
    Some(Record { at, process, what })
}

fn parse_map(body: &[u8]) -> Option<Map> {
    let path = body.get(64..)?;
    let length = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
    Some(Map {
        start: u64_at(body, 8)?,
        bytes: u64_at(body, 16)?,
        offset: u64_at(body, 24)?,
        device: (u32_at(body, 32)?, u32_at(body, 36)?),
        inode: u64_at(body, 40)?,
        protection: u32_at(body, 56)?,
        path: path[..length].to_vec(),
    })
}
