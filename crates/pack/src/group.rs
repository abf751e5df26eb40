//! The data grouper: finds the kind of data of a chunk, so that like data lies together.
//!
//! ELF files are divided section by section, and a chunk counts as what most of its bytes are. In
//! all other files the bytes of the chunk itself decide: text, dense data (compressed, encrypted),
//! or other binary data. After RubikFS's groups (Huang et al., FAST '26), with its ELF groups
//! divided further.

use std::io;

use elf::{Bytes, Class, PartKind, Parts};
use image::Filter;

use crate::content::OpenContent;
use crate::sort::HOT;

/// What a chunk holds. The number is the low byte of [`Group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Kind {
    Code = 0,
    ReadOnly = 1,
    Exceptions = 2,
    Relocations = 3,
    Symbols = 4,
    Strings = 5,
    Data = 6,
    Binary = 7,
    Text = 8,
    Dense = 9,
    ExceptionIndex = 10,
}

/// What may share a block: kind in the low byte; filter, and in the highest bit whether it is hot,
/// in the high byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group(pub(crate) u16);

impl Group {
    pub(crate) const fn new(kind: Kind, filter: Filter) -> Group {
        Group((filter.to_u8() as u16) << 8 | kind as u16)
    }

    pub(crate) fn hot(self) -> Group {
        Group(self.0 | HOT)
    }

    pub(crate) fn is_hot(self) -> bool {
        self.0 & HOT != 0
    }

    pub(crate) fn filter(self) -> Filter {
        Filter::from_u8(((self.0 & !HOT) >> 8) as u8).unwrap_or(Filter::None)
    }

    /// Whether the kind of a group repeats itself, so that a dictionary could help.
    pub(crate) fn kind_repeats(self) -> bool {
        self.0 & 0x00ff != Kind::Dense as u16
    }

    /// As if chunks of all kinds were one, filters apart.
    pub(crate) fn without_kind(self) -> Group {
        Group(self.0 & 0xff00)
    }

    /// As if there were no filters.
    pub(crate) fn without_filter(self) -> Group {
        Group(self.0 & (HOT | 0x00ff))
    }

    /// As if nothing were hot.
    pub(crate) fn without_heat(self) -> Group {
        Group(self.0 & !HOT)
    }
}

/// What a file is, as far as its chunks do not show it.
#[derive(Debug)]
pub(crate) enum FileKind {
    Elf(Parts, Filter),
    Other,
    /// Nobody asked.
    Unknown,
}

/// System V ABI numbers of the architectures that have a filter.
const EM_X86_64: u16 = 62;
const EM_AARCH64: u16 = 183;

impl FileKind {
    /// Looks at the headers of a file of `size` bytes. One that cannot be understood is
    /// [`FileKind::Other`]; one that cannot be read will show that when its data is read.
    pub(crate) fn of(content: &OpenContent<'_>, size: u64) -> FileKind {
        let Ok(parts) = Parts::parse(&Sized { content, size }) else { return FileKind::Other };
        let filter = match parts.machine.0 {
            EM_X86_64 => Filter::X86_64,
            EM_AARCH64 => Filter::Aarch64,
            _ => Filter::None,
        };
        FileKind::Elf(parts, filter)
    }

    /// The group of the chunk `bytes` at `position` of the file.
    pub(crate) fn group(&self, position: u64, bytes: &[u8]) -> Group {
        let (parts, filter) = match self {
            FileKind::Elf(parts, filter) => (parts, filter),
            FileKind::Other => return Group::new(judge(bytes), Filter::None),
            FileKind::Unknown => return Group::new(Kind::Binary, Filter::None),
        };
        let kind = match parts.majority(position, position + bytes.len() as u64) {
            PartKind::Code => return Group::new(Kind::Code, *filter),
            PartKind::ReadOnly => Kind::ReadOnly,
            PartKind::Exceptions => Kind::Exceptions,
            PartKind::ExceptionIndex => return Group::new(Kind::ExceptionIndex, Filter::Records8),
            PartKind::Relocations if parts.class == Class::Elf64 => {
                return Group::new(Kind::Relocations, Filter::Records24);
            }
            PartKind::Relocations => Kind::Relocations,
            PartKind::Symbols => Kind::Symbols,
            PartKind::Strings => Kind::Strings,
            PartKind::Data => Kind::Data,
            PartKind::Other => judge(bytes),
        };
        Group::new(kind, Filter::None)
    }
}

/// A content with its size, as headers are read from it.
struct Sized<'a> {
    content: &'a OpenContent<'a>,
    size: u64,
}

impl Bytes for Sized<'_> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        if bytes > 0 {
            self.content.read_at(offset, &mut buffer[..bytes]).map_err(io::Error::other)?;
        }
        Ok(bytes)
    }
}

/// Fewer bytes than this say nothing about their density.
const DENSE_BYTES_MIN: usize = 512;

/// Text may have so many control characters: one in 64.
const CONTROL_SHARE: usize = 64;

fn judge(bytes: &[u8]) -> Kind {
    let mut counts = [0u32; 256];
    bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    if bytes.len() >= DENSE_BYTES_MIN && is_dense(&counts, bytes.len() as u64) {
        return Kind::Dense;
    }
    let control: u32 = (1..32u8)
        .chain([127])
        .filter(|byte| !b"\t\n\r\x0c\x1b".contains(byte))
        .map(|byte| counts[usize::from(byte)])
        .sum();
    if counts[0] == 0 && control as usize * CONTROL_SHARE <= bytes.len() { Kind::Text } else { Kind::Binary }
}

/// Whether byte values come about as often as in noise. The sum of the squared counts of n random
/// bytes is about n + n²/256; that of anything a codec can shorten by an eighth is well above.
fn is_dense(counts: &[u32; 256], bytes: u64) -> bool {
    let squares: u64 = counts.iter().map(|count| u64::from(*count).pow(2)).sum();
    squares * 100 <= 118 * (bytes + bytes * bytes / 256)
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::{Rng, SplitMix64};

    #[test]
    fn bytes_are_judged_by_what_they_look_like() {
        let mut rng = SplitMix64(1);
        let noise: Vec<u8> = (0..4096).map(|_| rng.below(256) as u8).collect();
        assert_eq!(judge(&noise), Kind::Dense);
        assert_eq!(judge("Grüße, and a line of text.\n".repeat(100).as_bytes()), Kind::Text);
        assert_eq!(judge(&[1, 0, 0, 0, 2, 0, 0, 0].repeat(300)), Kind::Binary);
        assert_eq!(judge(&noise[..100]), Kind::Binary);
        let packed = {
            let text: String = (0..4000).map(|i| format!("{} ", i * i)).collect();
            let mut out = Vec::new();
            codec::encode(image::Codec::Zstd, 9, text.as_bytes(), &mut out).unwrap();
            out
        };
        assert_eq!(judge(&packed[100..4196]), Kind::Dense);
    }

    #[test]
    fn groups_keep_their_parts_apart() {
        let group = Group::new(Kind::Code, Filter::Aarch64).hot();
        assert!(group.is_hot() && group.filter() == Filter::Aarch64);
        assert_eq!(group.without_filter().filter(), Filter::None);
        assert!(group.without_filter().is_hot() && !group.without_heat().is_hot());
        assert_eq!(Group::new(Kind::Text, Filter::None).without_kind(), Group(0));
    }
}
