//! Layout of the ring in which a preloaded library reports to the recorder what a program reads and
//! looks up: shared memory, any number of writers, one reader, no lock and no system call.
//!
//! ```text
//! header (4096 bytes: magic, slots, head, tail, lost)   slot 0   slot 1   ...   slot N-1
//! ```
//!
//! Positions count slots from the beginning and are never reduced; slot `p % N` holds position `p`.
//! A writer moves `head` by as many slots as its entry needs, fills them, and writes into the first
//! word of each its position plus one: the *commit*. So a writer that is killed leaves slots
//! without commits, which the reader passes over after a while, one by one. The reader moves
//! `tail`; where an entry would pass `tail + N`, the writer counts it as lost and drops it.
//!
//! All words are 64 bits in the machine's order: nothing here leaves it. First slot of an entry:
//! commit; `kind | slots << 8 | bytes << 16 | process << 32`; nanoseconds of the monotonic clock;
//! 40 bytes of payload. Further slots: commit; 56 bytes of payload.
//!
//! This file is compiled into both sides, `preload` and `record`.

/// First word of the header.
pub const MAGIC: u64 = u64::from_be_bytes(*b"RNLRING1");

/// Bytes of the header: a page.
pub const HEADER_BYTES: usize = 4096;

/// Slots of a ring: 4 MiB of memory, of which only what is used takes room.
pub const SLOTS: usize = 1 << 16;

/// Words of a slot; one line of the processor's cache.
pub const SLOT_WORDS: usize = 8;

/// Words of the whole ring.
pub const WORDS: usize = HEADER_BYTES / 8 + SLOTS * SLOT_WORDS;

/// Word numbers in the header, each in a cache line of its own.
pub const MAGIC_AT: usize = 0;
/// Position that the next entry gets.
pub const HEAD_AT: usize = 8;
/// Position that the reader comes to next.
pub const TAIL_AT: usize = 16;
/// Entries dropped.
pub const LOST_AT: usize = 24;

/// Bytes of payload in the first slot of an entry.
pub const FIRST_BYTES: usize = 40;

/// Bytes of payload in each further slot.
pub const FURTHER_BYTES: usize = 56;

/// Bytes of payload at most: two numbers and a path.
pub const PAYLOAD_BYTES_MAX: usize = 16 + 4096;

/// The library started. Payload: path of the executable.
pub const KIND_HELLO: u8 = 1;
/// A file was opened, or read for the first time. Payload: device, inode, path.
pub const KIND_FILE: u8 = 2;
/// The names of a directory are about to be read. Payload: device, inode, path.
pub const KIND_DIRECTORY: u8 = 3;
/// A path leads nowhere. Payload: the path, from the root.
pub const KIND_MISSED: u8 = 4;
/// Bytes of a file were read. Payload: device, inode, offset, length.
pub const KIND_READ: u8 = 5;

/// A watched function was called for the first time from somewhere. Payload: the address it returns
/// to.
pub const KIND_CALL: u8 = 6;
/// The same for the second time.
pub const KIND_CALL_AGAIN: u8 = 7;

/// Slots that a payload needs.
pub const fn slots_of(payload_bytes: usize) -> usize {
    1 + payload_bytes.saturating_sub(FIRST_BYTES).div_ceil(FURTHER_BYTES)
}

/// The second word of an entry.
pub const fn describe(kind: u8, payload_bytes: usize, process: u32) -> u64 {
    kind as u64 | (slots_of(payload_bytes) as u64) << 8 | (payload_bytes as u64) << 16 | (process as u64) << 32
}
