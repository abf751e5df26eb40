//! Errors of actions files, and of finding hot pages in traces.

use trace::varint::VarintError;
use units::{ActionId, ImageId, InodeId};

/// Errors of reading an actions file. Offsets are bytes from the start of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// Too short for its header, or other than the length its header states.
    #[error("actions file has {found} bytes, expected {expected}")]
    Length {
        /// Bytes there are.
        found: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// The first eight bytes are others.
    #[error("not an actions file: it starts with {found:02x?}, not with {expected:02x?}")]
    Magic {
        /// What the file starts with.
        found: [u8; 8],
        /// What an actions file starts with.
        expected: [u8; 8],
    },
    /// Written by another version of this software.
    #[error("actions file version {found} is unknown (this program reads version {expected})")]
    Version {
        /// The file's version.
        found: u16,
        /// The version read here.
        expected: u16,
    },
    /// The hash in the header is not that of the bytes.
    #[error("actions file corrupt: its header says hash {expected}, its bytes have {found}")]
    Hash {
        /// The hash of the bytes, in hexadecimal.
        found: String,
        /// The hash in the header, in hexadecimal.
        expected: String,
    },
    /// A number could not be read.
    #[error("actions file corrupt at offset {offset}: {field}: {cause:?} number")]
    Number {
        /// Where it starts.
        offset: usize,
        /// What it stands for.
        field: &'static str,
        /// Why.
        cause: VarintError,
    },
    /// A value that breaks a rule of the format.
    #[error("actions file corrupt at offset {offset}: {field} is {found}: {rule}")]
    Value {
        /// Where it starts.
        offset: usize,
        /// What it stands for.
        field: &'static str,
        /// The value.
        found: u64,
        /// The rule.
        rule: &'static str,
    },
    /// A page twice in one action.
    #[error("actions file corrupt: action {action} holds page {page} twice")]
    Duplicate {
        /// The action.
        action: ActionId,
        /// The page.
        page: units::PageId,
    },
    /// More of something than accepted.
    #[error("actions file has {found} {what}, the limit is {limit}")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How many there are.
        found: u64,
        /// How many are accepted.
        limit: u64,
    },
}

/// Why a trace or a set of actions does not say which files are hot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HotError {
    /// It names inodes only, and nobody can say what they are called.
    #[error("it does not name its files: that takes the image it was recorded on, {image}")]
    NoNames {
        /// The image it was recorded on.
        image: ImageId,
    },
    /// It names inodes of another image than the one at hand.
    #[error("it was recorded on image {expected}, not on {found}")]
    OtherImage {
        /// The image at hand.
        found: ImageId,
        /// The image it was recorded on.
        expected: ImageId,
    },
    /// A page of an inode that the image does not have, or that is no regular file there.
    #[error("it speaks of inode {inode}, which is no file of image {image}")]
    UnknownInode {
        /// The inode.
        inode: InodeId,
        /// The image.
        image: ImageId,
    },
    /// A page that its file does not have.
    #[error("it speaks of page {page} of {path}, which has {size} bytes")]
    BehindEnd {
        /// The file.
        path: String,
        /// The page.
        page: u32,
        /// Length of the file in bytes.
        size: u64,
    },
}
