//! What can be wrong with an actions file.

use trace::varint::VarintError;
use units::ActionId;

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
