//! The report of an unmount: what became of the changes of a volume.

use serde::{Deserialize, Serialize};
use stream::Lost;

/// What became of the changes that were made through a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnmountReport {
    /// Programs still use the mount: it ends with the last of them, and what they write until then
    /// still counts.
    pub in_use: bool,
    /// Transactions that are not on the server yet; they lie in the outbox, and are sent when the
    /// volume is mounted with it again.
    pub unsent_transactions: u64,
    /// Their bytes.
    pub unsent_bytes: u64,
    /// Changes that the server refused, or that could not be kept.
    pub lost: Vec<Lost>,
}
