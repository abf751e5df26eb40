//! What is wrong with a repository, a key or a wish.

use thiserror::Error;
use trust::Refusal;

/// Why something cannot be signed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SigningError {
    /// A key file is none, or of another kind.
    #[error("this is no Ed25519 key: {0}")]
    NotKey(String),
    /// The key is encrypted, and there is no passphrase or a wrong one.
    #[error("the key is encrypted, and the passphrase is {0}")]
    Passphrase(&'static str),
    /// The system has no random numbers.
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
    /// A file is not metadata as this program writes it.
    #[error("{role} is not metadata: {what}")]
    NotMetadata {
        /// The file.
        role: String,
        /// What is wrong.
        what: String,
    },
    /// A file is missing.
    #[error("the repository has no file of {0}")]
    Missing(String),
    /// Too few keys of a role are at hand.
    #[error("{role} needs signatures of {needed} of its keys, and {found} are here")]
    TooFewKeys {
        /// The role.
        role: String,
        /// Its threshold.
        needed: usize,
        /// Keys that are here.
        found: usize,
    },
    /// No key that is here can bring a draft any further.
    #[error("none of the keys here is needed for the draft of {role}: it waits for {waits_for}")]
    NotNeeded {
        /// The role.
        role: String,
        /// Ids of the keys that can sign it.
        waits_for: String,
    },
    /// A draft is from before what is in force.
    #[error(
        "the draft of {role} is overtaken: it would be version {draft}, and version {present} is in force; make the change again"
    )]
    Overtaken {
        /// The role.
        role: String,
        /// Version of the draft.
        draft: u64,
        /// Version that is in force.
        present: u64,
    },
    /// A draft is from after what is known here.
    #[error(
        "the draft of {role} is version {draft} and does not follow version {present}, the newest that is known here"
    )]
    Ahead {
        /// The role.
        role: String,
        /// Version of the draft.
        draft: u64,
        /// Version that is known.
        present: u64,
    },
    /// A signature of a draft is not right.
    #[error("the draft of {role} has a signature that is {what}: key {key}")]
    BadSignature {
        /// The role.
        role: String,
        /// What is wrong.
        what: &'static str,
        /// Id of the key.
        key: String,
    },
    /// Others are asked to sign another change of the same file.
    #[error("another change of {0} still waits for signatures")]
    Pending(String),
    /// A name that is none.
    #[error("{0:?} is no name: write NAME:TAG, of letters, digits, '.', '-' and '_'")]
    BadName(String),
    /// A name that is not signed.
    #[error("nobody has signed {0}")]
    NotSigned(String),
    /// A role that cannot be made or is not there.
    #[error("{role:?}: {what}")]
    BadRole {
        /// The role.
        role: String,
        /// What is wrong.
        what: String,
    },
    /// What was signed does not pass as a device checks it.
    #[error("what was signed is not what a device accepts: {0}")]
    Refused(#[from] Refusal),
}
