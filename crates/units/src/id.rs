//! Identifiers. All are plain integers on the wire and in files; the newtypes exist so that they
//! cannot be swapped.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id! {
    /// An inode of an image. Numbers start at 1, the root directory, and are dense.
    InodeId, u32
}
id! {
    /// A chunk of an image, numbered from 0 in the order in which files first refer to it.
    ChunkId, u32
}
id! {
    /// A block of an image, numbered from 0 in file order.
    BlockId, u32
}
id! {
    /// An action of one image, as the Predictor numbered it; never reused within one learned file.
    ActionId, u64
}
id! {
    /// Position of a segment within its action, from 0.
    SegmentIndex, u32
}
id! {
    /// A request on one connection; unique among those in flight.
    RequestId, u32
}
id! {
    /// A push stream on one connection; never reused on it.
    StreamId, u32
}

impl InodeId {
    /// The root directory of every image.
    pub const ROOT: InodeId = InodeId(1);
}

/// One page of one file: what a fault asks for. Packs into a `u64` for the wire and for profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId {
    /// The file.
    pub inode: InodeId,
    /// Index of the page in the file: byte offset / 4096.
    pub index: u32,
}

impl PageId {
    /// The page `index` of `inode`.
    pub const fn new(inode: InodeId, index: u32) -> PageId {
        PageId { inode, index }
    }

    /// Packed form: inode in the high half, page index in the low half, so that pages of one file
    /// sort together.
    pub const fn to_u64(self) -> u64 {
        ((self.inode.0 as u64) << 32) | self.index as u64
    }

    /// Reverses [`PageId::to_u64`]; every value is valid.
    pub const fn from_u64(packed: u64) -> PageId {
        PageId { inode: InodeId((packed >> 32) as u32), index: packed as u32 }
    }

    /// The next page of the same file, or `None` past the last index a file can have.
    pub fn next(self) -> Option<PageId> {
        Some(PageId { inode: self.inode, index: self.index.checked_add(1)? })
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.inode, self.index)
    }
}

/// Identity of a running action, chosen at random by the client at each process start (SYSFLOW's
/// UUID token).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Token(pub u128);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({self})")
    }
}

/// Identity of an image: the BLAKE3 hash of its superblock, which covers every section and so every
/// byte.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageId(pub [u8; 32]);

impl ImageId {
    /// Parses the 64 hexadecimal digits that [`fmt::Display`] prints.
    pub fn from_hex(text: &str) -> Option<ImageId> {
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        let mut bytes = [0u8; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let high = char::from(digits[0]).to_digit(16)?;
            let low = char::from(digits[1]).to_digit(16)?;
            *byte = (high * 16 + low) as u8;
        }
        Some(ImageId(bytes))
    }
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_id_packs_and_unpacks_at_the_edges() {
        for page in [PageId::new(InodeId(0), 0), PageId::new(InodeId(u32::MAX), u32::MAX), PageId::new(InodeId(7), 9)] {
            assert_eq!(PageId::from_u64(page.to_u64()), page);
        }
        assert_eq!(PageId::new(InodeId(1), u32::MAX).next(), None);
    }

    #[test]
    fn image_id_parses_only_what_it_prints() {
        let id = ImageId(std::array::from_fn(|i| i as u8 * 7));
        assert_eq!(ImageId::from_hex(&id.to_string()), Some(id));
        assert_eq!(ImageId::from_hex("zz"), None);
        assert_eq!(ImageId::from_hex(&"g".repeat(64)), None);
    }
}
