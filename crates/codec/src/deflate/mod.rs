//! Deflate streams kept as their text, and made anew when they are read.
//!
//! A `.gz` file does not compress, but the text in it does, by a third more than deflate got and
//! together with the texts beside it. gzip and zlib are deterministic: their output is a function
//! of the text, of the program and of the level. So a block of such files is kept as an
//! *expansion*: a list of parts (bytes to copy, or a text and the [`Style`] it was compressed in)
//! with all their bytes behind it. [`contract`] compresses the texts again, bit for bit. Streams of
//! other programs come out differently; a packer sees that and leaves them as they are.
//!
//! Everything is bounded, whatever the bytes: the result has the announced size or is an error,
//! there are 400 KiB of tables beside it, and the search for copies takes at most 512 steps for
//! each byte of text and 2^30 in all. No input makes it panic.

mod crc;
#[cfg(feature = "encode")]
pub(crate) mod expansion;
mod huffman;
mod matcher;
mod writer;

#[cfg(feature = "encode")]
pub use expansion::{Expansion, style_of};

use crate::CodecError;
use matcher::{Matcher, Tables};
use writer::Writer;

/// What the search for copies may cost. A step is one candidate looked at, 2 to 5 ns on a fast
/// processor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Steps for each byte of text, mean over an expansion.
    pub(crate) per_byte: u64,
    /// Steps for a whole expansion.
    pub(crate) most: u64,
}

/// Accepted: some seconds for the worst block that is let in. Evil texts could take 3000 steps a
/// byte.
const COST_ACCEPTED: Cost = Cost { per_byte: 512, most: 1 << 30 };
/// Written: at level 9, prose takes 15 to 60 steps a byte, programs up to 200.
#[cfg(feature = "encode")]
const COST_WRITTEN: Cost = Cost { per_byte: 256, most: 1 << 29 };

impl Cost {
    /// Steps for a text of so many bytes.
    fn steps(self, bytes: usize) -> u64 {
        self.per_byte.saturating_mul(bytes as u64 + 1).min(self.most)
    }
}

/// There is at most one part for so many bytes of the result, and one more: each costs some
/// microseconds to start.
pub const RAW_BYTES_PER_PART: usize = 8;
/// Bytes of a part's record: what it is, and how many bytes it has.
const PART_BYTES: usize = 8;
/// Bytes before the first record: how many there are.
const HEADER_BYTES: usize = 4;
/// Bytes of the end of a gzip file: check value and size of the text.
pub const TRAILER_BYTES: usize = 8;

/// A program that writes deflate streams. The discriminant is what stands on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Program {
    /// GNU gzip.
    Gzip = 1,
    /// zlib with its usual memory level, 8.
    Zlib = 2,
    /// zlib with the most memory, level 9.
    ZlibLarge = 3,
}

/// How a stream was compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Style {
    /// By which program.
    pub program: Program,
    /// At which level, 1 to 9.
    pub level: u8,
}

impl Style {
    /// Bits of the hash of three bytes.
    fn hash_bits(self) -> u32 {
        if self.program == Program::ZlibLarge { 16 } else { 15 }
    }

    /// Symbols of a block, one more than it may have.
    fn symbols_max(self) -> usize {
        if self.program == Program::Zlib { 1 << 14 } else { 1 << 15 }
    }
}

/// One part of an expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Bytes that are copied as they are.
    Bytes(u32),
    /// A text of so many bytes.
    Text {
        /// Its size.
        bytes: u32,
        /// How it was compressed.
        style: Style,
        /// Whether its check value and its size follow, as at the end of a gzip file.
        trailer: bool,
    },
}

/// Bit of a part's style: a trailer follows.
const TRAILER: u8 = 1;

impl Part {
    /// As it stands in an expansion: program or 0, level, flags, 0, bytes.
    #[cfg(feature = "encode")]
    fn to_record(self) -> [u8; PART_BYTES] {
        let (head, bytes) = match self {
            Part::Bytes(bytes) => ([0; 4], bytes),
            Part::Text { bytes, style, trailer } => {
                ([style.program as u8, style.level, if trailer { TRAILER } else { 0 }, 0], bytes)
            }
        };
        let mut record = [0; PART_BYTES];
        record[..4].copy_from_slice(&head);
        record[4..].copy_from_slice(&bytes.to_le_bytes());
        record
    }

    fn from_record(record: [u8; PART_BYTES]) -> Result<Part, CodecError> {
        let [program, level, flags, reserved, bytes @ ..] = record;
        let bytes = u32::from_le_bytes(bytes);
        let program = match program {
            0 if level == 0 && flags == 0 && reserved == 0 => return Ok(Part::Bytes(bytes)),
            1 => Program::Gzip,
            2 => Program::Zlib,
            3 => Program::ZlibLarge,
            _ => return Err(damaged("a part is of an unknown kind")),
        };
        if !(1..=9).contains(&level) || flags > TRAILER || reserved != 0 {
            return Err(damaged("a part has an unknown style"));
        }
        Ok(Part::Text { bytes, style: Style { program, level }, trailer: flags & TRAILER != 0 })
    }
}

/// Why a stream was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is larger than announced.
    TooLong,
    /// The search for copies takes too many steps.
    TooSlow,
    /// It differs from the expected bytes.
    Differs,
}

fn damaged(reason: &'static str) -> CodecError {
    CodecError::Deflate { reason }
}

fn explained(fault: Fault) -> CodecError {
    damaged(match fault {
        Fault::TooLong => "it makes more bytes than announced",
        Fault::TooSlow => "its text takes too long to compress",
        Fault::Differs => "it makes other bytes",
    })
}

/// Appends the stream for `plain` to `out`, which may grow to `end_max` bytes.
fn compress(
    style: Style,
    plain: &[u8],
    tables: &mut Tables,
    steps: &mut u64,
    out: &mut Vec<u8>,
    end_max: usize,
    watch: &dyn Fn(&[u8]) -> bool,
) -> Result<(), Fault> {
    let mut writer = Writer::new(style, out, end_max);
    Matcher::new(style, plain, tables, steps).run(&mut writer, watch)
}

/// Makes the bytes that `expansion` stands for, exactly `raw_bytes`, in `out`, which is cleared
/// first.
///
/// # Errors
/// The expansion is damaged, stands for more or fewer bytes, or takes longer than any that we
/// write.
pub fn contract(expansion: &[u8], raw_bytes: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
    contract_within(COST_ACCEPTED, expansion, raw_bytes, out)
}

/// [`contract`] with the limit that a writer keeps.
///
/// # Errors
/// Those of [`contract`].
#[cfg(feature = "encode")]
pub fn contract_written(expansion: &[u8], raw_bytes: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
    contract_within(COST_WRITTEN, expansion, raw_bytes, out)
}

pub(crate) fn contract_within(
    cost: Cost,
    expansion: &[u8],
    raw_bytes: usize,
    out: &mut Vec<u8>,
) -> Result<(), CodecError> {
    out.clear();
    out.reserve_exact(raw_bytes);
    let made = make(cost, expansion, raw_bytes, out);
    if made.is_err() {
        out.clear();
    }
    made
}

fn make(cost: Cost, expansion: &[u8], raw_bytes: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let short = || damaged("it ends early");
    let (count, rest) = expansion.split_first_chunk::<HEADER_BYTES>().ok_or_else(short)?;
    let records = u32::from_le_bytes(*count) as usize;
    let (records, rest) =
        records.checked_mul(PART_BYTES).and_then(|bytes| rest.split_at_checked(bytes)).ok_or_else(short)?;
    let parts = || records.chunks_exact(PART_BYTES).map(|record| Part::from_record(std::array::from_fn(|i| record[i])));
    if records.len() / PART_BYTES > raw_bytes / RAW_BYTES_PER_PART + 1 {
        return Err(damaged("it has too many parts"));
    }
    let (mut copied, mut tables) = (0u64, Tables::new());
    for part in parts() {
        copied += if let Part::Bytes(bytes) = part? { u64::from(bytes) } else { 0 };
    }
    let copied = usize::try_from(copied).ok().and_then(|bytes| rest.split_at_checked(bytes));
    let (mut copies, mut texts) = copied.ok_or_else(short)?;
    let mut steps = cost.steps(texts.len());
    for part in parts() {
        match part? {
            Part::Bytes(bytes) => {
                let (bytes, after) = copies.split_at_checked(bytes as usize).ok_or_else(short)?;
                copies = after;
                if bytes.len() > raw_bytes - out.len() {
                    return Err(explained(Fault::TooLong));
                }
                out.extend_from_slice(bytes);
            }
            Part::Text { bytes, style, trailer } => {
                let (text, after) = texts.split_at_checked(bytes as usize).ok_or_else(short)?;
                texts = after;
                compress(style, text, &mut tables, &mut steps, out, raw_bytes, &|_| true).map_err(explained)?;
                if trailer {
                    out.extend_from_slice(&self::trailer(text));
                }
                if out.len() > raw_bytes {
                    return Err(explained(Fault::TooLong));
                }
            }
        }
    }
    if !texts.is_empty() {
        return Err(damaged("bytes are left over"));
    }
    if out.len() < raw_bytes { Err(damaged("it makes fewer bytes than announced")) } else { Ok(()) }
}

/// The end of a gzip file with this text.
pub fn trailer(text: &[u8]) -> [u8; TRAILER_BYTES] {
    let mut trailer = [0; TRAILER_BYTES];
    trailer[..4].copy_from_slice(&crc::crc32(text).to_le_bytes());
    trailer[4..].copy_from_slice(&(text.len() as u32).to_le_bytes());
    trailer
}
